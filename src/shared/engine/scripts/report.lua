-- Counts the report of one process about one key, and replies with what is reserved for
-- it. The rules and their reasons are in `shared/allowance.rs`; `shared/engine/model.rs`
-- is the same in Rust, and a test compares them.
--
-- KEYS[1]: a hash with the fields
--   generation  a name that no other state of this key ever has
--   life        run id and replication id of the server that began it
--   copies      the most copies that the engine is known to have had
--   sums        processes, then grant, floor, want (sums) and total (the lowest), each
--               for the minute and the second
--   p:PROCESS   sequence, then grant, floor, want, total, each for the minute and the
--               second, how long the row must stay in ms, name
-- All numbers are whole, and a name has no comma.
--
-- ARGV: process, sequence, generation followed for Q (or empty), nonce, then for the
-- minute and the second each: keep, ask, want, floor, total, reserve; copies, stay_ms,
-- name, list (0 or 1), then a process and a sequence number for each row to remove.
--
-- Nothing here depends on the server's clock: a name that is made twice and a hash that
-- expires early only begin a new generation. A copy refuses the script, since it writes.

local key = KEYS[1]
local process, sequence, followed = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local function pair(at)
  return { tonumber(ARGV[at]), tonumber(ARGV[at + 1]) }
end
local keep, ask, want = pair(5), pair(7), pair(9)
local floor, total, reserve = pair(11), pair(13), pair(15)
local known, stay_ms, name, is_list = tonumber(ARGV[17]), ARGV[18], ARGV[19], ARGV[20] == '1'

local function split(text)
  local fields = {}
  for field in string.gmatch(text, '[^,]+') do
    fields[#fields + 1] = field
  end
  return fields
end

-- A row, or the sums: grant, floor, want and total begin at the second field of both.
local function numbers(text)
  local fields = split(text)
  for at = 1, 9 do
    fields[at] = tonumber(fields[at])
  end
  return fields
end

-- Who the server is, and how many copies have acknowledged lately. A lag below zero is
-- from before the server's clock was set back: it says nothing.
local info = redis.call('INFO', 'server', 'replication')
local life = string.match(info, 'run_id:(%w+)')
  .. '-' .. string.match(info, 'master_replid:(%w+)')
local online = 0
for lag in string.gmatch(info, 'slave%d+:[^\r\n]*state=online[^\r\n]*lag=(-?%d+)') do
  if tonumber(lag) >= 0 and tonumber(lag) <= 2 then
    online = online + 1
  end
end

-- Rows of another life may be old, or some may be missing: they are not used. How many
-- copies there were is still true.
local stored = redis.call('HMGET', key, 'generation', 'life', 'copies', 'sums', 'p:' .. process)
local generation, copies = stored[1], tonumber(stored[3] or '0')
local sums, old = stored[4], stored[5]
if not generation or stored[2] ~= life then
  local time = redis.call('TIME')
  generation = ARGV[4] .. '-' .. time[1] .. '.' .. time[2]
  redis.call('DEL', key)
  redis.call('HSET', key, 'generation', generation, 'life', life)
  sums, old = false, false
end
copies = math.max(copies, online, known)
local majority = (1 + online) * 2 > 1 + copies
redis.call('HSET', key, 'copies', copies)
redis.call('EXPIRE', key, 86400)

old = old and numbers(old)
if old and sequence <= old[1] then
  return { 'stale' }
end

-- The sums of all other rows.
sums = sums and numbers(sums) or { 0, 0, 0, 0, 0, 0, 0, 0, 0 }

local function add(row)
  for at = 8, 9 do
    if sums[1] == 0 or row[at] < sums[at] then
      sums[at] = row[at]
    end
  end
  sums[1] = sums[1] + 1
  for at = 2, 7 do
    sums[at] = sums[at] + row[at]
  end
end

local function subtract(row)
  sums[1] = sums[1] - 1
  for at = 2, 7 do
    sums[at] = sums[at] - row[at]
  end
end

for at = 21, #ARGV - 1, 2 do
  local silent = redis.call('HGET', key, 'p:' .. ARGV[at])
  silent = silent and numbers(silent)
  if silent and silent[1] == tonumber(ARGV[at + 1]) then
    subtract(silent)
    redis.call('HDEL', key, 'p:' .. ARGV[at])
    if ARGV[at] == process then
      old = false
    end
  end
end
if old then
  subtract(old)
end

-- A list comes with the sums counted anew: a lowest budget that has left is forgotten.
local rows = {}
if is_list then
  sums = { 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  local all = redis.call('HGETALL', key)
  for at = 1, #all, 2 do
    local id = string.match(all[at], '^p:(.*)$')
    if id and id ~= process then
      local row = numbers(all[at + 1])
      add(row)
      rows[#rows + 1] = { id, row[1], row[10], row[11] }
    end
  end
end

-- What is kept is always accepted. More is granted only from what is free, to a process
-- that has followed this generation for Q, and while most copies follow this server.
local may_raise = majority and followed == generation
local grant, pool = {}, {}
for at = 1, 2 do
  local lowest = total[at]
  if sums[1] > 0 then
    lowest = math.min(lowest, sums[7 + at])
  end
  pool[at] = lowest - math.max(reserve[at], sums[3 + at] + floor[at])
  grant[at] = keep[at]
  if may_raise then
    grant[at] = math.max(keep[at], math.min(ask[at], pool[at] - sums[1 + at]))
  end
end

local row = {
  sequence, grant[1], grant[2], floor[1], floor[2], want[1], want[2], total[1], total[2],
  stay_ms, name,
}
add(row)
redis.call('HSET', key, 'sums', table.concat(sums, ','), 'p:' .. process, table.concat(row, ','))

local reply = {
  'counted', generation, majority and 1 or 0, grant[1], grant[2], sums[1], sums[6], sums[7],
  pool[1], pool[2], copies, online, is_list and 1 or 0,
}
if is_list then
  rows[#rows + 1] = { process, sequence, stay_ms, name }
  table.sort(rows, function(one, other) return one[1] < other[1] end)
  for _, listed in ipairs(rows) do
    for _, field in ipairs(listed) do
      reply[#reply + 1] = field
    end
  end
end
for at, field in ipairs(reply) do
  reply[at] = tostring(field)
end
return reply
