-- PROGRESS: append to the response channel that the call was started, or the tool's progress, if the fence is current.
-- KEYS call, channel, mailbox
-- ARGV id, fence, reply, toolCallId, kind
-- -> {'OK'} | {'STALE'}
local known = redis.call('HMGET', KEYS[1], 'state', 'fence', 'deadline')
if known[1] ~= 'started' or known[2] ~= ARGV[2] then return {'STALE'} end
append_reply(KEYS[2], KEYS[3], ARGV[1], ARGV[4], ARGV[5], ARGV[3])
keep_while_open(KEYS[2], known[3])
return {'OK'}
