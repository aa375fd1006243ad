-- INCARNATION: which incarnation of Redis this is; the first to ask after a flush gives it its id.
-- KEYS incarnation
-- ARGV id (new)
-- -> the incarnation, see common.lua
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
return incarnation(KEYS[1])
