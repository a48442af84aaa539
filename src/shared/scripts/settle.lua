-- Stores what was fetched, or says that it is not stored, and ends the lock of fill.lua.
-- The same keys.
-- ARGV: the id of the fetch; the response, or empty; for how long it is stored in ms, or for
--   how long others need not wait for a fetch of it; 0 if the next one leads at once.
--
-- Only the holder ends the lock: it may have expired, and another fetch be under way.

local is_stored = ARGV[2] ~= ''
if is_stored then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
  if is_stored or ARGV[3] == '0' then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], '-', 'PX', ARGV[3])
  end
end
return 0
