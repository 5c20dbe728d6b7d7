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
Never here: what becomes of a delivery, storage, signals. Invariant: every delivery that was received is begun, given back,
or left to its lease by a worker that says so in its report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct

from onefold import errors
from onefold.clock import Clock, Waiter
from onefold.contracts.queue import Delivery, Queue
from onefold.decide import attempt as script
from onefold.decide.delivery import LeaseGone, Outcome
from onefold.run.driver import Driver
from onefold.run.executors import Done, Lane, Tasks, Threads, Unit
from onefold.run.grouping import Grouper
from onefold.run.handlers import Job
from onefold.run.heartbeat import Heartbeat, Periodic, Watchdog
from onefold.run.passage import Run
from onefold.run.poll import Feed, Poller
from onefold.run.processes import Children, Spawn
from onefold.run.settling import Backend

MAINTAIN_MS = 500  # dead owners are looked for so often: their work runs again within a second or so
_PAUSE_MS_MAX = 1_000  # the loop looks at its flags at least so often, should a wake-up ever be missed
_CALM_MS = 50  # after the backend failed: 50 ms x 2^n, at most
_CALM_MS_MAX = 5_000
_FAST_GROUPS = 2  # groups of quick runs under way at once: one runs, one is begun; more only quarrel over the interpreter
_RATE_MS = 5_000  # `per_second` looks back so far


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
        until_empty: drain as soon as the queues are empty, nothing is in flight, and nothing is in hand.
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


