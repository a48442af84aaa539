-- Looks up a response, and leads its fetch where nobody does.
--
-- KEYS[1]: the response: an id of 16 bytes, then the rest. KEYS[2]: the id of the process's
--   fetch that is under way, or - if what was fetched last is not stored; it expires.
-- ARGV: an id for this fetch; the id of a response that the caller cannot use, or empty; for
--   how long nobody else fetches it, in ms.
-- Returns `have` and the response, `lead`, `follow` or `alone`.
--
-- The leader may be killed: the lock expires, and whoever looks next leads.

local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 16) ~= ARGV[2] then
  return { 'have', value }
end
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[3]) then
  return { 'lead', '' }
end
if redis.call('GET', KEYS[2]) == '-' then
  return { 'alone', '' }
end
return { 'follow', '' }
