-- Shared by the scripts that delete dead letters: REQUEUE and DISCARD.

-- Whether this dead letter still exists with this event: another operator may have deleted it.
local function stands(dead, letter, event)
  local rows = redis.call('XRANGE', dead, letter, letter)
  if #rows == 0 then return false end
  return (field_of(rows[1][2], 'event') or '') == event
end
