-- What scripts that change a wallet share. Put between the prelude and the script's own text when it is loaded.
--
-- KEYS[2]  the partition's feed
-- KEYS[3]  the wallet
-- ARGV[4]  the player's number in base 62
--
-- An entry of the feed is one field, `e`, with words between single spaces:
--   kind hunt player seq balance shown_seq pending_coins pending_finds due prev_ms prev_n skip what…
-- The wallet is the one after the entry. `due` is when its earliest pending find runs out, from the entry's time, or `-`.
-- `prev_ms` and `prev_n` lead back to the wallet's entry before, from this entry's id, or `-`; `skip`, at every 32nd
-- entry, to the one 32 entries before, as ms:n. What follows is a find, for the kinds f (found), c (credited), e (expired),
-- o (expired by a store outage), r (reinstated) and v (revoked):
--   find_seq treasure coins age window repeatable id
-- and, where c or r bring back a credit that was lost and whose window has run out since, how long before the entry it was
-- made.
-- `age` is how long before the entry it was found; treasure is a number or `-`; id is the client's, or `-` when repeatable
-- is 0. For the kind g (adjusted): coins, and JSON with reason, key and by.
--
-- Numbers are whole and below 2^53, which Lua's hold exactly; `%d` writes them in full where `..` would not, from 10^14 on.
local player = ARGV[4]
local COINS_MAX = 9007199254740991
local SKIP = 32
local recorded, credited, expired, pending, revoked, finds = 0, 0, 0, 0, 0, 0
-- What the partition may record beyond its share of the hunt's coins, lent by others, or less what it has lent.
local lent = 0
if state[4] then recorded, credited, expired, pending, revoked, finds, lent = cmsgpack.unpack(state[4]) end
local b, s, v, c, f, d = 0, 0, 0, 0, 0, 0
local l, m, k, j = 0, 0, 0, 0
-- The wallet's score in what is due, or 0. Never later than d, but earlier after a credit: then the sweeper, which comes by
-- at that time, puts it right. So a player who finds and collects costs what is due one write a window, not two a find.
local q = 0
local first = n
local entries = {}

-- Takes the wallet's fields w and z.
local function take(w, z)
  if not w then return end
  b, s, v, c, f, d = cmsgpack.unpack(w)
  l, m, k, j, q = cmsgpack.unpack(z)
end

-- Notes an entry, to be written by commit().
local function add(kind, what)
  s, n = s + 1, n + 1
  if kind ~= 'f' and kind ~= 'g' and kind ~= 'v' then v = s end
  local skip = '-'
  if s % SKIP == 0 then
    if k ~= 0 then skip = (now - k) .. ':' .. (n - j) end
    k, j = now, n
  end
  if l == 0 then
    entries[#entries + 1] = string.format('%s %s %s %d %d %d %d %d %s - - %s %s',
      kind, hunt, player, s, b, v, c, f, d == 0 and '-' or d - now, skip, what)
  else
    entries[#entries + 1] = string.format('%s %s %s %d %d %d %d %d %s %d %d %s %s',
      kind, hunt, player, s, b, v, c, f, d == 0 and '-' or d - now, now - l, n - m, skip, what)
  end
  l, m = now, n
end

-- What an entry says of a find.
local function find_text(seq, treasure, coins, found_at, window, repeatable, id)
  return string.format('%d %s %d %d %d %s %s', seq, treasure, coins, now - found_at, window, repeatable, id)
end

-- Writes the entries, what is due, the wallet with further fields, and the partition's state.
local function commit(due_key, ...)
  for i = 1, #entries do
    redis.call('XADD', KEYS[2], string.format('%d-%d', now, first + i), 'e', entries[i])
  end
  if d ~= 0 and (q == 0 or d < q) then
    q = d
    redis.call('ZADD', due_key, string.format('%d', q), hunt .. ':' .. player)
  end
  redis.call('HSET', KEYS[3], 'w', cmsgpack.pack(b, s, v, c, f, d), 'z', cmsgpack.pack(l, m, k, j, q), ...)
  redis.call('HSET', KEYS[1], 'at', cmsgpack.pack(n, now),
    'h' .. hunt, cmsgpack.pack(recorded, credited, expired, pending, revoked, finds, lent))
end

-- The kind of the entry for a find that ran out at `at`: by a store outage, or by its window.
local function expiry(outages_key, at)
  local span = redis.call('ZREVRANGEBYSCORE', outages_key, at, '-inf', 'LIMIT', 0, 1)[1]
  if span and at <= tonumber(string.match(span, '%d+$')) then return 'o' end
  return 'e'
end
