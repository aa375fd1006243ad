-- INCARNATION: which incarnation of Redis this is; the first to ask after a flush gives it its id.
-- -> the incarnation, see common.lua
redis.call('HSETNX', incarnation_key, 'id', id)
return incarnation(incarnation_key)
