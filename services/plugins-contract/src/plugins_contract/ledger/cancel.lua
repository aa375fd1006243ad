-- CANCEL: end a call that has not started; ask the worker of one that has to end it.
-- Also how an engine gives up on a call whose deadline has passed (state 'expired').
-- -> {'ENDED'} | {'UNSEEN'}: it may have run, unseen by this server | {'REQUESTED'} | {'FINISHED', reply ('': it is lost)}

local known = redis.call('HMGET', call, 'state', 'entry', 'class', 'runId', 'publishedAt', 'stream')
if TERMINAL[known[1]] then return {'FINISHED', reply_of(call, channel)} end

-- The worker that runs it ends it. The others remember it: a server that has lost this end would have them start it.
redis.call('PUBLISH', control, message)
if known[1] == 'started' then
  redis.call('HSET', call, 'cancel', 1)
  return {'REQUESTED'}
end

local unseen
if known[1] then
  unseen = may_have_started(workers, requests, group, known[3], known[4], known[5], run_id())
else
  -- Not enqueued yet, and the relay may be about to: ENQUEUE finds this terminal state. Or enqueued and lost, and maybe
  -- running: RENEW and COMPLETE find this terminal state.
  unseen = offered_to ~= '' and offered_to ~= incarnation(incarnation_key)
end
finish(call, known[6] or requests, channel, mailbox, group, known[2] or '', id, tool_call_id,
  unseen and unseen_state or state, unseen and unseen_reply or reply)
return {unseen and 'UNSEEN' or 'ENDED'}
