-- PROGRESS: append to the response channel that the call was started, or the tool's progress, if the fence is current.
-- -> {'OK'} | {'STALE'}
local known = redis.call('HMGET', call, 'state', 'fence', 'deadline')
if known[1] ~= 'started' or known[2] ~= fence then return {'STALE'} end
append_reply(channel, mailbox, id, tool_call_id, kind, reply)
keep_while_open(channel, known[3])
return {'OK'}
