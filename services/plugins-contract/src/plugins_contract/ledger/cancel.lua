-- CANCEL: end a call that has not started; ask the worker of one that has to end it.
-- Also how an engine gives up on a call whose deadline has passed (state 'expired').
-- KEYS call, requests, channel, mailbox
-- ARGV id, toolCallId, group, state, reply, controlChannel, controlMessage, stateWhenAbsent, replyWhenAbsent
-- -> {'ENDED'} | {'ABSENT'} | {'REQUESTED'} | {'FINISHED', reply ('': it is lost)}
local call, requests, channel, mailbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, tool_call_id, group = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', call, 'state', 'entry')
if not known[1] then
  -- Not enqueued yet, and the relay may be about to: ENQUEUE finds this terminal state. Or enqueued and lost, and maybe
  -- running: the message reaches its worker, and RENEW and COMPLETE find this terminal state.
  finish(call, requests, channel, mailbox, group, '', id, tool_call_id, ARGV[8], ARGV[9])
  redis.call('PUBLISH', ARGV[6], ARGV[7])
  return {'ABSENT'}
end
if TERMINAL[known[1]] then return {'FINISHED', reply_of(call, channel)} end
if known[1] == 'published' then
  finish(call, requests, channel, mailbox, group, known[2], id, tool_call_id, ARGV[4], ARGV[5])
  return {'ENDED'}
end
redis.call('HSET', call, 'cancel', 1)
redis.call('PUBLISH', ARGV[6], ARGV[7])
return {'REQUESTED'}
