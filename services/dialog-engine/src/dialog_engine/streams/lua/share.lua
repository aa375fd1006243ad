-- SHARE: put rows of a session that are committed in one engine's file where every engine finds them.
-- Fenced: only the engine that runs the turn, in its present epoch, may write. Idempotent: the same rows again change nothing.
-- KEYS session, run, runs, sessionsOfSubject, waiting
-- ARGV sessionId, turn ('' for none), engine, epoch, step, leaseMs, ttl, subject, title, createdAt, updatedAt,
--   controlChannel, controlMessage, field, row, field, row, …
--   step: 'begins' (makes the run when Redis has none), 'goes on', 'ends', 'again' (Redis had lost it: what is there stands,
--   but for an end that was only supposed)
-- -> {'OK', version, before (the version that this change was made on; 0 for none)} | {'MOVED'} | {'GONE'} | {'FORGOTTEN'}
local session, run, runs, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, turn, engine, epoch, step, ttl, updated = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[7], ARGV[11]

-- Engines that did not run a turn suppose its end, until one comes that knows. No text in a row looks so: its quotes are escaped.
local function lost(row) return string.find(row, '"errorCode":"TURN_LOST"', 1, true) end

local found = redis.call('HMGET', session, 'running', 'title', 'updatedAt', 'forgotten', 'version')
if found[4] then return {'FORGOTTEN'} end
if turn ~= '' then
  local owner = redis.call('HMGET', run, 'engine', 'epoch')
  if owner[1] then
    if owner[1] ~= engine or owner[2] ~= epoch then return {'MOVED'} end
  elseif step ~= 'begins' then
    -- Redis lost its data, or was away when the turn began: the whole session is wanted.
    return {'GONE'}
  else
    redis.call('HSET', run, 'session', id, 'engine', engine, 'epoch', epoch)
    redis.call('ZADD', runs, now_ms() + tonumber(ARGV[6]), turn)
    if not found[1] then redis.call('HSET', session, 'running', turn) end
  end
  if step == 'goes on' then redis.call('HDEL', run, 'cut') end
  redis.call('EXPIRE', run, ttl)
end

redis.call('HSET', session, 'subject', ARGV[8])
if ARGV[10] ~= '' then redis.call('HSETNX', session, 'createdAt', ARGV[10]) end
if ARGV[9] ~= '' and (not found[2] or found[2] == '') then redis.call('HSET', session, 'title', ARGV[9]) end
if updated ~= '' and tonumber(updated) > tonumber(found[3] or 0) then
  redis.call('HSET', session, 'updatedAt', updated)
  redis.call('ZADD', index, updated, id)
  redis.call('EXPIRE', index, ttl)
end
local put, new = step == 'again' and 'HSETNX' or 'HSET', 0
for i = 14, #ARGV, 2 do
  local there = step == 'again' and redis.call('HGET', session, ARGV[i])
  if there and lost(there) and not lost(ARGV[i + 1]) then redis.call('HDEL', session, ARGV[i]) end
  new = new + redis.call(put, session, ARGV[i], ARGV[i + 1])
end

if step == 'ends' then
  redis.call('HSET', run, 'ended', 1)
  redis.call('ZREM', runs, turn)
  if redis.call('HGET', session, 'running') == turn then redis.call('HDEL', session, 'running') end
  ring_line(KEYS[5], ARGV[12], ARGV[13])
end
redis.call('EXPIRE', session, ttl)
-- Versions are times: a count would begin again in a Redis that has lost its data, and say of other rows that they are known.
local before = tonumber(found[5] or 0)
if step == 'again' and new == 0 and before > 0 then return {'OK', before, before} end
local version = math.max(before + 1, now_ms())
redis.call('HSET', session, 'version', string.format('%.0f', version))
return {'OK', version, before}
