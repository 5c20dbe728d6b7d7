"""The resident worker: one control thread receives, begins and finishes; lanes of threads, tasks and processes run handlers.

A turn of the control loop:

    finish all runs that have been performed, together, without waiting for slower ones
    begin as many runs as there are free slots: claiming marks a run as started, so its call must follow at once
    refill the buffers of the queues whose turn it is
    otherwise wait: for a performed run, for a sender in any process, or for the next poll

Never here: decisions about a delivery, storage, signals. Invariant: every delivery that was received is begun,
returned, or left to its lease by a worker that names it in its report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from onefold import errors, forks
from onefold.interrupts import ignored, let_through
from onefold.options import WorkerSettings
from onefold.runner.context import watch_pools
from onefold.runner.execution import Execution
from onefold.runner.executors import Executors
from onefold.runner.handlers import Job
from onefold.runner.heartbeat import Beside
from onefold.runner.hooks import HookSet
from onefold.runner.poll import Allotment, Poller
from onefold.runner.processes import Spawn, children_for
from onefold.runner.runner import Runner
from onefold.runner.worker_numbers import ExitReport, Numbers, WorkerSnapshot

if TYPE_CHECKING:
    from onefold.contracts.engine import RenewalMark, WakeableWaiter
    from onefold.contracts.verbs import QueueReceiver
    from onefold.record.delivery import Detail

_PAUSE_MS_MAX = 1_000  # the loop checks its flags at least this often, in case a wake-up is missed
_LAST_MS = 1_500  # after the grace time, to record what was done by then: another process may hold the file


class Worker:
    """One worker process.

    Args:
        runner: begins and finishes runs. queues: to receive from. jobs: all those whose messages they may have.
        waiter: woken by senders in any process and by its `wake`, which must be safe to call from a signal handler.
        hurry: as `Engine.hurry`. maintain: the engine's upkeep, called every 500 ms. ended: called when the work ends.
        spawn: starts child processes. hooks: started and stopped with the worker.
        mark: as for `Heartbeat`.
        about: further detail for the event of its start, besides its queues.

    Raises:
        UsageError: a setting out of range; processes without `spawn`.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        queues: Sequence[QueueReceiver],
        jobs: Sequence[Job[Any, Any]],
        waiter: WakeableWaiter,
        hurry: Callable[[int | None], None],
        maintain: Callable[[], object] | None = None,
        ended: Callable[[], object] | None = None,
        settings: WorkerSettings = WorkerSettings(),  # noqa: B008 - frozen
        spawn: Spawn | None = None,
        hooks: HookSet | None = None,
        mark: RenewalMark | None = None,
        about: Detail = {},  # noqa: B006 - read only
    ) -> None:
        self._hooks = hooks or HookSet()
        settings.check([queue.name for queue in queues])
        watch_pools(load=True)
        self._generation = forks.generation()
        self._runner, self._in_flight, self._clock = runner, runner.in_flight, runner.clock
        runner.buffers = True
        self._waiter, self._hurry, self._settings, self._ended = waiter, hurry, settings, ended
        self._about = about
        longest_ms = max((job.policy.timeout_ms for job in jobs), default=0)
        self._grace_ms = longest_ms if settings.grace_ms is None else settings.grace_ms
        self._poller = Poller(
            queues, settings.weights, visible_ms=settings.lease_ms, in_flight=self._in_flight, clock=self._clock
        )
        self._is_empty = partial(self._poller.is_empty, runner, wait_for_delayed=settings.wait_for_delayed)
        self._executors = executors = Executors(
            runner, jobs, threads=settings.threads, tasks=settings.tasks, woken=self._woken,
            children=children_for(jobs, settings.processes, spawn, runner),
            otherwise="process" if settings.processes else "thread",
        )  # fmt: skip
        self._allotment = Allotment(self._poller, executors, jobs, settings)
        self._outage = runner.reports.outage()
        self._numbers = Numbers(self._in_flight, self._outage, self._clock)
        self.draining = self._stopping = self._gave_back = self._idle = False  # draining: it was asked to end
        self._grace_end_ms: int | None = None
        self._calm_until_ms = 0
        self._beside = Beside(runner, executors, settings.lease_ms, maintain, self.drain, mark)

    def drain(self, at_most_ms: int | None = None) -> None:
        """Stop receiving, return what was not begun, finish running work within the grace time; then `run` returns.

        From any thread or signal handler. A later call can only shorten the time: to `at_most_ms` from then.
        """
        left_ms = self._grace_ms if at_most_ms is None else min(at_most_ms, self._grace_ms)
        end_ms = self._clock.monotonic_ms() + left_ms
        if self._grace_end_ms is None or end_ms < self._grace_end_ms:
            self._grace_end_ms = end_ms
            self._runner.settler.last_try_ms = end_ms + _LAST_MS
            self._hurry(left_ms + _LAST_MS)  # no call of the engine waits for others much longer
        self.draining = True
        with suppress(OSError):  # the worker has ended, and its waiter is closed
            self._waiter.wake()

    def stop_now(self) -> None:
        """Let `run` return at once; leave running work to the worker that takes it over. As `drain`, from anywhere."""
        self._stopping = True
        self.drain(0)

    def snapshot(self) -> WorkerSnapshot:
        """The present numbers of the worker. From any thread."""
        return self._numbers.snapshot(len(self._executors.running), self._runner.reports.sink_failures)

    def run(self) -> ExitReport:
        """Work in the calling thread until asked to end. Call it only once.

        Raises:
            StorageError, UsageError: the backend cannot be used, or a child process cannot load the app.
            UsageError: a start hook raised; nothing was received.
            InvariantBroken: a defect of onefold.
            OnefoldError: a background thread of the worker could not go on, and the worker has drained.
        """
        forks.check_not_forked(self._generation, "worker")
        reports, executors = self._runner.reports, self._executors
        self._hooks.start("worker")
        reports.of_process("worker-started", {"queues": ", ".join(self._poller.feeds), **self._about})
        in_good_order = False
        try:
            self._beside.start()
            executors.start()
            while not self._stopping and not (self._gave_back and not executors.running and not executors.done):
                if not self._turn():
                    self._pause()
            self._runner.withdraw()
            self._finish()  # what has been performed is recorded, however sudden the end is
            in_good_order = not executors.running
        finally:
            executors.end(wait=in_good_order)
            self._beside.end(wait=in_good_order)
            self._poller.end(give_back=in_good_order)
            if self._ended is not None:
                self._ended()
            left = tuple(f"{run.job.name} {run.facts.key.key if run.facts.key else ''}" for run in executors.running)
            with ignored(errors.OnefoldError):  # an engine that fails here must not hide the first error
                reports.of_process("worker-stopped", {"left": len(left)})
            if in_good_order:
                self._hooks.stop("worker")
            reports.end_sinks()
            self._hurry(None)  # the program may go on without this worker
            if not in_good_order:
                executors.leave(self._beside.end_mark)
        if self._beside.fault is not None:
            raise self._beside.fault
        return ExitReport(code=3 if left else 0, left=left, counts=self.snapshot(), not_taken=self._poller.not_taken)

    def _turn(self) -> bool:
        """One turn; returns whether there was anything to do."""
        busy = self._finish()
        self._poller.put_back(self._in_flight.dropped())
        now_ms = self._clock.monotonic_ms()
        self._numbers.note(now_ms)
        if self.draining:
            busy = self._give_back() or busy
        elif now_ms >= self._calm_until_ms:
            try:
                batch = self._allotment.choose()
                if batch:
                    self._submit(self._runner.begin(batch))
                received = self._poller.refill(self._allotment.wanted)
                busy = busy or bool(batch) or received > 0
                if self._settings.until_empty and not busy and self._is_empty():
                    # Closing a run may send the jobs that wait for it, here or in this process's maintenance.
                    closed = self._runner.closer.check(turns=False)
                    if not closed and self._is_empty():
                        self.drain()
                    busy = True
                if not self._poller.is_failing:
                    self._outage.answered()
            except errors.TransientError as error:  # leave the backend alone for a while
                let_through(error)
                self._calm_until_ms = self._clock.monotonic_ms() + self._outage.failed(error)
        if busy or not (self._outage.count or len(self._in_flight)):
            self._numbers.progressed()
        return busy

    def _finish(self) -> bool:
        """Settle what the lanes have performed; returns whether there was anything."""
        if not self._executors.done:
            return False
        performed = self._executors.collect()
        self._poller.performed(performed.units)
        if performed.runs:
            performed.ready.extend(self._runner.finish(performed.runs))
        for _, error in performed.failed:
            raise error
        self._submit(performed.ready)
        return True

    def _submit(self, ready: Sequence[Execution]) -> None:
        """Pass runs to the lanes, to be performed."""
        if not ready:
            return
        self._numbers.started += len(ready)
        self._executors.submit(ready, self._allotment.group_size)
        self._beside.watch(min(run.job.policy.timeout_ms for run in ready))

    def _pause(self) -> None:
        """Wait for something to do."""
        now_ms = self._clock.monotonic_ms()
        self._idle = True  # from here on a report wakes the loop; earlier reports are read on the next line
        if not self._executors.done:
            if self._grace_end_ms is not None and now_ms >= self._grace_end_ms:
                self._stopping = True
            if self.draining:
                self._poller.pause(self._waiter, _PAUSE_MS_MAX)
            elif now_ms < self._calm_until_ms:
                self._poller.pause(self._waiter, self._calm_until_ms - now_ms)
            else:
                self._poller.pause(self._waiter, _PAUSE_MS_MAX, self._allotment.wanted)
        self._idle = False

    def _woken(self) -> None:
        if self._idle:
            self._waiter.wake()

    def _give_back(self) -> bool:
        """While draining: return what was not begun, last first; returns True the first time."""
        first, self._gave_back = not self._gave_back, True
        if first:
            self._poller.stop()
        unbegun = [*self._runner.withdraw(), *self._poller.withdraw()]
        if first:
            detail = {"running": len(self._executors.running), "given_back": len(unbegun)}
            self._runner.reports.of_process("worker-draining", detail)
        if unbegun:
            self._runner.release(unbegun, "the worker drains")
        return first
