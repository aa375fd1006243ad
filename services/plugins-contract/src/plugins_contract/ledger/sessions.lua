-- Which worker keeps the state of a server for one owner, a subject or a conversation. Shared by ENQUEUE, HOLD, KEEP and CLOSE.
--
-- The hash `session` has a field for each server: '<fence> <end of the lease, ms> <opened> <stream>'. The stream is that of
-- the holder's own pool. `opened` is 0 while no worker has opened a session; the token of the HOLD for the first one; and 1
-- later. '*forgotten' is there after FORGET.

local function holding(session, server)
  local fence, till, opened, stream = string.match(redis.call('HGET', session, server) or '', '^(%d+) (%d+) (%S+) (.+)$')
  return tonumber(fence or 0), tonumber(till or 0), opened or '0', stream
end

local function hold(session, server, fence, till, opened, stream)
  redis.call('HSET', session, server, string.format('%.0f %.0f %s %s', fence, till, opened, stream))
  redis.call('PEXPIREAT', session, now_ms() + 86400000)
end

-- Whether a worker holds it now. Who can write to Redis must not have requests put on any other kind of stream.
local function is_held(till, stream, streams)
  return stream and till > now_ms() and string.sub(stream, 1, #streams) == streams and redis.call('EXISTS', stream) == 1
end
