-- What Redis has about these calls, all at the same instant. Reads only.
-- KEYS requests, call...
-- ARGV group
-- -> per call: nothing, or {state, class, deadline, fence, entry, holder, milliseconds since its last lease, on the stream, history}
local found = {}
for at = 2, #KEYS do
  local known = redis.call('HMGET', KEYS[at], 'state', 'class', 'deadline', 'fence', 'entry', 'history', 'stream')
  local row = {}
  if known[1] and known[5] then
    local stream = known[7] or KEYS[1] -- that of a pool, when it was moved there
    local pending = redis.pcall('XPENDING', stream, ARGV[1], known[5], known[5], 1)
    local held = not pending.err and pending[1]
    local there = redis.pcall('XRANGE', stream, known[5], known[5])
    row = {known[1], known[2], known[3], known[4], known[5], held and held[2] or '', held and held[3] or -1,
      not there.err and #there or 0, known[6] or ''}
  end
  found[at - 1] = row
end
return found
