"""Level 4 on PostgreSQL: handlers' own rows and the records of their runs in one transaction.

The handlers of one thread share a transaction, one after the other, each in a savepoint: what a handler wrote is kept
with its record, or undone alone. The transaction begins when a handler first uses it and holds none of onefold's locks
before the first `finish`. The server ends it if it gets no statement for twice the limit, so a host that vanishes does
not block others for ever.

    open      BEGIN, limits, the row that keeps others from committing, SAVEPOINT        one round trip
    finish    complete the record under owner and fence; history; RELEASE                two
    commit    shared values, delete that row, COMMIT                                     one

A COMMIT whose answer is lost is resolved by reading the records: either they are as this transaction wrote them, or it
was not committed. Queue, receipt and outbox of a settlement are not handled here: the outbox stays in the record until
it is sent.

What handlers may do with their connection out of habit (commit, rollback, close, `with connection:`) is refused with an
error that says what to do instead (`PostgresLentConnection`). A COMMIT in SQL is stopped by the server: while the
transaction is lent it holds a row in `lent` that breaks a deferred constraint, so a commit by anybody but onefold fails
and undoes everything. A ROLLBACK is detected when the handler ends. Not prevented: what a handler commits after its own
ROLLBACK, and access to onefold's tables (which the SQLite engine refuses).

Never here: what should happen to a message. Invariant: after `commit` all of a handler's rows and its record are stored, or
none; what a handler can do is limited to its transaction. This guards against mistakes, not against malicious handlers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import psycopg
from psycopg.rows import tuple_row

from onefold import errors
from onefold.contracts.commit import Settlement, Verdict, ends_transaction, lent_too_long, rolled_back
from onefold.contracts.state import Change, check
from onefold.contracts.store import Hold
from onefold.engines.postgres.connection import Pool, PostgresServer, is_lost
from onefold.engines.postgres.ledger import PostgresLedger
from onefold.engines.postgres.records import PostgresStore
from onefold.engines.postgres.state import PostgresState

if TYPE_CHECKING:
    from onefold.contracts.transitions import Written
    from onefold.outside import Clock


class PostgresLentConnection(psycopg.Connection[Any]):
    """A connection that can be lent to a handler and taken back. Opened by a `Pool`, never by hand."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lent = False

    def lend(self) -> None:
        """Mark the connection as used by a handler."""
        self._lent = True

    def take_back(self) -> None:
        """Return the connection to the engine, as it was before it was lent. Idempotent."""
        self._lent = False
        self.row_factory = tuple_row
        self.cursor_factory = psycopg.Cursor

    def is_stuck(self) -> bool:
        """Whether the handler left something running on it: a `stream` or a `copy` that was not read to its end."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return not free

    def __enter__(self) -> Self:
        """Refused while a handler has the connection: leaving the block would commit and close."""
        self._refuse("with connection: ... (it commits and closes at the end)")
        return super().__enter__()

    def commit(self) -> None:
        """Refused while a handler has the connection."""
        self._refuse("connection.commit()")
        super().commit()

    def rollback(self) -> None:
        """Refused while a handler has the connection."""
        self._refuse("connection.rollback()")
        super().rollback()

    def close(self) -> None:
        """Refused while a handler has the connection."""
        self._refuse("connection.close()")
        super().close()

    def _refuse(self, what: str) -> None:
        if self._lent:
            raise ends_transaction(
                what, " For a part that may fail, use `with ctx.connection.transaction():` (a savepoint)."
            )


_BEGIN: Final = """
SELECT set_config('statement_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true)
"""
_LEND: Final = "INSERT INTO onefold.lent (backend, taken_back) VALUES (pg_backend_pid(), -1)"
_TAKE_BACK: Final = "DELETE FROM onefold.lent WHERE backend = pg_backend_pid()"
_SAVEPOINT: Final = b"SAVEPOINT onefold_handler"
_KEEP: Final = b"RELEASE onefold_handler"
_UNDO: Final = b"ROLLBACK TO onefold_handler"
_BROKEN: Final = frozenset({"3B001", "25P01", "2D000"})  # unknown savepoint, no transaction, invalid termination
_ABORTED: Final = "25P02"  # in a failed transaction
# SQLSTATE classes of rules on the users' tables that are checked at the commit: constraints, triggers, views, RAISE.
_RULES: Final = ("23", "27", "44", "P0")


class PostgresEffects:
    """The EffectTransaction contract: handlers of one thread, one after the other.

    Args:
        server, pool: the database, and connections to it that are lent to handlers.
        store, ledger, state: write a settlement.
        clock: measures how long a handler has had the connection.
        limit_ms: how long one handler may have it, and how long it stays open before kept work is committed.
    """

    def __init__(
        self,
        server: PostgresServer,
        pool: Pool[PostgresLentConnection],
        store: PostgresStore,
        ledger: PostgresLedger,
        state: PostgresState,
        *,
        clock: Clock,
        limit_ms: int,
    ) -> None:
        self._server = server
        self._pool = pool
        self._store = store
        self._ledger = ledger
        self._state = state
        self._clock = clock
        self._limit_ms = limit_ms
        self._link: PostgresLentConnection | None = None  # while the transaction is open
        self._open_since_ms = 0
        self._lent_since_ms: int | None = None  # while a handler has the connection
        self._kept: list[Hold] = []  # holds of finished runs that wait for the commit
        self._changes: list[Change] = []  # changes of State, made just before the commit
        self._finished = 0  # handlers whose work waits for the commit
        self._lost = 0  # handlers whose work was lost with a broken transaction
        self._refused: errors.OnefoldError | None = None  # why this handler's rows were rolled back while it ran

    # -- one handler -------------------------------------------------------------------------------------------------

    def open(self) -> PostgresLentConnection:
        """A psycopg connection, inside the transaction and this handler's savepoint.

        Raises:
            TransientError: this handler has had it for longer than the limit, and its rows were rolled back; or the
                server does not answer.
        """
        if self._refused is not None:  # a handler that continues anyway must not complete without its rows
            raise self._refused
        if self._lent_since_ms is not None:
            self._check_handler(self._lent_since_ms)
            assert self._link is not None
            return self._link
        now_ms = self._clock.monotonic_ms()
        if self._link is not None and now_ms - self._open_since_ms > self._limit_ms:
            self._commit_early()
        try:
            with self._server.translated():
                link = self._begin(now_ms) if self._link is None else self._next(self._link)
        except errors.OnefoldError:
            self._break()
            raise
        self._link, self._lent_since_ms = link, now_ms
        link.lend()
        return link

    def _begin(self, now_ms: int) -> PostgresLentConnection:
        link = self._pool.take()
        self._link, self._open_since_ms = link, now_ms
        link.autocommit = False
        with link.pipeline():
            link.execute(_BEGIN, (str(self._limit_ms), str(2 * self._limit_ms)))
            link.execute(self._server.sql(_LEND))
            link.execute(_SAVEPOINT)
        return link

    def _next(self, link: PostgresLentConnection) -> PostgresLentConnection:
        link.execute(_SAVEPOINT)
        return link

    def _commit_early(self) -> None:
        finished = self._finished
        try:
            self.commit()
        except errors.OnefoldError:
            self._lost += finished  # this handler gets the error now; the next commit raises it for finished handlers
            raise

    def _check_handler(self, since_ms: int) -> None:
        used_ms = self._clock.monotonic_ms() - since_ms
        if used_ms > self._limit_ms:
            self.undo()
            self._refused = lent_too_long(used_ms, self._limit_ms, "An open transaction keeps others waiting.")
            raise self._refused

    # -- the end of a handler ------------------------------------------------------------------------------------------

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        """Write this handler's record, history and changes, and keep its rows; undo all of it when its lease was lost.

        A run that has already completed under the same hold is not kept a second time: its rows are stored already.

        Raises:
            TransientError, StorageBusy: as for `open`.
            UsageError: the handler ended the transaction, left it failed, or left something running on the connection.
                In all these cases its rows were rolled back; if the transaction is broken, those of earlier handlers
                were too, and `commit` raises.
        """
        try:
            link = self.open()
        finally:
            self._refused = None  # the handler has ended; the next handler must not get this error
        link.take_back()
        became: Written = "lost"
        try:
            for change in settlement.changes:
                check(change)
            if link.is_stuck():
                raise _stuck()
            with self._server.translated():
                became = self._write(link, settlement, now_ms)
        finally:
            if became != "new":  # "again": the rows of this run are stored already, with its record
                self.undo()
        if became == "new":
            self._lent_since_ms = None
            self._finished += 1
            self._changes += settlement.changes
            self._kept += [settlement.write[0]] if settlement.write is not None else []
        return Verdict(became != "lost", became != "lost")

    def _write(self, link: PostgresLentConnection, settlement: Settlement, now_ms: int) -> Written:
        try:
            became = self._store.write_on(link, [settlement.write], now_ms)[0] if settlement.write else "new"
            if became != "new":
                return became
            with link.pipeline():
                if settlement.rows:
                    self._ledger.append_on(link, settlement.rows)
                link.execute(_KEEP)
        except psycopg.Error as error:
            if error.sqlstate in _BROKEN:
                self._break()
                raise _ended() from error
            if error.sqlstate == _ABORTED:
                raise _failed() from error
            raise
        return became

    def undo(self) -> None:
        """Roll back the rows of the current handler; rows of earlier handlers stay. Without a handler it does nothing.

        Where one handler's rows cannot be rolled back alone (the connection is lost, or the handler ended the
        transaction), the whole transaction is lost, and the next `commit` raises an error.
        """
        self._refused = None
        if self._lent_since_ms is None or self._link is None:
            return
        self._lent_since_ms = None
        self._link.take_back()
        if self._finished == 0:
            self._end()
            return
        try:
            if self._link.is_stuck():
                self._break()
            else:
                self._link.execute(_UNDO)
        except psycopg.Error:
            self._break()

    # -- the transaction -----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make all kept work durable at once; do nothing if there is none.

        Raises:
            StorageBusy: nothing that was kept since the last commit is stored; also when a deferred constraint refused it.
            TransientError: the connection was lost during the COMMIT and the records are not stored: either nothing was
                stored, or the server will still store it; owner and fence of the records decide.
        """
        assert self._lent_since_ms is None, "commit() while a handler has the connection; finish or undo it first"
        if self._lost:
            lost = self._lost
            self.rollback()
            raise rolled_back(lost, "the connection was lost, or a later handler of their group ended the transaction")
        if self._link is None:
            return
        kept, finished = self._kept, self._finished
        try:
            self._commit(self._link)
        except psycopg.Error as error:
            self._end()
            if is_lost(error) and self._is_stored(kept):
                return
            if error.sqlstate is not None and error.sqlstate.startswith(_RULES):
                raise _refused(finished, error) from error
            with self._server.translated():
                raise
        self._end()

    def _commit(self, link: PostgresLentConnection) -> None:
        if self._changes:
            self._state.put_on(link, self._changes)  # a change whose version is no longer current is skipped
        with link.pipeline():
            link.execute(self._server.sql(_TAKE_BACK))
            link.commit()

    def _is_stored(self, kept: list[Hold]) -> bool:
        """Whether every record is as this transaction, whose COMMIT was not answered, wrote it."""
        try:
            written = self._store.is_written(kept)
        except errors.OnefoldError:
            return False
        return bool(kept) and all(written)

    def rollback(self) -> None:
        """Roll back everything that was not committed; do nothing if there is nothing."""
        self._lost, self._refused = 0, None
        self._end()

    def _break(self) -> None:
        """Give up the whole transaction; `commit` will report that for finished handlers."""
        self._lost += self._finished
        self._end()

    def _end(self) -> None:
        """End the transaction; what was not committed is rolled back."""
        link, self._link, self._lent_since_ms = self._link, None, None
        self._kept, self._changes, self._finished = [], [], 0
        if link is None:
            return
        link.take_back()
        try:
            if link.is_stuck() or link.closed:
                link.close()
            else:
                link.rollback()
                link.autocommit = True
        except psycopg.Error:
            link.close()
        self._pool.give(link)


