-- STOP: ask for the end of a turn, whoever runs it. The mark lasts, whoever takes the turn over; the ring makes it quick.
-- KEYS run
-- ARGV controlChannel, controlMessage
-- -> {'ASKED'} | {'ENDED'} | {'GONE'}
local found = redis.call('HMGET', KEYS[1], 'engine', 'ended')
if not found[1] then return {'GONE'} end
if found[2] then return {'ENDED'} end
redis.call('HSET', KEYS[1], 'cancel', 1)
redis.call('PUBLISH', ARGV[1], ARGV[2])
return {'ASKED'}
