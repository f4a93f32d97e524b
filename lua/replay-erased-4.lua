-- Looks what a failover left of an erasure.
--
-- KEYS  1 state, 2 names to numbers, 3 erased names, 4 erased players
-- ARGV  1-3 see prelude
--       4 the name, 5 its digest, 6 the number that was erased or '', 7 when
-- Reply 'kept'; 'x' if the name belongs to somebody else by now; or 'lost': it is to be erased again
local number = redis.call('HGET', KEYS[2], ARGV[4]) or ''
local erased_at = tonumber(redis.call('HGET', KEYS[3], ARGV[5]) or 0)
local kept = ARGV[6] == '' or redis.call('SISMEMBER', KEYS[4], ARGV[6]) == 1
if number == '' then return kept and erased_at >= tonumber(ARGV[7]) and 'kept' or 'lost' end
if number == ARGV[6] then return 'lost' end
-- The name came to be again, by a token from after the erasure.
return kept and 'kept' or 'x'
