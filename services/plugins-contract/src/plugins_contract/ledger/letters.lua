-- In front of the scripts that take dead letters away: REQUEUE and DISCARD.

-- Whether this dead letter stands there with this event: another operator may have taken it away.
local function stands(dead, letter, event)
  local rows = redis.call('XRANGE', dead, letter, letter)
  if #rows == 0 then return false end
  return (field_of(rows[1][2], 'event') or '') == event
end
