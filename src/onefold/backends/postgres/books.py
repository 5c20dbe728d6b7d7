"""A record store on PostgreSQL: records, history, shared values and handlers' transactions in one database.

    postgresql://user:password@host:port/database?schema=onefold

`PostgresBooks` is all the rest of onefold sees of this room. It opens no connection before it is used (but to create).
Never here: statements. Invariant: without `create` nothing is made or changed in the database's schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.backends.postgres import migrations
from onefold.backends.postgres.admin import PostgresRecords
from onefold.backends.postgres.connection import Address, Pool, Server
from onefold.backends.postgres.effects import PostgresEffects
from onefold.backends.postgres.inspection import inspect
from onefold.backends.postgres.ledger import PostgresLedger
from onefold.backends.postgres.lending import LentConnection
from onefold.backends.postgres.state import PostgresState
from onefold.backends.postgres.store import PostgresStore
from onefold.backends.postgres.sweep import SWEEP_MS, SWEEP_ROWS_MAX, sweep
from onefold.clock import SystemClock

if TYPE_CHECKING:
    from onefold.outside import Clock


class PostgresBooks:
    """One database with the tables of onefold.

    Args:
        url: `postgresql://user:password@host:port/database`, with `?schema=` (default `onefold`), `?create=yes`, and any
            parameter libpq knows (`sslmode`, `target_session_attrs`, ...).
        clock: says when a name of State was deleted, and how long a handler has had the connection.
        create: make the schema and its tables, or bring them to this version.

    Raises:
        UsageError: the URL cannot be read.
        StorageError: with `create`: the role may not create, or the tables are those of a newer onefold.
        TransientError: with `create`: the server does not answer.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, create: bool = False) -> None:
        address = Address(url)
        self._clock = clock or SystemClock()
        self._server = Server(address)
        # Connections of their own: what a handler sets on one (search_path, a role) meets other handlers only.
        self._lent = Pool(address, LentConnection)
        self.store = PostgresStore(self._server)
        self.records = PostgresRecords(self._server)
        self.ledger = PostgresLedger(self._server)
        self.store.ledger = self.ledger
        self.state = PostgresState(self._server, self._clock)
        self.store.state = self.state
        self._sweeps_at_ms = self._clock.monotonic_ms()
        if create or address.creates:
            try:
                migrations.migrate(self._server)
            except BaseException:
                self.close()
                raise

    def effects(self, limit_ms: int) -> PostgresEffects:
        """A transaction for handlers' own rows, not begun until a handler first asks.

        Args:
            limit_ms: how long one handler may have it, and how long it stays open before what was kept is committed. One
                statement of a handler may take as long too; a connection that is idle for twice as long is ended by the
                server.
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
        """Look whether this server can keep the promises; one sentence for each that its settings weaken.

        Raises:
            StorageError: the tables are missing or of another version, a permission is missing, the server is too old,
                only reads, or cannot store every text.
            TransientError: it does not answer.
        """
        return inspect(self._server)

    def sweep(self, now_ms: int, *, limit: int = SWEEP_ROWS_MAX) -> int:
        """Remove at most `limit` rows of each kind that nobody will ask for again; how many were removed."""
        return sweep(self._server, now_ms, limit=limit)

    def upkeep(self) -> int:
        """Sweep if that is due; how many rows were removed. Costs nothing in between, however often it is called.

        It is due every five seconds, and at once again while a step finds more than it removes.
        """
        at_ms = self._clock.monotonic_ms()
        if at_ms < self._sweeps_at_ms:
            return 0
        removed = self.sweep(self._clock.now_ms())
        self._sweeps_at_ms = at_ms if removed >= SWEEP_ROWS_MAX else at_ms + SWEEP_MS
        return removed

    def appear(self) -> None:
        """Nothing to make: connections are opened by the first calls."""

    def close(self) -> None:
        """Close all connections; harmless twice."""
        self._lent.close()
        self._server.close()
