-- RENEW: keep the lease of a running call, if it is still ours. An unfenced claim would steal it back after a stall.
-- KEYS call, requests
-- ARGV group, consumer, entry, fence
-- -> {'OK', cancelRequested} | {'STALE'}
local call, requests = KEYS[1], KEYS[2]
local group, consumer, entry = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', call, 'state', 'fence', 'cancel')
if known[1] ~= 'started' or known[2] ~= ARGV[4] then return {'STALE'} end
local owner = pending_owner(requests, group, entry)
if owner and owner ~= consumer then return {'STALE'} end
-- Nobody's: the request or the group vanished under a running call. By its fence it is still ours to complete.
if owner then redis.call('XCLAIM', requests, group, consumer, 0, entry, 'JUSTID') end
return {'OK', known[3] and 1 or 0}
