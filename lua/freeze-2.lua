-- Stops recording in one hunt of a partition while the hunt changes: a find, carrying the old generation, is refused and
-- asked again.
--
-- KEYS  1 state, 2 treasures found in the partition
-- ARGV  1-3 see prelude
--       4 the token of whoever changes the hunt
-- Reply now, the bits of the treasures found, pending coins, pending finds
redis.call('HSET', KEYS[1], 'g' .. hunt, '~' .. ARGV[4])
local _, pending, finds = nil, 0, 0
if state[4] then _, _, _, pending, _, finds = cmsgpack.unpack(state[4]) end
return {now, redis.call('GET', KEYS[2]) or '', pending, finds}
