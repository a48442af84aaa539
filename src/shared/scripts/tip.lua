-- Who asks a status path, and what it has answered.
--
-- KEYS[1]: a hash, which expires: the last `answer`, when its request was `asked`, and who
--   asks now (`claim`) since when (`claimed`). Times are in ms by this server's clock.
-- ARGV: the claim's id, then `look`, the age in ms from which an answer is too old, and for how
--   long a claim lasts; or `store` and the answer.
-- Returns `answer` with its age and the answer, `ask`, `wait`, or `stored`.
--
-- 1. The answer's age counts from when its request was claimed, so that nobody takes it for
--    younger than it is.
-- 2. Who claims may be killed: a claim lasts a while, then another asks. Its answer, if it
--    comes after that, does not replace a later one.
-- 3. A time later than now is from before the clock went back: it counts as too old.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entry = redis.call('HMGET', KEYS[1], 'answer', 'asked', 'claim', 'claimed')

local function is_within(since, limit)
  return since and tonumber(since) <= now and now - tonumber(since) < tonumber(limit)
end

if ARGV[2] == 'store' then
  if entry[3] == ARGV[1] then
    redis.call('HSET', KEYS[1], 'answer', ARGV[3], 'asked', entry[4])
    redis.call('HDEL', KEYS[1], 'claim', 'claimed')
  end
  return { 'stored', 0, '' }
end
if is_within(entry[2], ARGV[3]) then
  return { 'answer', now - entry[2], entry[1] }
end
if is_within(entry[4], ARGV[4]) then
  return { 'wait', 0, '' }
end
redis.call('HSET', KEYS[1], 'claim', ARGV[1], 'claimed', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], 3600000)
return { 'ask', 0, '' }
