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
-- `age` is how long before the entry it was found; treasure is a number or `-`; id is the client's, or `-` when repeatable
-- is 0. For the kind g (adjusted): coins, and JSON with reason, key and by.
--
-- Numbers are whole and below 2^53, which Lua's hold exactly; `%d` writes them in full where `..` would not.
local player = ARGV[4]
local COINS_MAX = 9007199254740991
local SKIP = 32
local n = tonumber(state[2]) or 0
local recorded, credited, expired = tonumber(state[5]) or 0, tonumber(state[6]) or 0, tonumber(state[7]) or 0
local pending, revoked, finds = tonumber(state[8]) or 0, tonumber(state[9]) or 0, tonumber(state[10]) or 0
-- What the partition may record beyond its share of the hunt's coins, lent by others, or less what it has lent.
local lent = tonumber(state[11]) or 0
local FIELDS = {'b', 's', 'v', 'c', 'f', 'd', 'l', 'm', 'k', 'j', 'x'}
local b, s, v, c, f, d, l, m, k, j
local due_before
local entries = {}

-- Takes the values of FIELDS.
local function take(wallet)
  b, s, v = tonumber(wallet[1]) or 0, tonumber(wallet[2]) or 0, tonumber(wallet[3]) or 0
  c, f, d = tonumber(wallet[4]) or 0, tonumber(wallet[5]) or 0, tonumber(wallet[6]) or 0
  l, m, k, j = wallet[7], wallet[8], wallet[9], wallet[10]
  due_before = d
end

-- Notes an entry, to be written by commit().
local function add(kind, what)
  s = s + 1
  n = n + 1
  if kind ~= 'f' and kind ~= 'g' and kind ~= 'v' then v = s end
  local skip = '-'
  if s % SKIP == 0 and k then skip = (now - k) .. ':' .. (n - j) end
  entries[#entries + 1] = string.format('%s %s %s %d %d %d %d %d %s %s %s %s %s',
    kind, hunt, player, s, b, v, c, f, d == 0 and '-' or d - now, l and now - l or '-', l and n - m or '-', skip, what)
  l, m = now, n
  if s % SKIP == 0 then k, j = now, n end
end

-- What an entry says of a find.
local function find_text(seq, treasure, coins, found_at, window, repeatable, id)
  return string.format('%d %s %d %d %d %s %s', seq, treasure, coins, now - found_at, window, repeatable, id)
end

-- Writes the entries, the wallet with the fields of `extra`, what is due, and the partition's state.
local function commit(extra, due_key)
  local first = n - #entries
  for i = 1, #entries do
    redis.call('XADD', KEYS[2], now .. '-' .. (first + i), 'e', entries[i])
  end
  local at = #extra
  extra[at + 1], extra[at + 2], extra[at + 3], extra[at + 4] = 'b', b, 's', s
  extra[at + 5], extra[at + 6], extra[at + 7], extra[at + 8] = 'v', v, 'c', c
  extra[at + 9], extra[at + 10], extra[at + 11], extra[at + 12] = 'f', f, 'd', d
  extra[at + 13], extra[at + 14], extra[at + 15], extra[at + 16] = 'l', l, 'm', m
  if k then
    extra[at + 17], extra[at + 18], extra[at + 19], extra[at + 20] = 'k', k, 'j', j
  end
  redis.call('HSET', KEYS[3], unpack(extra))
  if d ~= due_before then
    if d == 0 then
      redis.call('ZREM', due_key, hunt .. ':' .. player)
    else
      redis.call('ZADD', due_key, d, hunt .. ':' .. player)
    end
  end
  redis.call('HSET', KEYS[1], 'n', n, 't', now, 'r' .. hunt, recorded, 'c' .. hunt, credited, 'e' .. hunt, expired,
    'p' .. hunt, pending, 'v' .. hunt, revoked, 'f' .. hunt, finds)
end

-- The kind of the entry for a find that ran out at `at`: by a store outage, or by its window.
local function expiry(outages_key, at)
  local span = redis.call('ZREVRANGEBYSCORE', outages_key, at, '-inf', 'LIMIT', 0, 1)[1]
  if span and at <= tonumber(string.match(span, '%d+$')) then return 'o' end
  return 'e'
end
