-- TIDY: remove consumers whose workers died: those that hold no entries, which would be dropped with them, and have not
-- read for silentMs. A consumer that was removed and reads again is created again.
-- KEYS requests, workers
-- ARGV group, consumer (the caller, never removed), silentMs
-- -> {consumer, …}
local requests, workers, group, silent_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[3])
local gone, here = {}, run_id()
local consumers = consumers_of(requests, group)
for name, info in pairs(consumers) do
  -- `idle` counts from the last attempt to read, on every server; `inactive`, where there is one, from the last success.
  if name ~= ARGV[2] and info.pending == 0 and info.idle >= silent_ms then
    redis.call('XGROUP', 'DELCONSUMER', requests, group, name)
    forget_worker(workers, name, here)
    gone[#gone + 1] = name
  end
end
-- Workers that reported and never read, or whose consumer was lost with the group.
local rows = redis.call('HGETALL', workers)
for i = 1, #rows, 2 do
  local _, _, seen = report_of(rows[i + 1])
  if rows[i] ~= ARGV[2] and seen and not consumers[rows[i]] and now_ms() - seen >= silent_ms then
    forget_worker(workers, rows[i], here)
  end
end
return gone
