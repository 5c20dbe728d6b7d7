"""One Redis or Valkey server as a record backend: opened by URL, checked, closed; with history and shared values.

What Redis acknowledges is only as durable as its settings and its failover make it, and if a record is lost, its effect
can happen twice. `check` reads the settings and reports each risk in a sentence; `docs/how-to/store-on-redis.md`
describes what each setting costs and what a failover can lose.

History is sorted sets by instant: one of all rows, one per operation and one per run. A row is written to each set that
it belongs to: there are few rows (a clean first run leaves none), and so each read is one call. Rows of one instant
keep the order in which they were appended, by a sequence that the server counts. They are kept for 90 days by their own
instants: the set of an operation or run is removed that long after its last row; the set of all rows loses its oldest
rows, a hundred at a time, when new rows are added.

Shared values (the State contract) are one hash. A deleted name leaves nothing behind but the floor, one number for all
names: a name that is used again begins above it, so that a writer that read the old value cannot overwrite the new one.

Scripts run alone on the server, so nothing comes between a comparison and its write. All keys that a script touches are
in KEYS and share one hash tag (`layout.py`). Instants come from the caller; the server's clock is only read so that a
caller whose clock is ahead does not remove history. On a full server Redis refuses either the first write of a script
or none.

Never here: rules, records (`records.py`). Invariant: `open` does not connect; no row of history is changed; a version
that was replaced is never current again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

import msgspec
import redis

from onefold import errors, limits
from onefold.contracts.ledger import Row, tally_of
from onefold.contracts.state import Change, Versioned, check
from onefold.contracts.store import RecordKey, StoreCapabilities
from onefold.engines.redis.layout import PREFIX_DEFAULT, Names, foreign_value, key_at, text_of_job
from onefold.engines.redis.records import RecordChanger, RedisRecords, RedisStore
from onefold.engines.redis.server import SERVER_VERSION_MIN, RedisAddress, RedisServer

if TYPE_CHECKING:
    from onefold.contracts.verbs import EffectTransaction
    from onefold.outside import Entropy


_SETTINGS: Final = ("appendonly", "appendfsync", "maxmemory-policy")
_UNREADABLE_SETTINGS: Final = (
    "Redis does not let its settings be read (CONFIG GET is refused), so its durability could not be checked: appendonly"
    " should be yes, appendfsync always, maxmemory-policy noeviction."
)


class RedisBackend:
    """Records, history and state on one server.

    Args:
        server: the connection pool.
        names: the names of everything under one prefix.
        entropy: source of the records' stamps.

    Attributes:
        store, records, ledger, state: the contracts Store, RecordAdmin, Ledger and State.
    """

    def __init__(self, server: RedisServer, names: Names, entropy: Entropy) -> None:
        self._server = server
        self._names = names
        changer = RecordChanger(server, names, entropy)
        self.store = RedisStore(changer)
        self.records = RedisRecords(server, names, changer)
        self.ledger = RedisLedger(server, names)
        self.store.ledger = self.ledger
        self.state = RedisState(server, names)
        self.store.state = self.state

    @classmethod
    def open(cls, url: str, *, entropy: Entropy) -> RedisBackend:
        """Prepare for a server without connecting to it yet.

        Args:
            url: `redis://[user:password@]host[:port][/db]`, or `rediss://` for TLS. Options: `prefix=TEXT` (default `of:`)
                begins every name; `cluster=yes` for a Redis cluster.
            entropy: source of the records' stamps.

        Raises:
            UsageError: the URL has another form.
        """
        address = RedisAddress(url)
        return cls(RedisServer(address), Names(PREFIX_DEFAULT if address.prefix is None else address.prefix), entropy)

    def effects(self, limit_ms: int) -> EffectTransaction | None:  # noqa: ARG002 - other stores use it
        """Always None: on Redis a handler's own writes cannot be part of the record's transaction."""
        return None

    def check(self) -> list[str]:
        """Report the settings of this server that can lose records, one plain sentence each.

        Raises:
            TransientError: the server cannot be reached or is still loading.
            StorageError: the user or password is refused, the user may not run TIME, or the server is a replica, too
                old, or part of a cluster.
        """
        info = self._server.ask(lambda _: self._server.node(self._names.tag).info(), repeatable=True)
        self._check_server(info)
        settings = self._server.ask(lambda _: _settings(self._server.node(self._names.tag)), repeatable=True)
        self.store.capabilities = StoreCapabilities(
            durable=settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always", proves_death=False
        )
        self.server_ms()  # of all commands that records need, users notice a missing permission for TIME last
        return _warnings(settings, replicas=int(info.get("connected_slaves", 0)))

    def _check_server(self, info: dict[str, Any]) -> None:
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2]) < SERVER_VERSION_MIN:
            raise errors.StorageError(
                f"The Redis server has version {version}.",
                meaning="Records need 6.2 or later, or Valkey.",
                todo="Upgrade the server.",
            )
        if info.get("role") == "slave":
            raise errors.StorageError(
                f"This Redis server is a replica of {info.get('master_host')}:{info.get('master_port')}.",
                meaning="A replica accepts no writes.",
                todo="Connect to the primary: use an address that follows it.",
            )

    def server_ms(self) -> int:
        """The server's wall time in milliseconds since the epoch.

        Raises:
            TransientError, StorageError: it cannot be asked.
        """
        seconds, microseconds = self._server.ask(lambda _: self._server.node(self._names.tag).time(), repeatable=True)
        return int(seconds) * 1_000 + int(microseconds) // 1_000

    def appear(self) -> None:
        """Nothing to prepare: the first calls open connections."""

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self._server.close()


def _settings(node: Any) -> dict[str, str]:
    """The settings that decide what is kept; empty if the server does not allow reading them."""
    try:
        return {name: str(node.config_get(name).get(name, "")) for name in _SETTINGS}
    except (redis.ResponseError, redis.exceptions.NoPermissionError) as error:
        if isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in str(error):
            return {}
        raise


def _warnings(settings: dict[str, str], *, replicas: int) -> list[str]:
    """One sentence for each setting that can lose records."""
    if not settings:
        return [_UNREADABLE_SETTINGS]
    found = []
    if settings["appendonly"] != "yes":
        found.append(
            "Redis has appendonly off: a restart forgets every record since the last snapshot, and what was done since"
            " then may be done again. Set appendonly yes and appendfsync always."
        )
    elif settings["appendfsync"] != "always":
        window = (
            "about one second" if settings["appendfsync"] == "everysec" else "as long as the kernel likes (about 30 s)"
        )
        found.append(
            f"Redis has appendfsync {settings['appendfsync']}: a crash of its machine loses the writes of {window}, and"
            " what was done then may be done again. Set appendfsync always."
        )
    if settings["maxmemory-policy"] != "noeviction":
        found.append(
            f"Redis has maxmemory-policy {settings['maxmemory-policy']}: when its memory is full it throws records away"
            " that are still needed. Set noeviction, or give onefold its own server."
        )
    if replicas:
        found.append(
            f"Redis has {replicas} replica(s): a failover to one that lags behind loses acknowledged writes, whatever the"
            " settings above; min-replicas-to-write and min-replicas-max-lag narrow that and do not close it."
        )
    return found


KEPT_MS: Final = 90 * limits.DAY_MS  # as long as records of completed work are kept by default
_SEQUENCE_DIGITS: Final = 16
_ROWS_PER_CALL: Final = 200
_PAGE: Final = 500
_ROWS_PER_READ: Final = 1_000
_ROW: Final = msgspec.json.Decoder(Row)


_APPEND: Final = """
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
    -- Equal instants are sorted by text: sixteen growing digits keep the order of appending.
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


