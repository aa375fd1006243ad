-- RETIRE: take a consumer out of the group, unless it holds anything: that would be dropped with it.
-- KEYS requests
-- ARGV group, consumer
-- -> {'OK'} | {'BUSY', pending}
local rows = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if rows.err then return {'OK'} end
if #rows > 0 then return {'BUSY', #rows} end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return {'OK'}
