"""The write lock among the threads of a process ("the turn"), the write lock among processes, and the work that waits.

Taking a lock and entering the block that releases it are two steps, and a signal handler may raise between them. So a
caller takes the lock and then at once enters `with turn.lock`, which takes it a second time, and whose first statement
is `turn.lock.release()`. The end of that block, which is in C, releases the lock whatever happens; after an exception
before the block the caller uses `leave`.
Never here: SQL. Invariant: a thread that is not inside one of the calls that take a turn does not keep one.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from onefold import errors
from onefold.clock import Never, SystemClock
from onefold.engines.sqlite.refusals import inside_transaction, kept_turn, primary

if TYPE_CHECKING:
    from types import FrameType

T = TypeVar("T")
Run = Callable[[sqlite3.Connection], T]

_BEGIN: Final = "BEGIN IMMEDIATE /*onefold*/"  # for the comment in it see `database.py`
_ASK_MS: Final = 1  # how often the file's lock is tried
_ASK_SOON_MS: Final = 0.1  # and how often in the first milliseconds: most transactions take 0.1 to 0.5 ms
_SOON_MS: Final = 3
_MOMENT_MS: Final = 100  # how long a call still waits for others when its process should have ended already


class Turn:
    """One lock, owned by a thread.

    Attributes:
        lock: the lock, for `with`.
        is_mine: returns whether the calling thread has it.
    """

    __slots__ = ("is_mine", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_mine: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition does

    def leave(self) -> None:
        """Release it if an exception came between taking it and the block that releases it."""
        if self.is_mine():
            self.lock.release()

    def refuse_within(self, path: str, owner: object, calls: Collection[CodeType]) -> None:
        """Refuse a call inside another one that has the lock; or release a lock that an interrupted call left taken.

        Two exceptions at once can interrupt a call so that it does not release the lock.

        Args:
            owner: the object whose methods `calls` are; one of them is calling now.

        Raises:
            UsageError: the thread is inside another one of the calls.
        """
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        inside = 0
        while frame is not None:
            inside += frame.f_code in calls and frame.f_locals.get("self") is owner
            frame = frame.f_back
        if inside <= 1:
            while self.is_mine():
                self.lock.release()
            return
        raise errors.UsageError(
            f"{path} was used inside a call that writes to it, by the handler of a signal.",
            meaning="The inner call did nothing; the outer call continues.",
            todo="Let the handler of a signal only set a flag, and send where your program reads the flag.",
        )


class Patience:
    """How long calls wait for others.

    Args:
        busy_ms: how long each call waits, unless the process is about to end.

    Attributes:
        waited_ms: how long the last call that gave up had waited.
    """

    def __init__(self, busy_ms: int) -> None:
        self._busy_ms = busy_ms
        self._clock = SystemClock()  # other processes hold the file in real time, whatever the engine's clock is
        self._end_ms: int | None = None
        self.waited_ms = 0

    def hurry(self, left_ms: int | None) -> None:
        """See `contracts.engine.Engine.hurry`."""
        self._end_ms = None if left_ms is None else self._clock.monotonic_ms() + left_ms

    def is_over(self, since_ms: int) -> bool:
        """Whether a call that began to wait at that monotonic instant has waited long enough."""
        end_ms = since_ms + self._busy_ms
        if self._end_ms is not None:
            end_ms = min(end_ms, max(self._end_ms, since_ms + _MOMENT_MS))
        now_ms = self._clock.monotonic_ms()
        self.waited_ms = min(now_ms - since_ms, self._busy_ms)
        return now_ms >= end_ms

    def take(self, lock: threading.RLock, look: Callable[[], None] = lambda: None) -> bool:
        """Wait for a lock; returns whether this thread got it. A `hurry` in any thread takes effect meanwhile.

        Args:
            look: called from time to time meanwhile; an exception that it raises ends the wait.
        """
        moment_s = min(self._busy_ms, _MOMENT_MS) / 1000
        since_ms = self._clock.monotonic_ms()
        while not lock.acquire(timeout=moment_s):
            look()
            if self.is_over(since_ms):
                return False
        return True


class Writer(Protocol):
    """A connection of this process on which a transaction is open."""

    is_mine: Callable[[], bool]
    """Returns whether the calling thread is using it."""

    @property
    def is_lent(self) -> bool:
        """Whether a handler has it."""
        ...


class FileTurn:
    """The write lock among processes: SQLite's own lock on the file.

    It is tried every 0.1 ms and later every millisecond, because SQLite's own wait backs off to up to 100 ms, which
    makes other tools stall under load (docs/decisions/0017).

    Args:
        patience: how long to try.
        path: the file, for error texts.
        writers: returns onefold's connections in this process that have a transaction open on the file.
    """

    def __init__(self, patience: Patience, path: str, writers: Callable[[], Sequence[Writer]]) -> None:
        self._patience = patience
        self._path = path
        self._writers = writers
        self._clock = SystemClock()
        self._never = Never()

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction that writes.

        Raises:
            sqlite3.OperationalError: another process held the file for the whole time, or it cannot be written.
            StorageBusy: a transaction of this process did. UsageError: a handler in this thread has it open.
        """
        since_ms: int | None = None
        while True:
            try:
                connection.execute(_BEGIN)
            except sqlite3.OperationalError as error:
                if primary(error) != sqlite3.SQLITE_BUSY:
                    raise
                now_ms = self._clock.monotonic_ms()
                if since_ms is None:
                    since_ms = now_ms
                    self.refuse_own()
                if self._patience.is_over(since_ms):
                    if self._writers():
                        raise kept_turn(self._path, self._patience.waited_ms) from None
                    raise
                self._clock.wait(self._never, _ASK_SOON_MS if now_ms - since_ms < _SOON_MS else _ASK_MS)
            else:
                return

    def is_mine(self) -> bool:
        """Whether the calling thread has a transaction open on the file, through another connection."""
        return any(one.is_mine() for one in self._writers())

    def refuse_own(self) -> None:
        """Refuse to wait for a transaction of the calling thread, which cannot end while it waits.

        Raises:
            UsageError: a handler has it. StorageBusy: it is open for the next handlers of a group.
        """
        for one in self._writers():
            if one.is_mine():
                raise inside_transaction(self._path) if one.is_lent else kept_turn(self._path, 0)


