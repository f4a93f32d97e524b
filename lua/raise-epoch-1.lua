-- Raises the epoch when the server's history of writes is not the one that the epoch was begun with.
--
-- KEYS  1 identity
-- ARGV  1 the server's replication id, 2 1 when an operator accepts the store as it is, 3 the latest epoch of this store that
--       the caller knows, or 0
-- Reply the epoch
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch'))
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'accepted_ms', now) end
local known = tonumber(ARGV[3])
local is_known = redis.call('HGET', KEYS[1], 'replid') == ARGV[1] and epoch >= known
if ARGV[2] ~= '1' and is_known then return epoch end
-- An epoch that a failover took back is not used twice: neither one that the caller has seen, nor, the clock being what it
-- is, one that it has not.
epoch = math.max(epoch + 1, known + 1, now)
redis.call('HSET', KEYS[1], 'epoch', epoch, 'replid', ARGV[1])
return epoch
