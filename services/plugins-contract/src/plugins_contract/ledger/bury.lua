-- BURY: move an entry that cannot be handled to the dead letters, once, and end its call, if it has one. A request
-- without a ledger entry is a call too, unless its caller cannot be answered: then `id` is ''.
-- KEYS requests, dead, call, channel, mailbox, named (another channel that the request names; else `channel` again)
-- ARGV group, entry, reason, event, id ('' when it has none), reply, state, toolCallId, enqueued (1: by ENQUEUE, 0: not)
local requests, dead, call, channel, mailbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, entry, reason, id = ARGV[1], ARGV[2], ARGV[3], ARGV[5]

local worker = pending_owner(requests, group, entry)
if not worker then return {'OK'} end
local known = redis.call('HMGET', call, 'state', 'entry')
-- A broken duplicate does not end the call, which another entry carries. A call without a ledger entry was lost, and its
-- engine ends it, unless it comes from a producer that does not use the ledger.
local its_call = known[1] and known[2] == entry and not TERMINAL[known[1]] or not known[1] and id ~= '' and ARGV[9] == '0'
keep_dead_letter(dead, call, id, entry, reason, worker, its_call and ARGV[6] or '', ARGV[4])
if KEYS[6] ~= channel then
  redis.pcall('XADD', KEYS[6], '*', 'correlationId', id, 'toolCallId', ARGV[8], 'kind', 'finished', 'reply', ARGV[6])
  redis.call('EXPIRE', KEYS[6], 86400, 'NX')
end
if its_call then
  finish(call, requests, channel, mailbox, group, entry, id, ARGV[8], ARGV[7], ARGV[6])
else
  forget_entry(requests, group, entry)
end
return {'OK'}
