"""Calls that are part of a transaction which the program opened on its own connection to the file.

Inside `joined(connection)` everything this thread writes and reads goes through that connection, each call in its own
savepoint, so that it is committed or rolled back together with the rows that the program writes there. No process is
notified of the commit and no worker is woken: an idle worker checks its queues every 200 ms. How the program's
connection waits for the file, syncs and checkpoints is the program's choice; calls that only take space are not refused
there until the disk is full. Never here: committing. Invariants: a call that raises leaves nothing behind and does not
touch the program's rows; nothing is written through a connection to another file, or outside a transaction.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from onefold import errors
from onefold.engines.sqlite.connection import FileConnection, is_adopted, version_in
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import FOR_WORKERS, FileSettings, inode, latest
from onefold.engines.sqlite.loan import Loan
from onefold.engines.sqlite.refusals import primary, translate
from onefold.engines.sqlite.turn import Run
from onefold.interrupts import ignored, is_of_a_signal

if TYPE_CHECKING:
    from onefold.outside import Clock

T = TypeVar("T")


class _OfThread(threading.local):
    """The connection that this thread's calls go through now, and how many of our savepoints are open on it."""

    connection: sqlite3.Connection | None = None
    depth = 0


class CallersDatabase(Database):
    """A database whose calls can be part of the program's own transaction. Arguments and errors as for `Database`."""

    def __init__(self, path: str, clock: Clock, *, settings: FileSettings = FOR_WORKERS) -> None:
        super().__init__(path, clock, settings=settings)
        self._identity: tuple[int, str] | None = None
        self._adopted = False
        self._here = _OfThread()

    @contextmanager
    def joined(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Let this thread's calls go through the program's connection, inside the transaction that is open on it.

        A connection that begins transactions implicitly (Python's default) begins one here, as it would before an
        INSERT.

        Raises:
            UsageError: the connection is closed, belongs to another thread, is to another file, or is in autocommit
                mode without a transaction.
            StorageError: a newer onefold has changed the file since this process opened it, or the file was replaced.
        """
        if isinstance(connection, FileConnection | Loan):
            raise errors.UsageError(
                "The connection is one of onefold's own, outside of the handler that it was lent to.",
                meaning="Nothing was sent.",
                todo="Open a connection of your own; in a transactional handler, pass its ctx.connection.",
            )
        with plain(connection):
            self._check_file_of(connection)
            begin_on(connection)
            self._check_identity(connection)
            self._here.connection = connection
            try:
                yield
            finally:
                self._here.connection = None

    def _check_file_of(self, connection: sqlite3.Connection) -> None:
        try:
            file = file_of(connection)
        except sqlite3.Error as error:
            raise unusable(error) from error
        if self.in_memory or file is None or inode(file) != inode(self.real_path):
            raise errors.UsageError(
                f"The connection is to {file or 'a database in memory'}; the engine's file is {self.path}.",
                meaning="The message and your rows would not be in one transaction. Nothing was sent.",
                todo="Connect to the engine's file, or give the app the file that you connect to: url='sqlite:///FILE'. Or"
                " make an outbox there: onefold outbox create sqlite:///FILE",
            )
        if not self._file.is_there():
            raise self._file.refusal(is_saved=False, log=None)

    def _check_identity(self, connection: sqlite3.Connection) -> None:
        if self._identity is None:
            self._adopted = super().read(is_adopted)
            self._identity = latest(), super().read(self._identity_in)[1]
        try:
            # Write first: a transaction that has only read can no longer write once another process has written.
            connection.execute("UPDATE onefold_file SET last_id = last_id")
            found = self._identity_in(connection)
        except sqlite3.Error as error:
            raise self._as_callers(error) from error
        if found != self._identity:
            raise errors.StorageError(
                f"{self.path} as the connection sees it is not what this process opened (schema version {found[0]}).",
                meaning="A newer onefold has used the file, or it was replaced. Nothing was sent.",
                todo="Restart this process, with the version of onefold that the other processes on this file use.",
            )

    def _identity_in(self, connection: sqlite3.Connection) -> tuple[int, str]:
        """The schema's version, and the token, which is unique to the file."""
        token: str = connection.execute("SELECT token FROM onefold_file").fetchone()[0]
        return version_in(connection, adopted=self._adopted), token

    # -- calls ---------------------------------------------------------------------------------------------------------

    def write(self, run: Run[T], *, synced: bool = True, early: bool = False, adds: bool = False) -> T:
        """Like `Database.write`; inside `joined` it is as durable as the program's own commit."""
        connection = self._here.connection
        if connection is None:
            return super().write(run, synced=synced, early=early, adds=adds)
        return self._in_savepoint_of(connection, run)

    def read(self, run: Run[T]) -> T:
        """Like `Database.read`; inside `joined` it also sees what the transaction has written."""
        connection = self._here.connection
        if connection is None:
            return super().read(run)
        return self._translated(lambda: run(connection))

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        """Like `Database.together`; inside `joined` it is part of that transaction."""
        connection = self._here.connection
        if connection is None:
            return super().together(calls, synced=synced)
        return [self._answer_on(connection, call) for call in calls]

    def _answer_on(self, connection: sqlite3.Connection, call: Callable[[], object]) -> object:
        try:
            return self._in_savepoint_of(connection, lambda _: call())
        except Exception as error:
            if is_of_a_signal(error) or not connection.in_transaction:
                raise
            return error

    def _in_savepoint_of(self, connection: sqlite3.Connection, run: Run[T]) -> T:
        here = self._here
        here.depth = depth = here.depth + 1
        name = f"onefold_joined_{depth}"
        try:
            connection.execute(f"SAVEPOINT {name}")
            value = run(connection)
            connection.execute(f"RELEASE {name}")
        except BaseException as error:
            with ignored(sqlite3.Error):  # there is no savepoint yet, or SQLite itself has rolled back everything
                connection.execute(f"ROLLBACK TO {name}")
                connection.execute(f"RELEASE {name}")
            if isinstance(error, sqlite3.Error):
                raise self._as_callers(error) from error
            raise
        finally:
            here.depth = depth - 1
        return value

    def _as_callers(self, error: sqlite3.Error) -> BaseException:
        """Like `translate`, for a transaction that the program has open."""
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return errors.StorageBusy(
                f"Another process has written to {self.path} since the transaction read from it.",
                meaning="SQLite lets only a transaction write that has seen the newest state. Nothing was sent.",
                todo="Roll back and try again; a transaction that begins with BEGIN IMMEDIATE does not meet this.",
            )
        if primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return translate(error, self.path)
        if isinstance(error, sqlite3.ProgrammingError):
            return unusable(error)
        return self._file.as_ours(error)


@contextmanager
def plain(connection: sqlite3.Connection) -> Iterator[None]:
    """Make the program's connection return rows and texts in Python's default form while the block runs."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory


def begin_on(connection: sqlite3.Connection) -> None:
    """Begin a transaction if none is open, as Python does before an INSERT.

    Raises:
        UsageError: the connection is in autocommit mode, and the program has not begun a transaction.
    """
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
        raise errors.UsageError(
            "The connection is in autocommit mode, and no transaction is open on it.",
            meaning="The message would be sent alone, before your rows or without them. Nothing was sent.",
            todo="Execute BEGIN first (in Django: with transaction.atomic()); to send at once, leave connection= out.",
        )
    connection.execute(f"BEGIN {connection.isolation_level}")


def file_of(connection: sqlite3.Connection) -> str | None:
    """The file of a connection's main database; None if the database is in memory or temporary.

    Raises:
        sqlite3.Error: the connection cannot be used.
    """
    files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    return files["main"] or None


def unusable(error: sqlite3.Error) -> errors.UsageError:
    """The error for a connection that Python refuses to use, because it is closed or belongs to another thread."""
    return errors.UsageError(
        f"The connection cannot be used: {error}",
        meaning="Nothing was sent.",
        todo="Pass an open connection that belongs to this thread.",
    )
