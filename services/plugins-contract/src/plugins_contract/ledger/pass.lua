-- PASS: leave a call that has not started to other workers, because this worker cannot run it: move its request to the stream
-- of a pool whose workers can, or let others claim it at once.
-- -> {'OK'} | {'START'}: it is finished, overdue, started or held by another worker; START decides what is to be done

local known = redis.call('HMGET', call, 'state', 'deadline', 'entry', 'stream')
if known[1] ~= 'published' or known[3] ~= entry then return {'START'} end
if now_ms() >= tonumber(known[2]) then return {'START'} end
if pending_owner(requests, group, entry) ~= consumer then return {'START'} end

-- An engine of an earlier release looks for the requests of its calls on `events.plugins` only: those have no `stream`.
local rows = to ~= requests and known[4] and redis.call('EXISTS', to) == 1 and redis.call('XRANGE', requests, entry, entry) or {}
if #rows == 1 then
  -- Without the id, RECALL would not find the ledger entry. Other producers may leave it out.
  local fields = rows[1][2]
  for i = #fields - 1, 1, -2 do
    if fields[i] == 'correlationId' then table.remove(fields, i + 1); table.remove(fields, i) end
  end
  fields[#fields + 1], fields[#fields + 2] = 'correlationId', id
  move_entry(call, requests, to, group, entry, fields)
else
  -- As if it had not been delivered, so that the worker that claims it takes it over from nobody.
  redis.call('XCLAIM', requests, group, consumer, 0, entry, 'IDLE', lease_ms + 1, 'RETRYCOUNT', 0, 'JUSTID')
end
return {'OK'}
