-- What every script of a partition begins with. Put before the script's own text when it is loaded.
--
-- KEYS[1]  the partition's state
-- ARGV[1]  the epoch that the caller believes in
-- ARGV[2]  the latest time that the caller holds possible, in milliseconds: a server whose clock has stepped beyond it
--          decides nothing until the caller has put the step on record as an outage
-- ARGV[3]  the hunt's number
--
-- Replies of every script: the error EPOCH <the partition's epoch, or none>, the error CLOCK <the server's time>.
-- Leaves behind: hunt, now, n and last (counter and time of the feed's last entry), state: {epoch, n and last, the hunt's
-- generation, what the ledger comes to}, the second and fourth packed, as one string costs a third of what its numbers
-- would.
local hunt = ARGV[3]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'at', 'g' .. hunt, 'h' .. hunt)
if state[1] ~= ARGV[1] then
  return redis.error_reply('EPOCH ' .. (state[1] or 'none'))
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
local n, last = 0, 0
if state[2] then n, last = cmsgpack.unpack(state[2]) end
-- Time never runs backwards, whatever the server's clock does.
if now < last then now = last end
if now > tonumber(ARGV[2]) then
  return redis.error_reply(string.format('CLOCK %d', now))
end
