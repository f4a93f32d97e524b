-- Revokes an erased player's pending finds in one hunt, and marks the wallet so that it takes no more.
--
-- KEYS  1 state, 2 feed, 3 wallet, 4 due
-- ARGV  1-4 see prelude and ledger
-- Reply now, the wallet (balance, seq, shown_seq, pending_coins, pending_finds, due_at), the coins revoked
-- Appends  v for each find revoked
local wallet = redis.call('HMGET', KEYS[3], 'w', 'z')
take(wallet[1], wallet[2])
if s == 0 then
  return {now, b, s, v, c, f, d, 0}
end
local count, sum = f, c
if count == 0 then
  redis.call('HSET', KEYS[3], 'x', 1)
  redis.call('HDEL', KEYS[3], 'p1')
  return {now, b, s, v, c, f, d, 0}
end
local names = {}
for i = 1, count do names[i] = 'p' .. i end
local slots = redis.call('HMGET', KEYS[3], unpack(names))
d = 0
for i = 1, count do
  local seq, treasure, coins, found_at, window, repeatable, id = cmsgpack.unpack(slots[i])
  c, f = c - coins, f - 1
  pending, finds, revoked = pending - coins, finds - 1, revoked + coins
  add('v', find_text(seq, treasure, coins, found_at, window, repeatable, id))
end
commit(KEYS[4], 'x', 1)
redis.call('HDEL', KEYS[3], unpack(names))
return {now, b, s, v, c, f, d, sum}
