-- FORGET: delete a session everywhere. A tombstone stays, so that no engine that was away brings it back.
-- KEYS session, sessionsOfSubject, forgotten
-- ARGV sessionId, subject, ttl
-- -> {'OK'} | {'BUSY', turn} | {'UNKNOWN'}
local session, index, forgotten = KEYS[1], KEYS[2], KEYS[3]
local found = redis.call('HMGET', session, 'subject', 'running', 'forgotten')
if found[1] and found[1] ~= ARGV[2] then return {'UNKNOWN'} end
if found[2] then return {'BUSY', found[2]} end
if found[3] then return {'OK'} end
redis.call('DEL', session)
redis.call('HSET', session, 'subject', ARGV[2], 'forgotten', 1)
redis.call('EXPIRE', session, ARGV[3])
redis.call('ZREM', index, ARGV[1])
redis.call('ZADD', forgotten, now_ms(), ARGV[1])
redis.call('ZREMRANGEBYSCORE', forgotten, '-inf', now_ms() - tonumber(ARGV[3]) * 1000)
redis.call('EXPIRE', forgotten, ARGV[3])
return {'OK'}
