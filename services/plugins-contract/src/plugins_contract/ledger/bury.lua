-- BURY: move an entry that cannot even be read to the dead letters; there is no call to answer.
-- KEYS requests, dead
-- ARGV group, entry, reason, event
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'reason', ARGV[3], 'correlationId', '', 'entry', ARGV[2], 'starts', 0, 'event', ARGV[4])
forget_entry(KEYS[1], ARGV[1], ARGV[2])
return {'OK'}
