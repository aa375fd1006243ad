-- COMPLETE: compare-and-set into a terminal state; response, doorbell, XACK and XDEL in the same step.
-- KEYS call, requests, channel, mailbox, dead
-- ARGV id, group, entry, fence, state, reply, deadReason ('' when it is no dead letter), event
-- -> {'OK'} | {'STALE'} | {'DUPLICATE', state}
local call, requests, channel, mailbox, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, group, entry, fence, state, reply, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local known = redis.call('HMGET', call, 'state', 'fence', 'starts')
if known[1] and TERMINAL[known[1]] then
  forget_entry(requests, group, entry)
  return {'DUPLICATE', known[1]}
end
-- No ledger entry at all: Redis lost its data while the call ran. The truth in hand is better than none.
if known[1] and known[2] ~= fence then return {'STALE'} end

finish(call, requests, channel, mailbox, group, entry, id, state, reply)
if reason ~= '' then
  redis.call('XADD', dead, 'MAXLEN', '~', 10000, '*', 'reason', reason, 'correlationId', id,
    'entry', entry, 'starts', known[3] or 0, 'event', ARGV[8])
end
return {'OK'}
