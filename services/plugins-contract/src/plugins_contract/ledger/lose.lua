-- LOSE: end a lost call, if it is still lost: a worker may have restored or ended it since the audit.
-- KEYS call, requests, channel, mailbox
-- ARGV id, group, silentMs, loss, state, reply, toolCallId
-- -> {'ENDED'} | {'FINISHED', reply ('': it is lost)} | {'FOUND'}
local call, requests, channel, mailbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local known = redis.call('HMGET', call, 'state', 'entry', 'renewedAt', 'stream')
if TERMINAL[known[1]] then return {'FINISHED', reply_of(call, channel)} end
if loss(requests, ARGV[2], known, tonumber(ARGV[3])) ~= ARGV[4] then return {'FOUND'} end
finish(call, known[4] or requests, channel, mailbox, ARGV[2], known[2], ARGV[1], ARGV[7], ARGV[5], ARGV[6])
return {'ENDED'}
