-- FORGET: remove what is known of the sessions of deleted owners. Their workers are notified, and end them at the latest when
-- they renew their leases.
-- -> {'OK'}

for _, session in ipairs(sessions) do
  if redis.call('DEL', session) == 1 then
    redis.call('HSET', session, '*forgotten', 1)
    redis.call('PEXPIREAT', session, now_ms() + silent_ms)
  end
end
redis.call('PUBLISH', control, message)
return {'OK'}
