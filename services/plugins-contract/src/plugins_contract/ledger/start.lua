-- START: the durable mark before any byte goes to an MCP server. Raises the fence.
-- KEYS call, requests, channel, mailbox
-- ARGV id, group, consumer, entry, token, maxStarts, expiredReply, startedReplyPrefix
-- A token names one delivery: the same token again (its reply was lost) gets the same answer.
-- -> {'RUN', fence, starts} | {'ABANDONED', fence, starts} | {'CANCELLED', fence, starts} | {'EXHAUSTED', fence, starts}
--  | {'FINISHED', state} | {'EXPIRED'} | {'NOT_OWNER'} | {'MISSING'}
local call, requests, channel, mailbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, group, consumer, entry, token, max_starts = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])

local known = redis.call('HMGET', call, 'state', 'class', 'deadline', 'fence', 'starts', 'token', 'reply', 'entry', 'cancel')
local state = known[1]
if not state then return {'MISSING'} end

if TERMINAL[state] then
  ring(mailbox, id, known[7])
  forget_entry(requests, group, entry)
  return {'FINISHED', state}
end

if pending_owner(requests, group, entry) ~= consumer then return {'NOT_OWNER'} end

local starts = tonumber(known[5])
if known[6] == token then return {'RUN', tonumber(known[4]), starts} end

if known[8] ~= entry then
  -- The same call stands in the stream a second time: the other entry carries it.
  forget_entry(requests, group, entry)
  return {'NOT_OWNER'}
end

local fence = redis.call('HINCRBY', call, 'fence', 1)
redis.call('HSET', call, 'owner', consumer)

-- Started before by somebody who is gone. Whether it took effect nobody can tell: only what is repeatable runs again.
if state == 'started' and known[2] ~= 'repeatable' then return {'ABANDONED', fence, starts} end
if known[9] then return {'CANCELLED', fence, starts} end
if starts >= max_starts then return {'EXHAUSTED', fence, starts} end

if now_ms() >= tonumber(known[3]) then
  finish(call, requests, channel, mailbox, group, entry, id, 'expired', ARGV[7])
  return {'EXPIRED'}
end

starts = redis.call('HINCRBY', call, 'starts', 1)
redis.call('HSET', call, 'state', 'started', 'token', token, 'startedAt', now_ms())
local started = ARGV[8] .. starts .. '}'
redis.call('XADD', channel, '*', 'reply', started)
redis.call('PEXPIREAT', channel, tonumber(known[3]) + 86400000)
ring(mailbox, id, started)
return {'RUN', fence, starts}
