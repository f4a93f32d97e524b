-- Writes a hunt that has changed.
--
-- KEYS  1 hunts, 2 the hunt's document
-- ARGV  1 hunt, 2 the token it was locked with, 3 its number, 4 its generation, 5 the document
-- Reply 1, or 0 if somebody else has taken the lock over
local held = redis.call('HGET', KEYS[1], 'l:' .. ARGV[1])
if not held or string.match(held, '^%S+') ~= ARGV[2] then return 0 end
local next = tonumber(redis.call('HGET', KEYS[1], 'next') or 1)
local known = redis.call('HEXISTS', KEYS[1], 'h:' .. ARGV[1]) == 1
if not known and tonumber(ARGV[3]) < next then
  -- Is there another hunt with the number? One that a failover took comes back with its own, which nobody else has got.
  local values = redis.call('HVALS', KEYS[1])
  for i = 1, #values do
    if string.match(values[i], '^(%d+) %d+$') == ARGV[3] then return 0 end
  end
end
redis.call('SET', KEYS[2], ARGV[5])
redis.call('HSET', KEYS[1], 'h:' .. ARGV[1], ARGV[3] .. ' ' .. ARGV[4])
if not known then redis.call('HSET', KEYS[1], 'next', math.max(next, ARGV[3] + 1)) end
return 1
