-- TIDY: remove consumers whose workers died: those that hold no entries, which would be dropped with them, and have not
-- read for silentMs. A consumer that was removed and reads again is created again.
-- KEYS requests, workers, streams of pools…
-- ARGV group, consumer (the caller, never removed), silentMs
-- -> {consumer, …}
local requests, workers, group, silent_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[3])
local here = run_id()

local function remove_silent(consumers, stream)
  local gone = {}
  for name, info in pairs(consumers) do
    -- `idle` counts from the last attempt to read, on every server; `inactive`, where there is one, from the last success.
    if name ~= ARGV[2] and info.pending == 0 and info.idle >= silent_ms then
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
  if rows[i] ~= ARGV[2] and seen and not consumers[rows[i]] and now_ms() - seen >= silent_ms then
    forget_worker(workers, rows[i], here)
  end
end
-- A worker is known by its consumer on `events.plugins`; it has others in its pools.
for at = 3, #KEYS do remove_silent(consumers_of(KEYS[at], group), KEYS[at]) end
return gone
