"""Read connections of an engine: one for each thread, on a snapshot; closed when its thread has ended, or with the engine.

Closing a connection under a query takes the process down, so whoever reads from one or closes it holds its lock.
Never here: the writer, errors of SQLite as ours. Invariant: after `close` no query begins.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from onefold import forks

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
            lease = self._of_thread.lease = _Lease(self._open)
        lent = lease.lent
        with lent.busy:
            self._check_open()
            if lent.connection is None:
                with forks.opening():
                    lent.connection = self._connect()
            return _on_a_snapshot(run, lent.connection)

    def close(self) -> None:
        """Close all, each after the query that is under way; harmless twice."""
        for lent in list(self._open):
            lent.close(self._open)

    # -- forks, as `forks.Forked` says ---------------------------------------------------------------------------------

    def hold(self, wait_s: float) -> bool:
        """Close all, each after the query that is under way, waited for so long; False: one goes on."""
        are_held = True
        for lent in list(self._open):
            are_held &= lent.hold(wait_s)
        return are_held

    def is_held(self) -> bool:
        """Whether no thread has come by another one since."""
        return all(lent.is_asked for lent in list(self._open))

    def let_go(self) -> None:
        """Each thread opens its own again when it reads next."""
        for lent in list(self._open):
            lent.let_go()

    def start_anew(self) -> None:
        """Forget those of other threads, and what could not be closed."""
        for lent in list(self._open):
            lent.start_anew()
        self._open.clear()
        self._of_thread = threading.local()


class _Lent:
    """A connection, and the lock of whoever uses it."""

    __slots__ = ("busy", "connection", "forget", "is_asked", "is_held")

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None  # until it is first used, and again after a fork
        self.busy = threading.RLock()
        self.forget: Callable[[], object] | None = None  # its thread's end does not close it any more
        self.is_asked = self.is_held = False  # to let go of it for a fork; it is

    def close(self, among: set[_Lent]) -> None:
        with self.busy:
            if self.connection is not None:
                self.connection.close()
                self.connection = None  # a fork may be about to look at it
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
    """What a thread has of its connection: it ends with the thread.

    Args:
        among: where the connection is until then.
    """

    def __init__(self, among: set[_Lent]) -> None:
        self.lent = _Lent()
        among.add(self.lent)
        ending = weakref.finalize(self, self.lent.close, among)
        ending.atexit = False  # the process's end closes what it has
        self.lent.forget = ending.detach


def _on_a_snapshot(run: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    if connection.in_transaction:
        return run(connection)
    with connection:  # in C: ends the transaction even for an exception out of a signal's handler
        connection.execute("BEGIN")
        value = run(connection)
        connection.execute("ROLLBACK")  # nothing was written
    return value
