-- RELEASE: give back a call that was provably not sent, without counting the attempt. Other workers can claim it at once.
-- Raises the fence, so that the worker that gave it back cannot complete it.
-- KEYS call, requests
-- ARGV group, consumer, entry, fence, leaseMs
-- -> {'OK'} | {'STALE'}
local call, requests = KEYS[1], KEYS[2]
local group, consumer, entry = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', call, 'state', 'fence', 'verdict')
-- Only the worker that got RUN knows that it was not sent: an abandoned call would run twice.
if known[1] ~= 'started' or known[2] ~= ARGV[4] or known[3] ~= 'RUN' then return {'STALE'} end
if pending_owner(requests, group, entry) ~= consumer then return {'STALE'} end
redis.call('HINCRBY', call, 'starts', -1)
note(call, 'released', consumer)
redis.call('HSET', call, 'state', 'published', 'fence', next_fence(known[2]))
redis.call('HDEL', call, 'owner', 'token', 'verdict')
redis.call('XCLAIM', requests, group, consumer, 0, entry, 'IDLE', tonumber(ARGV[5]) + 1, 'JUSTID')
return {'OK'}
