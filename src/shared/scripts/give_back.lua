-- Gives back a permit that take.lua has granted. The same keys.
-- ARGV: the permit's id; `answered` or `unused`; the rest in ms after a 429, or 0.
--
-- 1. Answered: the request has arrived, so that it counts for a minute from now. A return
--    that was lost costs the pool a minute, no more.
-- 2. Unused: only the owner says so, of a permit whose request was never written, not even in
--    part. One that was written and failed may still arrive.
-- 3. A permit that is not there is not added: it was of another life, or counts no more.

local MINUTE = 60050

if ARGV[2] == 'unused' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZADD', KEYS[1], 'XX', now + MINUTE, ARGV[1])
end
local rest = tonumber(ARGV[3])
if rest > 0 and rest > redis.call('PTTL', KEYS[2]) then
  redis.call('SET', KEYS[2], '1', 'PX', rest)
end
return 0
