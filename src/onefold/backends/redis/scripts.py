"""The Lua scripts: what the server does in one atomic step. They compare, set and list; they know no rule of a record.

A script runs alone, so nothing comes between its comparison and its write. All keys it touches are handed to it in KEYS
and share one hash tag (`names.py`). Lives are lengths of time and instants come from the caller; the server's clock is
looked at only so that a caller whose clock is ahead takes no history away. None fails half-way on a full server: Redis
refuses a script's first write or none of them.

Never here: what a claim or an outcome means (`contracts/transitions.py`). Invariant: each script is safe to run twice
with the same arguments where its comment says so.
"""

from __future__ import annotations

from typing import Final

CHANGE: Final = """
-- Replace each record whose stamp still stands; answer 1, or what stands there instead. Safe to run twice: whoever finds
-- the stamp it came with has been here before, and only the answer was lost.
--   KEYS: jobs, runs completed in this minute, the shelves, then the records.
--   ARGV: number of shelves, records listed per shelf, life of the count in ms, length of the records' common prefix; then
--         for each record: stamp expected ('' absent), value ('' just read), life in ms (0: for ever), shelf before and
--         after (0: stays where it is), instant of the change, job when it is new, field to count in when it completed.
local shelves, listed, counted_ms, prefix = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local answers = {}

local function list(place, before, after, at_ms)
    if before > 0 then redis.call('ZREM', KEYS[2 + before], place) end
    local shelf = KEYS[2 + after]
    redis.call('ZADD', shelf, at_ms, place)
    -- The last shelf, what is parked, is never cut: it waits for a person.
    if after < shelves and redis.call('ZCARD', shelf) > listed then
        redis.call('ZREMRANGEBYRANK', shelf, 0, -listed - 1)
    end
end

for i = 1, #KEYS - 2 - shelves do
    local key, at = KEYS[2 + shelves + i], 8 * i - 4
    local expected, value = ARGV[at + 1], ARGV[at + 2]
    local stands = redis.call('GETRANGE', key, 0, 15)
    if value == '' or (stands ~= expected and stands ~= string.sub(value, 1, 16)) then
        answers[i] = redis.call('GET', key)
    else
        answers[i] = 1
        if stands == expected then
            local life_ms, before, after = ARGV[at + 3], tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
            if life_ms == '0' then redis.call('SET', key, value) else redis.call('SET', key, value, 'PX', life_ms) end
            if after > 0 then list(string.sub(key, prefix + 1), before, after, ARGV[at + 6]) end
            if ARGV[at + 7] ~= '' then redis.call('SADD', KEYS[1], ARGV[at + 7]) end
            if ARGV[at + 8] ~= '' and redis.call('HINCRBY', KEYS[2], ARGV[at + 8], 1) == 1 then
                redis.call('PEXPIRE', KEYS[2], counted_ms)
            end
        end
    end
end
return answers
"""

PUT: Final = """
-- Compare-and-set named values, one after the other; 1 where the expected version stood.
--   KEYS: the hash of values ("version:value"), the floor: the highest version of any name that was deleted.
--   ARGV: for each change: name, expected version (0: absent), ':' and the value ('' deletes).
-- A name that comes back begins above the floor, so that no version of its earlier life fits again.
local answers = {}
for i = 1, #ARGV, 3 do
    local name, value = ARGV[i], ARGV[i + 2]
    local stands = redis.call('HGET', KEYS[1], name)
    local version = stands and tonumber(string.match(stands, '^%d+')) or 0
    if version ~= tonumber(ARGV[i + 1]) then
        answers[#answers + 1] = 0
    else
        answers[#answers + 1] = 1
        local floor = tonumber(redis.call('GET', KEYS[2]) or 0)
        if value ~= '' then
            if version == 0 then version = floor end
            redis.call('HSET', KEYS[1], name, string.format('%.0f', version + 1) .. value)
        elseif stands then
            redis.call('HDEL', KEYS[1], name)
            if version > floor then redis.call('SET', KEYS[2], string.format('%.0f', version)) end
        end
    end
end
return answers
"""

APPEND: Final = """
-- Append rows of history to the whole, and to the rows of their operation and of their run.
--   KEYS: the whole history, its sequence, the jobs in it; then for each row its operation's and its run's rows (the whole
--         history's name again where it has none).
--   ARGV: how long rows are kept in ms, the first instant of these; then for each row: instant, row, job ('' none).
local kept_ms, clock = ARGV[1], redis.call('TIME')
local now_ms = math.min(tonumber(ARGV[2]), clock[1] * 1000)
local cut = string.format('(%.0f', now_ms - kept_ms)
local count = (#ARGV - 2) / 3
local sequence = redis.call('INCRBY', KEYS[2], count) - count

local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', cut, 'LIMIT', 0, 100)
if #old > 0 then redis.call('ZREM', KEYS[1], unpack(old)) end

for i = 1, count do
    local at_ms, job = ARGV[3 * i], ARGV[3 * i + 2]
    -- Equal instants are sorted by text: sixteen digits that grow keep them as they were appended.
    local row = string.format('%016.0f', sequence + i) .. ARGV[3 * i + 1]
    redis.call('ZADD', KEYS[1], at_ms, row)
    for _, part in ipairs({KEYS[2 * i + 2], KEYS[2 * i + 3]}) do
        if part ~= KEYS[1] then
            redis.call('ZREMRANGEBYSCORE', part, '-inf', cut)
            redis.call('ZADD', part, at_ms, row)
            redis.call('PEXPIRE', part, kept_ms)
        end
    end
    if job ~= '' then redis.call('SADD', KEYS[3], job) end
end
return count
"""
