-- RENEW: keep the leases of the turns that this engine runs, all in one step. Fenced: nothing that moved is taken back.
-- KEYS runs, run, run, …
-- ARGV engine, leaseMs, turn, epoch, turn, epoch, …
-- -> {'OK' | 'CANCEL' (its end was asked for) | 'MOVED' | 'GONE', …} in the order of the turns
local runs, engine, ends = KEYS[1], ARGV[1], now_ms() + tonumber(ARGV[2])
local answers = {}
for i = 2, #KEYS do
  local turn, epoch = ARGV[2 * i - 1], ARGV[2 * i]
  local found = redis.call('HMGET', KEYS[i], 'engine', 'epoch', 'cancel', 'ended')
  if not found[1] then
    answers[i - 1] = 'GONE'
  elseif found[1] ~= engine or found[2] ~= epoch then
    answers[i - 1] = 'MOVED'
  else
    if not found[4] then redis.call('ZADD', runs, ends, turn) end
    answers[i - 1] = found[3] and 'CANCEL' or 'OK'
  end
end
return answers
