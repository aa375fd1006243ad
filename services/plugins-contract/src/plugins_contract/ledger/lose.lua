-- LOSE: end a lost call, if it is still lost: a worker may have restored or ended it since the audit.
-- -> {'ENDED'} | {'FINISHED', reply ('': it is lost)} | {'FOUND'}

local known = redis.call('HMGET', call, 'state', 'entry', 'renewedAt', 'stream')
if TERMINAL[known[1]] then return {'FINISHED', reply_of(call, channel)} end
if loss(requests, group, known, silent_ms) ~= found then return {'FOUND'} end
finish(call, known[4] or requests, channel, mailbox, group, known[2], id, tool_call_id, state, reply)
return {'ENDED'}