class RedisLedger:
    """The Ledger contract on one server.

    Args:
        server, names: where the rows are stored.
    """

    def __init__(self, server: RedisServer, names: Names) -> None:
        self._server = server
        self._names = names

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows in order, 200 in one call.

        Raises:
            TransientError: there was no answer; rows may have been written, and appending them again may write them
                twice.
        """
        for first in range(0, len(rows), _ROWS_PER_CALL):
            self._append(rows[first : first + _ROWS_PER_CALL])

    def _append(self, rows: Sequence[Row]) -> None:
        names = self._names
        keys = [names.ledger, names.ledger_sequence, names.ledger_jobs]
        arguments: list[object] = [KEPT_MS, min(row.at_ms for row in rows)]
        for row in rows:
            keys.append(names.ledger if row.key is None else names.history(row.key))
            keys.append(names.ledger if row.run is None else names.run(row.run))
            arguments += [row.at_ms, msgspec.json.encode(row), "" if row.key is None else text_of_job(row.key)]
        self._server.run(_APPEND, keys, arguments)

    def of_key(self, key: RecordKey, limit: int = 1000) -> list[Row]:
        """The rows of one operation, oldest first."""
        return self._rows(self._names.history(key), "-inf", "+inf", limit)

    def of_run(self, run: str, limit: int = 1000, after: int = 0) -> list[Row]:
        """The rows of one run, oldest first; `after` skips that many."""
        return self._rows(self._names.run(run), "-inf", "+inf", limit, after)

    def walk_run(self, run: str, page: int = 1000) -> Iterator[list[Row]]:
        """All rows of one run, oldest first, page by page; each page begins at the last row's instant."""
        name, at_ms = self._names.run(run), -math.inf
        passed = 0  # rows of that instant that were already read
        while stored := self._from(name, at_ms, passed, page):
            yield [_row(row, name) for row, _ in stored]
            last_ms = stored[-1][1]
            passed = sum(at == last_ms for _, at in stored) + (passed if last_ms == at_ms else 0)
            at_ms = last_ms

    def _from(self, name: str, at_ms: float, passed: int, count: int) -> list[tuple[bytes, float]]:
        found: list[tuple[bytes, float]] = self._server.ask(
            lambda client: client.zrangebyscore(name, at_ms, "+inf", start=passed, num=count, withscores=True),
            repeatable=True,
        )
        return found

    def tally(self, run: str) -> Mapping[str, int]:
        """How many operations of a run have each outcome; reads all its rows, 1,000 in one call."""
        return tally_of(itertools.chain.from_iterable(self.walk_run(run, _ROWS_PER_READ)))

    def between(self, from_ms: int, to_ms: int, limit: int = 1000) -> list[Row]:
        """Rows with from_ms <= at_ms < to_ms, oldest first."""
        return self._rows(self._names.ledger, from_ms, f"({to_ms}", limit)

    def _rows(self, name: str, first: int | str, last: str, limit: int, after: int = 0) -> list[Row]:
        stored = self._server.ask(
            lambda client: client.zrangebyscore(name, first, last, start=after, num=limit), repeatable=True
        )
        return [_row(row, name) for row in stored]

    def find_keys(self, text: str, limit: int = 20) -> list[RecordKey]:
        """Operations whose business key is exactly `text`, by scope and job: one read per job and scope ever seen."""
        found: list[RecordKey] = []
        for jobs in self._server.members(self._names.ledger_jobs, _PAGE):
            keys = [key_at(f"{job.decode()}|{text}") for job in jobs]
            exist = self._server.each("EXISTS", [self._names.history(key) for key in keys])
            known = {*found, *(key for key, exists in zip(keys, exist, strict=True) if exists)}
            found = nsmallest(limit, known, key=lambda key: (key.scope, key.job))
        return found


