-- Ends erasing a player: the name is forgotten, and only its digest says that tokens from before now open nothing.
--
-- KEYS  1 state, 2 feed, 3 names to numbers, 4 numbers to names, 5 erased names
-- ARGV  1-3 see prelude
--       4 the name, 5 its digest, 6 the number that it had when the erasure began, or '', 7 when it was erased, or - for now
-- Reply 1, or 0 if the name has another number by now
-- Appends  x <player>, if there was one
local number = redis.call('HGET', KEYS[3], ARGV[4]) or ''
if number ~= ARGV[6] then return 0 end
-- An erasure that comes back after a failover shuts out the tokens that it did at first, and no later ones.
local before = tonumber(redis.call('HGET', KEYS[5], ARGV[5]) or 0)
redis.call('HSET', KEYS[5], ARGV[5], math.max(before, tonumber(ARGV[7]) or now))
if number ~= '' then
  redis.call('HDEL', KEYS[3], ARGV[4])
  redis.call('HDEL', KEYS[4], number)
  redis.call('XADD', KEYS[2], now .. '-' .. (n + 1), 'e', 'x ' .. number)
  redis.call('HSET', KEYS[1], 'at', cmsgpack.pack(n + 1, now))
end
return 1
