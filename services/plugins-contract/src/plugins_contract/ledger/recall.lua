-- RECALL: move the requests of a pool that has no workers to `events.plugins`, where every worker finds them. Requests under a
-- valid lease stay. START decides about those that were started. The stream is deleted when it holds nothing.
-- -> {moved, left}
if redis.call('EXISTS', requests) == 0 then redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM') end

local moved = 0
for _, row in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', most)) do
  local entry, fields = row[1], row[2]
  local owner, _, idle_ms = pending_owner(stream, group, entry)
  if not owner or idle_ms >= lease_ms then
    move_entry(calls .. (field_of(fields, 'correlationId') or ''), stream, requests, group, entry, fields)
    moved = moved + 1
  end
end
local left = redis.call('XLEN', stream)
if left == 0 then redis.call('DEL', stream) end
return {moved, left}
