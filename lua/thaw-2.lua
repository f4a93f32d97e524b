-- Lets a partition record in a hunt again, with the generation that the hunt has now.
--
-- KEYS  1 state, 2 feed
-- ARGV  1-3 see prelude
--       4 the token it was frozen with, 5 the generation, 6 1 to tell the feed's readers
-- Reply 1, or 0 if somebody else froze it since or it is further on; then time and counter of the feed's last entry
-- Appends  h <hunt> <generation>
local is = state[3]
if is and is ~= '~' .. ARGV[4] and not (tonumber(is) and tonumber(is) < tonumber(ARGV[5])) then
  return {0, last, n}
end
if ARGV[6] == '1' then
  n, last = n + 1, now
  redis.call('XADD', KEYS[2], now .. '-' .. n, 'e', 'h ' .. hunt .. ' ' .. ARGV[5])
end
redis.call('HSET', KEYS[1], 'at', cmsgpack.pack(n, last), 'g' .. hunt, ARGV[5])
return {1, last, n}
