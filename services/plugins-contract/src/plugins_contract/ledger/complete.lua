-- COMPLETE: compare-and-set into a terminal state; response, notification, XACK and XDEL in the same step.
-- KEYS call, requests, channel, mailbox, dead
-- ARGV id, group, entry, fence, state, reply, deadReason ('' when it is no dead letter), event, consumer, toolCallId
-- -> {'OK'} | {'STALE'} | {'DUPLICATE', state}
local call, requests, channel, mailbox, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, group, entry, fence, state, reply, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local known = redis.call('HMGET', call, 'state', 'fence', 'publishedAt', 'entry', 'stream')
if TERMINAL[known[1]] then
  forget_entry(requests, group, entry)
  return {'DUPLICATE', known[1]}
end
if not speaks(fence, known[1], known[2], known[3]) then return {'STALE'} end

-- The call was put on the stream again meanwhile, and not started there: that entry must not run.
if known[4] and (known[4] ~= entry or known[5] and known[5] ~= requests) then forget_entry(known[5] or requests, group, known[4]) end
finish(call, requests, channel, mailbox, group, entry, id, ARGV[10], state, reply)
if reason ~= '' then
  keep_dead_letter(dead, call, id, entry, reason, ARGV[9], reply, ARGV[8])
end
return {'OK'}
