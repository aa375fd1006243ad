-- CLAIM: this engine is about to begin a turn in a session that exists. One turn at a time, whichever engine is asked.
-- A turn that may wait gets a place in the line of its session, which it keeps for as long as it asks again in time. Who
-- came first goes first, by the clock of Redis; one that does not wait does not pass those that do.
-- KEYS session, run, runs, waiting
-- ARGV turn, sessionId, engine, subject, known (1: the caller has a copy of the session), leaseMs, ttl,
--   waitMs (0: it does not wait; else how long its place is kept)
-- -> {'OK', version} | {'BUSY', turn} (that one runs, or is first in the line) | {'UNKNOWN'} | {'FORGOTTEN'}
local session, run, runs, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local turn, engine, wait_ms = ARGV[1], ARGV[3], tonumber(ARGV[8])

local found = redis.call('HMGET', session, 'subject', 'running', 'version', 'forgotten')
if found[4] then return {'FORGOTTEN'} end
if found[1] and found[1] ~= ARGV[4] then return {'UNKNOWN'} end
if not found[1] and ARGV[5] ~= '1' then return {'UNKNOWN'} end

-- Whose engine has gone without a word has no place.
local now, first, since, last = now_ms(), nil, nil, 0
local places = redis.call('HGETALL', waiting)
for i = 1, #places, 2 do
  local came, ends = string.match(places[i + 1], '^(%d+) (%d+)$')
  came = tonumber(came)
  if tonumber(ends) < now then
    redis.call('HDEL', waiting, places[i])
  else
    if not first or came < since then first, since = places[i], came end
    last = math.max(last, came)
  end
end

if wait_ms > 0 then
  local place = redis.call('HGET', waiting, turn)
  -- Two that come in the same millisecond have an order too.
  local came = place and string.match(place, '^%d+') or string.format('%.0f', math.max(now, last + 1))
  redis.call('HSET', waiting, turn, came .. ' ' .. string.format('%.0f', now + wait_ms))
  redis.call('PEXPIRE', waiting, wait_ms)
end

if found[2] and found[2] ~= turn then return {'BUSY', found[2]} end
-- A claim whose answer was lost is asked for again: the session is this turn's already, whoever waits.
if not found[2] and first and first ~= turn then return {'BUSY', first} end

redis.call('HDEL', waiting, turn)
redis.call('HSET', session, 'running', turn)
redis.call('EXPIRE', session, ARGV[7])
redis.call('HSET', run, 'session', ARGV[2], 'engine', engine, 'epoch', 1)
redis.call('EXPIRE', run, ARGV[7])
redis.call('ZADD', runs, now + tonumber(ARGV[6]), turn)
return {'OK', tonumber(found[3] or 0)}
