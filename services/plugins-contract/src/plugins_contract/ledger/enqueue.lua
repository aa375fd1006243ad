-- ENQUEUE: create the ledger entry and put the request on the stream, once.
-- -> {'QUEUED', entry, backlog} | {'EXISTS', entry} | {'FINISHED', reply ('': it is lost)} | {'CONFLICT'} | {'OVERLOADED', backlog}
--  | {'MOVED'}: nothing is known of it here, and this is not the incarnation that it was offered to

local known = redis.call('HMGET', call, 'state', 'hash', 'entry')
if known[1] then
  -- No hash: the call was ended before it was enqueued, or was lost and restored by its worker.
  if known[2] and known[2] ~= hash then return {'CONFLICT'} end
  if TERMINAL[known[1]] then return {'FINISHED', reply_of(call, channel)} end
  return {'EXISTS', known[3]}
end

local server = run_id()
if offered_to ~= '*' and offered_to ~= (redis.call('HGET', incarnation_key, 'id') or '') .. '/' .. server then return {'MOVED'} end

-- A server that keeps state: the call goes to the holder of its session.
local fence, till, opened, holder = 0, 0, '0', nil
if server_name ~= '' then fence, till, opened, holder = holding(session, server_name) end
if is_held(till, holder, streams) then requests = holder end
-- The workers of a pool create its stream: without it they are gone.
if requests ~= common and redis.call('EXISTS', requests) == 0 then requests = common end
-- The group is created with the stream and reads from its start, so a worker that starts later misses no request.
local backlog = redis.call('XLEN', requests)
if backlog == 0 and redis.call('EXISTS', requests) == 0 then
  redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM')
end
if limit > 0 and backlog >= limit then return {'OVERLOADED', backlog} end

-- The worker that gets the first call holds the session, so that a second call does not go elsewhere.
if server_name ~= '' and requests ~= common and requests ~= holder then
  hold(session, server_name, next_fence(fence), now_ms() + lease_ms, opened, requests)
end

-- `ledger` marks a request that has a ledger entry: one without it comes from a producer that does not use the ledger.
local entry = redis.call('XADD', requests, '*', 'eventType', 'PluginToolCallRequested', 'correlationId', id, 'ledger', 1,
  'event', event, 'signature', signature)
redis.call('HSET', call, 'state', 'published', 'hash', hash, 'entry', entry, 'class', class, 'mailbox', mailbox,
  'deadline', deadline, 'fence', next_fence(), 'starts', 0, 'publishedAt', now_ms(), 'runId', server, 'stream', requests)
keep_while_open(call, deadline)
return {'QUEUED', entry, backlog}
