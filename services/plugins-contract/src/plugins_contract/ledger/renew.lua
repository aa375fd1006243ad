-- RENEW: renew the lease of a running call, if the fence is current. An unfenced claim would steal it back after a stall.
-- Restores what Redis has lost of the call meanwhile (a flush, a failover).
-- -> {'OK', cancelRequested} | {'STALE'}

local known = redis.call('HMGET', call, 'state', 'fence', 'cancel', 'publishedAt', 'entry', 'stream')
local state = known[1]
if TERMINAL[state] or not speaks(fence, state, known[2], known[4]) then return {'STALE'} end

-- The request was moved while this worker seemed to be gone, and not started since: that entry carries the call now.
if state == 'started' and known[2] == fence and known[6] and (known[5] ~= entry or known[6] ~= requests) then
  requests, entry = known[6], known[5]
end

local owner, deliveries = pending_owner(requests, group, entry)
-- A first delivery to another worker, though the call runs here, means that the group was lost and created again.
if owner and owner ~= consumer and deliveries > 1 then return {'STALE'} end
-- No owner: the request or the group was lost while the call ran. Its fence still allows this worker to complete it.
if owner then redis.call('XCLAIM', requests, group, consumer, 0, entry, 'JUSTID') end

if not state then
  redis.call('HSET', call, 'class', class, 'deadline', deadline, 'mailbox', mailbox)
  keep_while_open(call, deadline)
end
if state ~= 'started' or known[2] ~= fence then
  -- The call was put on the stream again meanwhile, and not started there: that entry must not run.
  if known[5] and known[5] ~= entry then forget_entry(known[6] or requests, group, known[5]) end
  note(call, 'put back', consumer)
  redis.call('HINCRBY', call, 'starts', 1)
  redis.call('HSET', call, 'state', 'started', 'fence', fence, 'entry', entry, 'stream', requests, 'owner', consumer, 'token', token,
    'verdict', 'RUN', 'startedAt', now_ms())
end
redis.call('HSET', call, 'renewedAt', now_ms())
return {'OK', known[3] and 1 or 0}
