-- Settles a player's pending finds in one hunt: expires those that have run out and, for a poll, credits the others.
--
-- KEYS  1 state, 2 feed, 3 wallet, 4 due, 5 outages
-- ARGV  1-4 see prelude and ledger
--       5 credit (a poll), keep (a poll during a recovery, which leaves what has run out) or expire (the sweeper, which
--       leaves what can still be credited)
-- Reply now, then each entry appended, the last of which tells the wallet; without any, the wallet (balance, seq, shown_seq,
--       pending_coins, pending_finds, due_at); or -, where the sweeper found nothing to settle and put right when to come
--       again. Each number in a reply costs the reader as much as an entry does.
-- Appends  c, e or o for each find settled, in the order in which they were found
-- Most players have one find pending, which comes with the wallet. What p1 holds when nothing is pending says nothing: it
-- is left to be written over.
local wallet = redis.call('HMGET', KEYS[3], 'w', 'z', 'p1')
take(wallet[1], wallet[2])
local keeping = ARGV[5] == 'keep'
local crediting = keeping or ARGV[5] == 'credit'
if f == 0 or not (crediting or d < now) then
  if not crediting and q ~= d then
    q = d
    if q == 0 then
      redis.call('ZREM', KEYS[4], hunt .. ':' .. player)
    else
      redis.call('ZADD', KEYS[4], string.format('%d', q), hunt .. ':' .. player)
    end
    redis.call('HSET', KEYS[3], 'z', cmsgpack.pack(l, m, k, j, q))
    return {now, '-'}
  end
  return {now, b, s, v, c, f, d}
end
local count, names, slots = f, {'p1'}, {wallet[3]}
if count > 1 then
  for i = 2, count do names[i] = 'p' .. i end
  slots = redis.call('HMGET', KEYS[3], unpack(names))
end
local left, settled, due = {}, {}, 0
for i = 1, count do
  local seq, treasure, coins, found_at, window, repeatable, id = cmsgpack.unpack(slots[i])
  local ends = found_at + window
  local kind
  if now > ends then
    kind = not keeping and expiry(KEYS[5], ends)
  elseif crediting and found_at <= now then
    kind = 'c'
  end
  if kind then
    settled[#settled + 1] = {kind, coins, find_text(seq, treasure, coins, found_at, window, repeatable, id)}
  else
    left[#left + 1] = slots[i]
    if due == 0 or ends < due then due = ends end
  end
end
if #settled == 0 then
  return {now, b, s, v, c, f, d}
end
d = due
for i = 1, #settled do
  local kind, coins = settled[i][1], settled[i][2]
  c, f = c - coins, f - 1
  pending, finds = pending - coins, finds - 1
  if kind == 'c' then
    b, credited = b + coins, credited + coins
  else
    expired = expired + coins
  end
  add(kind, settled[i][3])
end
-- Nobody comes by again for what is due until the wallet says when.
if not crediting then
  if d == 0 then redis.call('ZREM', KEYS[4], hunt .. ':' .. player) end
  q = 0
end
local extra = {}
for i = 1, #left do
  extra[#extra + 1], extra[#extra + 2] = names[i], left[i]
end
commit(KEYS[4], unpack(extra))
if count > 1 then redis.call('HDEL', KEYS[3], unpack(names, math.max(2, #left + 1))) end
return {now, unpack(entries)}
