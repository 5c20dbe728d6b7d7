"""The resident worker: one control thread receives, begins and finishes; lanes of threads, tasks and processes run handlers.

A turn of the control loop:

    finish what has been performed, all of it together; nobody waits for a slower sibling
    begin what there are free slots for: claiming marks a run as started, so its call must follow at once
    refill the buffers of the queues whose turn it is
    otherwise wait: for a finished run, for a sender anywhere, or for the next look

Runs of repeatable and transactional jobs go to a thread as groups, which that thread also finishes; while one group runs,
the control thread receives and begins the next.
To end: `drain` gives back what was not begun, last first, and finishes what runs, for at most the grace time; `stop_now`
leaves what runs to whoever takes over. Both only set a flag and wake the loop, so a signal handler may call them.
Never here: what is done with a delivery, storage, signals. Invariant: every delivery that was received is begun, given back,
or left to its lease by a worker that says so in its report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from onefold import errors, forks
from onefold.contracts.queue import Delivery
from onefold.record.delivery import LeaseGone, Outcome
from onefold.runner.context import watch_pools
from onefold.runner.execution import Execution
from onefold.runner.executors import LaneReport, Threads, Unit
from onefold.runner.grouping import Grouper
from onefold.runner.handlers import Job
from onefold.runner.heartbeat import Heartbeat, Periodic, Watchdog
from onefold.runner.longpoll import LongPoll
from onefold.runner.poll import Allotment, Poller
from onefold.runner.processes import Children, Spawn
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue
    from onefold.outside import Clock, Waiter
    from onefold.runner.tasks import Tasks

__all__ = ["ExitReport", "Snapshot", "Spawn", "Worker", "WorkerSettings"]


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """What a user may choose.

    Args:
        threads: for plain functions and groups, 1 or more.
        tasks: coroutines at one time, 1 or more.
        processes: child processes for all jobs but transactional ones; 0 for none.
        prefetch: how many deliveries of one queue may lie in the buffer; None: what is done in 20 ms, learned as it goes.
        group_max: runs in one group, 1 or more.
        lease_ms: how long claims and receives hold without a heartbeat, 1,000 or more.
        grace_ms: how long a drain waits for what runs; None: the longest timeout of any job.
        weights: how often a queue's turn comes, 1 or more; 1 where absent.
        until_empty: drain as soon as the queues are empty, nothing is in flight here or elsewhere. Messages that no job here
            takes, and what waits behind them in a FIFO group, count as nothing.
        wait_for_delayed: with until_empty: delayed messages count as not empty.
    """

    threads: int = 8
    tasks: int = 100
    processes: int = 0
    prefetch: int | None = None
    group_max: int = 100
    lease_ms: int = 30_000
    grace_ms: int | None = None
    weights: Mapping[str, int] = {}
    until_empty: bool = False
    wait_for_delayed: bool = True

    def check(self, queues: Collection[str]) -> None:
        """Refuse what cannot be worked with.

        Args:
            queues: names of the queues to work on.

        Raises:
            UsageError: a value out of its range, no queue, a weight for another queue.
        """
        least = {"threads": 1, "tasks": 1, "processes": 0, "group_max": 1, "lease_ms": 1_000}
        for name, low in least.items():
            value = getattr(self, name)
            if value < low:
                raise errors.UsageError(f"{name}={value} is out of range.", todo=f"It is {low} or more.")
        for name, value in (("prefetch", self.prefetch), ("grace_ms", self.grace_ms)):
            if value is not None and value < 0:
                raise errors.UsageError(f"{name}={value} is out of range.", todo="It is 0 or more.")
        if not queues:
            raise errors.UsageError("The worker has no queue.", todo="Declare a queue, or name one that is declared.")
        for name, weight in self.weights.items():
            if weight < 1 or name not in queues:
                raise errors.UsageError(
                    f"weights has {name}={weight}.",
                    todo=f"Name queues of this worker ({', '.join(queues)}), each with 1 or more.",
                )


RATE_MS = 5_000  # `per_second` looks back so far,
_POINTS = 20  # over so many points
_BURIED = ("dead-letter", "quarantine", "conflict", "malformed", "untrusted", "no-job", "group-stopped")


class Snapshot(Struct, frozen=True, kw_only=True):
    """A worker's numbers since it started.

    Args:
        received: deliveries. started: handlers (and probes) handed to a lane.
        completed, duplicates, retried: settled so. buried: to a dead-letter queue, for whatever reason.
        held: to a held queue. given_back: not begun. lost: leases.
        in_hand: received and not settled. running: handed to a lane and not settled.
        per_second: completed, over the last 5 s. sink_failures: how many times a sink of the app raised.
    """

    received: int
    started: int
    completed: int
    duplicates: int
    retried: int
    buried: int
    held: int
    given_back: int
    lost: int
    in_hand: int
    running: int
    per_second: float
    sink_failures: int = 0

    @classmethod
    def of(
        cls,
        counts: Mapping[str, int],
        *,
        started: int,
        in_hand: int,
        running: int,
        per_second: float,
        sink_failures: int = 0,
    ) -> Snapshot:
        """From how often each event was reported (`InFlight.counts`)."""
        return cls(
            received=counts.get("received", 0),
            started=started,
            completed=counts.get("completed", 0),
            duplicates=counts.get("duplicate", 0),
            retried=counts.get("retry", 0),
            buried=sum(counts.get(name, 0) for name in _BURIED),
            held=counts.get("held", 0),
            given_back=counts.get("released", 0),
            lost=counts.get("lease-lost", 0),
            in_hand=in_hand,
            running=running,
            per_second=per_second,
            sink_failures=sink_failures,
        )


class ExitReport(Struct, frozen=True, kw_only=True):
    """How a worker ended.

    Args:
        code: 0 drained; 3 stopped at once, or after the grace time, with work in hand.
        left: what still ran then, as `job key`; whoever takes over decides by the job's policy.
        counts: the last numbers.
        not_taken: with `until_empty`, by queue: messages that were left because no job here takes them, and on a FIFO
            queue those behind them that were received.
    """

    code: Literal[0, 3]
    left: tuple[str, ...]
    counts: Snapshot
    not_taken: Mapping[str, int] = {}


class GrowthRate:
    """How fast a count grows. Noted by one thread, read by any."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, int]] = deque()

    def due(self, now_ms: int) -> bool:
        """Whether the count should be noted again."""
        return not self._points or now_ms - self._points[-1][0] >= RATE_MS // _POINTS

    def note(self, now_ms: int, count: int) -> None:
        """The count at a monotonic instant."""
        self._points.append((now_ms, count))
        while now_ms - self._points[0][0] > RATE_MS:
            self._points.popleft()

    def per_second(self, now_ms: int, count: int) -> float:
        """Growth per second since the oldest point that is kept."""
        since_ms, before = next(iter(self._points.copy()), (now_ms, count))
        return (count - before) * 1000 / max(now_ms - since_ms, 1)


