-- PROGRESS: append the tool's progress to the response channel, if the fence is current.
-- KEYS call, channel, mailbox
-- ARGV id, fence, reply, toolCallId
-- -> {'OK'} | {'STALE'}
local known = redis.call('HMGET', KEYS[1], 'state', 'fence')
if known[1] ~= 'started' or known[2] ~= ARGV[2] then return {'STALE'} end
append_reply(KEYS[2], KEYS[3], ARGV[1], ARGV[4], 'progress', ARGV[3])
redis.call('EXPIRE', KEYS[2], 86400, 'NX') -- START sets it; this is for a channel that was lost
return {'OK'}
