"""Where handlers run: lanes of threads, coroutines (`tasks.py`) and child processes (`processes.py`), and their free slots.

A lane takes units of work (one run, or a group of runs) and reports when each is done. It never uses the queue, and it
uses the store only to mark a start and to commit a group. `Executors` are the lanes of one worker or of one container
of a Lambda function. The code that begins deliveries collects the results, and submits no more units than there are
free slots, because a run is marked as started when it is claimed.

Runs of repeatable and transactional jobs go in groups (`Grouper`): they are performed one after the other in one thread
and committed together. An external effect must be recorded as soon as it is done; these need not be, so one fsync
serves many. A finished run waits at most COMMIT_WITHIN_MS for the others of its group. Transactional handlers share one
open transaction, each in a savepoint: the rows of a handler are kept with its record, or rolled back without affecting
the others.
Never here: which delivery comes next, settling of single runs. Invariant: every submitted unit gets exactly one
`LaneReport`, whatever its handlers do, unless a handler never ends. A handler's rows and its record are in the same
commit, or neither is stored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from onefold import errors
from onefold.contracts.store import Complete
from onefold.interrupts import let_through
from onefold.limits import MINUTE_MS
from onefold.record import attempt as script
from onefold.record.delivery import LeaseGone, Outcome
from onefold.runner.execution import LaneReport, Unit

if TYPE_CHECKING:
    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import EffectTransaction
    from onefold.record.delivery import Executor
    from onefold.runner.execution import Execution, Lane, Report
    from onefold.runner.handlers import Job
    from onefold.runner.runner import Runner

GROUP_MS: Final = 5  # how long the handlers of one group should take together
COMMIT_WITHIN_MS: Final = 5  # how long a finished run waits at most for the others of its group
EFFECT_LIMIT_MS: Final = 1_000  # how long a handler's transaction may block the file's other writers
_SLOW_MS: Final = 100  # ours: a run that takes so long, in the open transaction of others, is felt by the other writers
_WARY_MS: Final = 10 * MINUTE_MS  # ours: for how long its job's runs begin only when what is finished is committed


class Threads:
    """The lane for plain functions, and groups. A thread cannot be stopped: a handler that overruns sees it in `ctx`.

    Args:
        count: number of threads, 1 or more; they are made only once.
    """

    def __init__(self, count: int, runner: Runner, report: Report) -> None:
        self.slots = count
        self._runner = runner
        self._grouper = Grouper(runner)
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
        """Pass a unit to the next free thread."""
        self._inbox.put(unit)

    def stop(self, run: Execution) -> None:
        """Do nothing: a thread cannot be stopped from outside. `ctx.check()` raises from now on."""

    def end(self, *, wait: bool) -> None:
        """Let the threads end after their current work; the rest die with the process."""
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
                return LaneReport(lane=self, unit=unit, ready=self._grouper.perform(unit.runs))
            for run in unit.runs:
                self._runner.perform(run)
        except BaseException as error:  # noqa: BLE001 - the control loop decides; no thread may end unreported
            return LaneReport(lane=self, unit=unit, error=error)
        return LaneReport(lane=self, unit=unit)


class Here(Threads):
    """Runs units in the thread that submits them, for a Lambda handler that runs at most one plain function at a time."""

    def start(self) -> None:
        """Report the slots; no thread is started."""
        self._report(LaneReport(lane=self, slots=self.slots))

    def submit(self, unit: Unit) -> None:
        """Perform it now."""
        self._report(self._perform(unit))

    def end(self, *, wait: bool) -> None:
        """Do nothing: a unit ends before `submit` returns."""


class Grouper:
    """Performs groups with one runner.

    Args:
        runner: performs the single runs; its backend has the transaction that transactional handlers share.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._clock = runner.clock
        self._quick: set[str] = set()  # jobs whose last run ended before the rest of its group had to be committed
        self._wary_until_ms: dict[str, int] = {}  # of jobs that had a slow run, which the last one says nothing of

    def perform(self, runs: Sequence[Execution]) -> list[Execution]:
        """Perform and finish runs in order. Returns the runs that waited behind them and are ready now."""
        effects = self._effects(runs)
        try:
            return self._perform(runs, effects)
        except BaseException:  # this thread ends in the middle of a handler; its transaction must not block others
            if effects is not None:
                effects.rollback()
            raise

    def _perform(self, runs: Sequence[Execution], effects: EffectTransaction | None) -> list[Execution]:
        ready: list[Execution] = []
        waiting: list[Execution] = []
        since_ms = self._clock.monotonic_ms()
        for run in runs:
            if effects is not None and waiting and self._may_be_slow(run.job.name):
                # The open transaction locks the file; a handler that may be slow must not block the other writers.
                ready.extend(self._finish(waiting, effects))
                waiting, since_ms = [], self._clock.monotonic_ms()
            run.effects = effects if run.job.policy.effect == "transactional" else None
            self._runner.perform(run)
            waiting.append(run)
            (self._quick.add if run.took_ms < COMMIT_WITHIN_MS else self._quick.discard)(run.job.name)
            if run.took_ms >= _SLOW_MS:
                self._wary_until_ms[run.job.name] = self._clock.monotonic_ms() + _WARY_MS
            if run.effects is not None:
                self._keep_or_undo(run, run.effects)
            if self._clock.monotonic_ms() - since_ms >= COMMIT_WITHIN_MS:
                ready.extend(self._finish(waiting, effects))
                waiting, since_ms = [], self._clock.monotonic_ms()
        ready.extend(self._finish(waiting, effects))
        return ready

    def _may_be_slow(self, job: str) -> bool:
        return job not in self._quick or self._clock.monotonic_ms() < self._wary_until_ms.get(job, 0)

    def _effects(self, runs: Sequence[Execution]) -> EffectTransaction | None:
        if self._runner.backend.effects is None or all(run.job.policy.effect != "transactional" for run in runs):
            return None
        return self._runner.backend.effects(EFFECT_LIMIT_MS)

    def _keep_or_undo(self, run: Execution, effects: EffectTransaction) -> None:
        """Write this handler's settlement into the open transaction, or roll back its rows."""
        if run.ctx is None or not run.ctx.used_connection:
            return
        if run.caught or not isinstance(run.decided().write, Complete):
            effects.undo()
            return
        settlement, _ = self._runner.settler.built(run)
        try:
            verdict = effects.finish(settlement, self._clock.now_ms())
        except errors.OnefoldError as error:
            effects.undo()
            let_through(error)
            self._decide_again(run, error)
            return
        if verdict.written:
            run.verdict = verdict
        else:
            self._decide_again(run, None)

    def _finish(self, runs: list[Execution], effects: EffectTransaction | None) -> list[Execution]:
        kept = [run for run in runs if run.verdict is not None]
        if effects is not None and kept:
            try:
                effects.commit()
            except errors.OnefoldError as error:
                let_through(error)
                for run in kept:
                    run.verdict = None
                    self._decide_again(run, error)
        return self._runner.finish(runs)

    def _decide_again(self, run: Execution, error: errors.OnefoldError | None) -> None:
        """Decide again for a run whose rows were rolled back: it had no effect, so it failed (or lost its lease)."""
        assert run.claimed is not None
        outcome: Outcome = LeaseGone() if error is None else self._runner.failed(run, error)
        run.decide_again(outcome, self._clock.now_ms(), self._runner.entropy.fraction())


