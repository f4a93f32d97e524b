-- Begins to erase a player: from here on the number takes no finds. The name stays until its pending finds are revoked
-- in all hunts, so that an erasure that broke off is taken up by asking again.
--
-- KEYS  1 state, 2 names to numbers, 3 erased players
-- ARGV  1-3 see prelude
--       4 the name
-- Reply the number, or '' if nobody has the name
local number = redis.call('HGET', KEYS[2], ARGV[4])
if not number then return '' end
redis.call('SADD', KEYS[3], number)
return number
