-- Appends purges, notes what the caller has applied, and returns what it has not.
--
-- KEYS[1]: a hash: `server` (run id and replication id), `life` (a name that no other
--   state of it ever has), the life `before` and the generation at which this one `began`,
--   both of its first caller, and the `generation` now.
-- KEYS[2]: the stream of purges; the id of each is its generation.
-- KEYS[3]: a sorted set of processes, scored by the generation that each has applied.
-- ARGV: the process; the life that it follows and the generation that it has applied, or two
--   empty texts if it does not know; a name for a new life; then purges to append.
-- Returns the life, the generation now, 1 if the caller must drop all, the processes that sent
--   the purges that it has not applied and the purges, and the generations that processes have
--   applied.
--
-- Rules, and the case that needs each:
-- 1. Another server or an empty one begins a new life at the generation of its first caller:
--    after a restart where all had applied all, nobody drops anything.
-- 2. A caller from another life that knows a later generation than the one at which this
--    life began has applied a purge that others may have missed with the old server: all
--    drop all. The generation leaps above it, with nothing in the stream before. So it is with
--    one from any other life than the one before: what it knows, two servers have lost.
-- 3. A caller from another life that knows an earlier one has missed a purge: it drops all.
--    So does one that the stream, of which the oldest go, cannot bring forward, and one that
--    has not called before: what it has stored since it started may have been purged.
-- 4. A caller from the life before reads the stream from its beginning: the first caller had
--    applied as many purges, and equal numbers of two lives are different purges.

local MOST, MOST_PROCESSES = 1024, 256

local state, stream, applied = KEYS[1], KEYS[2], KEYS[3]
local process, follows, own = ARGV[1], ARGV[2], tonumber(ARGV[3])

local info = redis.call('INFO', 'server', 'replication')
local server = string.match(info, 'run_id:(%w+)')
  .. ' ' .. string.match(info, 'master_replid:(%w+)')
local stored = redis.call('HMGET', state, 'server', 'life', 'began', 'generation', 'before')
local life, began, generation = stored[2], tonumber(stored[3]), tonumber(stored[4])
local before = stored[5]
if stored[1] ~= server then
  life, began, generation, before = ARGV[4], own or 0, own or 0, follows
  redis.call('DEL', stream, applied)
end
local is_other_life = own and follows ~= life
if is_other_life and (follows ~= before or own > began) then
  generation = math.max(generation, own) + 1
  redis.call('DEL', stream)
end
for at = 5, #ARGV do
  generation = generation + 1
  redis.call('XADD', stream, 'MAXLEN', MOST, string.format('%.0f-0', generation),
    'p', process, 'r', ARGV[at])
end
redis.call('HSET', state, 'server', server, 'life', life, 'began', began,
  'generation', generation, 'before', before)

if own and not is_other_life then
  redis.call('ZADD', applied, own, process)
  redis.call('ZREMRANGEBYRANK', applied, 0, -MOST_PROCESSES - 1)
end

local first = generation - redis.call('XLEN', stream)
local must_drop = not own or own < first
local purges = {}
if not must_drop then
  local from = string.format('(%.0f-0', own)
  for _, entry in ipairs(redis.call('XRANGE', stream, from, '+')) do
    purges[#purges + 1] = { entry[2][2], entry[2][4] }
  end
end
local all = redis.call('ZREVRANGE', applied, 0, MOST_PROCESSES, 'WITHSCORES')
local generations = {}
for at = 2, #all, 2 do
  generations[#generations + 1] = tonumber(all[at])
end
return { life, generation, must_drop and 1 or 0, purges, generations }
