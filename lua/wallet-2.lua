-- Loads a wallet.
--
-- KEYS  1 state, 2 wallet
-- ARGV  1-3 see prelude
-- Reply now, balance, seq, shown_seq, pending_coins, pending_finds, due_at, and time and counter of the feed's last entry,
--       which the wallet is as of
local wallet = redis.call('HGET', KEYS[2], 'w')
local b, s, v, c, f, d = 0, 0, 0, 0, 0, 0
if wallet then b, s, v, c, f, d = cmsgpack.unpack(wallet) end
return {now, b, s, v, c, f, d, last, n}
