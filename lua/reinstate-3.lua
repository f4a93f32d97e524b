-- Credits a find that had expired by a store outage, once.
--
-- KEYS  1 state, 2 feed, 3 wallet
-- ARGV  1-4 see prelude and ledger
--       5 the id of the entry by which it expired
-- Reply now, the wallet (balance, seq, shown_seq, pending_coins, pending_finds, due_at), then {'f', coins},
--       {'d'} if it was reinstated before, or {'x', why}
-- Appends  r
local entry = redis.call('XRANGE', KEYS[2], ARGV[5], ARGV[5])[1]
local of = '^o ' .. hunt .. ' ' .. player .. ' %d+ %d+ %d+ %d+ %d+ %S+ %S+ %S+ %S+ '
local seq, treasure, coins, age, window, repeatable, id
if entry then
  seq, treasure, coins, age, window, repeatable, id =
    string.match(entry[2][2], of .. '(%d+) (%S+) (%d+) (%d+) (%d+) (%d) (%S+)$')
end
local mark = 'y' .. (seq or '')
local wallet = redis.call('HMGET', KEYS[3], 'w', 'z', mark)
take(wallet[1], wallet[2])
local answer
if not seq then
  answer = {'x', 'lost'}
elseif wallet[3] then
  answer = {'d'}
elseif b + c + coins > COINS_MAX then
  answer = {'x', 'range'}
else
  coins = tonumber(coins)
  b, credited, expired = b + coins, credited + coins, expired - coins
  local found_at = string.match(ARGV[5], '^%d+') - age
  add('r', find_text(seq, treasure, coins, found_at, window, repeatable, id))
  commit(nil, mark, 1)
  answer = {'f', coins}
end
return {now, b, s, v, c, f, d, answer}
