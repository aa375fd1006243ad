-- Put in front of every script of this folder. Redis 7.0, Redis 8 and Valkey 9 alike.

-- Unix milliseconds on the one clock.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
