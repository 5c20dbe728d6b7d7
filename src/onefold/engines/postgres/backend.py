"""A record backend on PostgreSQL: records, history, shared values and handlers' transactions in one database.

    postgresql://user:password@host:port/database?schema=onefold

`PostgresBackend` is all the rest of onefold sees of this package. It opens no connection before it is used (but to create).
Its sweep removes expired records, old history, and what is old in the small tables beside them.
Never here: statements on records. Invariant: without `create` nothing is made or changed in the database's schema; a sweep
waits for nobody, keeps nobody waiting for long, and never removes a parked record, which does not expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onefold import limits
from onefold.clock import SystemClock
from onefold.engines.postgres.connection import Pool, PostgresAddress, PostgresServer
from onefold.engines.postgres.effects import PostgresEffects, PostgresLentConnection
from onefold.engines.postgres.ledger import PostgresLedger
from onefold.engines.postgres.records import PostgresRecords, PostgresStore
from onefold.engines.postgres.schema import inspect, migrate
from onefold.engines.postgres.state import PostgresState

if TYPE_CHECKING:
    from onefold.outside import Clock


LEDGER_KEPT_MS: Final = 90 * limits.DAY_MS  # as long as records of completed work by default
COUNTS_KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py
DELETED_NAMES_KEPT_MS: Final = limits.DAY_MS  # no one holds a version that long between reading and writing
SWEEP_ROWS_MAX: Final = 1_000  # some 10 ms
SWEEP_MS: Final = 5_000  # ours: a hundred workers ask the server twenty times a second, and not two hundred times

_RECORDS: Final = """
DELETE FROM onefold.record WHERE ident = ANY(ARRAY(
    SELECT ident FROM onefold.record
    WHERE expires_at_ms <= %s AND (status <> 'in_progress' OR lease_until_ms <= %s)
    ORDER BY expires_at_ms LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_LEDGER: Final = """
DELETE FROM onefold.ledger WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM onefold.ledger WHERE at_ms < %s ORDER BY at_ms LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_COUNTS: Final = """
DELETE FROM onefold.completed WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM onefold.completed WHERE second < %s ORDER BY second LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_NAMES: Final = """
DELETE FROM onefold.state WHERE name = ANY(ARRAY(
    SELECT name FROM onefold.state WHERE deleted_at_ms < %s LIMIT %s FOR UPDATE SKIP LOCKED))
"""


_SERVER_MS: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class PostgresBackend:
    """One database with the tables of onefold.

    Args:
        url: `postgresql://user:password@host:port/database`, with `?schema=` (default `onefold`), `?create=yes`, and any
            parameter libpq knows (`sslmode`, `target_session_attrs`, ...).
        clock: gives the time a name of State was deleted, and measures how long a handler has had the connection.
        create: make the schema and its tables, or bring them to this version.

    Raises:
        UsageError: the URL cannot be read.
        StorageError: with `create`: the role may not create, or the tables are those of a newer onefold.
        TransientError: with `create`: the server does not answer.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, create: bool = False) -> None:
        address = PostgresAddress(url)
        self._clock = clock or SystemClock()
        self._server = PostgresServer(address)
        # Connections of their own: what a handler sets on one (search_path, a role) meets other handlers only.
        self._lent = Pool(address, PostgresLentConnection)
        self.store = PostgresStore(self._server)
        self.records = PostgresRecords(self._server)
        self.ledger = PostgresLedger(self._server)
        self.store.ledger = self.ledger
        self.state = PostgresState(self._server, self._clock)
        self.store.state = self.state
        self._sweeps_at_ms = self._clock.monotonic_ms()
        if create or address.creates:
            try:
                migrate(self._server)
            except BaseException:
                self.close()
                raise

    def effects(self, limit_ms: int) -> PostgresEffects:
        """A transaction for handlers' own rows, not begun until a handler first asks.

        Args:
            limit_ms: how long one handler may have it, and how long it stays open before finished work is committed. One
                statement of a handler may take that long too; the server ends a connection that is idle for twice as long.
        """
        return PostgresEffects(
            self._server,
            self._lent,
            self.store,
            self.ledger,
            self.state,
            clock=self._clock,
            limit_ms=limit_ms,
        )

    def check(self) -> list[str]:
        """Check whether this server can keep the promises; one sentence for each that its settings weaken.

        Raises:
            StorageError: the tables are missing or of another version, a permission is missing, the server is too old,
                only reads, or cannot store every text.
            TransientError: it does not answer.
        """
        return inspect(self._server)

    def sweep(self, now_ms: int, *, limit: int = SWEEP_ROWS_MAX) -> int:
        """Remove what nobody will ask for again, at most `limit` rows of each kind; how many were removed.

        Each kind is found by an index, and rows that somebody has locked are skipped. When an expired record goes does not
        matter: a claim treats it as absent. Any process may sweep, several at once too.
        """
        steps: list[tuple[str, tuple[int, ...]]] = [
            (_RECORDS, (now_ms, now_ms, limit)),
            (_LEDGER, (now_ms - LEDGER_KEPT_MS, limit)),
            (_COUNTS, ((now_ms - COUNTS_KEPT_MS) // 1000, limit)),
            (_NAMES, (now_ms - DELETED_NAMES_KEPT_MS, limit)),
        ]
        sql = self._server.sql
        return self._server.run(lambda link: sum(link.execute(sql(text), values).rowcount for text, values in steps))

    def upkeep(self) -> int:
        """Sweep if a sweep is due; how many rows were removed. Costs nothing in between, however often it is called.

        It is due every five seconds, and at once again while a step finds more than it removes.
        """
        at_ms = self._clock.monotonic_ms()
        if at_ms < self._sweeps_at_ms:
            return 0
        removed = self.sweep(self._clock.now_ms())
        self._sweeps_at_ms = at_ms if removed >= SWEEP_ROWS_MAX else at_ms + SWEEP_MS
        return removed

    def server_ms(self) -> int:
        """The server's wall time in milliseconds since the epoch.

        Raises:
            TransientError, StorageError: it cannot be asked.
        """
        (answer,) = self._server.run(lambda link: link.execute(_SERVER_MS).fetchall())[0]
        return int(answer)

    def appear(self) -> None:
        """Nothing to make: connections are opened by the first calls."""

    def close(self) -> None:
        """Close all connections; harmless twice."""
        self._lent.close()
        self._server.close()
