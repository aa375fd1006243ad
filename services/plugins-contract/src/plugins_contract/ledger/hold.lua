-- HOLD: become the holder of a session, before it is opened, unless another worker is.
-- -> {'HELD', fence, opened} | {'OTHER', stream}; opened is 1 when an earlier session may have had state

local fence, till, opened, holder = holding(session, server)
if holder ~= stream and is_held(till, holder, streams) then return {'OTHER', holder} end
fence = next_fence(fence)
hold(session, server, fence, now_ms() + lease_ms, '1', stream)
return {'HELD', fence, tonumber(opened)}
