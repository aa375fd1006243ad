-- The shared part of every ledger script, which scripts.py puts in front of it. Uses nothing newer than Redis 7.0.

local TERMINAL = {succeeded = true, failed = true, unknown = true, expired = true, cancelled = true, dead = true,
  input_required = true}

-- Unix milliseconds on the clock of Redis, which stands still while a script runs.
local now
local function now_ms()
  if not now then
    local t = redis.call('TIME')
    now = t[1] * 1000 + math.floor(t[2] / 1000)
  end
  return now
end

-- The consumer that holds this entry in the group's pending list, how often it was delivered, and how many milliseconds
-- ago; nil when no consumer does, or when the group or stream does not exist.
local function pending_owner(requests, group, entry)
  local rows = redis.pcall('XPENDING', requests, group, entry, entry, 1)
  if rows.err or #rows == 0 then return nil end
  return rows[1][2], rows[1][4], rows[1][3]
end

-- The id of this start of the server: a restart changes it, and a failover leads to a server with another one. '' where it
-- cannot be read. Asking first keeps refusals out of the server's ACL LOG.
local function run_id()
  local known, allowed = pcall(redis.acl_check_cmd, 'INFO', 'server')
  local info = known and allowed and redis.pcall('INFO', 'server')
  -- A plain search: a pattern that is tried at each character takes as long as INFO itself.
  local _, at = string.find(type(info) == 'string' and info or '', 'run_id:', 1, true)
  return at and string.match(info, '^%x+', at + 1) or ''
end

-- The incarnation of Redis: an id that a flush removes, and the id of the server's start.
local function incarnation(key)
  return (redis.call('HGET', key, 'id') or '') .. '/' .. run_id()
end

-- A fence is greater than every one before it. A counter would start again after Redis has lost the ledger, and a worker
-- from before the loss would share its fence with one from after it; the time does not.
local function next_fence(before)
  return math.max(tonumber(before or 0) + 1, now_ms())
end

-- Whether the holder of `fence` may write an open call whose ledger entry has the fence `current`, published at `base`.
-- Without an entry any worker may: Redis lost its data while the call ran, and this worker knows its state best. A fence
-- greater than `current` was given and then lost by a failover. A fence from before the publication belongs to an entry
-- that was lost and published again: its worker may still run the call, so it may write until another one starts it.
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

-- Notify the engine in its mailbox: with the payload when it is small, else only that there is something to read. A caller
-- without a mailbox reads its channel: then both keys are the same. An unusable mailbox fails no call.
local function notify(channel, mailbox, id, payload)
  if mailbox == channel then return end
  local inline = #payload <= 16384 and payload or ''
  local added = redis.pcall('XADD', mailbox, 'MAXLEN', '~', 4096, '*', 'id', id, 'reply', inline)
  -- A later entry of the same millisecond would set the lifetime that its first one has set.
  if not added.err and string.sub(added, -2) == '-0' then redis.call('EXPIRE', mailbox, 86400) end
end

-- Append to the response channel and notify. Older entries may be trimmed, the last one is not. -> the entry's id
local function append_reply(channel, mailbox, id, tool_call_id, kind, reply)
  local added = redis.call('XADD', channel, 'MAXLEN', '~', 256, '*', 'correlationId', id, 'toolCallId', tool_call_id,
    'kind', kind, 'reply', reply)
  notify(channel, mailbox, id, reply)
  return added
end

-- The reply of a finished call, from its channel; '' when Redis has lost the channel.
local function reply_of(call, channel)
  local known = redis.call('HMGET', call, 'answer', 'reply')
  if not known[1] then return known[2] or '' end -- ended by a release that kept replies in the ledger
  local rows = redis.call('XRANGE', channel, known[1], known[1])
  return rows[1] and field_of(rows[1][2], 'reply') or ''
end

-- Delete a request from the stream and from the group's pending list.
local function forget_entry(requests, group, entry)
  if entry and entry ~= '' then
    redis.pcall('XACK', requests, group, entry)
    redis.pcall('XDEL', requests, entry)
  end
end

-- Move a request to the end of another stream; the ledger entry of its call, if it is the one that carries it, says so.
local function move_entry(call, from, to, group, entry, fields)
  local moved = redis.call('XADD', to, '*', unpack(fields))
  if redis.call('HGET', call, 'entry') == entry then redis.call('HSET', call, 'entry', moved, 'stream', to) end
  forget_entry(from, group, entry)
end

-- Ledger and channel of an open call outlive its deadline by a day.
local function keep_while_open(key, deadline)
  redis.call('PEXPIREAT', key, math.max(tonumber(deadline), now_ms()) + 86400000)
end

-- Append the terminal reply and store its id in the ledger entry, with further fields and values. Channel and entry get
-- the same lifetime.
local function answer(call, channel, mailbox, id, tool_call_id, reply, ...)
  redis.call('HSET', call, 'answer', append_reply(channel, mailbox, id, tool_call_id, 'finished', reply), ...)
  redis.call('EXPIRE', call, 86400)
  redis.call('EXPIRE', channel, 86400)
end

-- The only way into a terminal state: ledger entry, response channel, notification and deletion of the request at once.
local function finish(call, requests, channel, mailbox, group, entry, id, tool_call_id, state, reply)
  answer(call, channel, mailbox, id, tool_call_id, reply, 'state', state, 'finishedAt', now_ms())
  forget_entry(requests, group, entry)
end

-- A call's history with one more line: time, event, consumer. A dead letter contains the history.
local function noted(history, what, who)
  return string.sub((history or '') .. now_ms() .. ' ' .. what .. ' ' .. who .. '\n', -4000)
end

-- Append a line to the call's history.
local function note(call, what, who)
  redis.call('HSET', call, 'history', noted(redis.call('HGET', call, 'history'), what, who))
end

-- Store a dead letter: why, what was tried, which consumer gave up, and the reply that the caller got ('' for none).
local function keep_dead_letter(dead, call, id, entry, reason, worker, reply, event)
  local known = redis.call('HMGET', call, 'starts', 'history')
  redis.call('XADD', dead, 'MAXLEN', '~', 10000, '*', 'reason', reason, 'correlationId', id, 'entry', entry,
    'starts', known[1] or '', 'history', known[2] or '', 'worker', worker, 'reply', reply, 'event', event)
end