class Batch:
    """The pieces of work in one transaction; `over` marks all of them at once as having their results.

    Attributes:
        running: locked until the transaction has ended, however it ends.
    """

    __slots__ = ("over", "running")

    def __init__(self) -> None:
        self.over = False
        self.running = threading.Lock()


class Work(Generic[T]):
    """A piece of work that waits for its turn, and its result.

    Attributes:
        wanted: locked while its caller waits for it; an exception can end the caller's wait at any moment.
        batch: the batch in which it was last performed.
        unsynced: its caller has to sync the log before returning.
    """

    __slots__ = ("_ticket", "batch", "error", "run", "synced", "unsynced", "value", "wanted")

    def __init__(self, run: Callable[[sqlite3.Connection], T], synced: bool, unsynced: bool = False) -> None:
        self.run = run
        self.synced = synced
        self.unsynced = unsynced
        self.value: T | None = None
        self.error: BaseException | None = None
        self.batch: Batch | None = None
        self.wanted = threading.Lock()
        self._ticket = [self]

    @property
    def done(self) -> bool:
        """Whether it has its result."""
        return self.batch is not None and self.batch.over

    def answer(self) -> tuple[T, bool]:
        """Its result and `unsynced`; or raises its exception."""
        if self.error is not None:
            raise self.error
        return self.value, self.unsynced  # type: ignore[return-value]  # done without error: run's own answer

    def leave(self, patience_s: float) -> None:
        """Give the work up, for its caller: it is not performed later; if it was performed, its result can be read.

        If another thread has begun it, wait for that thread's transaction, at most `patience_s` seconds.
        """
        if not self.take() and self.batch is not None and self.batch.running.acquire(timeout=patience_s):
            self.batch.running.release()

    def take(self) -> bool:
        """Whether the calling thread may perform the work, or give it up; only the first thread that asks may."""
        try:
            self._ticket.pop()
        except IndexError:
            return False
        return True


def taken(waiting: deque[Work[Any]], own: Work[Any], batch: Batch) -> list[Work[Any]]:
    """Remove all waiting work that was not given up, for a running batch; `own` is always included, and first."""
    found: list[Work[Any]] = []
    while waiting:
        work = waiting.popleft()
        if work is not own and work.wanted.locked():
            work.batch = batch  # before it is taken, so that its caller sees what to wait for
            if work.take():
                found.append(work)
    own.batch = batch
    own.take()
    return [own, *found]
