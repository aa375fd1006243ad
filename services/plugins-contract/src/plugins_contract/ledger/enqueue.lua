-- ENQUEUE: create the ledger entry and put the request on the stream, once.
-- -> {'QUEUED', entry, backlog} | {'EXISTS', entry} | {'FINISHED', reply ('': it is lost)} | {'CONFLICT'} | {'OVERLOADED', backlog}
--  | {'MOVED'}: nothing is known of it here, and this is neither the incarnation that it was offered to nor the server after it

local known = redis.call('HMGET', call, 'state', 'hash', 'entry')
if known[1] then
  -- No hash: the call was ended before it was enqueued, or was lost and restored by its worker.
  if known[2] and known[2] ~= hash then return {'CONFLICT'} end
  if TERMINAL[known[1]] then return {'FINISHED', reply_of(call, channel)} end
  return {'EXISTS', known[3]}
end

local data, server = redis.call('HGET', incarnation_key, 'id'), run_id()
local enqueued_at = server
if offered_to ~= '*' and offered_to ~= (data or '') .. '/' .. server then
  -- The server before this one may have had it, and lost it with its latest writes. If a worker has started it there, START
  -- finds that out, as with a call that was not lost.
  local its_data, earlier = string.match(offered_to, '^(%x+)/(%x+)$')
  local may_be_known = sent == 1 and its_data == data and follows(workers, server, earlier, lost_ms)
  if not may_be_known or may_have_started(workers, common, group, class, earlier, now_ms(), server) == 'lost' then return {'MOVED'} end
  enqueued_at = earlier
end

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
-- One that may have been started is not refused: it would count as not run.
if limit > 0 and enqueued_at == server and backlog >= limit then return {'OVERLOADED', backlog} end

-- The worker that gets the first call holds the session, so that a second call does not go elsewhere.
if server_name ~= '' and requests ~= common and requests ~= holder then
  hold(session, server_name, next_fence(fence), now_ms() + lease_ms, opened, requests)
end

-- `ledger` marks a request that has a ledger entry: one without it comes from a producer that does not use the ledger.
local entry = redis.call('XADD', requests, '*', 'eventType', 'PluginToolCallRequested', 'correlationId', id, 'ledger', 1,
  'event', event, 'signature', signature)
redis.call('HSET', call, 'state', 'published', 'hash', hash, 'entry', entry, 'class', class, 'mailbox', mailbox,
  'deadline', deadline, 'fence', next_fence(), 'starts', 0, 'publishedAt', now_ms(), 'runId', enqueued_at, 'stream', requests)
keep_while_open(call, deadline)
return {'QUEUED', entry, backlog}
