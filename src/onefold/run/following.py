"""What begins with a run: the messages that look at it later (`reconcile/reconciler.py`), sent by whoever begins it first.

A run is begun by the embedded scheduler, in the transaction that sends its tick; where there is none (EventBridge Scheduler,
a map run by hand) by the first handler of its tick, or by who starts it. Its follow-ups leave before it stands, so that a
crash in between sends them again under the same keys, and never leaves a run that nobody looks at. A look that its queue
does not take is told, and holds up neither its run nor the other looks.
Never here: what is looked at, what a run is. Invariant: a run that stands has every look sent that could be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onefold import errors
from onefold.run import runs
from onefold.run.events import Event
from onefold.run.outgoing import Outgoing, Receipt
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


def send_looks(house: House, run: str, title: str, started_at_ms: int) -> list[str]:
    """Send the messages that look at a run later.

    Args:
        house: whose followers, and where they go.
        run: its full name. title: the schedule or the map that it is a run of. started_at_ms: when it began.

    Returns:
        Why a follower could not be sent, a text for each; empty when all were.

    Raises:
        TransientError: not sent; try again.
    """
    refused: list[str] = []
    for name, one in house.reconcilers.items():
        if one.is_for(run, title):
            try:
                house.deliver([one.follow_up(run, started_at_ms)])
            except errors.UsageError as error:
                refused.append(f"{name}: {error.what}")
    return refused


def tell_refused(house: House, run: str, reasons: Sequence[str]) -> None:
    """Tell history and sinks which looks could not be sent."""
    opened = house.runtime()
    for why in reasons:
        at_ms = opened.clock.now_ms()
        event = Event(at_ms=at_ms, name="look-refused", run=run, actor=opened.owner, detail={"summary": why})
        opened.engine.ledger.append([event.row()])
        if opened.sinks is not None:
            opened.sinks.emit(event)


def begin(house: House, run: RunState) -> Standing:
    """Begin a run with all that follows it, or go on with it: one that stands already stays as it is.

    Args:
        run: as it is begun when there is none of that name yet.

    Raises:
        UsageError: a name that is empty or too long. StorageBusy: not begun.
    """
    engine = house.runtime().engine
    standing = runs.read(engine.state, run.name)
    if standing is not None and (standing.run.ended_at_ms is not None or runs.is_open(engine.state, run.name)):
        return standing
    if standing is None:
        tell_refused(house, run.name, send_looks(house, run.name, run.title, run.started_at_ms))
    return runs.begin(engine.state, run)
