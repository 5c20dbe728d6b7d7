"""Runs a batch of deliveries within a deadline: an invocation of a Lambda handler, or a child of a map run.

    begin      claim together as many as there are free slots and time for; claiming marks them as started
    perform    plain functions in threads, coroutines on one event loop
    settle     what is done, together; no run waits longer than a few milliseconds for a slower one
    give back  deliveries for which no time is left: unstarted, visible at once

A lease lasts as long as the invocation may, plus a margin: when Lambda kills the function, its operations are free soon
after, and nothing has to be extended meanwhile. A handler that is still running when the invocation must end is stopped if
it is a coroutine. A thread cannot be stopped; in that case the messages that are done are deleted, and the rest of the
batch is left to Lambda's timeout.

A container keeps one runner and its executors from one invocation to the next (`ExecutorPool`): clients that a coroutine has
opened remain usable. With a concurrency of 1 plain functions are called in the invoking thread, as in any Lambda handler. A
pool whose invocation ended with an exception is not used again.
Never here: decisions about a delivery, events and answers.
Invariant: when `run` returns, no part of the batch is running in this process.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from onefold import errors
from onefold.record.delivery import Failed
from onefold.runner import calling
from onefold.runner.executors import COMMIT_WITHIN_MS, GROUP_MS, Executors
from onefold.runner.lambda_mapping import BatchAnswer, MappedQueue
from onefold.runner.settlement import JointTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import EffectTransaction, QueueReceiver
    from onefold.options import LambdaSettings, OnFailure
    from onefold.outside import Clock
    from onefold.runner.execution import Execution
    from onefold.runner.handlers import Job
    from onefold.runner.runner import Runner
    from onefold.runner.settlement import Backend

    Effects = Callable[[int], EffectTransaction | None]
    """Opens a transaction for handlers' own rows, for at most the milliseconds it is called with."""

LONGEST_TIMES: Final = 3  # ours: a job without a useful timeout is given this multiple of its longest run
LONGEST_KEPT: Final = 0.9  # ours: the longest run fades by this factor per run, so that one slow run is forgotten
HEARTBEAT_LEASE_MS: Final = 30_000  # with a heartbeat; as a worker's
_GROUP_MAX: Final = 100
_REST_MS_MAX: Final = 60_000  # if nothing is due, check again after this
_NO_TIME = "no time was left in this invocation"
_BEHIND = "an earlier message is not done"
FIFO_DROPPED_MS: Final = 60_000  # ours: how long FIFO messages wait if they could not be begun because the store failed


