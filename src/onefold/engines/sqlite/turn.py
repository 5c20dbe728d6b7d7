"""The writer's turn among the threads of one process, that among processes, and the work that waits for it.

Taking a lock and entering the block that gives it back are two steps, and an exception out of a signal's handler may come
between them. So: `take`, then at once `with turn.lock`, whose first statement is `turn.lock.release()`: the end of that
block, which is C, gives the lock back whatever happens; what comes before it, `leave` catches.
Never here: SQL. Invariant: a thread that is not inside one of the calls that take turns does not keep one for good.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from onefold import errors
from onefold.clock import Never, SystemClock
from onefold.engines.sqlite.refusals import primary

if TYPE_CHECKING:
    from types import FrameType

T = TypeVar("T")
Run = Callable[[sqlite3.Connection], T]

_BEGIN: Final = "BEGIN IMMEDIATE /*onefold*/"  # own spelling, see `database.py`
_ASK_MS: Final = 1  # how often the file's turn is asked for,
_ASK_SOON_MS: Final = 0.1  # and how often for the first milliseconds: most transactions take 0.1 to 0.5 ms
_SOON_MS: Final = 3
_MOMENT_MS: Final = 100  # a call waits so long for others although its process should have ended by now


class Turn:
    """One lock, owned by a thread.

    Attributes:
        lock: for `with`.
        is_mine: whether this thread has it.
    """

    __slots__ = ("is_mine", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_mine: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition does

    def leave(self) -> None:
        """Give it back if an exception came between taking it and the block that gives it back."""
        if self.is_mine():
            self.lock.release()

    def refuse_within(self, path: str, owner: object, calls: Collection[CodeType]) -> None:
        """This thread has it: it is inside a call that took it, or two exceptions at once tore one apart.

        Args:
            owner: whose methods `calls` are; one of them is calling now.

        Raises:
            UsageError: it is inside another one.
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
            meaning="The inner call did nothing; the outer one goes on.",
            todo="Let the handler of a signal set a flag, and send where the flag is read.",
        )


class Patience:
    """How long calls wait for others.

    Args:
        busy_ms: each one, unless the process is to end.

    Attributes:
        waited_ms: by the call that gave up last.
    """

    def __init__(self, busy_ms: int) -> None:
        self._busy_ms = busy_ms
        self._clock = SystemClock()  # others hold the file in real time, whatever the engine's clock says
        self._end_ms: int | None = None
        self.waited_ms = 0

    def hurry(self, left_ms: int | None) -> None:
        """As `contracts.engine.Engine.hurry`."""
        self._end_ms = None if left_ms is None else self._clock.monotonic_ms() + left_ms

    def is_over(self, since_ms: int) -> bool:
        """Whether a call that has waited since then, by the monotonic clock, has waited long enough."""
        end_ms = since_ms + self._busy_ms
        if self._end_ms is not None:
            end_ms = min(end_ms, max(self._end_ms, since_ms + _MOMENT_MS))
        now_ms = self._clock.monotonic_ms()
        self.waited_ms = min(now_ms - since_ms, self._busy_ms)
        return now_ms >= end_ms

    def take(self, lock: threading.RLock) -> bool:
        """Wait for a lock; whether this thread has it. `hurry` is noticed meanwhile, in whichever thread it is called."""
        moment_s = min(self._busy_ms, _MOMENT_MS) / 1000
        since_ms = self._clock.monotonic_ms()
        while not lock.acquire(timeout=moment_s):
            if self.is_over(since_ms):
                return False
        return True


class FileTurn:
    """The turn among processes: SQLite's own lock on the file decides.

    We ask for it again every 0.1 ms and later every millisecond, because SQLite's own waiting backs off up to 100 ms, which
    is what makes other tools stall under load (docs/decisions/0017).

    Args:
        patience: how long to ask.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._clock = SystemClock()
        self._never = Never()

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction that writes.

        Raises:
            sqlite3.OperationalError: another process had the file for the whole time, or it cannot be written.
        """
        since_ms: int | None = None
        while True:
            try:
                connection.execute(_BEGIN)
            except sqlite3.OperationalError as error:
                now_ms = self._clock.monotonic_ms()
                since_ms = now_ms if since_ms is None else since_ms
                if primary(error) != sqlite3.SQLITE_BUSY or self._patience.is_over(since_ms):
                    raise
                self._clock.wait(self._never, _ASK_SOON_MS if now_ms - since_ms < _SOON_MS else _ASK_MS)
            else:
                return


class Batch:
    """Pieces of work in one transaction; `over` says of all of them at once that they have their answers.

    Attributes:
        running: locked until its transaction has ended, however it ends.
    """

    __slots__ = ("over", "running")

    def __init__(self) -> None:
        self.over = False
        self.running = threading.Lock()


class Work(Generic[T]):
    """A piece of work that waits for its turn, and its answer.

    Attributes:
        wanted: locked while its caller waits for it; an exception may take the caller away at any moment.
        batch: what it was last performed with.
        unsynced: its caller has to sync the log before it answers.
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
        """Whether it has its answer."""
        return self.batch is not None and self.batch.over

    def answer(self) -> tuple[T, bool]:
        """What it answered, and `unsynced`; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value, self.unsynced  # type: ignore[return-value]  # done without error: run's own answer

    def leave(self, patience_s: float) -> None:
        """Its caller goes without an answer: afterwards nobody performs it, and what was performed can be read.

        Where another thread has begun it, that one's transaction ends first; or the patience.
        """
        if not self.take() and self.batch is not None and self.batch.running.acquire(timeout=patience_s):
            self.batch.running.release()

    def take(self) -> bool:
        """Whether it is the caller's to perform, or to give up: once only, whichever thread asks first."""
        try:
            self._ticket.pop()
        except IndexError:
            return False
        return True


def taken(waiting: deque[Work[Any]], own: Work[Any], batch: Batch) -> list[Work[Any]]:
    """All that waits and was not given up, taken out for a batch that is running; `own` in any case, first."""
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
