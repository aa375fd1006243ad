-- AUDIT: what has become of calls that were not heard of. Changes nothing.
-- KEYS requests, call…
-- ARGV group, silentMs
-- -> one row per call of which there is something to say: {n, reply} or {n, '', loss}, n counting from 1
local requests, silent_ms = KEYS[1], tonumber(ARGV[2])
local delivered = delivered_up_to(requests, ARGV[1])
local rows = {}
for n = 2, #KEYS do
  local known = redis.call('HMGET', KEYS[n], 'state', 'entry', 'renewedAt', 'reply')
  if known[4] then
    rows[#rows + 1] = {n - 1, known[4]}
  else
    local lost = loss(requests, ARGV[1], known, silent_ms, delivered)
    if lost then rows[#rows + 1] = {n - 1, '', lost} end
  end
end
return rows
