-- REPORT: this worker has written to this server what it knows of its calls: see workers.lua.
-- KEYS workers
-- ARGV consumer ('': only ask), server (the run id of the server to which that was written)
-- -> the run id of this server ('': it cannot be read). The report counts only if that is `server`.
local here = run_id()
if ARGV[1] ~= '' and ARGV[2] == here then
  local _, since = report_of(redis.call('HGET', KEYS[1], ARGV[1]))
  redis.call('HSET', KEYS[1], ARGV[1], here .. ' ' .. (since or now_ms()) .. ' ' .. now_ms())
  known_for(KEYS[1], here)
end
return here
