-- In front of the scripts that take dead letters away: REQUEUE and DISCARD.

-- Whether this dead letter stands there with this event: another operator may have taken it away.
local function stands(dead, letter, event)
  local rows = redis.call('XRANGE', dead, letter, letter)
  if #rows == 0 then return false end
  local fields = rows[1][2]
  for i = 1, #fields, 2 do
    if fields[i] == 'event' then return fields[i + 1] == event end
  end
  return event == ''
end
