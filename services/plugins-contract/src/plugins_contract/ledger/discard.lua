-- DISCARD: delete a dead letter, if it is still the one that was read.
-- -> {'OK'} | {'GONE'}
if not stands(dead, letter, event) then return {'GONE'} end
redis.call('XDEL', dead, letter)
return {'OK'}
