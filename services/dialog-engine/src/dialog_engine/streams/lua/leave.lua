-- LEAVE: a turn that waits for its session will not begin. Who is behind it hears of it.
-- KEYS waiting
-- ARGV turn, controlChannel, controlMessage
-- -> {'OK'}
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then ring_line(KEYS[1], ARGV[2], ARGV[3]) end
return {'OK'}
