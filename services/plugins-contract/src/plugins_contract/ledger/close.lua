-- CLOSE: end the lease of a session that its worker closes. That one was opened stays known: its state is lost.
-- -> {'OK'} | {'STALE'}

local fence, _, _, stream = holding(session, server)
if not stream or fence ~= mine then return {'STALE'} end
hold(session, server, fence, 0, opened, stream)
return {'OK'}
