-- RETIRE: remove a consumer from the group on each stream, unless it holds entries, which would be dropped with it. Those
-- entries are set idle for freeMs instead: their worker has ended, and others need not wait for a lease to expire.
-- KEYS requests, workers, streams of pools…
-- ARGV group, consumer, freeMs
-- -> {'OK'} | {'BUSY', pending}
local group, consumer, free_ms, held = ARGV[1], ARGV[2], tonumber(ARGV[3]), 0
for at, stream in ipairs(KEYS) do
  local rows = at == 2 and {} or redis.pcall('XPENDING', stream, group, '-', '+', 1000, consumer)
  if rows.err and at == 1 then return {'OK'} end
  for _, row in ipairs(rows) do
    redis.call('XCLAIM', stream, group, consumer, 0, row[1], 'IDLE', free_ms, 'JUSTID')
  end
  if at ~= 2 and not rows.err and #rows == 0 then redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer) end
  held = held + #rows
end
if held > 0 then return {'BUSY', held} end
forget_worker(KEYS[2], consumer, run_id())
return {'OK'}
