-- HOLD: become the holder of a session, before it is opened, unless another worker is. A token names one session to be opened:
-- the same token again (its reply was lost) gets the same answer.
-- -> {'HELD', fence, lost} | {'OTHER', stream}; lost is 1 when an earlier session may have had state

local fence, till, opened, holder = holding(session, server)
if holder ~= stream and is_held(till, holder, streams) then return {'OTHER', holder} end
local first = opened == '0' or opened == token
fence = next_fence(fence)
hold(session, server, fence, now_ms() + lease_ms, first and token or '1', stream)
return {'HELD', fence, first and 0 or 1}
