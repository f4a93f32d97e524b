-- Lets others change a hunt.
--
-- KEYS  1 hunts
-- ARGV  1 hunt, 2 the token it was locked with
-- Reply 1 if it was held with the token
local held = redis.call('HGET', KEYS[1], 'l:' .. ARGV[1])
if not held or string.match(held, '^%S+') ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], 'l:' .. ARGV[1])
