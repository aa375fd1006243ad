-- PASS: leave a call to other workers that has not begun, because this worker has not got its server; they find it at
-- once. Nobody is told that it began: it did not.
-- KEYS call, requests
-- ARGV group, consumer, entry, leaseMs
-- -> {'OK'} | {'START'}: it is over, overdue, begun or not ours; START knows what is to be done about that
local call, requests = KEYS[1], KEYS[2]
local group, consumer, entry = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', call, 'state', 'deadline', 'entry')
if known[1] ~= 'published' or known[3] ~= entry then return {'START'} end
if now_ms() >= tonumber(known[2]) then return {'START'} end
if pending_owner(requests, group, entry) ~= consumer then return {'START'} end
redis.call('XCLAIM', requests, group, consumer, 0, entry, 'IDLE', tonumber(ARGV[4]) + 1, 'JUSTID')
return {'OK'}
