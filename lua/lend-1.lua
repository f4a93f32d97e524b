-- Gives up some of what a partition may record of a hunt's coins, or takes what others gave up. The sum of all partitions
-- never exceeds 2^53 - 1: giving up comes first, and what is lost between the two is only missing.
--
-- KEYS  1 state
-- ARGV  1-3 see prelude
--       4 the partition's own share, 5 the most coins to give up, 6 coins to take
-- Reply the coins given up
local recorded, credited, expired, pending, revoked, finds, lent = 0, 0, 0, 0, 0, 0, 0
if state[4] then recorded, credited, expired, pending, revoked, finds, lent = cmsgpack.unpack(state[4]) end
local given = math.max(0, math.min(ARGV[4] + lent - recorded, tonumber(ARGV[5])))
if given > 0 or ARGV[6] ~= '0' then
  lent = lent - given + ARGV[6]
  redis.call('HSET', KEYS[1], 'h' .. hunt, cmsgpack.pack(recorded, credited, expired, pending, revoked, finds, lent))
end
return given
