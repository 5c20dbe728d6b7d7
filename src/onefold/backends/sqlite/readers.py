"""Read connections of an engine: one for each thread, on a snapshot; closed when its thread has ended, or with the engine.

Closing a connection under a query takes the process down, so whoever reads from one or closes it holds its lock.
Never here: the writer, errors of SQLite as ours. Invariant: after `close` no query begins.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")


class Readers:
    """The read connections of one file.

    Args:
        connect: opens one.
        check_open: raises once the engine was closed.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], check_open: Callable[[], None]) -> None:
        self._connect = connect
        self._check_open = check_open
        self._open: set[_Lent] = set()
        self._of_thread = threading.local()

    def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run `run(connection)` with this thread's connection; all its statements see the file as the first one saw it."""
        lease: _Lease | None = getattr(self._of_thread, "lease", None)
        if lease is None:
            lease = self._of_thread.lease = _Lease(_Lent(self._connect()), self._open)
        with lease.lent.busy:
            self._check_open()
            return _on_a_snapshot(run, lease.lent.connection)

    def close(self) -> None:
        """Close all, each after the query that is under way; harmless twice."""
        for lent in list(self._open):
            lent.close(self._open)


class _Lent:
    """A connection, and the lock of whoever uses it."""

    __slots__ = ("busy", "connection")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.busy = threading.RLock()

    def close(self, among: set[_Lent]) -> None:
        with self.busy:
            self.connection.close()
        among.discard(self)


class _Lease:
    """What a thread has of its connection: it ends with the thread.

    Args:
        among: where the connection stands until then.
    """

    def __init__(self, lent: _Lent, among: set[_Lent]) -> None:
        self.lent = lent
        among.add(lent)
        weakref.finalize(self, lent.close, among).atexit = False  # the process's end closes what it has


def _on_a_snapshot(run: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    if connection.in_transaction:
        return run(connection)
    with connection:  # in C: ends the transaction even for an exception out of a signal's handler
        connection.execute("BEGIN")
        value = run(connection)
        connection.execute("ROLLBACK")  # nothing was written
    return value
