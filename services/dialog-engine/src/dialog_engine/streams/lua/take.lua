-- TAKE: run a turn from now on, in a new epoch, if its lease has run out, or if it was this engine's own in an earlier life.
-- Compare-and-set on the epoch: of several engines that saw the lease run out, one gets the turn.
-- KEYS runs, run
-- ARGV turn, engine, epoch (as it was seen), leaseMs, ttl
-- -> {'OK', epoch, cancel} | {'HELD'} | {'ENDED'} | {'GONE'}
local runs, run = KEYS[1], KEYS[2]
local turn, engine = ARGV[1], ARGV[2]

local found = redis.call('HMGET', run, 'engine', 'epoch', 'cancel', 'ended')
if not found[1] or found[4] then
  redis.call('ZREM', runs, turn)
  return {found[1] and 'ENDED' or 'GONE'}
end
if found[2] ~= ARGV[3] then return {'HELD'} end
local ends = redis.call('ZSCORE', runs, turn)
if found[1] ~= engine and ends and tonumber(ends) > now_ms() then return {'HELD'} end

local epoch = redis.call('HINCRBY', run, 'epoch', 1)
redis.call('HSET', run, 'engine', engine)
redis.call('EXPIRE', run, ARGV[5])
redis.call('ZADD', runs, now_ms() + tonumber(ARGV[4]), turn)
return {'OK', epoch, found[3] and 1 or 0}
