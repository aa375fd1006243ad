-- Stores what the owner of a turn has appended to its log.
-- KEYS: the log. ARGV: epoch, the number up to which the owner believes it stored, lifetime in seconds,
-- then for each entry: its number, its event, and the name and the text of its other field.
-- Returns {'stored', number} with the last number there now; {'lost', number} when less is there than was stored, and
-- then nothing was written; {'superseded', epoch} when another owner has begun a later epoch.
local epoch, believed = tonumber(ARGV[1]), tonumber(ARGV[2])
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local there = 0
if newest then
  local its_epoch, number = string.match(newest[1], '(%d+)-(%d+)')
  if tonumber(its_epoch) > epoch then
    return {'superseded', tonumber(its_epoch)}
  elseif tonumber(its_epoch) == epoch then
    there = tonumber(number)
  end
end
if there < believed then
  return {'lost', there}
end
for at = 4, #ARGV, 4 do
  local number = tonumber(ARGV[at])
  -- What is there already is our own: an append whose reply was lost.
  if number > there then
    redis.call('XADD', KEYS[1], ARGV[1] .. '-' .. ARGV[at], 'event', ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
    there = number
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {'stored', there}