class ExecutorPool:
    """One runner and its executors, from one invocation to the next.

    Args:
        backend: the engine's own. make_runner: makes a runner on a backend, with a lease.
        effects: opens transactions for handlers' own rows if records and messages are in two systems; None: there are
            none.
        receives_max: by queue, how many receives its dead-letter policy allows.
        lease_ms: how long concurrency slots are held: as long as an invocation may last.

    Attributes:
        open_queue: opens a queue of the engine. answered: what is done in the present invocation.
        bell: set when something was performed. longest: the longest run of each job.
        broken: the pool must not be used again, after an exception or an error that is not transient.
    """

    def __init__(
        self,
        backend: Backend,
        make_runner: Callable[[Backend, int], Runner],
        effects: Effects | None,
        receives_max: Mapping[str, int | None],
        jobs: Sequence[Job[Any, Any]],
        settings: LambdaSettings,
        *,
        clock: Clock,
        lease_ms: int,
    ) -> None:
        self.broken = False
        self.settings = settings
        self.longest: dict[str, int] = {}
        self.answered = BatchAnswer(clock)
        self.open_queue = backend.open_receiver or backend.open_queue
        self._open_sender = backend.open_queue
        self._queues: dict[str, MappedQueue] = {}
        self._receives_max = receives_max
        mapped = structs.replace(backend, commit=None, effects=None, open_receiver=self._mapped)
        if effects is not None:
            mapped = structs.replace(mapped, effects=_joined(mapped, effects))
        self.runner = make_runner(mapped, lease_ms)
        self.runner.dropped_ms = FIFO_DROPPED_MS
        self.bell = threading.Event()
        transactional = any(job.policy.effect == "transactional" for job in jobs)
        has_tasks = any(job.is_async for job in jobs)
        has_plain = transactional or not all(job.is_async for job in jobs)
        here = not has_plain or (settings.concurrency == 1 and not has_tasks)  # in the invoking thread
        self.executors = Executors(
            self.runner, jobs, threads=settings.concurrency, tasks=settings.tasks, woken=self.bell.set, here=here,
            groups_repeatable=here,
        )  # fmt: skip
        self.executors.start()
        self.executors.collect()  # all slots are free

    def delete_done(self) -> None:
        """Delete what is done, because Lambda will not: it is about to kill the function, or the invocation fails."""
        for name, receipts in self.answered.to_delete().items():
            with suppress(errors.OnefoldError):  # they are then delivered again, and answered from their records
                self.open_queue(name).delete(receipts)

    def report_trouble(self, queue: str, count: int, error: errors.OnefoldError) -> None:
        """Report that something could not be done with `count` messages of a queue."""
        self.runner.reports.busy(error, queue=queue, messages=count)

    def end(self) -> None:
        """End the lanes, whatever they are doing."""
        self.executors.end(wait=False)

    def _mapped(self, name: str) -> QueueReceiver:
        if name not in self._queues:
            queue = self.open_queue(name)
            most = None if queue.capabilities.uncounted else self._receives_max.get(name)
            self._queues[name] = MappedQueue(
                queue, self._open_sender(name), self.answered, self.report_trouble, receives_max=most
            )
        return self._queues[name]


class ExecutorPools:
    """The pool of a container, from one invocation to the next; a second invocation at the same time gets its own pool.

    Args:
        make: makes a pool; called with how long an invocation may last (ms).
        margin_ms: by how much that exceeds the remaining time of the pool's first invocation.
    """

    def __init__(self, make: Callable[[int], ExecutorPool], margin_ms: int) -> None:
        self._make = make
        self._margin_ms = margin_ms
        self._lock = threading.Lock()
        self._kept: ExecutorPool | None = None
        self._longest: dict[str, int] = {}  # shared by all pools

    @contextmanager
    def take(self, remaining_ms: int) -> Iterator[ExecutorPool]:
        """A pool for one invocation, returned at the end of the `with`; after an exception it is not used again."""
        with self._lock:
            pool, self._kept = self._kept, None
        pool = pool or self._make(remaining_ms + self._margin_ms)
        pool.longest = self._longest
        try:
            yield pool
        except BaseException:
            pool.broken = True
            raise
        finally:
            self._take_back(pool)

    def _take_back(self, pool: ExecutorPool) -> None:
        """Keep a pool for the next invocation, or end it if it is broken or another one is kept already."""
        with self._lock:
            if not pool.broken and self._kept is None:
                self._kept = pool
                return
        pool.end()


def _joined(backend: Backend, opened: Effects) -> Effects:
    """The same transactions, which settle their messages on this backend."""

    def effects(limit_ms: int) -> EffectTransaction | None:
        inner = opened(limit_ms)
        return JointTransaction(backend, inner) if inner is not None else None

    return effects


