-- PROGRESS: pass on what the tool says about itself, while the call is ours.
-- KEYS call, channel, mailbox
-- ARGV id, fence, reply
-- -> {'OK'} | {'STALE'}
local known = redis.call('HMGET', KEYS[1], 'state', 'fence')
if known[1] ~= 'started' or known[2] ~= ARGV[2] then return {'STALE'} end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 256, '*', 'reply', ARGV[3])
redis.call('EXPIRE', KEYS[2], 86400, 'NX') -- START has set it, unless that was lost
ring(KEYS[3], ARGV[1], ARGV[3])
return {'OK'}
