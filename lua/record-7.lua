-- Records finds of one player in one hunt, each for itself.
--
-- KEYS  1 state, 2 feed, 3 wallet, 4 due, 5 erased players, 6 treasures found in the partition, 7 outages
-- ARGV  1-4 see prelude and ledger
--       5 the hunt's generation, which the rest of the arguments is of
--       6 what the operator said last: o (open), c (closed), a (archived) or -
--       7 opens_at or -, 8 closes_at or -, 9 the window in ms
--       10 the most pending finds, 11 how long a client's id is remembered in ms
--       12 the most coins that may be recorded in this partition: its share of the hunt's 2^53 - 1
--       then for each find: the wallet's field that remembers it, treasure's number or -, coins, found_at or -,
--       repeatable (0 or 1), the client's id or -, and 1 if the treasure is to be noted as found
-- Reply now, the wallet (balance, seq, shown_seq, pending_coins, pending_finds, due_at), then for each find
--       f, seq, found_at, kind of its expiry or ''  recorded
--       d, id of the entry, the entry               recorded before
--       x, why                                      refused; with why = share, then how many coins are to be lent
--                                                   by other partitions; with why = again, not looked at yet
--       or the error GENERATION <the partition's>
-- Appends  f for each find recorded, then e or o for one that was past its window already
if state[3] ~= ARGV[5] then
  return redis.error_reply('GENERATION ' .. (state[3] or 'none'))
end
local opens, closes, life = tonumber(ARGV[7]), tonumber(ARGV[8]), ''
if ARGV[6] == 'a' then
  life = 'archived'
elseif ARGV[6] == 'c' or (closes and closes <= now) then
  life = 'closed'
elseif ARGV[6] ~= 'o' and not (opens and opens <= now) then
  life = 'draft'
end
local window, finds_max = tonumber(ARGV[9]), tonumber(ARGV[10])
local ttl, share = tonumber(ARGV[11]), ARGV[12] + lent

local wallet
if #ARGV == 19 then
  wallet = redis.call('HMGET', KEYS[3], 'w', 'z', 'x', ARGV[13])
else
  local fields = {'w', 'z', 'x'}
  for i = 13, #ARGV, 7 do fields[#fields + 1] = ARGV[i] end
  wallet = redis.call('HMGET', KEYS[3], unpack(fields))
end
take(wallet[1], wallet[2])
-- A wallet is marked when its player is erased; only one that is yet to come is looked up.
local erased = wallet[3] or (s == 0 and redis.call('SISMEMBER', KEYS[5], player) == 1)

local reply, extra, noted, fresh, waits = {}, {}, {}, {}, false
local function say(one, two, three, four)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = one, two, three, four
end
for i = 13, #ARGV, 7 do
  local field, treasure, coins = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local found_at, repeatable, id = tonumber(ARGV[i + 3]), ARGV[i + 4], ARGV[i + 5]
  local known = wallet[4 + (i - 13) / 7]
  if known and repeatable == '1' and now - string.match(known, '^%d+') > ttl then known = nil end
  if waits then
    -- Behind one that other partitions may make possible: asked again after it, so that finds keep their order.
    say('x', 'again')
  elseif erased then
    say('x', 'erased')
  elseif found_at and found_at > now + 1000 then
    say('x', 'ahead')
  elseif fresh[field] then
    say('d', fresh[field][1], entries[fresh[field][2]])
  elseif known then
    local entry = redis.call('XRANGE', KEYS[2], known, known)[1]
    if entry then say('d', known, entry[2][2]) else say('x', 'lost') end
  elseif life ~= '' then
    say('x', life)
  elseif f >= finds_max then
    say('x', 'many')
  elseif b + c + coins > COINS_MAX then
    say('x', 'range')
  elseif recorded + coins > share then
    waits = true
    say('x', 'share', recorded + coins - share)
  else
    if not found_at or found_at > now then found_at = now end
    local ends, due = found_at + window, d
    recorded, pending, finds = recorded + coins, pending + coins, finds + 1
    c, f = c + coins, f + 1
    if d == 0 or ends < d then d = ends end
    local seq = s + 1
    local what = find_text(seq, treasure, coins, found_at, window, repeatable, id)
    add('f', what)
    local entry_id = string.format('%d-%d', now, n)
    fresh[field] = {entry_id, #entries}
    extra[#extra + 1], extra[#extra + 2] = field, entry_id
    local kind = ''
    if now > ends then
      pending, finds, expired = pending - coins, finds - 1, expired + coins
      c, f, d = c - coins, f - 1, due
      kind = expiry(KEYS[7], ends)
      add(kind, what)
    else
      extra[#extra + 1] = 'p' .. f
      extra[#extra + 1] = cmsgpack.pack(seq, treasure, coins, found_at, window, repeatable, id)
    end
    if ARGV[i + 6] == '1' then noted[#noted + 1] = treasure end
    say('f', seq, found_at, kind)
  end
end
if #entries > 0 then
  commit(KEYS[4], unpack(extra))
  for i = 1, #noted do redis.call('SETBIT', KEYS[6], noted[i], 1) end
end
return {now, b, s, v, c, f, d, unpack(reply)}
