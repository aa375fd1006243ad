-- Put in front of every ledger script by scripts.py. Redis 7.0, Redis 8 and Valkey 9 alike: nothing newer than 7.0 is used.

local TERMINAL = {succeeded = true, failed = true, unknown = true, expired = true, cancelled = true, dead = true}

-- Unix milliseconds on the one clock.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Who holds this entry in the group's pending list, and how often it was delivered; nil for a vanished group or stream.
local function pending_owner(requests, group, entry)
  local rows = redis.pcall('XPENDING', requests, group, entry, entry, 1)
  if rows.err or #rows == 0 then return nil end
  return rows[1][2], rows[1][4]
end

-- A fence is above every one before it. A count would begin again with a ledger that Redis has lost, and a worker from
-- before would share its fence with one from after; the time goes on.
local function next_fence(before)
  return math.max(tonumber(before or 0) + 1, now_ms())
end

-- Whether who was given `fence` speaks for an open call that stands in the ledger under `current`, published at `base`.
-- With no ledger at all anyone does: Redis lost its data while the call ran, and the truth in hand is better than none.
-- A fence above it was given and then lost, by a failover. One from before the publication is of an earlier life of the
-- call, which was lost whole: its worker may be running, so while nobody has begun the call anew the word is its.
local function speaks(fence, state, current, base)
  fence = tonumber(fence)
  if fence >= tonumber(current or 0) then return true end
  return state == 'published' and fence > 0 and fence <= tonumber(base or 0)
end

-- The value of a field of a stream entry; nil when it has none of that name.
local function field_of(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
end

-- Tell the engine replica: the payload itself when it is small, else only that there is something to fetch. A caller
-- without a mailbox reads its channel: then both keys are the same. No call fails for a bell that cannot be rung.
local function ring(channel, mailbox, id, payload)
  if mailbox == channel then return end
  local inline = #payload <= 16384 and payload or ''
  redis.pcall('XADD', mailbox, 'MAXLEN', '~', 4096, '*', 'id', id, 'reply', inline)
  redis.call('EXPIRE', mailbox, 86400)
end

-- Write to the response channel and ring. What came before may be trimmed, the last entry is not. -> the entry's id
local function tell(channel, mailbox, id, tool_call_id, kind, reply)
  local told = redis.call('XADD', channel, 'MAXLEN', '~', 256, '*', 'correlationId', id, 'toolCallId', tool_call_id,
    'kind', kind, 'reply', reply)
  ring(channel, mailbox, id, reply)
  return told
end

-- The reply of a finished call, from its channel; '' when Redis has lost the channel.
local function reply_of(call, channel)
  local known = redis.call('HMGET', call, 'answer', 'reply')
  if not known[1] then return known[2] or '' end -- ended by a release that kept replies in the ledger
  local rows = redis.call('XRANGE', channel, known[1], known[1])
  return rows[1] and field_of(rows[1][2], 'reply') or ''
end

-- Take a request off the stream, and off the hands of whoever holds it.
local function forget_entry(requests, group, entry)
  if entry and entry ~= '' then
    redis.pcall('XACK', requests, group, entry)
    redis.pcall('XDEL', requests, entry)
  end
end

-- An open call's ledger outlives its deadline by a day.
local function keep_while_open(call, deadline)
  redis.call('PEXPIREAT', call, math.max(tonumber(deadline), now_ms()) + 86400000)
end

-- The terminal entry of a channel, and where the ledger finds it. Both live as long as each other.
local function answer(call, channel, mailbox, id, tool_call_id, reply)
  redis.call('HSET', call, 'answer', tell(channel, mailbox, id, tool_call_id, 'finished', reply))
  redis.call('EXPIRE', call, 86400)
  redis.call('EXPIRE', channel, 86400)
end

-- The only way into a terminal state: ledger, response channel, doorbell, then the request goes, all at once.
local function finish(call, requests, channel, mailbox, group, entry, id, tool_call_id, state, reply)
  redis.call('HSET', call, 'state', state, 'finishedAt', now_ms())
  answer(call, channel, mailbox, id, tool_call_id, reply)
  forget_entry(requests, group, entry)
end

-- One line for each thing that befell the call: when, what, by whom. A dead letter carries the whole.
local function note(call, what, who)
  local history = redis.call('HGET', call, 'history') or ''
  redis.call('HSET', call, 'history', string.sub(history .. now_ms() .. ' ' .. what .. ' ' .. who .. '\n', -4000))
end

-- Keep what could not be handled: why, what was tried, who gave up, and what the caller was told ('' for nothing).
local function keep_dead_letter(dead, call, id, entry, reason, worker, reply, event)
  local known = redis.call('HMGET', call, 'starts', 'history')
  redis.call('XADD', dead, 'MAXLEN', '~', 10000, '*', 'reason', reason, 'correlationId', id, 'entry', entry,
    'starts', known[1] or '', 'history', known[2] or '', 'worker', worker, 'reply', reply, 'event', event)
end
