-- What Redis has lost of a call. Shared by AUDIT and LOSE.

-- The id of the last entry that the group has delivered; nil when there is no such group.
local function delivered_up_to(requests, group)
  local groups = redis.pcall('XINFO', 'GROUPS', requests)
  if groups.err then return nil end
  for _, fields in ipairs(groups) do
    local info = {}
    for i = 1, #fields, 2 do info[fields[i]] = fields[i + 1] end
    if info.name == group then return info['last-delivered-id'] end
  end
end

-- Whether entry id `a` comes after `b`.
local function later(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  a_ms, a_seq, b_ms, b_seq = tonumber(a_ms), tonumber(a_seq), tonumber(b_ms), tonumber(b_seq)
  return a_ms > b_ms or (a_ms == b_ms and a_seq > b_seq)
end

-- Whether no worker can get this entry any more: it was deleted, or it was delivered and no consumer holds it.
local delivered_of = {}
local function out_of_reach(requests, group, entry)
  local rows = redis.pcall('XRANGE', requests, entry, entry)
  if rows.err or #rows == 0 then return true end
  if delivered_of[requests] == nil then delivered_of[requests] = delivered_up_to(requests, group) or false end
  local delivered = delivered_of[requests]
  return delivered and not later(entry, delivered) and not pending_owner(requests, group, entry)
end

-- The loss of a call that has not ended. 'MISSING': no ledger entry. 'VANISHED': not started, and its request is out of
-- reach. 'STRANDED': started, not renewed for `silent_ms`, and its request is out of reach. nil: nothing is known to be
-- lost.
local function loss(requests, group, known, silent_ms)
  local state, entry, renewed_at = known[1], known[2], known[3]
  if not state then return 'MISSING' end
  if state == 'started' and now_ms() - tonumber(renewed_at or 0) <= silent_ms then return nil end
  if not out_of_reach(known[4] or requests, group, entry) then return nil end
  return state == 'published' and 'VANISHED' or 'STRANDED'
end
