"""Named values with versions, and archived events, on SQLite: the State and Archive contracts.

A deleted name keeps its version for a while (until the sweep removes it), so that a name that is used again continues
the count of its versions, and a writer that read the old value cannot overwrite the new one. An archived event is
stored once, by its id, and read by time; `keep_in` works inside the caller's transaction, so that an event is kept if
and only if it is delivered. Expired events are not returned; the sweep removes them a few at a time.

Never here: what values and events mean. Invariants: a version that was replaced is never current again; no event is changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from onefold.clock import NO_JUMPS, Jumps
from onefold.contracts.archive import Archived, Holdings
from onefold.contracts.state import Change, Versioned, check
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.filetime import longer_sql

_GET: Final = "SELECT version, value FROM onefold_state WHERE name = ?"
_PUT: Final = """
INSERT INTO onefold_state (name, version, value, deleted_at_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, value = excluded.value, deleted_at_ms = excluded.deleted_at_ms
"""


def get_in(connection: sqlite3.Connection, names: Sequence[str]) -> list[Versioned | None]:
    """Like `State.get`, inside the caller's transaction."""
    found = [connection.execute(_GET, (name,)).fetchone() for name in names]
    return [None if row is None or row[1] is None else Versioned(*row) for row in found]


def put_in(connection: sqlite3.Connection, changes: Sequence[Change], now_ms: int) -> list[bool]:
    """Like `State.put`, inside the caller's transaction.

    Args:
        now_ms: the time, noted for names that are deleted.
    """
    for change in changes:
        check(change)
    return [_put(connection, change, now_ms) for change in changes]


def _put(connection: sqlite3.Connection, change: Change, now_ms: int) -> bool:
    version, value = connection.execute(_GET, (change.name,)).fetchone() or (0, None)
    if change.expected != (0 if value is None else version):
        return False
    if value is not None or change.value is not None:  # otherwise it deletes a name that does not exist
        deleted_at_ms = now_ms if change.value is None else None
        connection.execute(_PUT, (change.name, version + 1, change.value, deleted_at_ms))
    return True


class SqliteState:
    """The State contract on one engine.

    Args:
        engine: an open engine whose file has been migrated.
    """

    def __init__(self, engine: Database) -> None:
        self._engine = engine

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The values, in order; None if absent."""
        return self._engine.read(lambda connection: get_in(connection, names))

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version is still current, all in one transaction.

        Raises:
            UsageError: a name or value is too long; nothing was changed.
        """
        now_ms = self._engine.clock.now_ms()
        return self._engine.write(lambda connection: put_in(connection, changes, now_ms))

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted."""
        query = "SELECT name FROM onefold_state WHERE name >= ? AND value IS NOT NULL ORDER BY name"

        def run(connection: sqlite3.Connection) -> list[str]:
            names = (row[0] for row in connection.execute(query, (prefix,)))
            return list(takewhile(lambda name: name.startswith(prefix), names))

        return self._engine.read(run)


_INSERT: Final = """
INSERT INTO onefold_archive (archive, event_id, time_ms, expires_at_ms, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (archive, event_id) DO NOTHING
"""
_READ: Final = """
SELECT id, event_id, time_ms, body, expires_at_ms FROM onefold_archive
WHERE archive = ? AND (time_ms, id) > (?, ?) AND time_ms < ? AND id <= ?{unexpired}
ORDER BY time_ms, id LIMIT ?
"""
_HOLDINGS: Final = """
SELECT count(*), coalesce(sum(length(CAST(body AS BLOB))), 0), min(time_ms), max(time_ms), coalesce(max(id), 0)
FROM onefold_archive
WHERE archive = ? AND time_ms >= ? AND time_ms < ?{unexpired}
"""
_SWEEP: Final = """
DELETE FROM onefold_archive
WHERE id IN (SELECT id FROM onefold_archive WHERE expires_at_ms <= ?1 AND expires_at_ms{longer} <= ?1 LIMIT ?2)
"""
_EVER: Final = 2**63 - 1


def keep_in(connection: sqlite3.Connection, name: str, events: Sequence[Archived]) -> None:
    """Like `Archive.keep`, inside the caller's transaction."""
    connection.executemany(_INSERT, [(name, one.event_id, one.time_ms, one.expires_at_ms, one.text) for one in events])


def sweep_archive_in(connection: sqlite3.Connection, now_ms: int, limit: int, jumps: Jumps = NO_JUMPS) -> int:
    """Remove at most `limit` events whose retention has ended; returns how many."""
    return connection.execute(_SWEEP.format(longer=longer_sql(jumps, "time_ms")), (now_ms, limit)).rowcount


class SqliteArchive:
    """The Archive contract on one engine.

    Args:
        engine: an open engine whose file has been migrated.
    """

    def __init__(self, engine: Database) -> None:
        self._engine = engine

    def keep(self, name: str, events: Sequence[Archived]) -> None:
        """Keep events durably, each id once."""
        self._engine.write(lambda connection: keep_in(connection, name, events))

    def read(
        self, name: str, from_ms: int, to_ms: int, *, after: tuple[int, int] | None = None, last: int, limit: int
    ) -> list[Archived]:
        """Events of a time range, by time and then position; see `Archive.read`."""
        start = after if after is not None else (from_ms, 0)
        query, values = self._unexpired(_READ), (name, *start, to_ms, last, self._engine.clock.now_ms(), limit)
        return self._engine.read(lambda connection: [Archived(*row) for row in connection.execute(query, values)])

    def holdings(self, name: str, from_ms: int | None = None, to_ms: int | None = None) -> Holdings:
        """How much an archive contains, in total or in a time range."""
        start, end = -_EVER if from_ms is None else from_ms, _EVER if to_ms is None else to_ms
        query, values = self._unexpired(_HOLDINGS), (name, start, end, self._engine.clock.now_ms())
        return self._engine.read(lambda connection: Holdings(*connection.execute(query, values).fetchone()))

    def _unexpired(self, query: str) -> str:
        longer = longer_sql(self._engine.clock.jumps, "time_ms")
        return query.format(unexpired=f" AND (expires_at_ms IS NULL OR expires_at_ms{longer} > ?)")

    def names(self) -> list[str]:
        """All archives that are not empty, sorted."""
        query = "SELECT DISTINCT archive FROM onefold_archive ORDER BY archive"
        return self._engine.read(lambda connection: [name for (name,) in connection.execute(query)])
