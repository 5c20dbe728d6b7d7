"""One transaction of an engine, and the wake-up of idle workers after it.

Never here: what is written. Invariant: workers are woken once what they are to find has been committed, and not before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from onefold.contracts.engine import Engine

T = TypeVar("T")


class _ThisThread(threading.local):
    """Whether this thread makes a call of a transaction now, and whether messages were sent in it."""

    inside = False
    sent = False


_here = _ThisThread()


def transaction(engine: Engine, write: Callable[[], T]) -> T:
    """Make one call's changes together, where the engine can; what the call answered.

    Idle workers are woken afterwards when `write` has sent messages.

    Raises:
        Exception: whatever the call raised, and what the engine raises when it cannot begin or commit.
    """
    sent = False

    def call() -> T:  # by whichever thread writes for those that wait
        nonlocal sent
        outer, _here.inside, before, _here.sent = _here.inside, True, _here.sent, False
        try:
            return write()
        finally:
            sent = _here.sent
            _here.inside, _here.sent = outer, before or (outer and sent)

    (answer,) = engine.together([call])
    if isinstance(answer, BaseException):
        raise answer
    if sent and not _here.inside:
        engine.notify()
    return cast("T", answer)


def wake_workers(engine: Engine) -> None:
    """Messages were sent: wake idle workers of all processes, after the transaction that this is in."""
    if _here.inside:
        _here.sent = True
    else:
        engine.notify()
