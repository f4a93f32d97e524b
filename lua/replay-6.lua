-- Brings back what a failover took of one find: the find, its credit, or its reinstatement. What survived is left as it is,
-- so it may be offered in any order and as often as one likes. A hunt that has closed and a window that has run out since
-- do not matter: both held when it was done.
--
-- KEYS  1 state, 2 feed, 3 wallet, 4 due, 5 erased players, 6 treasures found in the partition
-- ARGV  1-4 see prelude and ledger
--       5 the hunt's generation
--       6 f (found), c (credited) or r (reinstated by an operator)
--       7 the wallet's field that remembers the find
--       8 treasure's number or -, 9 coins, 10 found_at, 11 the window in ms, 12 repeatable (0 or 1), 13 the client's id or -
--       14 when that was done, 15 how long a client's id is remembered in ms
--       16 the most coins that may be recorded in this partition
-- Reply now, the wallet (balance, seq, shown_seq, pending_coins, pending_finds, due_at), then
--       {'back'}      it was lost and is there again
--       {'kept'}      it is there
--       {'x', why}    it cannot come back; with why = share, then how many coins are to be lent by other partitions
--       or the error GENERATION <the partition's>
-- Appends  f if the find is unknown; c if it is to be credited, with how long ago it was where its window has run out since;
--          r, with the same, if it has expired since; o before r for a reinstatement of a find whose expiry is lost too
if state[3] ~= ARGV[5] then
  return redis.error_reply('GENERATION ' .. (state[3] or 'none'))
end
local what, field, done_at = ARGV[6], ARGV[7], tonumber(ARGV[14])
-- Looking back for what became of a find ends here; a wallet moves on by a few entries between a find and its credit.
local STEPS_MAX = 4096
-- A new primary's clock may be behind the one whose writes come back. The partition's time goes on from theirs.
if now < done_at then now = done_at end

local wallet = redis.call('HMGET', KEYS[3], 'w', 'z', 'x', field)
take(wallet[1], wallet[2])
local function reply(...)
  return {now, b, s, v, c, f, d, {...}}
end
if wallet[3] or redis.call('SISMEMBER', KEYS[5], player) == 1 then
  return reply('x', 'erased')
end

-- A find as entries and slots have it.
local function a_find(seq, treasure, coins, found_at, window, repeatable, id)
  return {seq = tonumber(seq), treasure = treasure, coins = tonumber(coins), found_at = found_at, window = window,
    repeatable = repeatable, id = id, ends = found_at + window}
end
local function text_of(find)
  return find_text(find.seq, find.treasure, find.coins, find.found_at, find.window, find.repeatable, find.id)
end
local wanted = a_find(0, ARGV[8], ARGV[9], tonumber(ARGV[10]), ARGV[11], ARGV[12], ARGV[13])

-- How long ago it was credited, by the time at which that was.
local function ago(find)
  return ' ' .. (now - math.min(math.max(done_at, find.found_at), find.ends))
end
local function credit(find)
  b, credited = b + find.coins, credited + find.coins
  pending, finds = pending - find.coins, finds - 1
  c, f = c - find.coins, f - 1
  add('c', text_of(find) .. (now > find.ends and ago(find) or ''))
end
local function expire(find)
  pending, finds, expired = pending - find.coins, finds - 1, expired + find.coins
  c, f = c - find.coins, f - 1
  add('o', text_of(find))
end
local function reinstate(find, suffix)
  b, credited, expired = b + find.coins, credited + find.coins, expired - find.coins
  add('r', text_of(find) .. suffix)
  return 'y' .. find.seq
end

local known = wallet[4]
local recorded_by = what == 'f' and done_at or wanted.found_at
if known and wanted.repeatable == '1' and string.match(known, '^%d+') + ARGV[15] < recorded_by then
  -- Another find had the id before, and was forgotten when this one was made.
  known = nil
end

