-- Makes a store's identity, unless there is one.
--
-- KEYS  1 identity
-- ARGV  1 a random identity, 2 the schema's version, 3 the number of partitions, 4 a random secret,
--       5 the server's replication id
-- Reply 1 if it was made
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'schema', ARGV[2], 'partitions', ARGV[3], 'secret', ARGV[4],
  'replid', ARGV[5], 'created_ms', now, 'alive_ms', now, 'epoch', math.max(1, now))
return 1
