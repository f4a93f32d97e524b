-- Loads a wallet.
--
-- KEYS  1 state, 2 wallet
-- ARGV  1-3 see prelude
-- Reply now, balance, seq, shown_seq, pending_coins, pending_finds, due_at, time and counter of the feed's last entry, which
--       the wallet is as of, and time and counter of the wallet's own last entry, 0 and 0 if it has none
local wallet = redis.call('HMGET', KEYS[2], 'w', 'z')
local b, s, v, c, f, d = 0, 0, 0, 0, 0, 0
local l, m = 0, 0
if wallet[1] then
  b, s, v, c, f, d = cmsgpack.unpack(wallet[1])
  l, m = cmsgpack.unpack(wallet[2])
end
return {now, b, s, v, c, f, d, last, n, l, m}
