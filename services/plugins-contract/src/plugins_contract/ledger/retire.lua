-- RETIRE: remove a consumer from the group, unless it holds entries, which would be dropped with it. Those entries are
-- set idle for freeMs instead: their worker has ended, and others need not wait for a lease to expire.
-- KEYS requests, workers
-- ARGV group, consumer, freeMs
-- -> {'OK'} | {'BUSY', pending}
local requests, group, consumer, free_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local rows = redis.pcall('XPENDING', requests, group, '-', '+', 1000, consumer)
if rows.err then return {'OK'} end
if #rows == 0 then
  redis.call('XGROUP', 'DELCONSUMER', requests, group, consumer)
  forget_worker(KEYS[2], consumer, run_id())
  return {'OK'}
end
for _, row in ipairs(rows) do
  redis.call('XCLAIM', requests, group, consumer, 0, row[1], 'IDLE', free_ms, 'JUSTID')
end
return {'BUSY', #rows}
