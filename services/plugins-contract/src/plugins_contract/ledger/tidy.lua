-- TIDY: remove consumers whose workers died: those that hold no entries, which would be dropped with them, and have not
-- read for silent_ms. A consumer that was removed and reads again is created again.
-- -> {consumer, …}
local here = run_id()

local function remove_silent(consumers, stream)
  local gone = {}
  for name, info in pairs(consumers) do
    -- `idle` counts from the last attempt to read, on every server; `inactive`, where there is one, from the last success.
    if name ~= consumer and info.pending == 0 and info.idle >= silent_ms then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
      gone[#gone + 1] = name
    end
  end
  return gone
end

local consumers = consumers_of(requests, group)
local gone = remove_silent(consumers, requests)
for _, name in ipairs(gone) do forget_worker(workers, name, here) end
-- Workers that reported and never read, or whose consumer was lost with the group.
local rows = redis.call('HGETALL', workers)
for i = 1, #rows, 2 do
  local _, _, seen = report_of(rows[i + 1])
  if rows[i] ~= consumer and seen and not consumers[rows[i]] and now_ms() - seen >= silent_ms then
    forget_worker(workers, rows[i], here)
  end
end
-- A worker is known by its consumer on `events.plugins`; it has others in its pools.
for _, pool in ipairs(pools) do remove_silent(consumers_of(pool, group), pool) end
return gone