class Performed(Struct):
    """What was performed since the last call of `collect`.

    Attributes:
        units: all units that ended without an error. runs: those of their runs that are not finished yet.
        ready: runs that waited behind groups and are ready to be performed.
        failed: errors outside handlers (a defect, a backend that cannot be used), each with its unit, if any.
    """

    units: list[Unit] = []
    runs: list[Execution] = []
    ready: list[Execution] = []
    failed: list[tuple[Unit | None, BaseException]] = []


class Executors:
    """The lanes of one process, their free slots, and what runs in them. Used by one thread, except for `stop` and `fail`.

    Args:
        runner: performs the runs. jobs: all jobs that deliveries may be for.
        threads, tasks: how many plain functions and coroutines may run at one time, 1 or more.
        woken: called, in any thread, when something was performed.
        here: call plain functions in the thread that submits them.
        groups_repeatable: run repeatable jobs in groups, like transactional ones.
        children: makes the lane of child processes; it is for all jobs except transactional ones and those with another
            `executor=`.
        otherwise: where jobs without `executor=` run, if there are children.

    Attributes:
        plain: the lane for plain functions. lanes: all lanes. free: the free slots of each, from `start` on.
        running: runs passed to a lane and not collected yet. units: how many units these are.
        done: what was performed and not collected yet.
    """

    def __init__(
        self,
        runner: Runner,
        jobs: Iterable[Job[Any, Any]],
        *,
        threads: int,
        tasks: int,
        woken: Callable[[], None],
        here: bool = False,
        groups_repeatable: bool = True,
        children: Callable[[Report], Lane] | None = None,
        otherwise: Executor = "process",
    ) -> None:
        self._runner = runner
        self._woken = woken
        self.done: deque[LaneReport] = deque()
        self.plain: Lane = (Here if here else Threads)(threads, runner, self._report)
        self._tasks = self._make_tasks(tasks) if any(job.is_async for job in jobs) else None
        self._children = children(self._report) if children is not None else None
        self._groups_repeatable = groups_repeatable
        self._otherwise = otherwise
        self.lanes = [lane for lane in (self.plain, self._tasks, self._children) if lane is not None]
        self.free: dict[Lane, int] = dict.fromkeys(self.lanes, 0)
        self.running: set[Execution] = set()
        self.units = 0
        self._over: list[Callable[[], None]] = []
        self._collecting = threading.Lock()

    def _make_tasks(self, count: int) -> Lane:
        from onefold.runner.tasks import Tasks  # imported, with asyncio, only if a job is a coroutine

        return Tasks(count, self._runner, self._report)

    def start(self) -> None:
        """Start all lanes; their slots are free as soon as they are collected."""
        for lane in self.lanes:
            lane.start()

    def end(self, *, wait: bool) -> None:
        """End all lanes. `wait`: nothing is running, so end gracefully; otherwise abandon what runs."""
        for lane in self.lanes:
            lane.end(wait=wait)

    def leave(self, over: Callable[[], None]) -> None:
        """After `end`, for handlers that it abandoned: call `over` when the last of them has returned, in its thread."""
        self._over.append(over)
        self._look_at_left()

    def _look_at_left(self) -> None:
        with self._collecting:
            self.collect()
            left = [run for run in self.running if self.way_of(run.job)[0] is not self._children]  # these are killed
            over = self._over.pop() if self._over and not left else None
        if over is not None:
            over()

    def way_of(self, job: Job[Any, Any]) -> tuple[Lane, bool]:
        """The lane of a job's runs, and whether they go in groups.

        Transactional jobs stay in this process, whatever the settings say: their rows are written through the engine's
        one connection, and the engine limits their time itself.
        """
        if job.policy.effect == "transactional":
            return self.plain, True
        if self._children is not None and (job.executor or self._otherwise) == "process":
            return self._children, False
        if job.is_async and self._tasks is not None:
            return self._tasks, False
        return self.plain, job.policy.effect == "repeatable" and self._groups_repeatable

    def way(self, delivery: Delivery) -> tuple[Lane, bool]:
        """The lane of a delivery's run, and whether it goes in groups."""
        try:
            return self.way_of(self._runner.job_of(delivery))
        except errors.NotFoundError as error:
            let_through(error)
            return self.plain, False  # the runner will return it to its queue

    def submit(self, runs: Sequence[Execution], group_size: Callable[[Execution], int]) -> None:
        """Pass runs to their lanes. `group_size`: given the first run, how many of its queue go to one slot at once."""
        groups: dict[str, list[Execution]] = {}
        for run in runs:
            lane, grouped = self.way_of(run.job)
            if not grouped:
                self._hand_over(lane, Unit([run]))
            elif isinstance(run.step, script.Call):
                groups.setdefault(run.delivery.queue, []).append(run)
            else:  # an earlier run of this operation ended with its process: it runs alone, so a crash affects no other
                self._hand_over(lane, Unit([run], grouped=True))
        for group in groups.values():
            size = group_size(group[0])
            for start in range(0, len(group), size):
                self._hand_over(self.plain, Unit(group[start : start + size], grouped=True))

    def _hand_over(self, lane: Lane, unit: Unit) -> None:
        self.free[lane] -= 1
        self.units += 1
        self.running.update(unit.runs)
        lane.submit(unit)

    def collect(self) -> Performed:
        """Return what was performed since the last call."""
        found = Performed()
        while self.done:
            done = self.done.popleft()
            self.free[done.lane] += done.slots
            found.ready.extend(done.ready)
            unit = done.unit
            self.units -= unit is not None
            if done.error is not None:
                found.failed.append((unit, done.error))
            elif unit is not None:
                found.units.append(unit)
                self.running.difference_update(unit.runs)
                if not unit.grouped:
                    found.runs.extend(unit.runs)
        return found

    def stop(self, run: Execution, outcome: Outcome) -> None:
        """Stop a run's handler if it can be stopped (task, process), or notify it (thread). From any thread."""
        run.cut = outcome
        if isinstance(outcome, LeaseGone) and run.ctx is not None:
            run.ctx.lease_lost = True
        self.way_of(run.job)[0].stop(run)

    def fail(self, error: BaseException) -> None:
        """Report an error from outside the lanes, for `collect` to return. From any thread."""
        self._report(LaneReport(lane=self.plain, slots=0, error=error))

    def _report(self, done: LaneReport) -> None:
        self.done.append(done)
        if self._over:
            self._look_at_left()
        self._woken()
