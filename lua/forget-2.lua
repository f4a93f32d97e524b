-- Forgets a client's find id past its time.
--
-- KEYS  1 state, 2 wallet
-- ARGV  1-3 see prelude
--       4 the wallet's field that remembers it, 5 the id of the entry that it must still lead to: the client may have used
--       it again since
-- Reply 1 if it was forgotten
if redis.call('HGET', KEYS[2], ARGV[4]) ~= ARGV[5] then return 0 end
return redis.call('HDEL', KEYS[2], ARGV[4])
