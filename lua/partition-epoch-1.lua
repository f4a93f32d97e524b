-- Brings a partition to the store's epoch, and makes its state if it has none.
--
-- KEYS  1 state
-- ARGV  1 the store's epoch
-- Reply the partition's epoch, and time and counter of its feed's last entry
local is = tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0)
if is < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
  redis.call('HSETNX', KEYS[1], 'at', cmsgpack.pack(0, 0))
  redis.call('HSETNX', KEYS[1], 'forgotten', '0-0')
  is = tonumber(ARGV[1])
end
local n, last = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'at'))
return {is, last, n}
