"""Named values with versions on PostgreSQL: the State contract.

A deleted name keeps its version for a while (until the sweep removes it), so that a name that is used again continues
the count of its versions, and a writer that read the old value cannot overwrite the new one. The changes of one call
are one transaction in one round trip, made in the order of their names, so that two calls cannot deadlock. Never here:
what the values mean.
Invariant: a version that was replaced is never current again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import psycopg

from onefold.contracts.state import Change, Versioned, check
from onefold.engines.postgres.connection import REPEATABLE, TRIES, Link, PostgresServer, ask
from onefold.engines.postgres.record_sql import packed, unpacked

if TYPE_CHECKING:
    from onefold.outside import Clock

_GET: Final = "SELECT name, version, value FROM onefold.state WHERE name = ANY(%s::text[]) AND value IS NOT NULL"
_NAMES: Final = "SELECT name FROM onefold.state WHERE name >= %s AND starts_with(name, %s) AND value IS NOT NULL"
_CREATE: Final = """
INSERT INTO onefold.state AS s (name, version, value) VALUES (%s, 1, %s)
ON CONFLICT (name) DO UPDATE SET version = s.version + 1, value = excluded.value, deleted_at_ms = NULL WHERE s.value IS NULL
"""
_REPLACE: Final = """
UPDATE onefold.state SET version = version + 1, value = %s, deleted_at_ms = %s
WHERE name = %s AND version = %s AND value IS NOT NULL
"""
_ABSENT: Final = "SELECT true WHERE NOT EXISTS (SELECT FROM onefold.state WHERE name = %s AND value IS NOT NULL)"


class PostgresState:
    """The State contract on one database.

    Args:
        server: a database that has the tables.
        clock: gives the instant at which a name is deleted.
    """

    def __init__(self, server: PostgresServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._get = server.sql(_GET)
        self._names = server.sql(_NAMES)
        self._create = server.sql(_CREATE)
        self._replace = server.sql(_REPLACE)
        self._absent = server.sql(_ABSENT)

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The current values, in order; None if absent."""
        if not names:
            return []
        wanted = [packed(name) for name in names]
        rows = self._server.run(lambda link: ask(link, self._get, (wanted,)))
        found = {name: Versioned(version, value) for name, version, value in rows}
        return [found.get(name) for name in wanted]

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version is still current, all in one transaction.

        Raises:
            UsageError: a name or value is too long; nothing was changed.
            TransientError: the connection was lost; either all changes were applied or none.
        """
        for change in changes:
            check(change)
        return self._server.run(lambda link: self._put(link, changes)) if changes else []

    def _put(self, link: Link, changes: Sequence[Change]) -> list[bool]:
        for tries_left in reversed(range(TRIES)):
            try:
                return self.put_on(link, changes)
            except psycopg.Error as error:
                if error.sqlstate not in REPEATABLE or tries_left == 0:
                    raise
        raise AssertionError("unreachable")

    def put_on(self, link: Link, changes: Sequence[Change]) -> list[bool]:
        """Like `put`, on this connection, for changes that are already checked."""
        now_ms = self._clock.now_ms()
        ordered = sorted(range(len(changes)), key=lambda index: changes[index].name)
        with link.pipeline():  # outside a transaction it is one
            made = {index: self._make(link, changes[index], now_ms) for index in ordered}
        return [made[index].rowcount == 1 for index in range(len(changes))]

    def _make(self, link: Link, change: Change, now_ms: int) -> psycopg.Cursor[tuple[object, ...]]:
        name = packed(change.name)
        if change.expected > 0:
            deleted_at_ms = now_ms if change.value is None else None
            return link.execute(self._replace, (change.value, deleted_at_ms, name, change.expected))
        if change.value is None:
            return link.execute(self._absent, (name,))
        return link.execute(self._create, (name, change.value))

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted."""
        start = packed(prefix)
        rows = self._server.run(lambda link: ask(link, self._names, (start, start)))
        return sorted(unpacked(name) for (name,) in rows)
