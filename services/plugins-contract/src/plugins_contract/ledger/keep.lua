-- KEEP: renew the leases of sessions, each under its fence. Restores what Redis has lost of one. `held` is a JSON list of
-- {server, fence}, in the order of the keys.
-- -> {n, …}: the sessions, counting from 1, that another worker holds or that were forgotten

local stale = {}
for n, each in ipairs(cjson.decode(held)) do
  local server, mine = each[1], each[2]
  local fence, _, _, holder = holding(sessions[n], server)
  local forgotten = not holder and redis.call('HEXISTS', sessions[n], '*forgotten') == 1
  if fence > mine or forgotten then
    stale[#stale + 1] = n
  else
    hold(sessions[n], server, mine, now_ms() + lease_ms, '1', stream)
  end
end
return stale
