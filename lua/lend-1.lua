-- Gives up some of what a partition may record of a hunt's coins, or takes what others gave up. The sum of all partitions
-- never exceeds 2^53 - 1: giving up comes first, and what is lost between the two is only missing.
--
-- KEYS  1 state
-- ARGV  1-3 see prelude
--       4 the partition's own share, 5 the most coins to give up, 6 coins to take
-- Reply the coins given up
local lent = tonumber(state[11]) or 0
local spare = ARGV[4] + lent - (tonumber(state[5]) or 0)
local given = math.max(0, math.min(spare, tonumber(ARGV[5])))
if given > 0 or ARGV[6] ~= '0' then
  redis.call('HSET', KEYS[1], 'q' .. hunt, string.format('%d', lent - given + ARGV[6]))
end
return given
