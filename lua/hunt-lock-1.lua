-- Lets one caller at a time change a hunt. Only work is saved by it: what a caller commits carries the token, and is
-- refused once somebody else has taken over.
--
-- KEYS  1 hunts
-- ARGV  1 hunt, 2 a random token, 3 for how many ms
-- Reply 'locked' if another token holds it; or the hunt's number and generation ('' if there is no such hunt) and the number
--       that the next hunt gets
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- @now
local held = redis.call('HGET', KEYS[1], 'l:' .. ARGV[1])
if held then
  local token, till = string.match(held, '^(%S+) (%d+)$')
  if token ~= ARGV[2] and tonumber(till) > now then return 'locked' end
end
redis.call('HSET', KEYS[1], 'l:' .. ARGV[1], string.format('%s %d', ARGV[2], now + ARGV[3]))
return {redis.call('HGET', KEYS[1], 'h:' .. ARGV[1]) or '', tonumber(redis.call('HGET', KEYS[1], 'next') or 1)}
