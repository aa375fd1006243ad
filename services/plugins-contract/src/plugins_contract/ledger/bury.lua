-- BURY: move an entry that cannot be handled to the dead letters, once, and end its call, if it has one. A request
-- without a ledger entry is a call too, unless its caller cannot be answered: then `id` is ''.

local worker = pending_owner(requests, group, entry)
if not worker then return {'OK'} end
local known = redis.call('HMGET', call, 'state', 'entry')
-- A broken duplicate does not end the call, which another entry carries. A call without a ledger entry was lost, and its
-- engine ends it, unless it comes from a producer that does not use the ledger.
local its_call = known[1] and known[2] == entry and not TERMINAL[known[1]] or not known[1] and id ~= '' and enqueued == 0
keep_dead_letter(dead, call, id, entry, reason, worker, its_call and reply or '', event)
if named ~= channel then
  redis.pcall('XADD', named, '*', 'correlationId', id, 'toolCallId', tool_call_id, 'kind', 'finished', 'reply', reply)
  redis.call('EXPIRE', named, 86400, 'NX')
end
if its_call then
  finish(call, requests, channel, mailbox, group, entry, id, tool_call_id, state, reply)
else
  forget_entry(requests, group, entry)
end
return {'OK'}
