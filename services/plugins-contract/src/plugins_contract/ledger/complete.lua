-- COMPLETE: compare-and-set into a terminal state; response, notification, XACK and XDEL in the same step.
-- -> {'OK'} | {'STALE'} | {'DUPLICATE', state}

local known = redis.call('HMGET', call, 'state', 'fence', 'publishedAt', 'entry', 'stream')
if TERMINAL[known[1]] then
  forget_entry(requests, group, entry)
  return {'DUPLICATE', known[1]}
end
if not speaks(fence, known[1], known[2], known[3]) then return {'STALE'} end

-- The call was put on the stream again meanwhile, and not started there: that entry must not run.
if known[4] and (known[4] ~= entry or known[5] and known[5] ~= requests) then forget_entry(known[5] or requests, group, known[4]) end
finish(call, requests, channel, mailbox, group, entry, id, tool_call_id, state, reply)
if reason ~= '' then
  keep_dead_letter(dead, call, id, entry, reason, consumer, reply, event)
end
return {'OK'}
