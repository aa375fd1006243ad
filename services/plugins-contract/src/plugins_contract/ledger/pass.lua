-- PASS: leave a call that has not started to other workers, because this worker does not have its server. They can
-- claim it at once.
-- KEYS call, requests
-- ARGV group, consumer, entry, leaseMs
-- -> {'OK'} | {'START'}: it is finished, overdue, started or held by another worker; START decides what is to be done
local call, requests = KEYS[1], KEYS[2]
local group, consumer, entry = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', call, 'state', 'deadline', 'entry')
if known[1] ~= 'published' or known[3] ~= entry then return {'START'} end
if now_ms() >= tonumber(known[2]) then return {'START'} end
if pending_owner(requests, group, entry) ~= consumer then return {'START'} end
redis.call('XCLAIM', requests, group, consumer, 0, entry, 'IDLE', tonumber(ARGV[4]) + 1, 'JUSTID')
return {'OK'}
