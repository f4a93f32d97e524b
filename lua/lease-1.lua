-- Takes a lease, or keeps it.
--
-- KEYS  1 lease
-- ARGV  1 the caller's random token, 2 for how many ms
-- Reply 1 if the caller holds it
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
