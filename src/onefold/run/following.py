"""What begins with a run: the messages that look at it later (`reconciling.py`), sent by whoever begins it first.

A run is begun by the embedded scheduler, in the transaction that sends its tick; where there is none (EventBridge Scheduler,
a map run by hand) by the first handler of its tick, or by who starts it. Its follow-ups leave before it stands, so that a
crash in between sends them again under the same keys, and never leaves a run that nobody looks at.
Never here: what is looked at, what a run is. Invariant: a run that stands has its follow-ups sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from onefold.run import runs
from onefold.run.handlers import Outgoing, Receipt
from onefold.run.runs import RunState, Standing


class Follower(Protocol):
    """What looks at runs later; `reconciling.Reconciler` is one."""

    def is_for(self, run: str, title: str) -> bool:
        """Whether it looks at this run, which is one of a schedule or map of that title."""
        ...

    def follow_up(self, run: str, started_at_ms: int) -> Outgoing:
        """The message that is to be sent together with a run."""
        ...


class House(Protocol):
    """What beginning a run needs of an app."""

    @property
    def reconcilers(self) -> Mapping[str, Any]:
        """The declared followers, by name."""
        ...

    @property
    def runtime(self) -> Any:
        """As `App.runtime`."""
        ...

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably, all or none."""
        ...


def follow_ups(followers: Iterable[Follower], run: str, title: str, started_at_ms: int) -> list[Outgoing]:
    """The messages to be sent together with a run, so that it is looked at whatever becomes of it.

    Args:
        followers: all that an app declares.
        run: its full name. title: the schedule or the map that it is a run of. started_at_ms: when it began.
    """
    return [one.follow_up(run, started_at_ms) for one in followers if one.is_for(run, title)]


def begin(house: House, run: RunState) -> Standing:
    """Begin a run with all that follows it, or go on with it: one that stands already stays as it is.

    Args:
        run: as it is begun when there is none of that name yet.

    Raises:
        UsageError: a name that is empty or too long, a follow-up that its queue does not take. StorageBusy: not begun.
    """
    engine = house.runtime().engine
    standing = runs.read(engine.state, run.name)
    if standing is not None:
        return standing
    if messages := follow_ups(house.reconcilers.values(), run.name, run.title, run.started_at_ms):
        house.deliver(messages)
    return runs.begin(engine.state, run)
