-- Appends entries to the log of a turn, if Redis has exactly those entries of their epoch that come before them.
-- KEYS: the log. ARGV: the epoch, the number of its last entry that Redis should have ("0" for none), the lifetime in
-- seconds, then the id, the event and the data of each entry.
-- Returns the id of the last entry of the log ("0-0" when it is empty). When Redis has fewer or more entries of this
-- epoch than it should, or another owner has begun a later epoch, nothing is written.
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local last = newest and newest[1] or '0-0'
local epoch, seq = string.match(last, '(%d+)-(%d+)')
if tonumber(epoch) > tonumber(ARGV[1]) or (epoch == ARGV[1] and seq or '0') ~= ARGV[2] then
  return last
end
for at = 4, #ARGV, 3 do
  last = redis.call('XADD', KEYS[1], ARGV[at], 'event', ARGV[at + 1], 'data', ARGV[at + 2])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return last