class Snapshot(Struct, frozen=True, kw_only=True):
    """A worker's numbers since it started.

    Args:
        received: deliveries. started: handlers (and probes) handed to a lane.
        completed, duplicates, retried: settled so. buried: to a dead-letter queue, for whatever reason.
        held: to a held queue. given_back: not begun. lost: leases.
        in_hand: received and not settled. running: handed to a lane and not settled.
        per_second: completed, over the last 5 s.
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


class ExitReport(Struct, frozen=True, kw_only=True):
    """How a worker ended.

    Args:
        code: 0 drained; 3 stopped at once, or after the grace time, with work in hand.
        left: what still ran then, as `job key`; whoever takes over decides by the job's policy.
        counts: the last numbers.
    """

    code: Literal[0, 3]
    left: tuple[str, ...]
    counts: Snapshot


class Worker:
    """One worker process.

    Args:
        driver: begins and finishes. backend: what it works on.
        queues: to receive from. jobs: all that may come from them. job_of: the job a delivery is for.
        waiter: woken by senders of any process and by `wake`, which must be safe to call from a signal handler.
        maintain: what the backend wants done every 500 ms; answers how much was done.
        spawn: how child processes are started; required with `settings.processes`.

    Raises:
        UsageError: a setting out of range; processes without `spawn`; a job on no queue of this worker.
    """

    def __init__(
        self,
        driver: Driver,
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
        settings: WorkerSettings = WorkerSettings(),  # noqa: B008 - frozen
        spawn: Spawn | None = None,
    ) -> None:
        _check(settings, queues, spawn)
        self._driver = driver
        self._hand = driver.hand
        self._job_of = job_of
        self._clock = clock
        self._waiter = waiter
        self._wake = wake
        self._maintain = maintain
        self._settings = settings
        self._grace_ms = settings.grace_ms
        if self._grace_ms is None:
            self._grace_ms = max((job.policy.timeout_ms for job in jobs), default=0)
        self._poller = Poller(
            queues, dict(settings.weights), visible_ms=settings.lease_ms, hand=self._hand, clock=clock
        )
        self._threads = Threads(settings.threads, driver, grouper, self._report)
        self._tasks = Tasks(settings.tasks, driver, self._report) if any(job.is_async for job in jobs) else None
        self._children: Children | None = None
        if settings.processes and spawn is not None:
            self._children = Children(settings.processes, spawn, driver, clock, self._report)
        self._lanes: list[Lane] = [lane for lane in (self._threads, self._tasks, self._children) if lane is not None]
        self._free: dict[Lane, int] = dict.fromkeys(self._lanes, 0)
        self._ways = {job.name: self._way_of(job) for job in jobs}
        self._feed_ways = {job.policy.queue: self._ways[job.name] for job in jobs}
        self._done: deque[Done] = deque()
        self._running: set[Run] = set()
        self._started = 0
        self._idle = False
        self._draining = False
        self._stopping = False
        self._gave_back = False
        self._grace_end_ms: int | None = None
        self._calm_until_ms = 0
        self._failures = 0
        self._completions: deque[tuple[int, int]] = deque()
        self._watchdog = Watchdog(self._hand, clock=clock, stop=self._stop, told=self._tell_overrun)
        heartbeat = Heartbeat(
            self._hand, backend, clock=clock, lease_ms=settings.lease_ms, also=driver.gates.renew, stop=self._stop,
            lost=driver.finisher.lose, busy=self._tell_busy,
        )  # fmt: skip
        self._watching = Periodic("watchdog", self._watchdog.look, clock, self._fail)
        self._beside: list[Periodic] = [self._watching, Periodic("heartbeat", heartbeat.beat, clock, self._fail)]
        if maintain is not None:
            self._beside.append(Periodic("maintenance", self._maintain_once, clock, self._fail))

    # -- from outside ------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop receiving, give back what was not begun, finish what runs; then `run` returns. From any thread or signal."""
        self._draining = True
        self._wake()

    def stop_now(self) -> None:
        """Let `run` return at once and leave what runs. From any thread or signal."""
        self._draining = self._stopping = True
        self._wake()

    @property
    def draining(self) -> bool:
        """Whether the worker was told to end."""
        return self._draining

    def snapshot(self) -> Snapshot:
        """The numbers of this moment. From any thread."""
        counts = self._hand.counts()
        completed = counts.get("completed", 0)
        buried = ("dead-letter", "quarantine", "conflict", "malformed", "group-stopped")
        return Snapshot(
            received=counts.get("received", 0),
            started=self._started,
            completed=completed,
            duplicates=counts.get("duplicate", 0),
            retried=counts.get("retry", 0),
            buried=sum(counts.get(name, 0) for name in buried),
            held=counts.get("held", 0),
            given_back=counts.get("released", 0),
            lost=counts.get("lease-lost", 0),
            in_hand=len(self._hand),
            running=len(self._running),
            per_second=self._per_second(completed),
        )

    def _per_second(self, completed: int) -> float:
        now_ms = self._clock.monotonic_ms()
        since_ms, before = next(iter(self._completions.copy()), (now_ms, completed))
        return (completed - before) * 1000 / max(now_ms - since_ms, 1)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> ExitReport:
        """Work until told to end. In the thread that calls; once.

        Raises:
            StorageError, UsageError: the backend cannot be used, or a child process cannot load the app.
            InvariantBroken: a defect of onefold.
        """
        finisher = self._driver.finisher
        finisher.announce("worker-started", {"queues": ", ".join(self._poller.feeds)})
        in_good_order = False
        try:
            for thread in self._beside:
                thread.start()
            for lane in self._lanes:
                lane.start()
            while not self._stopping and not (self._gave_back and not self._running and not self._done):
                if not self._turn():
                    self._pause()
            self._driver.withdraw()
            self._finish()  # what was performed by now is recorded, however sudden the end
            in_good_order = not self._running
        finally:
            for lane in self._lanes:
                lane.end(wait=in_good_order)
            for thread in self._beside:
                thread.end(wait=in_good_order)
            left = tuple(f"{run.job.name} {run.facts.key.key if run.facts.key else ''}" for run in self._running)
            with suppress(errors.OnefoldError):  # an engine that failed must not hide why
                finisher.announce("worker-stopped", {"left": len(left)})
        return ExitReport(code=3 if left else 0, left=left, counts=self.snapshot())

    def _turn(self) -> bool:
        """One turn; whether there was anything to do."""
        busy = self._finish()
        self._poller.put_back(self._hand.dropped())
        now_ms = self._clock.monotonic_ms()
        self._note_rate(now_ms)
        if self._draining:
            busy = self._give_back() or busy
        elif now_ms >= self._calm_until_ms:
            try:
                busy = self._begin() or busy
                busy = self._poller.refill(self._wanted) > 0 or busy
                if self._settings.until_empty and not busy and self._is_empty():
                    self._draining = busy = True
                self._failures = 0
            except errors.TransientError as error:
                self._calm(error)
        return busy

    def _finish(self) -> bool:
        """Settle what the lanes have performed; whether there was anything."""
        performed: list[Run] = []
        ready: list[Run] = []
        busy = False
        while self._done:
            done = self._done.popleft()
            busy = True
            if done.error is not None:
                raise done.error
            self._free[done.lane] += done.slots
            ready.extend(done.ready)
            if done.unit is not None:
                self._learn(done.unit)
                if not done.unit.grouped:
                    performed.extend(done.unit.runs)
                self._running.difference_update(done.unit.runs)
        if performed:
            ready.extend(self._driver.finish(performed))
        self._submit(ready)
        return busy

    def _learn(self, unit: Unit) -> None:
        feed = self._poller.feeds[unit.runs[0].delivery.queue]
        feed.took(len(unit.runs), sum(run.took_ms for run in unit.runs))
        if unit.grouped:
            feed.groups -= 1

    def _begin(self) -> bool:
        """Begin what there are free slots for; whether there was anything."""
        batch = self._choose()
        if not batch:
            return False
        self._submit(self._driver.begin(batch))
        return True

    def _choose(self) -> list[Delivery]:
        """Buffered deliveries for the free slots: queue by queue in turn, each as often as its weight."""
        free = dict(self._free)
        batch: list[Delivery] = []
        feeds = [feed for feed in self._poller.in_turn() if feed.buffer]
        groups = {feed: feed.groups for feed in feeds}
        while feeds:
            for feed in tuple(feeds):
                for _ in range(feed.weight):
                    chosen = self._choose_unit(feed, free, groups)
                    if not chosen:
                        feeds.remove(feed)
                        break
                    batch.extend(chosen)
        return batch

    def _choose_unit(self, feed: Feed, free: dict[Lane, int], groups: dict[Feed, int]) -> list[Delivery]:
        """What one slot should do next for this feed; empty when it has nothing, or no slot."""
        delivery = self._poller.pop(feed)
        if delivery is None:
            return []
        lane, grouped = self._way(delivery)
        size = feed.group_size(self._settings.group_max) if grouped else 1
        if free[lane] <= 0 or (grouped and groups[feed] >= self._groups_max(size)):
            feed.buffer.appendleft(delivery)
            return []
        free[lane] -= 1
        chosen = [delivery]
        if grouped:
            groups[feed] += 1
            while len(chosen) < size and (another := self._poller.pop(feed)) is not None:
                chosen.append(another)
        return chosen

    def _groups_max(self, size: int) -> int:
        """How many groups of one queue may be under way: handlers that wait share all threads, quick ones two."""
        return self._settings.threads if size < self._settings.group_max else _FAST_GROUPS

    def _submit(self, ready: Sequence[Run]) -> None:
        """Hand runs to their lanes."""
        if not ready:
            return
        groups: dict[Feed, list[Run]] = {}
        soonest_ms = min(run.job.policy.timeout_ms for run in ready)
        self._started += len(ready)
        self._running.update(ready)
        for run in ready:
            lane, grouped = self._way_of(run.job)
            feed = self._poller.feeds[run.delivery.queue]
            if not grouped:
                self._hand_over(lane, Unit([run]))
            elif isinstance(run.step, script.Call):
                groups.setdefault(feed, []).append(run)
            else:  # an earlier run of it ended with its process: alone, so that it can take no innocent one with it
                self._hand_over(lane, Unit([run], grouped=True), feed)
        for feed, runs in groups.items():
            size = feed.group_size(self._settings.group_max)
            for start in range(0, len(runs), size):
                self._hand_over(self._threads, Unit(runs[start : start + size], grouped=True), feed)
        if self._watchdog.expects(self._clock.monotonic_ms() + soonest_ms):
            self._watching.bell.ring()

    def _hand_over(self, lane: Lane, unit: Unit, feed: Feed | None = None) -> None:
        self._free[lane] -= 1
        if feed is not None:
            feed.groups += 1
        lane.submit(unit)

    # -- which lane, and how much ------------------------------------------------------------------------------------

    def _way(self, delivery: Delivery) -> tuple[Lane, bool]:
        try:
            return self._way_of(self._job_of(delivery))
        except errors.NotFoundError:
            return self._threads, False  # the driver gives it back

    def _way_of(self, job: Job[Any, Any]) -> tuple[Lane, bool]:
        """The lane of a job, and whether its runs are grouped.

        Transactional jobs stay in this process whatever the settings say: their rows go through the engine's one
        connection, and the engine bounds their time itself.
        """
        if job.policy.effect == "transactional":
            return self._threads, True
        if self._children is not None:
            return self._children, False
        if job.is_async and self._tasks is not None:
            return self._tasks, False
        return self._threads, job.policy.effect == "repeatable"

    def _wanted(self, feed: Feed) -> int:
        """How many deliveries of a feed should lie in its buffer now: for the free slots, and ahead of the busy ones."""
        lane, grouped = self._feed_ways.get(feed.queue.name, (self._threads, False))
        free = max(self._free[lane], 0)
        settings = self._settings
        if not grouped:
            ahead = feed.ahead(lane.slots, 2 * lane.slots) if settings.prefetch is None else settings.prefetch
            return free + ahead
        size = feed.group_size(settings.group_max)
        most = self._groups_max(size)
        ahead = feed.ahead(most, most * size) if settings.prefetch is None else settings.prefetch
        return min(free, max(most - feed.groups, 0)) * size + ahead

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
                self._poller.pause(self._waiter, _PAUSE_MS_MAX, self._wanted)
        self._idle = False

    def _is_empty(self) -> bool:
        if len(self._hand) or not all(feed.dry for feed in self._poller.feeds.values()):
            return False
        for feed in self._poller.feeds.values():
            depth = feed.queue.depth()
            if depth.visible or depth.in_flight or (depth.delayed and self._settings.wait_for_delayed):
                return False
        return True

    def _give_back(self) -> bool:
        """While draining: return what was not begun, last first; whether this was the first time."""
        first = not self._gave_back
        unbegun = [*self._driver.withdraw(), *self._poller.withdraw()]
        if first:
            self._gave_back = True
            self._driver.finisher.announce("worker-draining", {"running": len(self._running), "given_back": len(unbegun)})
        if unbegun:
            self._driver.give_back(unbegun, "the worker drains")
        return first

    def _end_grace(self, now_ms: int) -> None:
        assert self._grace_ms is not None
        if self._grace_end_ms is None:
            self._grace_end_ms = now_ms + self._grace_ms
        elif now_ms >= self._grace_end_ms:
            self._stopping = True

    def _calm(self, error: errors.TransientError) -> None:
        """The backend failed: leave it alone for a while."""
        self._calm_until_ms = self._clock.monotonic_ms() + min(_CALM_MS << min(self._failures, 10), _CALM_MS_MAX)
        self._failures += 1
        if self._failures == 1:
            self._tell_busy(error)

    def _note_rate(self, now_ms: int) -> None:
        """Remember how much was completed by now, some times a second."""
        if not self._completions or now_ms - self._completions[-1][0] >= _RATE_MS // 20:
            self._completions.append((now_ms, self._hand.counts().get("completed", 0)))
            while now_ms - self._completions[0][0] > _RATE_MS:
                self._completions.popleft()

    # -- from the other threads --------------------------------------------------------------------------------------

    def _report(self, done: Done) -> None:
        self._done.append(done)
        if self._idle:
            self._wake()

    def _fail(self, error: BaseException) -> None:
        self._report(Done(lane=self._threads, slots=0, error=error))

    def _stop(self, run: Run, outcome: Outcome) -> None:
        """Stop a run's handler, or tell it."""
        run.cut = outcome
        if isinstance(outcome, LeaseGone) and run.ctx is not None:
            run.ctx.lease_lost = True
        self._way_of(run.job)[0].stop(run)

    def _maintain_once(self) -> int:
        assert self._maintain is not None
        try:
            self._maintain()
        except errors.TransientError as error:
            self._tell_busy(error)
            return _CALM_MS_MAX
        return MAINTAIN_MS

    def _tell_overrun(self, run: Run) -> None:
        self._driver.finisher.tell("overrun", run, {"timeout_ms": run.job.policy.timeout_ms})

    def _tell_busy(self, error: errors.TransientError) -> None:
        self._driver.finisher.announce("engine-busy", {"error": error.code, "summary": str(error)[:500]})


def _check(settings: WorkerSettings, queues: Sequence[Queue], spawn: Spawn | None) -> None:
    least = {"threads": 1, "tasks": 1, "processes": 0, "group_max": 1, "lease_ms": 1_000}
    for name, low in least.items():
        value = getattr(settings, name)
        if value < low:
            raise errors.UsageError(f"{name}={value} is out of range.", todo=f"It is {low} or more.")
    if settings.prefetch is not None and settings.prefetch < 0:
        raise errors.UsageError(f"prefetch={settings.prefetch} is out of range.", todo="It is 0 or more.")
    if not queues:
        raise errors.UsageError("The worker has no queue.", todo="Declare a queue, or name one that is declared.")
    for name, weight in settings.weights.items():
        if weight < 1 or name not in {queue.name for queue in queues}:
            raise errors.UsageError(
                f"weights has {name}={weight}.", todo="Name queues of this worker, each with 1 or more."
            )
    if settings.processes and spawn is None:
        raise errors.UsageError(
            f"processes={settings.processes}, but the app's name for child processes is not known.",
            todo="Start the worker with the app as module:attribute.",
        )
