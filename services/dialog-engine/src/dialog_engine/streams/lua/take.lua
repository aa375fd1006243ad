-- TAKE: run a turn from now on, in a new epoch, if its lease has run out, or if it was this engine's own in an earlier life.
-- Compare-and-set on the epoch: of several engines that saw the lease run out, one gets the turn.
-- KEYS runs, run
-- ARGV turn, engine, epoch (as it was seen), leaseMs, ttl, longMs (a life of that length was not cut short)
-- -> {'OK', epoch, cancel, cut (how many lives in a row were cut short)} | {'HELD'} | {'ENDED'} | {'GONE'}
local runs, run = KEYS[1], KEYS[2]
local turn, engine, now = ARGV[1], ARGV[2], now_ms()

local found = redis.call('HMGET', run, 'engine', 'epoch', 'cancel', 'ended', 'cut', 'since')
if not found[1] or found[4] then
  redis.call('ZREM', runs, turn)
  return {found[1] and 'ENDED' or 'GONE'}
end
if found[2] ~= ARGV[3] then return {'HELD'} end
local ends = tonumber(redis.call('ZSCORE', runs, turn) or 1)
if found[1] ~= engine and ends > now then return {'HELD'} end

local cut = 0
-- An engine that goes down in good order gives its turns up: their leases end at 0.
if ends ~= 0 and now - tonumber(found[6] or now) < tonumber(ARGV[6]) then cut = tonumber(found[5] or 0) + 1 end
local epoch = redis.call('HINCRBY', run, 'epoch', 1)
redis.call('HSET', run, 'engine', engine, 'cut', cut, 'since', now)
redis.call('EXPIRE', run, ARGV[5])
redis.call('ZADD', runs, now + tonumber(ARGV[4]), turn)
return {'OK', epoch, found[3] and 1 or 0, cut}
