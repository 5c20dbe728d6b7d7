"""One write of several parts on an engine: in one transaction where it has one, elsewhere part after part.

Never here: what is written. Invariant: what the write raised is raised here; in a transaction, nothing of it stands then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from onefold.contracts.engine import Engine

T = TypeVar("T")


def together(engine: Engine, write: Callable[[], T]) -> T:
    """Make one call's changes together; what it answered.

    Idle workers are not woken: who sent messages calls `Engine.notify` afterwards, as what was told inside the transaction
    was told too early.

    Raises:
        Exception: whatever the call raised, and what the engine raises when it cannot begin or commit.
    """
    (answer,) = engine.together([write])
    if isinstance(answer, BaseException):
        raise answer
    return cast("T", answer)
