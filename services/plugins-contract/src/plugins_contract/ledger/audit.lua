-- AUDIT: what has become of calls that were not heard of. Changes nothing.
-- KEYS requests, call…
-- ARGV group, silentMs, maxBytes
-- -> {looked, rows}: the first `looked` calls were looked at. The others were not: the replies in the rows had reached
-- maxBytes together, so ask again for those. At least one call is looked at.
-- rows: one per call of which there is something to say: {n, reply} or {n, '', loss}, n counting from 1
local requests, silent_ms, max_bytes = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local delivered = delivered_up_to(requests, ARGV[1])
local rows, bytes = {}, 0
for n = 2, #KEYS do
  local known = redis.call('HMGET', KEYS[n], 'state', 'entry', 'renewedAt', 'reply')
  if known[4] then
    rows[#rows + 1] = {n - 1, known[4]}
    bytes = bytes + #known[4]
    if bytes >= max_bytes then return {n - 1, rows} end
  else
    local lost = loss(requests, ARGV[1], known, silent_ms, delivered)
    if lost then rows[#rows + 1] = {n - 1, '', lost} end
  end
end
return {#KEYS - 1, rows}
