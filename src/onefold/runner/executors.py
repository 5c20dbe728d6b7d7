"""Lanes: where handlers of a worker run. Threads for plain functions and groups; `tasks.py` for coroutines.

A lane takes units of work (one run, or a group of runs) and says when each is done; it never touches the queue, and only
the marking of a start and a group's commit touch the store. The control loop counts slots: it submits no more units than a
lane has threads or tasks, because a run is marked as started when it is claimed.
Never here: which run comes next, settling of single runs. Invariant: every unit that was submitted is answered by exactly
one `LaneReport`, whatever its handlers do; only a handler that never ends keeps its own unit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

GROUP_MS: Final = 5  # handlers of one group should take so long together,
COMMIT_WITHIN_MS: Final = 5  # and a run that is over waits so long at most for its siblings


class Unit(Struct, frozen=True):
    """What a slot does at one time.

    Args:
        runs: to be performed, in order.
        grouped: the runs are of repeatable or transactional jobs: they are also finished by whoever performs them.
    """

    runs: Sequence[Execution]
    grouped: bool = False


class LaneReport(Struct, frozen=True, kw_only=True):
    """What a lane reports.

    Args:
        lane: whose slots changed. slots: how many are free again (or for the first time).
        unit: what was performed; None when only slots changed.
        ready: runs that waited behind a group and are ready to be performed.
        error: a defect, or a backend that cannot be used: the worker must end.
    """

    lane: Lane
    slots: int = 1
    unit: Unit | None = None
    ready: Sequence[Execution] = ()
    error: BaseException | None = None


if TYPE_CHECKING:  # for annotations only
    from onefold.runner.execution import Execution
    from onefold.runner.runner import Runner

    Report = Callable[[LaneReport], None]

    PerformGroup = Callable[[Sequence[Execution]], Sequence[Execution]]
    """As `Grouper.perform`."""

    class Lane(Protocol):
        """A place where handlers run. `submit`, `stop` and `end` may be called from any thread."""

        slots: int

        def start(self) -> None:
            """Begin; free slots are reported as they come."""
            ...

        def submit(self, unit: Unit) -> None:
            """Perform a unit as soon as a slot is free; never blocks."""
            ...

        def stop(self, run: Execution) -> None:
            """Stop this run's handler if it is running and can be stopped; `run.cut` says what it comes to."""
            ...

        def end(self, *, wait: bool) -> None:
            """End. `wait`: nothing is under way, so end in good order; otherwise leave what runs."""
            ...


class Threads:
    """Plain functions, and groups. A thread cannot be stopped: a handler that overruns is notified through its context.

    Args:
        count: threads, 1 or more; made once.
        perform_group: performs and finishes the runs of a group.
    """

    def __init__(self, count: int, runner: Runner, perform_group: PerformGroup, report: Report) -> None:
        self.slots = count
        self._runner = runner
        self._perform_group = perform_group
        self._report = report
        self._inbox: SimpleQueue[Unit | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"onefold-run-{number}", daemon=True) for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()
        self._report(LaneReport(lane=self, slots=self.slots))

    def submit(self, unit: Unit) -> None:
        """Hand a unit to the next free thread."""
        self._inbox.put(unit)

    def stop(self, run: Execution) -> None:
        """Nothing can be done from outside; `ctx.check()` raises from now on."""

    def end(self, *, wait: bool) -> None:
        """Let the threads end after what they do now; those that do not end die with the process."""
        for _ in self._threads:
            self._inbox.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _serve(self) -> None:
        while (unit := self._inbox.get()) is not None:
            self._report(self._perform(unit))

    def _perform(self, unit: Unit) -> LaneReport:
        try:
            if unit.grouped:
                return LaneReport(lane=self, unit=unit, ready=self._perform_group(unit.runs))
            for run in unit.runs:
                self._runner.perform(run)
        except BaseException as error:  # noqa: BLE001 - the control loop decides; a thread must not vanish
            return LaneReport(lane=self, unit=unit, error=error)
        return LaneReport(lane=self, unit=unit)


class Here(Threads):
    """The thread that submits, for a Lambda handler that runs one plain function after the other, or none at all."""

    def start(self) -> None:
        """Nothing is to be started."""

    def submit(self, unit: Unit) -> None:
        """Perform it now."""
        self._report(self._perform(unit))

    def end(self, *, wait: bool) -> None:
        """Nothing runs."""
