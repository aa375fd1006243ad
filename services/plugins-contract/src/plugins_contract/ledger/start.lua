-- START: record that the call is started, before any byte is sent to an MCP server. Raises the fence and starts the lease.
-- A token names one delivery: the same token again (its reply was lost) gets the same answer.
-- -> {'RUN', fence, starts} | {'ABANDONED', fence, starts} | {'CANCELLED', fence, starts} | {'EXHAUSTED', fence, starts}
--  | {'FINISHED', state} | {'EXPIRED'} | {'NOT_OWNER'} | {'MISSING'}
--  | {'WAIT'}: this server may have lost its start, or this worker has not reported here yet: ask again soon

local known = redis.call('HMGET', call, 'state', 'class', 'deadline', 'fence', 'starts', 'token', 'verdict', 'entry', 'cancel', 'owner', 'renewedAt',
  'history', 'runId', 'publishedAt')
local state, class, deadline, starts = known[1], known[2], tonumber(known[3]), tonumber(known[5])
if not state then return {'MISSING'} end

-- Who can write to Redis must not have a call run twice, or after its deadline: the stricter of request and ledger counts.
if class == 'repeatable' then class = requested_class end
if limit > 0 then deadline = math.min(deadline or limit, limit) end

if TERMINAL[state] then
  -- A caller that asked again is notified again; a lost reply is replaced by one that says so.
  local reply = reply_of(call, channel)
  if reply == '' then
    answer(call, channel, mailbox, id, tool_call_id, lost_reply)
  else
    notify(channel, mailbox, id, reply)
  end
  forget_entry(requests, group, entry)
  return {'FINISHED', state}
end

local owner, deliveries, delivered_ms = pending_owner(requests, group, entry)
if owner ~= consumer then return {'NOT_OWNER'} end

-- The lease runs from now on. Right after the delivery, which begins one too, nothing has to be written for that.
local function begin_lease()
  if delivered_ms * 100 > lease_ms then redis.call('XCLAIM', requests, group, consumer, 0, entry, 'JUSTID') end
end

local function not_yet()
  begin_lease()
  return {'WAIT'}
end

-- This worker reported at another server, without this call. An old master that answers again that it started the call
-- would have it run while the new one has others run it.
local here = class == 'repeatable' and '' or run_id()
if here ~= '' and reported_at ~= '' and reported_at ~= here then return not_yet() end

if known[6] == token then
  begin_lease()
  return {known[7], tonumber(known[4]), starts}
end

if known[8] ~= entry then
  -- The same call is on the stream a second time: the other entry carries it.
  forget_entry(requests, group, entry)
  return {'NOT_OWNER'}
end

-- Started, and yet delivered for the first time: the group's pending list was lost while the call ran. While the lease
-- of its worker is valid, the entry is handed back to that worker with the rest of the lease.
local unheard_ms = math.max(0, now_ms() - tonumber(known[11] or 0))
if state == 'started' and deliveries == 1 and known[10] ~= consumer and unheard_ms < lease_ms then
  redis.call('XCLAIM', requests, group, known[10], 0, entry, 'IDLE', unheard_ms, 'JUSTID')
  return {'NOT_OWNER'}
end

-- A `once` call that looks as if it was never started: an earlier server may have started it, and this one lost that.
local doubtful = false
if state == 'published' and here ~= '' then
  local may_have = may_have_started(workers, common, group, class, known[13], known[14], here)
  doubtful = may_have == 'lost' or may_have and (known_for(workers, here) > lease_ms or now_ms() >= deadline)
  local wait = may_have and not doubtful
  if not may_have and known[13] and known[13] ~= '' and known[13] ~= here then
    -- A server that takes over from this one must know this worker, and engines write here which calls were stopped.
    local _, since = report_of(redis.call('HGET', workers, consumer))
    wait = not since or now_ms() - since < known_ms or known_for(workers, here) < stops_ms
  end
  if wait then return not_yet() end
end

local fence, history = next_fence(known[4]), known[12] or ''
begin_lease()
if state == 'started' then history = noted(history, 'lost', known[10] or '') end

-- Stores the verdict for this delivery, with further fields and values.
local function say(verdict, ...)
  redis.call('HSET', call, 'fence', fence, 'owner', consumer, 'token', token, 'verdict', verdict, 'history', history, ...)
  return {verdict, fence, starts}
end

-- Started before by a worker that is gone, so it is unknown whether it took effect: only a repeatable call runs again.
if doubtful or state == 'started' and class ~= 'repeatable' then return say('ABANDONED') end
if known[9] then return say('CANCELLED') end
if starts >= max_starts then return say('EXHAUSTED') end

if now_ms() >= deadline then
  redis.call('HSET', call, 'fence', fence, 'history', history)
  finish(call, requests, channel, mailbox, group, entry, id, tool_call_id, 'expired', expired_reply)
  return {'EXPIRED'}
end

starts = starts + 1
history = noted(history, 'started', consumer)
if started_reply ~= '' then
  append_reply(channel, mailbox, id, tool_call_id, 'started', started_reply .. starts .. '}')
  keep_while_open(channel, deadline)
end
return say('RUN', 'state', 'started', 'starts', starts, 'startedAt', now_ms(), 'renewedAt', now_ms(),
  'runId', here ~= '' and here or known[13] or '')
