"""The read connections of one file: each thread has its own, and reads from a snapshot.

Closing a connection during a query crashes the process, so reading from a connection and closing it both require its
lock. Never here: opening one (`connection.py`), the choice between a reader and the writer (`database.py`). Invariant:
after `Readers.close` no query begins.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from onefold import forks

T = TypeVar("T")


class Readers:
    """The read connections of one file.

    Args:
        connect: opens a connection.
        check_open: raises if the engine was closed.
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
            lease = self._of_thread.lease = _Lease(self._open)
        lent = lease.lent
        with lent.busy:
            self._check_open()
            if lent.connection is None:
                with forks.opening():
                    lent.connection = self._connect()
            return _on_a_snapshot(run, lent.connection)

    def close(self) -> None:
        """Close all of them, each after its current query. Idempotent."""
        for lent in list(self._open):
            lent.close(self._open)

    # -- forks (see `forks.Forked`) ------------------------------------------------------------------------------------

    def hold(self, wait_s: float) -> bool:
        """Close all of them, each after its current query, waiting up to `wait_s` seconds; False if one still runs."""
        are_held = True
        for lent in list(self._open):
            are_held &= lent.hold(wait_s)
        return are_held

    def is_held(self) -> bool:
        """Whether no thread has opened another connection since `hold`."""
        return all(lent.is_asked for lent in list(self._open))

    def let_go(self) -> None:
        """Let each thread open its connection again at its next read."""
        for lent in list(self._open):
            lent.let_go()

    def start_anew(self) -> None:
        """Forget the connections of other threads, and those that could not be closed."""
        for lent in list(self._open):
            lent.start_anew()
        self._open.clear()
        self._of_thread = threading.local()


class _Lent:
    """A connection, and the lock that protects its use."""

    __slots__ = ("busy", "connection", "forget", "is_asked", "is_held")

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None  # until it is first used, and again after a fork
        self.busy = threading.RLock()
        self.forget: Callable[[], object] | None = None  # cancels closing it when its thread ends
        self.is_asked = self.is_held = False  # for a fork: closing was asked for; it is closed

    def close(self, among: set[_Lent]) -> None:
        with self.busy:
            if self.connection is not None:
                self.connection.close()
                self.connection = None  # a fork may be about to check it
        among.discard(self)

    def hold(self, wait_s: float) -> bool:
        if not self.is_held:
            self.is_asked = True
            self.is_held = self.busy.acquire(timeout=wait_s)
            if self.is_held and self.connection is not None and not self.connection.in_transaction:
                self.connection.close()
                self.connection = None
        return self.is_held

    def let_go(self) -> None:
        if self.is_held:
            self.busy.release()
        self.is_asked = self.is_held = False

    def start_anew(self) -> None:
        if self.forget is not None:
            self.forget()
        if self.connection is not None:
            forks.keep_for_ever(self.connection)


class _Lease:
    """A thread's reference to its connection, which is closed when the thread ends.

    Args:
        among: the set of open connections, from which it is then removed.
    """

    def __init__(self, among: set[_Lent]) -> None:
        self.lent = _Lent()
        among.add(self.lent)
        ending = weakref.finalize(self, self.lent.close, among)
        ending.atexit = False  # the end of the process closes it anyway
        self.lent.forget = ending.detach


def _on_a_snapshot(run: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    if connection.in_transaction:
        return run(connection)
    with connection:  # `__exit__` is in C: it ends the transaction even if a signal handler raises
        connection.execute("BEGIN")
        value = run(connection)
        connection.execute("ROLLBACK")  # nothing was written
    return value
