-- BURY: move an entry that cannot be read to the dead letters, once; its call, if it has one, is answered.
-- KEYS requests, dead, call, channel, mailbox
-- ARGV group, entry, reason, event, id ('' when it has none), reply
local requests, dead, call, channel, mailbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, entry, reason, id = ARGV[1], ARGV[2], ARGV[3], ARGV[5]

local worker = pending_owner(requests, group, entry)
if not worker then return {'OK'} end
local known = redis.call('HMGET', call, 'state', 'entry')
-- A broken duplicate of a call that another entry carries ends nothing.
local its_call = known[1] and known[2] == entry and not TERMINAL[known[1]]
keep_dead_letter(dead, call, id, entry, reason, worker, its_call and ARGV[6] or '', ARGV[4])
if its_call then
  finish(call, requests, channel, mailbox, group, entry, id, 'dead', ARGV[6])
else
  forget_entry(requests, group, entry)
end
return {'OK'}
