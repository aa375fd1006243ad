-- RELEASE: give a turn up. Either others may have it at once, or, when nothing was committed of it, it never was.
-- KEYS session, run, runs, waiting
-- ARGV turn, engine, epoch, withdraw (1: it never was), controlChannel, controlMessage
-- -> {'OK'} | {'MOVED'}
local session, run, runs = KEYS[1], KEYS[2], KEYS[3]
local turn = ARGV[1]

local found = redis.call('HMGET', run, 'engine', 'epoch')
if found[1] ~= ARGV[2] or found[2] ~= ARGV[3] then return {'MOVED'} end
if ARGV[4] == '1' then
  redis.call('DEL', run)
  redis.call('ZREM', runs, turn)
  if redis.call('HGET', session, 'running') == turn then redis.call('HDEL', session, 'running') end
  ring_line(KEYS[4], ARGV[5], ARGV[6])
elseif redis.call('ZSCORE', runs, turn) then
  redis.call('ZADD', runs, 0, turn)
end
return {'OK'}
