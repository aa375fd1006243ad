-- DISCARD: delete a dead letter, if it is still the one that was read.
-- KEYS dead
-- ARGV letter, event (as the letter was read)
-- -> {'OK'} | {'GONE'}
if not stands(KEYS[1], ARGV[1], ARGV[2]) then return {'GONE'} end
redis.call('XDEL', KEYS[1], ARGV[1])
return {'OK'}
