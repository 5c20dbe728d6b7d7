"""`onefold reconcile`: look at a run by hand, as its declared reconciliation would, and write down what was found.

Where the app declares no reconciliation for the run, dispatched keys are held against records alone. Who looked stands in
the ledger. Never here: what a look consists of (`reconcile/reconciler.py`), repairs (`repair.py`), output.
Invariant: looking sends nothing and changes no operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from onefold import errors
from onefold.decide.failures import summary_of
from onefold.maps.jobs import MapJob
from onefold.reconcile import findings
from onefold.reconcile.findings import Outcome
from onefold.reconcile.reconciler import Due, Look, Reconciler
from onefold.run import runs
from onefold.run.events import Sinks
from onefold.run.outgoing import Outgoing, Receipt
from onefold.schedules.scheduling import Schedule
from onefold.service.desk import Desk

BY_HAND = 0  # the number of a look that no message asked for


class House(Protocol):
    """What is needed of an app beside its desk."""

    @property
    def reconcilers(self) -> Mapping[str, Reconciler]:
        """Declared reconciliations, by name."""
        ...

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Declared schedules, by name."""
        ...

    @property
    def maps(self) -> Mapping[str, MapJob]:
        """Declared maps, by name."""
        ...

    @property
    def runtime(self) -> Callable[[], Any]:
        """As `App.runtime`."""
        ...

    @property
    def sinks(self) -> Iterable[Any]:
        """Who hears of outcomes."""
        ...

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably, all or none."""
        ...


def reconcile(desk: Desk, house: House | None, run: str) -> list[Outcome]:
    """Look at a run now: once for each reconciliation that is declared for it, or once without a count of the user's own.

    Args:
        house: the app; None where only the engine is known.
        run: its full name.

    Returns:
        An outcome for each look. They are written down and told, as those of the job are.

    Raises:
        UsageError: the user's own check failed, or answered in no known form; nothing of its look is written down.
    """
    standing = runs.read(desk.engine.state, run)
    title = standing.run.title if standing is not None else run.partition("/")[0]
    mine = [one for one in house.reconcilers.values() if one.is_for(run, title)] if house is not None else []
    if mine:
        return [_by(one, desk, run) for one in mine]
    jobs = desk.jobs.named if desk.jobs is not None else {}
    look = Look(desk.engine, jobs, Due(run=run, look=BY_HAND), name="", now_ms=desk.now_ms())
    look.survey()
    outcome = look.outcome(None)
    findings.record(desk.engine, outcome, actor=desk.actor, sinks=Sinks(house.sinks if house is not None else ()))
    return [outcome]


def _by(reconciler: Reconciler, desk: Desk, run: str) -> Outcome:
    try:
        return reconciler.reconcile(Due(run=run, look=BY_HAND), actor=desk.actor)
    except errors.OnefoldError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise errors.UsageError(
            f"The check of {reconciler.name} failed: {type(error).__name__}: {summary_of(error)}",
            meaning=f"What it would have found of {run} is not known; nothing was written down.",
            todo="Mend it, and look again.",
        ) from error
