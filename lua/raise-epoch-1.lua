-- Raises the epoch when the server's history of writes is not the one that the epoch was begun with.
--
-- KEYS  1 identity
-- ARGV  1 the server's replication id, 2 1 when an operator accepts the store as it is
-- Reply the epoch
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch'))
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'accepted_ms', now) end
if ARGV[2] ~= '1' and redis.call('HGET', KEYS[1], 'replid') == ARGV[1] then return epoch end
-- From the clock, so that an epoch which a failover took back is not used twice.
epoch = math.max(epoch + 1, now)
redis.call('HSET', KEYS[1], 'epoch', epoch, 'replid', ARGV[1])
return epoch
