"""All parts of settlements in one transaction on SQLite, and transactions that include a handler's own rows.

`settle_all_in` carries out complete settlements: the record first, because if it is refused (lease lost) nothing else
is written; then the outbox, directly into its queues (it is never stored in the record), the history, and the message's
settlement. `SqliteEffects` does the same around handlers that use the engine's connection, with one savepoint for each,
so that a handler that fails does not affect the others' rows.

Never here: what should happen to a message; rules of queues and records. Invariant: after a commit all parts of a settlement
are written, or none; a repeated Complete sends nothing again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.archive import EXPIRES_ATTRIBUTE, TIME_ATTRIBUTE, Archived, archive_of
from onefold.contracts.commit import Settlement, Verdict, lent_too_long, rolled_back
from onefold.contracts.entries import Refused, from_outbox
from onefold.contracts.queue import Leave, RetryIn, Settle
from onefold.contracts.store import Complete, Hold, OutboxItem, Outcome
from onefold.engines.sqlite.connection import LentConnection
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.ledger import append_in
from onefold.engines.sqlite.loan import Loan, rolled_back_by_sqlite
from onefold.engines.sqlite.migrations import own_tables
from onefold.engines.sqlite.queue import send_in, settle_in
from onefold.engines.sqlite.refusals import translate
from onefold.engines.sqlite.state import keep_in, put_in
from onefold.engines.sqlite.store import clear_outbox_in, write_in

if TYPE_CHECKING:
    from onefold.engines.sqlite.admin import SqliteQueues

# The comment in each makes its text differ from any statement of a handler, which could find it in the statement cache.
_SAVEPOINT: Final = "SAVEPOINT onefold_handler /*onefold*/"
_KEEP: Final = "RELEASE onefold_handler /*onefold*/"
_TAKE_BACK: Final = "ROLLBACK TO onefold_handler /*onefold*/"


# -- settlements -----------------------------------------------------------------------------------------------------


def settle_all_in(
    connection: sqlite3.Connection, queues: SqliteQueues, settlements: Sequence[Settlement], now_ms: int
) -> list[Verdict]:
    """Like `Commit.commit`, inside the caller's transaction, which the caller must roll back when this raises.

    Raises:
        UsageError: as for `Commit.commit`.
    """
    became = iter(write_in(connection, [_without_outbox(one.write) for one in settlements if one.write], now_ms))
    written = [next(became) if one.write else "new" for one in settlements]
    took = [one for one, how in zip(settlements, written, strict=True) if how == "new"]
    _send_all(connection, queues, took, now_ms)
    append_in(connection, [row for one in took for row in one.rows])
    put_in(connection, [change for one in took for change in one.changes], now_ms)
    alive = [index for index, how in enumerate(written) if how != "lost"]
    settled = dict(zip(alive, _settle_all(connection, queues, [settlements[p] for p in alive], now_ms), strict=True))
    return [Verdict(index in settled, settled.get(index, False)) for index in range(len(settlements))]


def _without_outbox(write: tuple[Hold, Outcome]) -> tuple[Hold, Outcome]:
    hold, outcome = write
    if isinstance(outcome, Complete) and outcome.outbox:
        return hold, replace(outcome, outbox=[])
    return write


def _send_all(
    connection: sqlite3.Connection, queues: SqliteQueues, settlements: Sequence[Settlement], now_ms: int
) -> None:
    """Send the outboxes of completed runs, and those that earlier runs left in their records."""
    leaving: dict[str, list[OutboxItem]] = defaultdict(list)
    for one in settlements:
        if one.write is not None and isinstance(one.write[1], Complete):
            outbox: Sequence[OutboxItem] = one.write[1].outbox
        elif one.outbox and one.clear is not None and clear_outbox_in(connection, [one.clear]) == ["new"]:
            outbox = one.outbox
        else:
            continue  # nothing to send, or another delivery of the same key has sent it
        for item in outbox:
            leaving[item.queue].append(item)
    for name, items in leaving.items():
        archive = archive_of(name)
        if archive is not None:
            keep_in(connection, archive, [_archived(item) for item in items])
            continue
        entries = [from_outbox(item, now_ms) for item in items]
        answers = send_in(connection, queues.row_in(connection, name), entries, now_ms)
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, Refused):
                raise errors.UsageError(
                    f"Queue {name!r} refuses an outbox message with key {item.key!r}: {answer.message}",
                    meaning="No part of its settlement was written.",
                    todo="Send what the queue accepts, or change its settings.",
                )


def _archived(item: OutboxItem) -> Archived:
    """An event of the run as the archive stores it (contracts/archive.py)."""
    expires = item.attributes.get(EXPIRES_ATTRIBUTE)
    return Archived(
        0, str(item.key), int(item.attributes[TIME_ATTRIBUTE]), item.body, int(expires) if expires is not None else None
    )


def _settle_all(
    connection: sqlite3.Connection, queues: SqliteQueues, settlements: Sequence[Settlement], now_ms: int
) -> list[bool]:
    """Settle the messages; True also if there is no message or nothing to do."""
    answers = [True] * len(settlements)
    indexes: dict[str, list[int]] = defaultdict(list)
    by_queue: dict[str, list[tuple[str, Settle]]] = defaultdict(list)
    for index, one in enumerate(settlements):
        if one.queue is not None and one.receipt is not None and not isinstance(one.settle, Leave):
            indexes[one.queue].append(index)
            by_queue[one.queue].append((one.receipt, one.settle))
    for name, chosen in indexes.items():
        try:
            row = queues.row_in(connection, name)
        except errors.NotFoundError:  # the queue was dropped meanwhile, with its messages
            done = [False] * len(chosen)
        else:
            done = settle_in(connection, row, by_queue[name], now_ms)
        for index, answer in zip(chosen, done, strict=True):
            answers[index] = answer
    return answers


def _wakes(settlements: Sequence[Settlement]) -> bool:
    """Whether these settlements may make messages visible to idle workers."""
    return any(
        one.outbox
        or (one.write is not None and isinstance(one.write[1], Complete) and one.write[1].outbox)
        or (isinstance(one.settle, RetryIn) and one.settle.delay_ms == 0)
        for one in settlements
    )


class SqliteCommit:
    """The Commit contract on one engine.

    Args:
        engine: an open engine whose file has been migrated.
        queues: its queues.
        notify: called after a commit that may have made messages visible; wakes idle workers.
    """

    def __init__(self, engine: Database, queues: SqliteQueues, notify: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._queues = queues
        self._notify = notify

    def commit(self, settlements: Sequence[Settlement], now_ms: int) -> list[Verdict]:
        """Apply all settlements durably in one transaction; one answer each.

        Raises:
            StorageBusy, UsageError: nothing was applied.
        """
        verdicts = self._engine.write(lambda connection: settle_all_in(connection, self._queues, settlements, now_ms))
        if _wakes(settlements):
            self._notify()
        return verdicts

    def effects(self, limit_ms: int) -> SqliteEffects:
        """A transaction for handlers' own rows, begun when a handler first uses it.

        Args:
            limit_ms: how long one handler may use it, and how long it stays open before finished work is committed.
        """
        return SqliteEffects(self._engine, self._queues, self._notify, limit_ms)


# -- level 4 ---------------------------------------------------------------------------------------------------------


class SqliteEffects:
    """The EffectTransaction contract: handlers of one thread, one after the other. Made in that thread.

    Args:
        engine, queues, notify: as for `SqliteCommit`.
        limit_ms: see `SqliteCommit.effects`.
    """

    def __init__(self, engine: Database, queues: SqliteQueues, notify: Callable[[], None], limit_ms: int) -> None:
        self._engine = engine
        self._queues = queues
        self._notify = notify
        self._limit_ms = limit_ms
        self._thread = threading.get_ident()  # the writer's turn belongs to it
        self._connection: LentConnection | None = None  # while the transaction is open
        self._loan: Loan | None = None  # what the last handler that used the connection got
        self._open_since_ms = 0
        self._lent_since_ms: int | None = None  # while a handler has the connection
        self._kept = 0  # handlers whose work waits for the commit
        self._lost = 0  # finished handlers whose work SQLite itself has rolled back
        self._wakes = False
        self._refused: errors.TransientError | None = None  # why this handler's rows were rolled back while it ran

    def open(self) -> Loan:
        """The engine's connection, lent to this handler inside the transaction and a savepoint of its own.

        Raises:
            TransientError: this handler has had it for longer than the limit; its rows were rolled back.
            StorageBusy: another process holds the file, or SQLite has rolled the transaction back.
            UsageError: another thread is the first to use it.
        """
        if self._refused is not None:  # a handler that continues anyway must not complete without its rows
            raise self._refused
        if self._lent_since_ms is not None:
            self._check_handler()
            assert self._loan is not None
            return self._loan
        if threading.get_ident() != self._thread:
            raise errors.UsageError(
                "ctx.connection was first used in another thread than the handler's own.",
                meaning="The transaction begins with the first use, and the thread that begins it must end it. Nothing was"
                " begun.",
                todo="Use ctx.connection in the handler before you start the thread, and pass it what that returns.",
            )
        now_ms = self._engine.clock.monotonic_ms()
        if self._connection is not None and now_ms - self._open_since_ms > self._limit_ms:
            self._commit_early()
        if self._connection is None:
            self._connection = self._engine.begin_exclusive()
            self._open_since_ms = now_ms = self._engine.clock.monotonic_ms()
        self._connection.execute(_SAVEPOINT)
        self._lent_since_ms = now_ms
        self._loan = self._connection.lend(own_tables())
        return self._loan

    def _commit_early(self) -> None:
        kept = self._kept
        try:
            self.commit()
        except errors.OnefoldError:
            self._lost += kept  # this handler gets the error now; for finished ones the next commit raises it
            raise

    def _check_handler(self) -> None:
        assert self._connection is not None
        assert self._lent_since_ms is not None
        if not self._connection.in_transaction:
            self._undo_here()
            self._refused = rolled_back_by_sqlite()
            raise self._refused
        used_ms = self._engine.clock.monotonic_ms() - self._lent_since_ms
        if used_ms > self._limit_ms:
            self._undo_here()
            self._refused = lent_too_long(used_ms, self._limit_ms, "Nobody else can write to the file meanwhile.")
            raise self._refused

    def _undo_here(self) -> None:
        """Like `undo`. In another thread of the handler, only end its use of the connection: its own thread will undo."""
        if threading.get_ident() == self._thread:
            self.undo()
        elif self._loan is not None:
            self._loan.end()

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        """Write this handler's settlement and keep its rows; undo both when its lease was lost.

        Raises:
            TransientError, StorageBusy: as for `open`.
            UsageError: a message of its outbox cannot be sent.
            In all these cases its rows were rolled back.
        """
        try:
            self.open()
        finally:
            self._refused = None  # the handler has ended; the next handler must not get this error
        connection = self._connection
        assert connection is not None
        connection.take_back()
        kept = False
        try:
            (verdict,) = settle_all_in(connection, self._queues, [settlement], now_ms)
            if verdict.written:
                connection.execute(_KEEP)
                kept = True
        except sqlite3.Error as error:
            raise translate(error, self._engine.path) from error
        finally:
            if not kept:
                self.undo()
        if kept:
            self._lent_since_ms = None
            self._kept += 1
            self._wakes = self._wakes or _wakes([settlement])
        return verdict

    def undo(self) -> None:
        """Roll back the rows of the current handler; rows of earlier handlers stay. Without a handler it does nothing.

        Where SQLite has itself rolled back everything, the next `commit` raises.
        """
        self._refused = None
        if self._lent_since_ms is None:
            return
        assert self._connection is not None
        self._lent_since_ms = None
        self._connection.take_back()
        if not _undo_on(self._connection):
            self._lost, self._kept = self._lost + self._kept, 0
        if self._kept == 0:
            self._end(commit=False)

    def commit(self) -> None:
        """Make all kept work durable at once; do nothing if there is none.

        Raises:
            StorageBusy, StorageError: nothing that was kept since the last commit is stored.
        """
        assert self._lent_since_ms is None, "commit() while a handler has the connection; finish or undo it first"
        if self._lost:
            lost = self._lost
            self.rollback()
            raise rolled_back(lost, "a later handler of their group caused it (see its error)")
        if self._connection is not None:
            self._end(commit=True)

    def rollback(self) -> None:
        """Roll back everything that was not committed; do nothing if there is nothing."""
        self._lost, self._refused = 0, None
        if self._connection is not None:
            self._connection.take_back()
            self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        wakes = self._wakes and commit
        try:
            self._engine.end_exclusive(commit=commit)
        except BaseException:  # a signal handler may have raised before the transaction was ended
            self._engine.end_exclusive(commit=False)
            raise
        finally:
            self._connection, self._lent_since_ms, self._kept, self._wakes = None, None, 0, False
        if wakes:
            self._notify()


def _undo_on(connection: LentConnection) -> bool:
    """Roll back to the savepoint; False when only the whole transaction can be rolled back."""
    if not connection.in_transaction:
        return False
    try:
        connection.execute(_TAKE_BACK)
        connection.execute(_KEEP)
    except sqlite3.Error:
        return False
    return True
