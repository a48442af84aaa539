-- Who probes a tip, and what the last probe has found. The rules and their reasons are in
-- `shared/tip.rs`; `shared/tip/model.rs` is the same in Rust, and a test compares them.
--
-- KEYS[1]: a hash with the fields
--   life     the run id of the server that began it
--   clock    the server's time at the last call
--   holder   the process that probes, and `until` when
--   asked    when the call was made that came before the probe, and the `height` and `tag`
--            that the probe has found; a tag begins with t, and is empty if there is none
-- All times are in milliseconds by the server's clock.
--
-- ARGV: process, then one of
--   ask, the length of the lease, and whether it would probe (0 or 1)
--   report, life and time that the call before the probe returned, height, tag
--   leave
--
-- A copy refuses the script, since each call writes.

local key, process, what = KEYS[1], ARGV[1], ARGV[2]

local life = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A whole number; tostring would round it.
local function text(number)
  return string.format('%.0f', number)
end

local names = { 'life', 'clock', 'holder', 'until', 'asked', 'height', 'tag' }
local found = redis.call('HMGET', key, unpack(names))
local stored = {}
for at, name in ipairs(names) do
  stored[name] = found[at]
end

-- Times of another server's clock, or from before this one was set back, say nothing.
if stored.life and (stored.life ~= life or now < tonumber(stored.clock)) then
  redis.call('DEL', key)
  stored = {}
end
redis.call('HSET', key, 'life', life, 'clock', text(now))
redis.call('EXPIRE', key, 86400)

local holder = stored.holder
if holder and tonumber(stored['until']) <= now then
  holder = false
end

if what == 'leave' then
  if holder == process then
    redis.call('HDEL', key, 'holder', 'until')
  end
  return { 'left' }
end

if what == 'report' then
  local asked = tonumber(ARGV[4])
  if ARGV[3] ~= life or asked > now or (stored.asked and asked <= tonumber(stored.asked)) then
    return { 'old' }
  end
  redis.call('HSET', key, 'asked', ARGV[4], 'height', ARGV[5], 'tag', ARGV[6])
  return { 'kept' }
end

local prober = 'other'
if not holder or holder == process then
  if ARGV[4] == '1' then
    redis.call('HSET', key, 'holder', process, 'until', text(now + tonumber(ARGV[3])))
    prober = 'own'
  else
    redis.call('HDEL', key, 'holder', 'until')
    prober = 'free'
  end
end
if not stored.asked then
  return { prober, life, text(now) }
end
local age = text(now - tonumber(stored.asked))
return { prober, life, text(now), stored.asked, age, stored.height, stored.tag }
