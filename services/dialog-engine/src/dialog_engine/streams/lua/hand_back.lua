-- HAND BACK: what became of a decision that was handed over. Nothing is written for a run that is gone: it would stay for ever.
-- KEYS run
-- ARGV field, answer
-- -> {'OK'} | {'GONE'}
if redis.call('EXISTS', KEYS[1]) == 0 then return {'GONE'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'OK'}
