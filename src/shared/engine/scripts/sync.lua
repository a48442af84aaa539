-- Answers the sync request of a process: notes how far it has applied the journal, appends
-- its records, and replies with those that it has not read. The rules and their reasons are in
-- `shared/journal.rs`; `shared/journal/model.rs` is the same in Rust, and a test
-- compares them.
--
-- KEYS[1]: a hash with the fields
--   generation  a name that no other state of the journal ever has, 32 hexadecimal digits
--   life        run id and replication id of the server that began it
--   count       the number of the last record
--   clock       the latest time of the server in this generation, in ms
--   p:PROCESS   sequence number, the last record that the process has applied, name
-- KEYS[2]: the stream of records: the ids are 1-0, 2-0 and so on, the fields u (uid) and
--   r (content)
-- KEYS[3]: a sorted set of the uids that were appended, by number
--
-- ARGV: process, name, sequence number, the generation that it follows (or empty), the last record
-- that it has read and the last that it has applied there, the uid of the record that it
-- has applied (or empty), nonce, list (0 or 1), what becomes of its row (0: written, 1: removed,
-- 2: nothing), the number of rows to remove, a process and a sequence number for each of them,
-- then uid and content of each record to append.
--
-- Replies: the generation, the number of the last record and of the first that is left, the
-- records, the rows (or false), and the time of this server in ms.
--
-- No purge depends on the server's clock: it makes names differ, and records say by it when
-- a cooldown ends. But the ages of stored responses do: if it is set back, the journal begins
-- anew, because no response is used that was stored in another generation. A copy refuses the
-- script, since it writes.

-- A new generation gets the histories of all replicas, of 4096 records each, which differ.
local MOST, MOST_UIDS, AT_ONCE = 8192, 16384, 64
-- By how much the clock may be set back, in ms.
local MOST_BACK = 1000

local key, stream, uids = KEYS[1], KEYS[2], KEYS[3]
local process, name, sequence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local followed, read, applied = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local uid, nonce, is_list, row_change = ARGV[7], ARGV[8], ARGV[9] == '1', ARGV[10]

local function number_of(id)
  return tonumber(string.match(id, '^%d+'))
end

local function sequence_of(row)
  return tonumber(string.match(row, '^%d+'))
end

-- Another life of the server may have lost records, and so has one that has fewer than a
-- process has applied, or another one in the place of its last, or whose keys do not fit
-- each other: the journal begins anew. The uids are compared: the record may be trimmed.
local info = redis.call('INFO', 'server', 'replication')
local life = string.match(info, 'run_id:(%w+)')
  .. '-' .. string.match(info, 'master_replid:(%w+)')
local stored = redis.call('HMGET', key, 'generation', 'life', 'count', 'clock')
local generation, count = stored[1], tonumber(stored[3] or '0')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local clock = math.max(now, tonumber(stored[4] or '0'))
local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
local last = newest[1] and number_of(newest[1][1]) or 0
local is_other = false
if followed == generation and uid ~= '' then
  local at = tonumber(redis.call('ZSCORE', uids, uid))
  local oldest = tonumber(redis.call('ZRANGE', uids, 0, 0, 'WITHSCORES')[2] or count + 1)
  is_other = at and at ~= applied or not at and applied >= oldest
end
if not generation or stored[2] ~= life or last ~= count
  or (followed == generation and applied > count) or is_other or now + MOST_BACK < clock then
  generation = nonce .. string.format('%010x%06x', tonumber(time[1]), tonumber(time[2]))
  count, clock = 0, now
  redis.call('DEL', key, stream, uids)
  redis.call('HSET', key, 'generation', generation, 'life', life, 'count', 0)
end
redis.call('HSET', key, 'clock', string.format('%.0f', clock))
if followed ~= generation then
  read, applied = 0, 0
end

-- The rows. A sync request that was overtaken by a later one changes none. Who comes from
-- another generation gets its row once it knows this one, and has sent what it remembers.
local at = 12
for _ = 1, tonumber(ARGV[11]) do
  local silent = redis.call('HGET', key, 'p:' .. ARGV[at])
  if silent and sequence_of(silent) == tonumber(ARGV[at + 1]) then
    redis.call('HDEL', key, 'p:' .. ARGV[at])
  end
  at = at + 2
end
local own = redis.call('HGET', key, 'p:' .. process)
if not own or sequence_of(own) < sequence then
  if row_change == '1' then
    redis.call('HDEL', key, 'p:' .. process)
  elseif row_change == '0' and (followed == '' or followed == generation) then
    local row = string.format('%d,%d,%s', sequence, applied, name)
    redis.call('HSET', key, 'p:' .. process, row)
  end
end

local before = count
for record = at, #ARGV - 1, 2 do
  if redis.call('ZADD', uids, 'NX', count + 1, ARGV[record]) == 1 then
    count = count + 1
    redis.call('XADD', stream, 'MAXLEN', MOST, string.format('%d-0', count),
      'u', ARGV[record], 'r', ARGV[record + 1])
  end
end
if count > before then
  redis.call('HSET', key, 'count', string.format('%d', count))
  redis.call('ZREMRANGEBYRANK', uids, 0, -(MOST_UIDS + 1))
end
for _, each in ipairs(KEYS) do
  redis.call('EXPIRE', each, 86400)
end

local records = {}
local from = string.format('%d-0', read + 1)
for _, entry in ipairs(redis.call('XRANGE', stream, from, '+', 'COUNT', AT_ONCE)) do
  records[#records + 1] = { number_of(entry[1]), entry[2][2], entry[2][4] }
end

local rows = false
if is_list then
  rows = {}
  local all = redis.call('HGETALL', key)
  for field = 1, #all, 2 do
    local id = string.match(all[field], '^p:(.*)$')
    if id then
      rows[#rows + 1] = { id, all[field + 1] }
    end
  end
  table.sort(rows, function(one, other) return one[1] < other[1] end)
end
return { generation, count, count - redis.call('XLEN', stream) + 1, records, rows, now }