MAINTAIN_MS = 500  # dead owners are looked for so often: their work runs again within a second or so
_PAUSE_MS_MAX = 1_000  # the loop looks at its flags at least so often, should a wake-up ever be missed
_BLOCKED_MS = 1_000  # visible messages of a FIFO queue that cannot be received for so long wait behind others
_LAST_MS = 1_500  # after the grace time, for records of what was done by then: it may be that somebody holds the file
_RECEIVES_MS = 500  # at the end, for receives under way: where messages come they take milliseconds, else up to 10 s
_CALM_MS = 50  # after the backend failed: 50 ms x 2^n, at most
_CALM_MS_MAX = 5_000


class Worker:
    """One worker process.

    Args:
        runner: begins and finishes. backend: what it works on.
        queues: to receive from. jobs: all that may come from them. job_of: the job a delivery is for.
        waiter: woken by senders of any process and by `wake`, which must be safe to call from a signal handler.
        maintain: what the backend wants done every 500 ms; answers how much was done.
        hurry: as `Engine.hurry` of the backend.
        spawn: how child processes are started; required with `settings.processes`.

    Raises:
        UsageError: a setting out of range; processes without `spawn`; a job on no queue of this worker.
    """

    def __init__(
        self,
        runner: Runner,
        backend: Backend,
        *,
        queues: Sequence[Queue],
        jobs: Sequence[Job[Any, Any]],
        job_of: Callable[[Delivery], Job[Any, Any]],
        grouper: Grouper,
        clock: Clock,
        waiter: Waiter,
        wake: Callable[[], None],
        maintain: Callable[[], int] | None = None,
        hurry: Callable[[int | None], None] | None = None,
        settings: WorkerSettings = WorkerSettings(),  # noqa: B008 - frozen
        spawn: Spawn | None = None,
    ) -> None:
        settings.check([queue.name for queue in queues])
        self._runner = runner
        watch_pools(load=True)
        self._generation = forks.generation()
        self._in_flight = runner.in_flight
        self._clock = clock
        self._waiter = waiter
        self._wake = wake
        self._maintain = maintain
        self._hurry = hurry
        self._settings = settings
        longest_ms = max((job.policy.timeout_ms for job in jobs), default=0)
        self._grace_ms = longest_ms if settings.grace_ms is None else settings.grace_ms
        self._poller = Poller(
            queues, dict(settings.weights), visible_ms=settings.lease_ms, in_flight=self._in_flight, clock=clock
        )
        self._threads = Threads(settings.threads, runner, grouper.perform, self._report)
        self._allotment = Allotment(
            jobs,
            job_of,
            group_max=settings.group_max,
            prefetch=settings.prefetch,
            threads=self._threads,
            tasks=self._make_tasks() if any(job.is_async for job in jobs) else None,
            children=self._children(spawn),
        )
        self._done: deque[LaneReport] = deque()
        self._running: set[Execution] = set()
        self._started = 0
        self._rate = GrowthRate()
        self._idle = False
        self._draining = False
        self._stopping = False
        self._gave_back = False
        self._grace_end_ms: int | None = None
        self._calm_until_ms = 0
        self._failures = 0
        self._blocked: tuple[int, int] | None = None  # how many were received, and since when
        self._not_taken: dict[str, int] = {}
        self._watchdog = Watchdog(self._in_flight, clock=clock, stop=self._stop, told=self._tell_overrun)
        heartbeat = Heartbeat(
            self._in_flight, backend, clock=clock, lease_ms=settings.lease_ms, also=runner.admission.renew, stop=self._stop,
            lost=runner.reports.lease_lost, busy=self._tell_busy,
        )  # fmt: skip
        self._watching = Periodic("watchdog", self._watchdog.look, clock, self._fail)
        self._beside = [self._watching, Periodic("heartbeat", heartbeat.beat, clock, self._fail)]
        if maintain is not None:
            self._beside.append(Periodic("maintenance", self._maintain_once, clock, self._fail))
        self._receivers = [queue for queue in queues if isinstance(queue, LongPoll)]

    def _make_tasks(self) -> Tasks:
        from onefold.runner.tasks import Tasks  # and asyncio: only where a job is a coroutine

        return Tasks(self._settings.tasks, self._runner, self._report)

    def _children(self, spawn: Spawn | None) -> Children | None:
        count = self._settings.processes
        if not count:
            return None
        if spawn is None:
            raise errors.UsageError(
                f"processes={count}, but the app's name for child processes is not known.",
                todo="Start the worker with the app as module:attribute.",
            )
        return Children(count, spawn, self._runner, self._clock, self._report)

    # -- from outside ------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop receiving, give back what was not begun, finish what runs; then `run` returns. From any thread or signal."""
        self._draining = True
        if self._grace_end_ms is None:
            self._end_within(self._grace_ms)
        self._ring()

    def stop_now(self) -> None:
        """Let `run` return at once and leave what runs. From any thread or signal."""
        self._draining = self._stopping = True
        self._end_within(0)
        self._ring()

    def _end_within(self, left_ms: int) -> None:
        """See to it that no call waits for others much longer than until then."""
        self._grace_end_ms = self._clock.monotonic_ms() + left_ms
        self._runner.settler.last_try_ms = self._grace_end_ms + _LAST_MS
        if self._hurry is not None:
            self._hurry(left_ms + _LAST_MS)

    def _ring(self) -> None:
        with suppress(OSError):  # the worker has ended, and its waiter is closed
            self._wake()

    @property
    def draining(self) -> bool:
        """Whether the worker was asked to end."""
        return self._draining

    def snapshot(self) -> Snapshot:
        """The numbers of this moment. From any thread."""
        counts = self._in_flight.counts()
        return Snapshot.of(
            counts,
            started=self._started,
            in_hand=len(self._in_flight),
            running=len(self._running),
            per_second=self._rate.per_second(self._clock.monotonic_ms(), counts.get("completed", 0)),
            sink_failures=self._runner.reports.sink_failures,
        )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> ExitReport:
        """Work until asked to end. In the thread that calls; once.

        Raises:
            StorageError, UsageError: the backend cannot be used, or a child process cannot load the app.
            InvariantBroken: a defect of onefold.
        """
        if forks.generation() != self._generation:
            raise errors.UsageError(
                "This worker was made before its process was forked.",
                meaning="Its owner id, connections and threads are the parent's.",
                todo="Make the worker in the process that runs it.",
            )
        reports = self._runner.reports
        reports.of_process("worker-started", {"queues": ", ".join(self._poller.feeds)})
        in_good_order = False
        try:
            for thread in self._beside:
                thread.start()
            for lane in self._allotment.lanes:
                lane.start()
            while not self._stopping and not (self._gave_back and not self._running and not self._done):
                if not self._turn():
                    self._pause()
            self._runner.withdraw()
            self._finish()  # what was performed by now is recorded, however sudden the end
            in_good_order = not self._running
        finally:
            for lane in self._allotment.lanes:
                lane.end(wait=in_good_order)
            for thread in self._beside:
                thread.end(wait=in_good_order)
            until_ms = self._clock.monotonic_ms() + _RECEIVES_MS
            for receiver in self._receivers:
                receiver.stop(give_back=in_good_order)
            for receiver in self._receivers if in_good_order else ():
                receiver.end(until_ms)
            left = tuple(f"{run.job.name} {run.facts.key.key if run.facts.key else ''}" for run in self._running)
            with suppress(errors.OnefoldError):  # an engine that failed must not hide why
                reports.of_process("worker-stopped", {"left": len(left)})
            if self._hurry is not None:
                self._hurry(None)  # the program may go on without this worker
        return ExitReport(code=3 if left else 0, left=left, counts=self.snapshot(), not_taken=self._not_taken)

    def _turn(self) -> bool:
        """One turn; whether there was anything to do."""
        busy = self._finish()
        self._poller.put_back(self._in_flight.dropped())
        now_ms = self._clock.monotonic_ms()
        if self._rate.due(now_ms):
            self._rate.note(now_ms, self._in_flight.counts().get("completed", 0))
        if self._draining:
            busy = self._give_back() or busy
        elif now_ms >= self._calm_until_ms:
            try:
                busy = self._begin() or busy
                busy = self._poller.refill(self._allotment.wanted) > 0 or busy
                if self._settings.until_empty and not busy and self._is_empty():
                    # Closing a run may send what waits for it. This process does, or its maintenance did meanwhile.
                    closed = self._runner.closer.look(turns=False)
                    self._draining = not closed and self._is_empty()
                    busy = True
                self._failures = 0
            except errors.TransientError as error:
                self._calm(error)
        return busy

    def _finish(self) -> bool:
        """Settle what the lanes have performed; whether there was anything."""
        performed: list[Execution] = []
        ready: list[Execution] = []
        failures: list[BaseException] = []
        busy = bool(self._done)
        while self._done:
            done = self._done.popleft()
            self._allotment.freed(done.lane, done.slots)
            ready.extend(done.ready)
            if done.error is not None:
                failures.append(done.error)
            elif done.unit is not None:
                self._learn(done.unit)
                self._running.difference_update(done.unit.runs)
                if not done.unit.grouped:
                    performed.extend(done.unit.runs)
        if performed:
            ready.extend(self._runner.finish(performed))
        if failures:
            raise failures[0]
        self._submit(ready)
        return busy

    def _learn(self, unit: Unit) -> None:
        feed = self._poller.feeds[unit.runs[0].delivery.queue]
        feed.took(len(unit.runs), sum(run.took_ms for run in unit.runs))
        feed.due_at_ms = 0  # on a FIFO queue the next message of the group can be received now

    def _begin(self) -> bool:
        """Begin what there are free slots for; whether there was anything."""
        batch = self._allotment.choose(self._poller)
        if not batch:
            return False
        self._submit(self._runner.begin(batch))
        return True

    def _submit(self, ready: Sequence[Execution]) -> None:
        """Have runs performed."""
        if not ready:
            return
        self._started += len(ready)
        self._running.update(ready)
        self._allotment.submit(ready, self._poller.feeds)
        soonest_ms = min(run.job.policy.timeout_ms for run in ready)
        if self._watchdog.expects(self._clock.monotonic_ms() + soonest_ms):
            self._watching.bell.ring()

    # -- waiting, ending ---------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        """Wait for something to do."""
        now_ms = self._clock.monotonic_ms()
        self._idle = True  # from here on whoever reports wakes; what was reported before is seen on the next line
        if not self._done:
            if self._draining:
                self._end_grace(now_ms)
                self._poller.pause(self._waiter, _PAUSE_MS_MAX, lambda _: 0)
            elif now_ms < self._calm_until_ms:
                self._poller.pause(self._waiter, self._calm_until_ms - now_ms, lambda _: 0)
            else:
                self._poller.pause(self._waiter, _PAUSE_MS_MAX, self._allotment.wanted)
        self._idle = False

    def _is_empty(self) -> bool:
        if len(self._in_flight) or not all(feed.dry for feed in self._poller.feeds.values()):
            return False
        not_taken: dict[str, int] = {}
        blocked = False
        for feed in self._poller.feeds.values():
            depth = feed.queue.depth()
            hidden = self._runner.orphans(feed.queue.name)  # after the depth: what is hidden still was hidden then
            if hidden:
                not_taken[feed.queue.name] = hidden
            if depth.in_flight > hidden or (depth.delayed and self._settings.wait_for_delayed):
                return False
            if depth.visible and not (hidden and feed.queue.name.endswith(".fifo")):
                return False
            blocked = blocked or depth.visible > 0
        self._not_taken = not_taken
        return not blocked or self._stays_blocked()

    def _stays_blocked(self) -> bool:
        """Whether what is visible cannot be received for a while now: it waits behind messages that no job here takes."""
        now_ms, received = self._clock.monotonic_ms(), self._in_flight.counts().get("received", 0)
        if self._blocked is None or self._blocked[0] != received:
            self._blocked = received, now_ms
        return now_ms - self._blocked[1] >= _BLOCKED_MS

    def _give_back(self) -> bool:
        """While draining: return what was not begun, last first; whether this was the first time."""
        first = not self._gave_back
        for receiver in self._receivers if first else ():
            receiver.stop()
        unbegun = [*self._runner.withdraw(), *self._poller.withdraw()]
        if first:
            self._gave_back = True
            self._runner.reports.of_process(
                "worker-draining", {"running": len(self._running), "given_back": len(unbegun)}
            )
        if unbegun:
            self._runner.release(unbegun, "the worker drains")
        return first

    def _end_grace(self, now_ms: int) -> None:
        if self._grace_end_ms is None:
            self._end_within(self._grace_ms)
        elif now_ms >= self._grace_end_ms:
            self._stopping = True

    def _calm(self, error: errors.TransientError) -> None:
        """The backend failed: leave it alone for a while."""
        self._calm_until_ms = self._clock.monotonic_ms() + min(_CALM_MS << min(self._failures, 10), _CALM_MS_MAX)
        self._failures += 1
        if self._failures == 1:
            self._tell_busy(error)

    # -- from the other threads --------------------------------------------------------------------------------------

    def _report(self, done: LaneReport) -> None:
        self._done.append(done)
        if self._idle:
            self._wake()

    def _fail(self, error: BaseException) -> None:
        self._report(LaneReport(lane=self._threads, slots=0, error=error))

    def _stop(self, run: Execution, outcome: Outcome) -> None:
        """Stop a run's handler, or notify it."""
        run.cut = outcome
        if isinstance(outcome, LeaseGone) and run.ctx is not None:
            run.ctx.lease_lost = True
        self._allotment.way_of(run.job)[0].stop(run)

    def _maintain_once(self) -> int:
        assert self._maintain is not None
        try:
            self._maintain()
        except errors.TransientError as error:
            self._tell_busy(error)
            return _CALM_MS_MAX
        return MAINTAIN_MS

    def _tell_overrun(self, run: Execution) -> None:
        timeout_ms, now_ms = run.job.policy.timeout_ms, self._clock.monotonic_ms()
        running_ms = now_ms + timeout_ms - (run.deadline_ms if run.deadline_ms is not None else now_ms)
        self._runner.reports.of_run("overrun", run, {"timeout_ms": timeout_ms, "running_ms": running_ms})

    def _tell_busy(self, error: errors.TransientError) -> None:
        self._runner.reports.of_process("engine-busy", {"error": error.code, "summary": str(error)[:500]})
