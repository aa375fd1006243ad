-- RETIRE: remove a consumer from the group on each stream, unless it holds entries, which would be dropped with it. Those
-- entries are set idle for free_ms instead: their worker has ended, and others need not wait for a lease to expire.
-- -> {'OK'} | {'BUSY', pending}
local held = 0
for at, stream in ipairs({requests, unpack(pools)}) do
  local rows = redis.pcall('XPENDING', stream, group, '-', '+', 1000, consumer)
  if rows.err and at == 1 then return {'OK'} end
  for _, row in ipairs(rows) do
    redis.call('XCLAIM', stream, group, consumer, 0, row[1], 'IDLE', free_ms, 'JUSTID')
  end
  if not rows.err and #rows == 0 then redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer) end
  held = held + #rows
end
if held > 0 then return {'BUSY', held} end
forget_worker(workers, consumer, run_id())
return {'OK'}