if not known then
  local share = ARGV[16] + lent
  if b + c + wanted.coins > COINS_MAX then
    return reply('x', 'range')
  elseif recorded + wanted.coins > share then
    return reply('x', 'share', recorded + wanted.coins - share)
  end
  wanted.seq = s + 1
  recorded, pending, finds = recorded + wanted.coins, pending + wanted.coins, finds + 1
  c, f = c + wanted.coins, f + 1
  local due = d
  if d == 0 or wanted.ends < d then d = wanted.ends end
  add('f', text_of(wanted))
  local entry_id = now .. '-' .. n
  if what == 'f' then
    commit(KEYS[4], field, entry_id, 'p' .. f, cmsgpack.pack(wanted.seq, wanted.treasure, wanted.coins, wanted.found_at,
      wanted.window, wanted.repeatable, wanted.id))
  elseif what == 'c' then
    d = due
    credit(wanted)
    commit(KEYS[4], field, entry_id)
  else
    d = due
    expire(wanted)
    commit(KEYS[4], field, entry_id, reinstate(wanted, ''), 1)
  end
  if wanted.treasure ~= '-' then redis.call('SETBIT', KEYS[6], wanted.treasure, 1) end
  return reply('back')
end

local first_entry = redis.call('XRANGE', KEYS[2], known, known)[1]
if not first_entry then return reply('x', 'lost') end
local seq, treasure, coins = string.match(first_entry[2][2],
  '^f %S+ %S+ %d+ %d+ %d+ %d+ %d+ %S+ %S+ %S+ %S+ (%d+) (%S+) (%d+) ')
if not seq then return reply('x', 'lost') end
seq = tonumber(seq)
if treasure ~= wanted.treasure or (treasure == '-' and tonumber(coins) ~= wanted.coins) then
  -- The client has used the id for something else since.
  return reply('x', 'conflict')
elseif what == 'f' then
  return reply('kept')
end

-- Is it pending?
local names, slots, at = {}, {}, nil
for i = 1, f do names[i] = 'p' .. i end
if f > 0 then slots = redis.call('HMGET', KEYS[3], unpack(names)) end
local find
for i = 1, #slots do
  local slot = {cmsgpack.unpack(slots[i])}
  if tonumber(slot[1]) == seq then
    at, find = i, a_find(unpack(slot))
  end
end
if find then
  local extra, left, due = {}, 0, 0
  for i = 1, #slots do
    if i ~= at then
      local _, _, _, found_at, window = cmsgpack.unpack(slots[i])
      if due == 0 or found_at + window < due then due = found_at + window end
      left = left + 1
      extra[#extra + 1], extra[#extra + 2] = names[left], slots[i]
    end
  end
  d = due
  if what == 'c' then
    credit(find)
  elseif now > find.ends then
    expire(find)
    extra[#extra + 1], extra[#extra + 2] = reinstate(find, ''), 1
  else
    return reply('x', 'pending')
  end
  commit(KEYS[4], unpack(extra))
  redis.call('HDEL', KEYS[3], names[#names])
  return reply('back')
end

-- What has become of it? The newest entry that settles it says so.
local id = s > 0 and (l .. '-' .. m) or ''
for _ = 1, STEPS_MAX do
  if id == '' or id == known then return reply('x', 'lost') end
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  if not entry then return reply('x', 'lost') end
  local kind, prev_ms, prev_n, rest = string.match(entry[2][2],
    '^(%S+) %S+ %S+ %d+ %d+ %d+ %d+ %d+ %S+ (%S+) (%S+) %S+ (.*)$')
  local ms, counter = string.match(id, '^(%d+)-(%d+)$')
  if kind and kind ~= 'g' and kind ~= 'f' then
    local of, treasure, coins, age, window, repeatable, name = string.match(rest,
      '^(%d+) (%S+) (%d+) (%d+) (%d+) (%d) (%S+)')
    if tonumber(of) == seq then
      if kind == 'c' or kind == 'r' then return reply('kept') end
      if kind == 'v' then return reply('x', 'erased') end
      if what == 'r' and kind ~= 'o' then return reply('x', 'expired') end
      find = a_find(seq, treasure, coins, ms - age, window, repeatable, name)
      if b + c + find.coins > COINS_MAX then return reply('x', 'range') end
      local mark = reinstate(find, what == 'c' and ago(find) or '')
      commit(KEYS[4], mark, 1)
      return reply('back')
    end
  end
  id = prev_ms == '-' and '' or ((ms - prev_ms) .. '-' .. (counter - prev_n))
end
return reply('x', 'lost')
