-- Grants or revokes coins, once a key.
--
-- KEYS  1 state, 2 feed, 3 wallet
-- ARGV  1-4 see prelude and ledger
--       5 the hunt's generation
--       6 the wallet's field that remembers the key
--       7 coins, signed; 8 1 if they are none, or beyond what a wallet may hold, 2 if the hunt is archived, else 0
--       9 the most coins that may be recorded in this partition
--       10 JSON with reason, key and by, for the entry
-- Reply now, the wallet (balance, seq, shown_seq, pending_coins, pending_finds, due_at), then
--       {'f', seq}                         made
--       {'d', id of the entry, the entry}  made before
--       {'x', why}                         refused; with why = share, then how many coins are to be lent by other partitions
--       or the error GENERATION <the partition's>
-- Appends  g
if state[3] ~= ARGV[5] then
  return redis.error_reply('GENERATION ' .. (state[3] or 'none'))
end
local wallet = redis.call('HMGET', KEYS[3], 'w', 'z', ARGV[6])
take(wallet[1], wallet[2])
local coins, share = tonumber(ARGV[7]), ARGV[9] + lent
local known = wallet[3]
local answer
if ARGV[8] == '2' then
  answer = {'x', 'archived'}
elseif known then
  local entry = redis.call('XRANGE', KEYS[2], known, known)[1]
  answer = entry and {'d', known, entry[2][2]} or {'x', 'lost'}
elseif ARGV[8] == '1' or (coins > 0 and b + c + coins > COINS_MAX) then
  answer = {'x', 'range'}
elseif coins > 0 and recorded + coins > share then
  answer = {'x', 'share', recorded + coins - share}
elseif b + coins < 0 then
  answer = {'x', 'insufficient'}
else
  b, credited = b + coins, credited + coins
  if coins > 0 then
    recorded = recorded + coins
  else
    revoked = revoked - coins
  end
  add('g', string.format('%d %s', coins, ARGV[10]))
  commit(nil, ARGV[6], now .. '-' .. n)
  answer = {'f', s}
end
return {now, b, s, v, c, f, d, answer}
