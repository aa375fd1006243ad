-- CANCEL: end a call that has not started; ask the worker of one that has to end it.
-- Also how an engine gives up on a call whose deadline has passed (state 'expired').
-- KEYS call, requests, channel, mailbox, incarnation, workers
-- ARGV id, toolCallId, group, state, reply, controlChannel, controlMessage, stateWhenUnseen, replyWhenUnseen,
-- offeredTo (the incarnation that it was or may have been offered to; '': none)
-- -> {'ENDED'} | {'UNSEEN'}: it may have run, unseen by this server | {'REQUESTED'} | {'FINISHED', reply ('': it is lost)}
local call, requests, channel, mailbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, tool_call_id, group = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', call, 'state', 'entry', 'class', 'runId', 'publishedAt', 'stream')
if TERMINAL[known[1]] then return {'FINISHED', reply_of(call, channel)} end

-- The worker that runs it ends it. The others remember it: a server that has lost this end would have them start it.
redis.call('PUBLISH', ARGV[6], ARGV[7])
if known[1] == 'started' then
  redis.call('HSET', call, 'cancel', 1)
  return {'REQUESTED'}
end

local unseen
if known[1] then
  unseen = may_have_started(KEYS[6], requests, group, known[3], known[4], known[5], run_id())
else
  -- Not enqueued yet, and the relay may be about to: ENQUEUE finds this terminal state. Or enqueued and lost, and maybe
  -- running: RENEW and COMPLETE find this terminal state.
  unseen = ARGV[10] ~= '' and ARGV[10] ~= incarnation(KEYS[5])
end
finish(call, known[6] or requests, channel, mailbox, group, known[2] or '', id, tool_call_id, ARGV[unseen and 8 or 4],
  ARGV[unseen and 9 or 5])
return {unseen and 'UNSEEN' or 'ENDED'}
