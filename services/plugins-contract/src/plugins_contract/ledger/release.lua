-- RELEASE: give back a call that was provably not sent, without counting the attempt. Other workers can claim it at once.
-- Raises the fence, so that the worker that gave it back cannot complete it.
-- -> {'OK'} | {'STALE'}

local known = redis.call('HMGET', call, 'state', 'fence', 'verdict')
-- Only the worker that got RUN knows that it was not sent: an abandoned call would run twice.
if known[1] ~= 'started' or known[2] ~= fence or known[3] ~= 'RUN' then return {'STALE'} end
if pending_owner(requests, group, entry) ~= consumer then return {'STALE'} end
redis.call('HINCRBY', call, 'starts', -1)
note(call, 'released', consumer)
redis.call('HSET', call, 'state', 'published', 'fence', next_fence(known[2]))
redis.call('HDEL', call, 'owner', 'token', 'verdict')
redis.call('XCLAIM', requests, group, consumer, 0, entry, 'IDLE', lease_ms + 1, 'JUSTID')
return {'OK'}
