-- BURY: move an entry that cannot even be read to the dead letters, once; there is no call to answer.
-- KEYS requests, dead
-- ARGV group, entry, reason, event
if not pending_owner(KEYS[1], ARGV[1], ARGV[2]) then return {'OK'} end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'reason', ARGV[3], 'correlationId', '', 'entry', ARGV[2], 'starts', 0, 'event', ARGV[4])
forget_entry(KEYS[1], ARGV[1], ARGV[2])
return {'OK'}
