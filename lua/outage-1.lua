-- Puts an outage on record in a partition. Spans that touch become one; past the limit the oldest is forgotten.
--
-- KEYS  1 outages
-- ARGV  1 from, 2 to, both in ms and both part of it, 3 how many are remembered
-- Reply how many there are
local from, to = tonumber(ARGV[1]), tonumber(ARGV[2])
local spans = redis.call('ZREVRANGEBYSCORE', KEYS[1], to, '-inf')
for i = 1, #spans do
  local start, stop = string.match(spans[i], '^(%d+)-(%d+)$')
  start, stop = tonumber(start), tonumber(stop)
  if stop < from then break end
  from, to = math.min(from, start), math.max(to, stop)
  redis.call('ZREM', KEYS[1], spans[i])
end
redis.call('ZADD', KEYS[1], from, string.format('%d-%d', from, to))
local excess = redis.call('ZCARD', KEYS[1]) - ARGV[3]
if excess > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, excess - 1) end
return redis.call('ZCARD', KEYS[1])
