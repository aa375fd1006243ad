-- Which workers have reported at this server. Shared by ENQUEUE, REPORT, START, CANCEL, RETIRE and TIDY.
--
-- The hash `workers` has a field for each worker: '<run id of the server> <first report, ms> <last report, ms>'. A worker
-- reports at a server when it has written there what it knows of its calls: those that run, and those that it ended last.
-- '*began' is '<run id> <ms>', the first time that anybody noticed this server. '*before' is '<run id> <run id> <ms>': this
-- server, the one before it, and how long before '*began' a worker last reported there. '*unreported' is '<run id> <ms>': the
-- server at which a worker was removed that had not reported there, and when.

local function report_of(row)
  local server, since, seen = string.match(row or '', '^(%x*) (%d+) (%d+)$')
  return server, tonumber(since), tonumber(seen)
end

-- For how many milliseconds it is known that this is the server.
local function known_for(workers, here)
  local server, since = string.match(redis.call('HGET', workers, '*began') or '', '^(%x*) (%d+)$')
  if server == here then return now_ms() - tonumber(since) end
  local rows, newest = redis.call('HGETALL', workers), 0
  for i = 2, #rows, 2 do
    local _, _, seen = report_of(rows[i])
    newest = math.max(newest, seen or 0)
  end
  redis.call('HSET', workers, '*began', here .. ' ' .. now_ms(),
    '*before', here .. ' ' .. (server or '') .. ' ' .. math.abs(now_ms() - newest))
  return 0
end

-- Whether this server has the data of the server `earlier`, but for what was written in the last `lost_ms`. A backup that is
-- older than that does not know which workers there were.
local function follows(workers, here, earlier, lost_ms)
  known_for(workers, here)
  local server, before, ms = string.match(redis.call('HGET', workers, '*before') or '', '^(%x+) (%x+) (%d+)$')
  return server == here and before == earlier and tonumber(ms) <= lost_ms
end

-- The consumers of the group, by name.
local function consumers_of(requests, group)
  local found = {}
  local rows = redis.pcall('XINFO', 'CONSUMERS', requests, group)
  if rows.err then return found end
  for _, fields in ipairs(rows) do
    local info = {}
    for i = 1, #fields, 2 do info[fields[i]] = fields[i + 1] end
    found[info.name] = info
  end
  return found
end

-- Whether a call that was enqueued at the server `enqueued_at`, and looks as if it was never started, may have been started
-- there: this is another server, which may have lost the start, and some worker has not reported here. 'lost' when that
-- worker is gone. nil where nothing tells the servers apart, and for calls that may run twice.
local function may_have_started(workers, requests, group, class, enqueued_at, published_ms, here)
  if class == 'repeatable' or not enqueued_at or enqueued_at == '' or here == '' or enqueued_at == here then return nil end
  -- After another restart, too, that worker may have started what was enqueued before.
  local server, removed_ms = string.match(redis.call('HGET', workers, '*unreported') or '', '^(%x*) (%d+)$')
  local before = server ~= enqueued_at and tonumber(published_ms or 0) < tonumber(removed_ms or 0)
  if server == here or before then return 'lost' end
  local rows, reported = redis.call('HGETALL', workers), {}
  for i = 1, #rows, 2 do
    if string.sub(rows[i], 1, 1) ~= '*' then
      if report_of(rows[i + 1]) ~= here then return 'unreported' end
      reported[rows[i]] = true
    end
  end
  for name in pairs(consumers_of(requests, group)) do
    if not reported[name] then return 'unreported' end
  end
  return nil
end

-- Remove a worker that is gone.
local function forget_worker(workers, name, here)
  if report_of(redis.call('HGET', workers, name)) ~= here then
    redis.call('HSET', workers, '*unreported', here .. ' ' .. now_ms())
  end
  redis.call('HDEL', workers, name)
end
