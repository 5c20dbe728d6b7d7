"""Named values with versions on SQLite: the State contract.

A deleted name keeps its version for a while (the sweep forgets it), so that a name that comes back goes on counting and
a writer who read the old value cannot overwrite the new one. Never here: what the values mean.
Invariant: a version that was replaced never fits again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from onefold.contracts.state import Change, Versioned, check
from onefold.engines.sqlite.connection import Database

_GET: Final = "SELECT version, value FROM onefold_state WHERE name = ?"
_PUT: Final = """
INSERT INTO onefold_state (name, version, value, deleted_at_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, value = excluded.value, deleted_at_ms = excluded.deleted_at_ms
"""


def get_in(connection: sqlite3.Connection, names: Sequence[str]) -> list[Versioned | None]:
    """As `State.get`, inside the caller's transaction."""
    found = [connection.execute(_GET, (name,)).fetchone() for name in names]
    return [None if row is None or row[1] is None else Versioned(*row) for row in found]


def put_in(connection: sqlite3.Connection, changes: Sequence[Change], now_ms: int) -> list[bool]:
    """As `State.put`, inside the caller's transaction.

    Args:
        now_ms: when, for names that are deleted.
    """
    for change in changes:
        check(change)
    return [_put(connection, change, now_ms) for change in changes]


def _put(connection: sqlite3.Connection, change: Change, now_ms: int) -> bool:
    version, value = connection.execute(_GET, (change.name,)).fetchone() or (0, None)
    if change.expected != (0 if value is None else version):
        return False
    if value is not None or change.value is not None:  # else: deleting what is not there
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
        """The values as they are, in order; None where absent."""
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
