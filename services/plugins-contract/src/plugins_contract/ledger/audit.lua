-- AUDIT: the state of calls of which the engine has received nothing for a while. Writes nothing.
-- -> {checked, rows}: the first `checked` calls were checked, at least one. The replies in the rows had reached max_bytes
-- then: ask again for the others.
-- rows: {n, reply} of a finished call ('': its reply is lost) or {n, '', loss} of a lost one, n counting from 1
local rows, bytes = {}, 0
for n = 1, #calls / 2 do
  local call, channel = calls[2 * n - 1], calls[2 * n]
  local known = redis.call('HMGET', call, 'state', 'entry', 'renewedAt', 'stream')
  if TERMINAL[known[1]] then
    local reply = reply_of(call, channel)
    rows[#rows + 1] = {n, reply}
    bytes = bytes + #reply
    if bytes >= max_bytes then return {n, rows} end
  else
    local lost = loss(requests, group, known, silent_ms)
    if lost then rows[#rows + 1] = {n, '', lost} end
  end
end
return {#calls / 2, rows}
