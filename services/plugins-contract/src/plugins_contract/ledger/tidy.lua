-- TIDY: remove consumers whose workers died: those that hold no entries, which would be dropped with them, and have not
-- read for silentMs. A consumer that was removed and reads again is created again.
-- KEYS requests
-- ARGV group, consumer (the caller, never removed), silentMs
-- -> {consumer, …}
local requests, group = KEYS[1], ARGV[1]
local gone = {}
local rows = redis.pcall('XINFO', 'CONSUMERS', requests, group)
if rows.err then return gone end
for _, fields in ipairs(rows) do
  local info = {}
  for i = 1, #fields, 2 do info[fields[i]] = fields[i + 1] end
  -- `idle` counts from the last attempt to read, on every server; `inactive`, where there is one, from the last success.
  if info.name ~= ARGV[2] and info.pending == 0 and info.idle >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', requests, group, info.name)
    gone[#gone + 1] = info.name
  end
end
return gone