class Invocation:
    """The processing of one batch.

    Args:
        killed_at_ms: monotonic instant at which Lambda kills the function.
    """

    def __init__(
        self,
        pool: ExecutorPool,
        deliveries: Sequence[Delivery],
        *,
        killed_at_ms: int,
    ) -> None:
        self._pool = pool
        self._runner = pool.runner
        self._executors = pool.executors
        self._in_flight = pool.runner.in_flight
        self._settings = settings = pool.settings
        self._longest = pool.longest
        self._clock = clock = pool.runner.clock
        now_ms = clock.monotonic_ms()
        remaining_ms = max(killed_at_ms - now_ms, 0)
        margin_ms = min(settings.margin_ms, remaining_ms // 2)
        self._whole_ms = remaining_ms - margin_ms
        self._end_ms = now_ms + self._whole_ms
        self._last_ms = self._end_ms + margin_ms // 2  # what is done by then is deleted here, as a thread may run on
        self._runner.deadline_ms = self._end_ms
        self._lease_end_ms = killed_at_ms + settings.margin_ms
        self._deliveries = deliveries
        self._todo = deque(deliveries)
        self._open: dict[str, Delivery] = {}  # begun and not settled
        self._stays: set[str | None] = set()  # the FIFO groups of the messages that are kept
        self._suspects: deque[Execution] = deque()
        self._fresh = True
        self.trouble: Exception | None = None  # the backend failed with this, and nothing else is begun
        pool.answered.begin(deliveries)
        self._in_flight.take(deliveries, now_ms)

    def run(self) -> None:
        """Process as much as there is time for; afterwards `pool.answered` shows what is done.

        Raises:
            InvariantBroken: a defect of onefold.
        """
        with self._beating():
            self._begin()
            while self._executors.units or self._perform_suspect():
                self._await()
                self._settle()
                self._begin()
        if self.trouble is None:
            self._give_back(list(self._todo), _NO_TIME if self._left_ms() <= 0 else _BEHIND)
        self._in_flight.over(self._deliveries)
        if isinstance(self.trouble, errors.InvariantBroken) or not isinstance(self.trouble, errors.OnefoldError | None):
            raise self.trouble

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin as many deliveries as there are free slots and time for."""
        while self._todo and self.trouble is None:
            batch = self._choose()
            if not batch:
                return
            self._open.update((one.receipt, one) for one in batch)
            self._runner.lease_ms = (
                HEARTBEAT_LEASE_MS
                if self._settings.heartbeat
                else max(self._lease_end_ms - self._clock.monotonic_ms(), 1)
            )
            try:
                ready = self._runner.begin(batch)
            except errors.OnefoldError as error:
                self._note_trouble(error)
                ready = []
            self._submit(ready)
            self._note_settled()

    def _choose(self) -> list[Delivery]:
        """The next deliveries, in order. Releases those for which no time is left, and those behind them in a group."""
        free, grouped_before = dict(self._executors.free), 0
        batch: list[Delivery] = []
        late: list[Delivery] = []
        behind: list[Delivery] = []
        while self._todo:
            one = self._todo[0]
            group = _group_of(one)
            if self._in_flight.was_returned(one):
                self._todo.popleft()
                continue
            if not may_begin(group, self._stays, len(self._open) + len(batch), self._settings.on_failure):
                if self._settings.on_failure == "batch":
                    break  # it waits for the one that is running, or is released at the end
                behind.append(self._todo.popleft())
                continue
            job = self._known_job(one)
            if job is not None and not self._has_time(job):
                self._stays.add(group)
                late.append(self._todo.popleft())
                continue
            lane, grouped = self._executors.way_of(job) if job is not None else (self._executors.plain, False)
            if not (grouped and grouped_before % self._group_size(job)):
                if free[lane] <= 0:
                    break
                free[lane] -= 1
            grouped_before += grouped
            batch.append(self._todo.popleft())
        self._give_back(behind, _BEHIND)
        self._give_back(late, _NO_TIME)
        return batch

    def _known_job(self, delivery: Delivery) -> Job[Any, Any] | None:
        try:
            return self._runner.job_of(delivery)
        except errors.NotFoundError:
            return None  # the runner will release it

    def _left_ms(self) -> int:
        return self._end_ms - self._clock.monotonic_ms()

    def _has_time(self, job: Job[Any, Any]) -> bool:
        longest_ms = self._longest.get(job.name)
        return has_time(job.policy.timeout_ms, longest_ms, self._left_ms(), self._whole_ms, fresh=self._fresh)

    def _group_size(self, job: Job[Any, Any] | None) -> int:
        """How many runs of a grouped job go to one thread at once: as many as take a few milliseconds together."""
        longest_ms = self._longest.get(job.name) if job is not None else None
        if longest_ms is None:
            return 1
        return min(GROUP_MS // longest_ms if longest_ms else _GROUP_MAX, _GROUP_MAX) or 1

    def _submit(self, ready: Sequence[Execution]) -> None:
        """Pass runs to their lanes."""
        suspects = [run for run in ready if run.claimed is not None and run.claimed.crashes]
        self._suspects.extend(suspects)
        self._hand_over([run for run in ready if run not in suspects] if suspects else ready)

    def _perform_suspect(self) -> bool:
        """Run a delivery whose earlier run crashed, alone, after all others are settled: a crash then affects no other.

        Returns:
            Whether something is in progress now.
        """
        while self._suspects:
            run = self._suspects.popleft()
            if self._fresh or self._has_time(run.job):
                self._hand_over([run])
                return True
            self._turn_away([run])
        return bool(self._executors.units)

    def _hand_over(self, runs: Sequence[Execution]) -> None:
        if runs:
            self._fresh = False
            self._executors.submit(runs, lambda run: self._group_size(run.job))

    def _give_back(self, deliveries: Sequence[Delivery], why: str) -> None:
        back = [one for one in deliveries if not self._in_flight.was_returned(one)]
        if back:
            self._pool.answered.note_unstarted(back)
            self._runner.release(back, why)

    # -- waiting and settling ----------------------------------------------------------------------------------------

    def _await(self) -> None:
        """Wait until all runs are performed, or for a few milliseconds after the first."""
        done, since_ms = self._executors.done, None
        while True:
            now_ms = self._clock.monotonic_ms()
            if done:
                since_ms = now_ms if since_ms is None else since_ms
                wait_ms = since_ms + COMMIT_WITHIN_MS - now_ms
                if wait_ms <= 0 or len(done) >= self._executors.units:
                    return
            else:
                wait_ms = self._watch(now_ms)
            self._clock.wait(self._pool.bell, wait_ms)
            self._pool.bell.clear()  # the run that set it is in `done` already

    def _watch(self, now_ms: int) -> int:
        """Stop handlers that have passed their deadline; returns milliseconds until the next check."""
        next_ms = now_ms + _REST_MS_MAX
        for run in self._executors.running:
            if run.cut is not None:
                continue
            deadline_ms = run.deadline_ms
            if deadline_ms is None:  # its handler will be called in a moment
                deadline_ms = min(now_ms + run.job.policy.timeout_ms, max(self._end_ms, now_ms + 1))
            if now_ms < deadline_ms:
                next_ms = min(next_ms, deadline_ms)
                continue
            ended = deadline_ms >= self._end_ms
            self._executors.stop(run, _ended(run) if ended else calling.overran(run.job.policy.timeout_ms))
            self._runner.reports.of_run("overrun", run, {"timeout_ms": run.job.policy.timeout_ms})
        if now_ms >= self._last_ms:
            self._pool.delete_done()  # Lambda is about to kill the function and will delete nothing
        else:
            next_ms = min(next_ms, self._last_ms)
        return max(next_ms - now_ms, 0)

    def _settle(self) -> None:
        """Settle what has been performed, and begin deliveries that waited behind it."""
        performed = self._executors.collect()
        for unit, error in performed.failed:
            if unit is not None:
                performed.units.append(unit)
                self._executors.running.difference_update(unit.runs)
            self._note_trouble(error)
            self._pool.broken = True
        for unit in performed.units:
            for run in unit.runs:
                self._longest[run.job.name] = next_longest(self._longest.get(run.job.name), run.took_ms)
        self._go_on([*performed.ready, *self._finish(performed.runs)])

    def _turn_away(self, runs: list[Execution]) -> None:
        """Release runs that were claimed but are not started after all."""
        for run in runs:
            self._runner.turn_away(run, _NO_TIME)
        self._go_on(self._finish(runs))

    def _go_on(self, ready: Sequence[Execution]) -> None:
        """Begin runs that waited behind settled ones, if there is time."""
        late = [run for run in ready if not self._has_time(run.job)]
        self._submit([run for run in ready if run not in late])
        if late:
            self._turn_away(late)
        self._note_settled()

    def _finish(self, runs: list[Execution]) -> list[Execution]:
        if not runs:
            return []
        try:
            return self._runner.finish(runs)
        except errors.OnefoldError as error:
            self._note_trouble(error)
            return []

    def _note_settled(self) -> None:
        """Note which of the begun deliveries have ended: each is done, or its message is kept."""
        answered = self._pool.answered
        for receipt, one in list(self._open.items()):
            if not self._in_flight.keeps(one):
                del self._open[receipt]
                if not answered.is_done(receipt):
                    self._stays.add(_group_of(one))

    def _note_trouble(self, error: BaseException) -> None:
        """Note an error and begin nothing else: what was not begun remains hidden, as each try would cost a receive."""
        if not isinstance(error, Exception):
            raise error
        if self.trouble is None or not isinstance(error, errors.OnefoldError):
            self.trouble = error
        self._pool.broken = self._pool.broken or not isinstance(error, errors.TransientError)
        dropped = self._in_flight.dropped()
        self._in_flight.over(dropped)
        for one in dropped:
            self._open.pop(one.receipt, None)
        if isinstance(error, errors.OnefoldError):
            self._runner.reports.busy(error)

    # -- heartbeat ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Extend leases and visibilities inside the block, if `heartbeat` is set."""
        if not self._settings.heartbeat:
            yield
            return
        from onefold.runner.heartbeat import heartbeat_of  # imported only when used, for faster cold starts

        thread = heartbeat_of(self._runner, self._executors.stop, HEARTBEAT_LEASE_MS, self._note_beat_failed)
        thread.start()
        try:
            yield
        finally:
            thread.end(wait=True)

    def _note_beat_failed(self, error: BaseException) -> None:
        self.trouble = error if isinstance(error, Exception) else errors.InvariantBroken(repr(error))


def _group_of(delivery: Delivery) -> str | None:
    """The FIFO group; None on a standard queue, where a group id names a tenant."""
    return delivery.group if delivery.sequence is not None else None


def _ended(run: Execution) -> Failed:
    """The outcome of a handler that was stopped because the invocation had to end."""
    summary = f"It was still running when the invocation had to end (its timeout is {run.job.policy.timeout_ms} ms)."
    return Failed(kind="unknown", error="HandlerTimeout", summary=summary)


# -- rules of a batch ------------------------------------------------------------------------------------------------


def may_begin(group: str | None, stays: Collection[str | None], running: int, on_failure: OnFailure) -> bool:
    """Whether the next message of a batch may begin.

    Args:
        group: its FIFO group; None on a standard queue.
        stays: the groups of the messages that the response will name; None for those without a group.
        running: how many messages of the batch have begun and are not settled. The runner makes messages of one group
            or key wait for each other.
        on_failure: `batch`: one after the other in the order of the batch, and nothing after a message that is kept.
    """
    if on_failure == "batch":
        return not stays and running == 0
    return group is None or group not in stays


def has_time(timeout_ms: int, longest_ms: int | None, left_ms: int, whole_ms: int, *, fresh: bool) -> bool:
    """Whether there is enough time to start a run, so that the end of the invocation does not cut it off.

    If the job's timeout fits into an invocation, the run starts only while the whole timeout is left. If the timeout is
    longer, the job's longest run so far decides.

    Args:
        timeout_ms: the job's timeout.
        longest_ms: the longest of its runs (`next_longest`); None: none has ended yet.
        left_ms: time until the invocation must begin to end. whole_ms: the same at the beginning of the invocation.
        fresh: nothing has been started in this invocation, so that releasing the message would not give it more time.
    """
    if fresh:
        return True
    if timeout_ms <= whole_ms:
        return left_ms >= timeout_ms
    if longest_ms is None:
        return 2 * left_ms >= whole_ms
    return left_ms >= min(LONGEST_TIMES * longest_ms, whole_ms)


def next_longest(longest_ms: int | None, took_ms: int) -> int:
    """The longest run of a job, updated after another run."""
    return took_ms if longest_ms is None else max(took_ms, int(longest_ms * LONGEST_KEPT))
