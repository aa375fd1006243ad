-- REPORT: this worker has written to this server what it knows of its calls: see workers.lua.
-- -> the run id of this server ('': it cannot be read). The report counts only if that is `server`.
local here = run_id()
if consumer ~= '' and server == here then
  known_for(workers, here) -- before the first report here: it looks at the last ones elsewhere
  local _, since = report_of(redis.call('HGET', workers, consumer))
  redis.call('HSET', workers, consumer, here .. ' ' .. (since or now_ms()) .. ' ' .. now_ms())
end
return here
