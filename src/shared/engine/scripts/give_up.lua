-- Gives up a lock of which `get.lua` has the key, so that another process may fetch.
--
-- KEYS[1]: the lock. ARGV: its token.
--
-- Replies: 1 if it was there.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
