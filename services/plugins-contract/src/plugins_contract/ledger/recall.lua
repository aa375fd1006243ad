-- RECALL: move the requests of a pool that has no workers to `events.plugins`, where every worker finds them. Requests under a
-- valid lease stay. START decides about those that were started. The stream is deleted when it holds nothing.
-- KEYS requests, stream
-- ARGV group, leaseMs, most (requests to look at), beginning of the names of ledger entries
-- -> {moved, left}
local requests, stream, group, lease_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
if redis.call('EXISTS', requests) == 0 then redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM') end

local moved = 0
for _, row in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', ARGV[3])) do
  local entry, fields = row[1], row[2]
  local owner, _, idle_ms = pending_owner(stream, group, entry)
  if not owner or idle_ms >= lease_ms then
    move_entry(ARGV[4] .. (field_of(fields, 'correlationId') or ''), stream, requests, group, entry, fields)
    moved = moved + 1
  end
end
local left = redis.call('XLEN', stream)
if left == 0 then redis.call('DEL', stream) end
return {moved, left}
