-- Takes one permit out of the pool of a key's budget.
--
-- KEYS[1]: a sorted set without expiry. Its members are permits, scored by when each leaves
--   the minute (ms by this server's clock), and the engine's life, scored by when the pool
--   opens. KEYS[2]: is there while the key rests at a host after a 429; it expires.
-- ARGV: the permit's id, the pool's requests per minute and per second, the rest in ms that
--   the caller knows of.
-- Returns { 'granted', rest }, { 'spent', ms }, { 'closed', ms } or { 'resting', ms }: how
--   long until it is worth another call.
--
-- Rules, and the case that needs each:
-- 1. A permit counts HELD from here, in which the request may arrive (within a second it is
--    sent, within a minute it has reached the server) and then count for a minute. Nobody
--    else knows when: the owner may be killed, its return lost.
-- 2. The life is run id and replication id. A restart loses what was not saved, a failover
--    what was not copied, and a failover and back changes the replication id only. Absent
--    or different: permits that nobody remembers may still be used, so the pool is closed
--    for HELD.
-- 3. The life stays in the set, which does not expire: an idle hour is no new life. Its
--    score is not later than now while the pool is open, so that it never counts.
-- 4. A score later than now + HELD was given before the clock went back. Such permits would
--    fill the pool for as long as it went back: a new life.
-- 5. The caller chooses the id, so that it can name a permit of which the reply was lost.
-- 6. One score is exact for both windows: a permit leaves the second MINUTE - SECOND before
--    it leaves the minute. Both are a little longer than the upstream's, whose clock may
--    run slower by 1 in 1,300.
-- 7. A permit that is not returned yet may be in this moment: nobody waits for the end of HELD.
-- 8. The limits are the caller's: while a reload goes round, each replica keeps its own, and
--    both limits hold for all that is counted.

local MINUTE, SECOND = 60050, 1005
local HELD = 61000 + MINUTE

local permits, resting = KEYS[1], KEYS[2]
local rest = tonumber(ARGV[4])

local info = redis.call('INFO', 'server', 'replication')
local life = 'life ' .. string.match(info, 'run_id:(%w+)')
  .. ' ' .. string.match(info, 'master_replid:(%w+)')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local known = redis.call('PTTL', resting)
if rest > known and rest > 0 then
  redis.call('SET', resting, '1', 'PX', rest)
  known = rest
end

local opens = tonumber(redis.call('ZSCORE', permits, life) or nil)
if not opens or redis.call('ZCOUNT', permits, '(' .. now + HELD, '+inf') > 0 then
  redis.call('DEL', permits)
  opens = now + HELD
  redis.call('ZADD', permits, opens, life)
end
if known > 0 then
  return { 'resting', known }
end
if opens > now then
  return { 'closed', opens - now }
end
redis.call('ZREMRANGEBYSCORE', permits, '(' .. opens, now)

local function wait(limit, window)
  local left = '(' .. now + MINUTE - window
  local excess = redis.call('ZCOUNT', permits, left, '+inf') - limit
  if excess < 0 then
    return 0
  end
  local next = redis.call('ZRANGEBYSCORE', permits, left, '+inf', 'WITHSCORES', 'LIMIT', excess, 1)
  return math.min(next[2], now + MINUTE) - (now + MINUTE - window)
end

local longest = math.max(wait(tonumber(ARGV[2]), MINUTE), wait(tonumber(ARGV[3]), SECOND))
if longest > 0 then
  return { 'spent', longest }
end
redis.call('ZADD', permits, now + HELD, ARGV[1])
return { 'granted', 0 }
