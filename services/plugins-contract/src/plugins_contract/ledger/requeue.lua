-- REQUEUE: put the request of a dead letter on the stream again, as a new call, and delete the letter: both or neither.
-- The dead call has ended and its caller was answered. The ledger entries of the two calls name each other.
-- -> {'QUEUED', entry} | {'GONE'}

-- The id is new, so an entry means that this is the same step again, because its reply was lost.
local entry = redis.call('HGET', call, 'entry')
if entry then return {'QUEUED', entry} end
if not stands(dead, letter, event) then return {'GONE'} end

if redis.call('EXISTS', requests) == 0 then
  redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM')
end
entry = redis.call('XADD', requests, '*', 'eventType', 'PluginToolCallRequested', 'correlationId', id, 'ledger', 1,
  'event', new_event, 'signature', signature)
redis.call('HSET', call, 'state', 'published', 'hash', hash, 'entry', entry, 'class', class, 'mailbox', mailbox,
  'deadline', deadline, 'fence', next_fence(), 'starts', 0, 'publishedAt', now_ms(), 'requeuedFrom', dead_id,
  'runId', run_id(), 'stream', requests)
keep_while_open(call, deadline)
if redis.call('EXISTS', dead_call) == 1 then redis.call('HSET', dead_call, 'requeuedAs', id) end
redis.call('XDEL', dead, letter)
return {'QUEUED', entry}
