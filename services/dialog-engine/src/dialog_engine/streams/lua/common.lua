-- Put in front of every script of this folder. Redis 7.0, Redis 8 and Valkey 9 alike.

-- Unix milliseconds on the one clock.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The session is free, or who waits for it has changed: those who wait hear of it.
local function ring_line(waiting, channel, message)
  if redis.call('EXISTS', waiting) == 1 then redis.call('PUBLISH', channel, message) end
end
