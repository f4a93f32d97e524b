-- Reads a wallet's history, newest first, by the entries' links to the one before and, across 32 entries, further back.
--
-- KEYS  1 state, 2 feed, 3 wallet
-- ARGV  1-3 see prelude
--       4 only entries with a sequence number below this
--       5 how many entries at most
--       6 the id of the entry to go on from, or - to begin with the newest
-- Reply the id to go on from, or '' at the end; then for each entry its id and its text. At most 256 entries are looked
--       at, so there may be fewer than asked for and more to come. Or {'lost', the id of an entry that is not there}.
local before, count, at = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
if at == '-' then
  local wallet = redis.call('HMGET', KEYS[3], 'w', 'z')
  if not wallet[1] then return {''} end
  local _, seq = cmsgpack.unpack(wallet[1])
  local l, m, k, j = cmsgpack.unpack(wallet[2])
  at = l .. '-' .. m
  if k ~= 0 and seq - seq % 32 >= before - 1 then at = k .. '-' .. j end
end
local reply, taken = {at}, 0
local ms, counter = string.match(at, '^(%d+)-(%d+)$')
for _ = 1, 256 do
  if at == '' or taken >= count then break end
  local entry = redis.call('XRANGE', KEYS[2], at, at)[1]
  if not entry then return {'lost', at} end
  local text = entry[2][2]
  local seq, prev_ms, prev_n, skip = string.match(text, '^%S+ %S+ %S+ (%d+) %S+ %S+ %S+ %S+ %S+ (%S+) (%S+) (%S+) ')
  seq = tonumber(seq)
  if seq < before then
    taken = taken + 1
    reply[#reply + 1], reply[#reply + 2] = at, text
  end
  if skip ~= '-' and seq - 32 >= before - 1 then
    prev_ms, prev_n = string.match(skip, '^(%d+):(%d+)$')
  end
  if prev_ms == '-' then
    at = ''
  else
    ms, counter = ms - prev_ms, counter - prev_n
    at = ms .. '-' .. counter
  end
end
reply[1] = at
return reply
