-- ADOPT: create the ledger entry of a request that another producer put on the stream; ENQUEUE does so for engines. The
-- request needs no ledger entry until it is started, and START leaves two traces of it, in the ledger and in the channel.
-- -> {'ADOPTED', executionClass, deadline}: the values in the ledger, from now or from before
--  | {'CONFLICT'}: another request has this id, or its channel is no stream
--  | {'MISSING'}: it may have been started, and Redis has lost its ledger entry
--  | {'NOT_OWNER'}

local owner, deliveries = pending_owner(requests, group, entry)
if owner ~= consumer then return {'NOT_OWNER'} end
if deadline == '' then deadline = now_ms() + timeout_ms end

local known = redis.call('HMGET', call, 'state', 'hash', 'class', 'deadline')
if known[1] then
  if known[2] and known[2] ~= hash then return {'CONFLICT'} end
  return {'ADOPTED', known[3] or class, tostring(known[4] or deadline)}
end

local replies = redis.pcall('XLEN', channel)
if type(replies) == 'table' then return {'CONFLICT'} end
-- A channel is created when its call starts. When both have expired it is unknown whether an earlier delivery started it.
local written_at = tonumber(string.match(entry, '%d+'))
if replies > 0 or (deliveries > 1 and now_ms() - written_at > 86400000) then return {'MISSING'} end

redis.call('HSET', call, 'state', 'published', 'hash', hash, 'entry', entry, 'class', class, 'mailbox', mailbox,
  'server', server, 'tool', tool, 'deadline', deadline, 'fence', next_fence(), 'starts', 0,
  'publishedAt', now_ms(), 'stream', requests)
keep_while_open(call, deadline)
return {'ADOPTED', class, tostring(deadline)}
