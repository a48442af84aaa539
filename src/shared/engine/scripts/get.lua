-- Looks up a stored response, and leads its fetch where nobody does and it is wanted.
-- The rules are in `shared/tier.rs`; `shared/engine/entries/model.rs` is the same in Rust,
-- and a test compares them.
--
-- KEYS[1]: a hash with the fields
--   i  an id that each stored response has to itself
--   p  the position in the journal at which its fetch began: the generation, a space, and
--      the record, in a form in which later is greater
--   r  when it was received, in ms by this server's clock
--   v  the value
-- KEYS[2]: the token of the process that fetches it, or - if what was fetched last is not
--   stored, and nobody is to wait for a fetch; it expires
--
-- ARGV: the id of a response that cannot be used (or empty), the token, and how long the
-- lock lasts in ms; 0 if the fetch is not locked.
--
-- Replies: the time of this server in ms, and have with an id and a value, lead, follow or
-- none.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local id = redis.call('HGET', KEYS[1], 'i')
if id and id ~= ARGV[1] then
  local value = redis.call('HGET', KEYS[1], 'v')
  if value then
    return { now, 'have', id, value }
  end
end
if ARGV[3] == '0' then
  return { now, 'none' }
end
if redis.call('SET', KEYS[2], ARGV[2], 'NX', 'PX', ARGV[3]) then
  return { now, 'lead' }
end
if redis.call('GET', KEYS[2]) == '-' then
  return { now, 'none' }
end
return { now, 'follow' }
