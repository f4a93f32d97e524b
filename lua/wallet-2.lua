-- Loads a wallet.
--
-- KEYS  1 state, 2 wallet
-- ARGV  1-3 see prelude
-- Reply now, balance, seq, shown_seq, pending_coins, pending_finds, due_at, and time and counter of the feed's last entry,
--       which the wallet is as of
local wallet = redis.call('HMGET', KEYS[2], 'b', 's', 'v', 'c', 'f', 'd')
local reply = {now}
for i = 1, 6 do reply[i + 1] = tonumber(wallet[i]) or 0 end
reply[8], reply[9] = tonumber(state[3]) or 0, tonumber(state[2]) or 0
return reply
