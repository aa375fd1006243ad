-- PASS: leave a call that has not started to other workers, because this worker cannot run it: move its request to the stream
-- of a pool whose workers can, or let others claim it at once.
-- KEYS call, stream (with the entry), to (the stream of that pool; `stream` again: none is known)
-- ARGV group, consumer, entry, leaseMs, id
-- -> {'OK'} | {'START'}: it is finished, overdue, started or held by another worker; START decides what is to be done
local call, stream, to = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, entry = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', call, 'state', 'deadline', 'entry', 'stream')
if known[1] ~= 'published' or known[3] ~= entry then return {'START'} end
if now_ms() >= tonumber(known[2]) then return {'START'} end
if pending_owner(stream, group, entry) ~= consumer then return {'START'} end

-- An engine of an earlier release looks for the requests of its calls on `events.plugins` only: those have no `stream`.
local rows = to ~= stream and known[4] and redis.call('EXISTS', to) == 1 and redis.call('XRANGE', stream, entry, entry) or {}
if #rows == 1 then
  -- Without the id, RECALL would not find the ledger entry. Other producers may leave it out.
  local fields = rows[1][2]
  for i = #fields - 1, 1, -2 do
    if fields[i] == 'correlationId' then table.remove(fields, i + 1); table.remove(fields, i) end
  end
  fields[#fields + 1], fields[#fields + 2] = 'correlationId', ARGV[5]
  move_entry(call, stream, to, group, entry, fields)
else
  -- As if it had not been delivered, so that the worker that claims it takes it over from nobody.
  redis.call('XCLAIM', stream, group, consumer, 0, entry, 'IDLE', tonumber(ARGV[4]) + 1, 'RETRYCOUNT', 0, 'JUSTID')
end
return {'OK'}
