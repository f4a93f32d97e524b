-- What every script of a partition begins with. Put before the script's own text when it is loaded.
--
-- KEYS[1]  the partition's state
-- ARGV[1]  the epoch that the caller believes in
-- ARGV[2]  the latest time that the caller holds possible, in milliseconds: a server whose clock has stepped beyond it
--          decides nothing until the caller has put the step on record as an outage
-- ARGV[3]  the hunt's number
--
-- Replies of every script: the error EPOCH <the partition's epoch, or none>, the error CLOCK <the server's time>.
-- Leaves behind: hunt, state, now.
local hunt = ARGV[3]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'n', 't',
  'g' .. hunt, 'r' .. hunt, 'c' .. hunt, 'e' .. hunt, 'p' .. hunt, 'v' .. hunt, 'f' .. hunt, 'q' .. hunt)
if state[1] ~= ARGV[1] then
  return redis.error_reply('EPOCH ' .. (state[1] or 'none'))
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
-- Time never runs backwards, whatever the server's clock does.
if state[3] and now < tonumber(state[3]) then
  now = tonumber(state[3])
end
if now > tonumber(ARGV[2]) then
  return redis.error_reply(string.format('CLOCK %d', now))
end