def _row(stored: bytes, name: str) -> Row:
    try:
        return _ROW.decode(stored[_SEQUENCE_DIGITS:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise foreign_value(f"A row of the history is not one that onefold has written ({error}).", name) from error


_PUT: Final = """
-- Compare-and-set named values, one after the other; 1 where the expected version was current.
--   KEYS: the hash of values ("version:value"), the floor: the highest version of any name that was deleted.
--   ARGV: for each change: name, expected version (0: absent), ':' and the value ('' deletes).
-- A name that comes back begins above the floor, so that no version of its earlier life fits again.
local answers = {}
for i = 1, #ARGV, 3 do
    local name, value = ARGV[i], ARGV[i + 2]
    local stored = redis.call('HGET', KEYS[1], name)
    local version = stored and tonumber(string.match(stored, '^%d+')) or 0
    if version ~= tonumber(ARGV[i + 1]) then
        answers[#answers + 1] = 0
    else
        answers[#answers + 1] = 1
        local floor = tonumber(redis.call('GET', KEYS[2]) or 0)
        if value ~= '' then
            if version == 0 then version = floor end
            redis.call('HSET', KEYS[1], name, string.format('%.0f', version + 1) .. value)
        elseif stored then
            redis.call('HDEL', KEYS[1], name)
            if version > floor then redis.call('SET', KEYS[2], string.format('%.0f', version)) end
        end
    end
end
return answers
"""


class RedisState:
    """The State contract on one server.

    Args:
        server, names: where the values are stored.
    """

    def __init__(self, server: RedisServer, names: Names) -> None:
        self._server = server
        self._names = names

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The current values, in order; None if absent."""
        if not names:
            return []
        found = self._server.ask(lambda client: client.hmget(self._names.state, names), repeatable=True)
        return [
            None if stored is None else _versioned(stored, f"{self._names.state}, field {name}")
            for name, stored in zip(names, found, strict=True)
        ]

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version is still current, all in one call.

        Raises:
            UsageError: a name or value is too long; nothing was changed.
            TransientError: there was no answer; the changes may have been made. Read before trying again.
        """
        for change in changes:
            check(change)
        if not changes:
            return []
        arguments: list[object] = []
        for change in changes:
            arguments += [change.name, change.expected, b"" if change.value is None else b":" + change.value]
        took = self._server.run(_PUT, [self._names.state, self._names.state_floor], arguments)
        return [one == 1 for one in took]

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted; reads every name."""
        stored = self._server.ask(lambda client: client.hkeys(self._names.state), repeatable=True)
        return sorted(name for name in (one.decode() for one in stored) if name.startswith(prefix))


def _versioned(stored: bytes, name: str) -> Versioned:
    version, _, value = stored.partition(b":")
    if not version.isdigit():
        raise foreign_value("A value of onefold's own state is not one that it has written.", name)
    return Versioned(int(version), value)
