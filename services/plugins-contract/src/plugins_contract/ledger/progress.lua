-- PROGRESS: pass on what the tool says about itself, while the call is ours.
-- KEYS call, channel, mailbox
-- ARGV id, fence, reply, toolCallId
-- -> {'OK'} | {'STALE'}
local known = redis.call('HMGET', KEYS[1], 'state', 'fence')
if known[1] ~= 'started' or known[2] ~= ARGV[2] then return {'STALE'} end
tell(KEYS[2], KEYS[3], ARGV[1], ARGV[4], 'progress', ARGV[3])
redis.call('EXPIRE', KEYS[2], 86400, 'NX') -- START has set it, unless that was lost
return {'OK'}
