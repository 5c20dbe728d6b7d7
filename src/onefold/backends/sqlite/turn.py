"""The writer's turn among the threads of one process, and the work that waits for it.

Taking a lock and entering the block that gives it back are two steps, and an exception out of a signal's handler may come
between them. So: `take`, then at once `with turn.lock`, whose first statement is `turn.lock.release()`: the end of that
block, which is C, gives the lock back whatever happens; what comes before it, `leave` catches.
Never here: SQL. Invariant: a thread that is not inside one of the calls that take turns does not keep one for good.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Collection
from types import CodeType
from typing import TYPE_CHECKING, Generic, TypeVar

from onefold import errors

if TYPE_CHECKING:
    from types import FrameType

T = TypeVar("T")


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


class Batch:
    """Pieces of work in one transaction; `over` says of all of them at once that they have their answers."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class Work(Generic[T]):
    """A piece of work that waits for its turn, and its answer.

    Attributes:
        wanted: locked while its caller waits for it; an exception may take the caller away at any moment.
        batch: what it was last performed with.
    """

    __slots__ = ("_ticket", "batch", "error", "run", "synced", "value", "wanted")

    def __init__(self, run: Callable[[sqlite3.Connection], T], synced: bool) -> None:
        self.run = run
        self.synced = synced
        self.value: T | None = None
        self.error: BaseException | None = None
        self.batch: Batch | None = None
        self.wanted = threading.Lock()
        self._ticket = [self]

    @property
    def done(self) -> bool:
        """Whether it has its answer."""
        return self.batch is not None and self.batch.over

    def take(self) -> bool:
        """Whether it is the caller's to perform, or to give up: once only, whichever thread asks first."""
        try:
            self._ticket.pop()
        except IndexError:
            return False
        return True
