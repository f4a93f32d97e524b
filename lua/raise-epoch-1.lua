-- Raises the epoch when the server's history of writes is not the one that the epoch was begun with. In a cluster: when a
-- primary's is not among those that are known, which are kept as replid:<replication id>, each with the epoch it came with.
--
-- KEYS  1 identity
-- ARGV  1 the server's replication id, 2 1 when an operator accepts the store as it is, 3 the latest epoch of this store that
--       the caller has seen, or 0
--       4 1 in a cluster, and then: 5… the replication ids of other primaries
-- Reply the epoch
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch'))
local cluster, known = ARGV[4] == '1', true
if cluster then
  for i = 1, #ARGV do
    if (i < 2 or i > 4) and redis.call('HEXISTS', KEYS[1], 'replid:' .. ARGV[i]) == 0 then known = false end
  end
else
  known = redis.call('HGET', KEYS[1], 'replid') == ARGV[1]
end
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'accepted_ms', now) end
local seen = tonumber(ARGV[3])
if ARGV[2] ~= '1' and known and epoch >= seen then return epoch end
-- An epoch that a failover took back is not used twice: neither one that the caller has seen, nor, the clock being what it
-- is, one that it has not.
epoch = math.max(epoch + 1, seen + 1, now)
redis.call('HSET', KEYS[1], 'epoch', epoch)
if not cluster then
  redis.call('HSET', KEYS[1], 'replid', ARGV[1])
  return epoch
end
for i = 1, #ARGV do
  if i < 2 or i > 4 then redis.call('HSET', KEYS[1], 'replid:' .. ARGV[i], epoch) end
end
-- The oldest are forgotten past 256: should one still be a primary's, that raises the epoch once more.
local fields, ids = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 7) == 'replid:' then ids[#ids + 1] = {tonumber(fields[i + 1]), fields[i]} end
end
table.sort(ids, function(a, b) return a[1] > b[1] end)
for i = 257, #ids do redis.call('HDEL', KEYS[1], ids[i][2]) end
return epoch
