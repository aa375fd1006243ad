-- REQUEUE: put the request of a dead letter on the stream again, as a new call, and delete the letter: both or neither.
-- The dead call has ended and its caller was answered. The ledger entries of the two calls name each other.
-- KEYS dead, requests, call, deadCall
-- ARGV letter, event (as the letter was read), id, group, newEvent, argumentsHash, executionClass, deadline, mailbox, deadId,
-- signature ('': none)
-- -> {'QUEUED', entry} | {'GONE'}
local dead, requests, call, dead_call = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- The id is new, so an entry means that this is the same step again, because its reply was lost.
local entry = redis.call('HGET', call, 'entry')
if entry then return {'QUEUED', entry} end
if not stands(dead, ARGV[1], ARGV[2]) then return {'GONE'} end

if redis.call('EXISTS', requests) == 0 then
  redis.call('XGROUP', 'CREATE', requests, ARGV[4], '0', 'MKSTREAM')
end
entry = redis.call('XADD', requests, '*', 'eventType', 'PluginToolCallRequested', 'correlationId', ARGV[3], 'ledger', 1,
  'event', ARGV[5], 'signature', ARGV[11])
redis.call('HSET', call, 'state', 'published', 'hash', ARGV[6], 'entry', entry, 'class', ARGV[7], 'mailbox', ARGV[9],
  'deadline', ARGV[8], 'fence', next_fence(), 'starts', 0, 'publishedAt', now_ms(), 'requeuedFrom', ARGV[10],
  'runId', run_id(), 'stream', requests)
keep_while_open(call, ARGV[8])
if redis.call('EXISTS', dead_call) == 1 then redis.call('HSET', dead_call, 'requeuedAs', ARGV[3]) end
redis.call('XDEL', dead, ARGV[1])
return {'QUEUED', entry}
