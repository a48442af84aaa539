-- Stores a response, unless a later one is stored, and gives up its lock. `get.lua` has the
-- keys.
--
-- ARGV: the token, the position's generation and record, when the response was received,
-- for how long it is stored in ms, the value. The token is the id.
--
-- Replies: 1 if it was stored.

local function later(stored)
  local generation, record = string.match(stored[1] or '', '^(%w+) ([%w-]+)$')
  if generation ~= ARGV[2] then
    return false
  end
  if record ~= ARGV[3] then
    return record > ARGV[3]
  end
  -- One from the future is from before the server's clock was set back.
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local received = tonumber(stored[2]) or 0
  return received <= now and received > tonumber(ARGV[4])
end

local is_later = later(redis.call('HMGET', KEYS[1], 'p', 'r'))
if not is_later then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1],
    'i', ARGV[1], 'p', ARGV[2] .. ' ' .. ARGV[3], 'r', ARGV[4], 'v', ARGV[6])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
  redis.call('DEL', KEYS[2])
end
return is_later and 0 or 1
