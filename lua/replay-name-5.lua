-- Brings back a player's name and number that a failover took.
--
-- KEYS  1 state, 2 names to numbers, 3 numbers to names, 4 erased names, 5 erased players
-- ARGV  1-3 see prelude
--       4 the name, 5 its digest, 6 when the token was issued or -, 7 the number
-- Reply now, and 'back', or 'kept', or 'x' if the player was erased; or the number that the name has got since
local number = redis.call('HGET', KEYS[2], ARGV[4])
local erased_at = redis.call('HGET', KEYS[4], ARGV[5])
local issued_at = tonumber(ARGV[6])
if erased_at and (issued_at or not number) and not (issued_at and issued_at > tonumber(erased_at)) then
  return {now, 'x'}
end
if number then return {now, number == ARGV[7] and 'kept' or number} end
if redis.call('HEXISTS', KEYS[3], ARGV[7]) == 1 or redis.call('SISMEMBER', KEYS[5], ARGV[7]) == 1 then
  return {now, 'x'}
end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[7])
redis.call('HSET', KEYS[3], ARGV[7], ARGV[4])
return {now, 'back'}
