-- HAND OVER: leave a decision on a tool call for the engine that runs the turn, and ring.
-- KEYS run
-- ARGV engine, field, decision, controlChannel, controlMessage
-- -> {'ASKED'} | {'HERE'} (the caller runs it) | {'ENDED'} | {'GONE'}
local found = redis.call('HMGET', KEYS[1], 'engine', 'ended')
if not found[1] then return {'GONE'} end
if found[2] then return {'ENDED'} end
if found[1] == ARGV[1] then return {'HERE'} end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return {'ASKED'}