def _stuck() -> errors.UsageError:
    return errors.UsageError(
        "A handler left a stream or a copy open on ctx.connection.",
        meaning="Nothing else can be sent on it. Its rows were rolled back, with the rows of handlers that waited for the"
        " same commit.",
        todo="Read it to its end, or close it, before the handler returns.",
    )


def _refused(finished: int, error: psycopg.Error) -> errors.StorageBusy:
    return errors.StorageBusy(
        f"The commit of {finished} handlers was refused by a deferred rule ({error.sqlstate}): {error.diag.message_primary}",
        meaning="Nothing that was kept since the last commit is stored. One of them broke the rule; it is not known which.",
        todo="Run SET CONSTRAINTS of that rule IMMEDIATE at the end of the handler, so that the handler itself fails.",
    )


def _ended() -> errors.UsageError:
    return errors.UsageError(
        "A handler ended the transaction of ctx.connection, or released its savepoint.",
        meaning="Its rows were rolled back, with the rows of handlers that waited for the same commit.",
        todo="Leave COMMIT, ROLLBACK and RELEASE to onefold: return to keep the rows, raise an exception to take them back.",
    )


def _failed() -> errors.UsageError:
    return errors.UsageError(
        "A statement of a handler failed on ctx.connection, and the handler continued without it.",
        meaning="PostgreSQL undoes everything of a transaction in which a statement failed. Its rows were taken back.",
        todo="Let the error leave the handler, or put what may fail into `with ctx.connection.transaction():`.",
    )
