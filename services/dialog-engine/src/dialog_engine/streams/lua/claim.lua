-- CLAIM: this engine is about to begin a turn in a session that exists. One turn at a time, whichever engine is asked.
-- KEYS session, run, runs
-- ARGV turn, sessionId, engine, subject, known (1: the caller has a copy of the session), leaseMs, ttl
-- -> {'OK', version} | {'BUSY', turn} | {'UNKNOWN'} | {'FORGOTTEN'}
local session, run, runs = KEYS[1], KEYS[2], KEYS[3]
local turn, engine = ARGV[1], ARGV[3]

local found = redis.call('HMGET', session, 'subject', 'running', 'version', 'forgotten')
if found[4] then return {'FORGOTTEN'} end
if found[1] and found[1] ~= ARGV[4] then return {'UNKNOWN'} end
if not found[1] and ARGV[5] ~= '1' then return {'UNKNOWN'} end
if found[2] and found[2] ~= turn then return {'BUSY', found[2]} end

redis.call('HSET', session, 'running', turn)
redis.call('EXPIRE', session, ARGV[7])
redis.call('HSET', run, 'session', ARGV[2], 'engine', engine, 'epoch', 1)
redis.call('EXPIRE', run, ARGV[7])
redis.call('ZADD', runs, now_ms() + tonumber(ARGV[6]), turn)
return {'OK', tonumber(found[3] or 0)}
