-- Notes that an instance is up.
--
-- KEYS  1 identity
-- ARGV  1 the identity that the caller knows
-- Reply now, and the epoch; or 'other' if the store is not the one that the caller knows
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
local is = redis.call('HMGET', KEYS[1], 'identity', 'alive_ms', 'epoch')
if is[1] ~= ARGV[1] then return 'other' end
if now > (tonumber(is[2]) or 0) then redis.call('HSET', KEYS[1], 'alive_ms', now) end
return {now, tonumber(is[3])}
