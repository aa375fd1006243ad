-- Appends entries to the log of a turn, if Redis has exactly those entries of their epoch that come before them.
-- Returns the id of the last entry of the log ("0-0" when it is empty). When Redis has fewer or more entries of this
-- epoch than it should, or another owner has begun a later epoch, nothing is written.
local log, own_epoch, stored, lifetime_seconds = KEYS[1], ARGV[1], ARGV[2], ARGV[3] -- `stored` is '0' for none
local first_entry = 4 -- of each entry its id, its event and its data
local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local last = newest and newest[1] or '0-0'
local epoch, seq = string.match(last, '(%d+)-(%d+)')
if tonumber(epoch) > tonumber(own_epoch) or (epoch == own_epoch and seq or '0') ~= stored then
  return last
end
for at = first_entry, #ARGV, 3 do
  local id, event, data = unpack(ARGV, at, at + 2)
  last = redis.call('XADD', log, id, 'event', event, 'data', data)
end
redis.call('EXPIRE', log, lifetime_seconds)
return last
