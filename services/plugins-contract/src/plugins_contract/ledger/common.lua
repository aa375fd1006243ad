-- Put in front of every ledger script by scripts.py. Redis 7.0, Redis 8 and Valkey 9 alike: nothing newer than 7.0 is used.

local TERMINAL = {succeeded = true, failed = true, unknown = true, expired = true, cancelled = true, dead = true}

-- Unix milliseconds on the one clock.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Who holds this entry in the group's pending list, or nil. A vanished group or stream is nobody.
local function pending_owner(requests, group, entry)
  local rows = redis.pcall('XPENDING', requests, group, entry, entry, 1)
  if rows.err or #rows == 0 then return nil end
  return rows[1][2]
end

-- Tell the engine replica: the payload itself when it is small, else only that there is something to fetch.
local function ring(mailbox, id, payload)
  if mailbox == '' then return end
  local inline = #payload <= 16384 and payload or ''
  redis.call('XADD', mailbox, 'MAXLEN', '~', 4096, '*', 'id', id, 'reply', inline)
  redis.call('EXPIRE', mailbox, 86400)
end

local function forget_entry(requests, group, entry)
  if entry and entry ~= '' then
    redis.pcall('XACK', requests, group, entry)
    redis.pcall('XDEL', requests, entry)
  end
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
