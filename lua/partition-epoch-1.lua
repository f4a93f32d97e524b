-- Brings a partition to the store's epoch, and makes its state if it has none.
--
-- KEYS  1 state
-- ARGV  1 the store's epoch
-- Reply the partition's epoch, time and counter of its feed's last entry, and where the epoch began: the time of the last
--       entry that an epoch before left, and which epoch that was (0 for none). Of what that epoch's callers did, everything
--       before that time is there.
local is = tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0)
if is < tonumber(ARGV[1]) then
  redis.call('HSETNX', KEYS[1], 'at', cmsgpack.pack(0, 0))
  redis.call('HSETNX', KEYS[1], 'forgotten', '0-0')
  local _, last = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'at'))
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'cut', cmsgpack.pack(last, is))
  is = tonumber(ARGV[1])
end
local n, last = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'at'))
local cut = redis.call('HGET', KEYS[1], 'cut')
local cut_ms, cut_of = 0, 0
if cut then cut_ms, cut_of = cmsgpack.unpack(cut) end
return {is, last, n, cut_ms, cut_of}
