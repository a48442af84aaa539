-- Gives up a lock of which `get.lua` has the key.
--
-- KEYS[1]: the lock. ARGV: its token, and for how long others fetch without the lock from
-- now on, in ms, because the response is not stored; 0 if the next one gets the lock.
--
-- Replies: 1 if it was there.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], '-', 'PX', ARGV[2])
end
return 1
