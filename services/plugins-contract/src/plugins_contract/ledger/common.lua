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

-- Tell the engine replica: the payload itself when it is small, else only that there is something to fetch.
local function ring(mailbox, id, payload)
  if mailbox == '' then return end
  local inline = #payload <= 16384 and payload or ''
  redis.call('XADD', mailbox, 'MAXLEN', '~', 4096, '*', 'id', id, 'reply', inline)
  redis.call('EXPIRE', mailbox, 86400)
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

-- The only way into a terminal state: ledger, response channel, doorbell, then the request goes, all at once.
local function finish(call, requests, channel, mailbox, group, entry, id, state, reply)
  redis.call('HSET', call, 'state', state, 'reply', reply, 'finishedAt', now_ms())
  redis.call('EXPIRE', call, 86400)
  redis.call('XADD', channel, '*', 'reply', reply)
  redis.call('EXPIRE', channel, 900)
  ring(mailbox, id, reply)
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
