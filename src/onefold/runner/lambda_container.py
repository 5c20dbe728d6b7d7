"""What a Lambda container keeps from one invocation to the next: executors, and queues whose messages Lambda holds.

`ExecutorPool` is one runner, threads for plain functions and one event loop for coroutines: clients that a coroutine has
opened stay usable in the next invocation. With a concurrency of 1 plain functions are called in the invoking thread, as in
any Lambda handler. A pool whose invocation ended with an exception is not used again.

`MappedQueue` is the Queue contract for the runner, which settles here as everywhere. Deleting costs no call: what is done
is noted in `BatchAnswer`, and Lambda deletes whatever the answer does not name. Hiding changes the visibility, which no
mapping does by itself; moving to the dead-letter queue is done here, and then the message is done. What cannot be hidden or
moved now stays, and comes back when its visibility ends. Waiting costs receives here: a message that only waits and is
about to be given up by its queue is sent again, delayed, as a new one with the same key, and then deleted (its attempts are
in the record); not on FIFO queues, where it would lose its place.
Never here: what runs and when, what is decided about a message. Invariant: a receipt is among the done ones only when its
message may be deleted: its effect is recorded, or it is in another queue, durably.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from onefold import errors
from onefold.contracts.entries import Entry, Sent
from onefold.limits import DELAY_MS_MAX
from onefold.options import LambdaSettings
from onefold.runner.executors import Here, LaneReport, Threads
from onefold.runner.settlement import JointTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onefold.contracts.engine import Engine
    from onefold.contracts.verbs import EffectTransaction, Queue
    from onefold.outside import Clock, Entropy
    from onefold.runner.completion import Closer
    from onefold.runner.execution import Execution
    from onefold.runner.executors import Lane
    from onefold.runner.grouping import Grouper
    from onefold.runner.handlers import Job
    from onefold.runner.runner import Runner
    from onefold.runner.settlement import Backend
    from onefold.runner.tasks import Tasks

    Effects = Callable[[int], EffectTransaction | None]
    """Opens a transaction for handlers' own rows, of at most so many milliseconds."""
    from collections.abc import Callable, Iterable

    from onefold import errors
    from onefold.contracts.entries import Entry, Refused, Sent
    from onefold.contracts.queue import Bury, Delivery, Depth, RetryIn
    from onefold.contracts.verbs import Standing

    Told = Callable[[str, int, errors.OnefoldError], None]
    """Called with the queue, how many of its messages could not be hidden or moved, and why."""


class BatchAnswer:
    """What the answer of the invocation under way will say. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._done: dict[str, str] = {}  # receipt -> queue
        self._gone: set[str] = set()  # of these, what is in its queue no more
        self._hidden: dict[str, int] = {}  # receipt -> monotonic instant until which it was hidden for a retry
        self._deliveries: dict[str, Delivery] = {}
        self._unstarted: set[str] = set()

    def begin(self, deliveries: Iterable[Delivery]) -> None:
        """Another invocation, with these."""
        with self._lock:
            self._done.clear()
            self._gone.clear()
            self._hidden.clear()
            self._unstarted.clear()
            self._deliveries = {one.receipt: one for one in deliveries}

    def note_unstarted(self, deliveries: Iterable[Delivery]) -> None:
        """These are about to be given back, and only wait."""
        self._unstarted.update(one.receipt for one in deliveries)

    def waiting(self, receipt: str, change: RetryIn, receives_max: int | None) -> Delivery | None:
        """The message, when it only waits and its queue would give it up soon; else None."""
        one = self._deliveries.get(receipt)
        waits = change.uncounted or receipt in self._unstarted
        if one is None or not waits or one.sequence is not None or receives_max is None:
            return None
        return one if one.receive_count >= receives_max - 1 else None

    def is_done(self, receipt: str) -> bool:
        """Whether Lambda may delete this message."""
        return receipt in self._done

    def hidden_until_ms(self, receipt: str) -> int | None:
        """The monotonic instant until which a message that stays was hidden; None when it was not."""
        return self._hidden.get(receipt)

    def note_done(self, queue: str, receipts: Iterable[str], *, gone: bool = False) -> None:
        """These may be deleted. `gone`: they are in another queue now, and in this one no more."""
        with self._lock:
            for receipt in receipts:
                self._done[receipt] = queue
                if gone:
                    self._gone.add(receipt)

    def note_hidden(self, receipt: str, delay_ms: int) -> None:
        """It stays, and was hidden."""
        self._hidden[receipt] = self._clock.monotonic_ms() + delay_ms

    def to_delete(self) -> dict[str, list[str]]:
        """The receipts that are to be deleted, by queue, for one who deletes them before Lambda can. Answers each once."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for receipt, queue in self._done.items():
                if receipt not in self._gone:
                    found.setdefault(queue, []).append(receipt)
            self._gone.update(self._done)
        return found


class MappedQueue:
    """The Queue contract over a real queue, for messages that a mapping received.

    Args:
        queue: the real one. answered: where it is noted what is done.
        receives_max: how many receives its dead-letter policy allows; None when it has none, or waiting costs no receive.
        failed: called with the queue, how many messages could not be hidden or moved, and why.
    """

    def __init__(
        self,
        queue: Queue,
        answered: BatchAnswer,
        failed: Callable[[str, int, errors.OnefoldError], None],
        *,
        receives_max: int | None = None,
    ) -> None:
        self.name = queue.name
        self.capabilities = queue.capabilities
        self._queue = queue
        self._answered = answered
        self._failed = failed
        self._receives_max = receives_max

    def send(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Sent | Refused]:
        """As the real queue's."""
        return self._queue.send(entries, whole=whole)

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:  # noqa: ARG002 - the contract's
        """Nothing: the mapping receives."""
        return []

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """As the real queue's; what only waits and has no receives left is sent again instead.

        What cannot be changed now becomes visible when its receive ends.
        """
        found = [self._answered.waiting(receipt, change, self._receives_max) for receipt, change in changes]
        again = [(one, change) for one, (_, change) in zip(found, changes, strict=True) if one is not None]
        moved = self._send_again(again) if again else set()
        rest = [(receipt, change) for receipt, change in changes if receipt not in moved]
        if not rest:
            return [True] * len(changes)
        try:
            answers = dict(zip((receipt for receipt, _ in rest), self._queue.set_visible_in(rest), strict=True))
        except errors.OnefoldError as error:
            self._failed(self.name, len(rest), error)
            return [True] * len(changes)
        for receipt, change in rest:
            if answers[receipt]:
                self._answered.note_hidden(receipt, change.delay_ms)
        return [answers.get(receipt, True) for receipt, _ in changes]

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Note them as done; Lambda deletes."""
        self._answered.note_done(self.name, receipts)
        return [True] * len(receipts)

    def bury(self, burials: Sequence[tuple[str, Bury]]) -> list[bool]:
        """Move them; what was moved is done. What cannot be moved stays."""
        try:
            moved = self._queue.bury(burials)
        except errors.OnefoldError as error:
            self._failed(self.name, len(burials), error)
            return [False] * len(burials)
        buried = [receipt for (receipt, _), ok in zip(burials, moved, strict=True) if ok]
        self._answered.note_done(self.name, buried, gone=True)
        return moved

    def _send_again(self, waiting: Sequence[tuple[Delivery, RetryIn]]) -> set[str]:
        """Replace messages by delayed copies; the receipts of those that were."""
        entries = [
            Entry(
                body=one.body,
                attributes=one.attributes,
                delay_ms=min(change.delay_ms, DELAY_MS_MAX),
                group=one.group,
                key=one.key,
                trace=one.trace,
                trusted=one.trusted,
            )
            for one, change in waiting
        ]
        try:
            sent = self._queue.send(entries)
            copied = [one.receipt for (one, _), ok in zip(waiting, sent, strict=True) if isinstance(ok, Sent)]
            self._queue.delete(copied)
        except errors.OnefoldError as error:  # there may be both now; they have one key
            self._failed(self.name, len(waiting), error)
            return set()
        self._answered.note_done(self.name, copied, gone=True)
        return set(copied)

    def standing(self, receipts: Sequence[str]) -> list[Standing]:
        """As the real queue's."""
        return self._queue.standing(receipts)

    def depth(self) -> Depth:
        """As the real queue's."""
        return self._queue.depth()


FIFO_DROPPED_MS: Final = 60_000  # ours: FIFO messages that could not be begun, because the store failed, wait so long


class LateCloser:
    """A `Closer` that is made when something of a run is settled: most functions settle messages of none.

    Args:
        as `Closer`.
    """

    def __init__(self, engine: Engine, jobs: Mapping[str, Job[Any, Any]], clock: Clock) -> None:
        self._engine = engine
        self._jobs = jobs
        self._clock = clock
        self._since_ms = clock.monotonic_ms()
        self._lock = threading.Lock()
        self._made: Closer | None = None

    @property
    def in_use(self) -> bool:
        """Something of a run was ever settled here."""
        return self._made is not None

    def touch(self, name: str) -> None:
        """As `Closer.touch`."""
        self._closer().touch(name)

    def look(self, *, turns: bool = True) -> int:
        """As `Closer.look`."""
        return self._closer().look(turns=turns)

    def _closer(self) -> Closer:
        from onefold.runner.completion import Closer  # with `runs`, a tenth of a cold start that few apps need

        with self._lock:
            if self._made is None:
                self._made = Closer(self._engine, self._jobs, self._clock, self._since_ms)
            return self._made


class ExecutorPool:
    """Runner and lanes.

    Args:
        backend: the engine's own. make_runner: a runner on a backend, with a lease.
        effects: opens transactions for handlers' own rows where records and messages live apart; None: there are none.
        receives_max: by queue, what its dead-letter policy allows.
        lease_ms: of what gates hold: as long as an invocation may last.

    Attributes:
        backend: with queues whose messages Lambda deletes. answered: what is done in the invocation under way.
        reports: what the lanes have performed; `bell` is set with each.
        broken: runs were left in the middle, so it is not to be used again.
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
        entropy: Entropy,
        lease_ms: int,
    ) -> None:
        self.broken = False
        self.answered = BatchAnswer(clock)
        self._open_queue = backend.open_queue
        self._queues: dict[str, MappedQueue] = {}
        self._receives_max = receives_max
        self.backend = structs.replace(backend, commit=None, effects=None, open_queue=self._mapped)
        if effects is not None:
            self.backend = structs.replace(self.backend, effects=_joined(self.backend, effects))
        self.runner = make_runner(self.backend, lease_ms)
        self.runner.dropped_ms = FIFO_DROPPED_MS
        self.reports: deque[LaneReport] = deque()
        self.bell = threading.Event()
        self._clock = clock
        self._entropy = entropy
        transactional = any(job.policy.effect == "transactional" for job in jobs)
        has_tasks = any(job.is_async for job in jobs)
        has_plain = transactional or not all(job.is_async for job in jobs)
        self._here = not has_plain or (settings.concurrency == 1 and not has_tasks)  # in the invoking thread
        kind = Here if self._here else Threads
        self.plain = kind(settings.concurrency, self.runner, self._perform_group, self._report)
        self.tasks = self._make_tasks(settings.tasks) if has_tasks else None
        for lane in self.lanes():
            lane.start()
        self.reports.clear()  # of slots; each invocation begins with all of them

    def lanes(self) -> list[Lane]:
        """All lanes."""
        return [self.plain, *([self.tasks] if self.tasks is not None else [])]

    def way_of(self, job: Job[Any, Any]) -> tuple[Lane, bool]:
        """Where a job's runs go, and whether they go in groups."""
        if job.policy.effect == "transactional":
            return self.plain, True
        if job.is_async and self.tasks is not None:
            return self.tasks, False
        return self.plain, job.policy.effect == "repeatable" and self._here

    def end(self) -> None:
        """Let the lanes end, whatever they do."""
        for lane in self.lanes():
            lane.end(wait=False)

    def real_queue(self, name: str) -> Queue:
        """The queue as the engine has it."""
        return self._open_queue(name)

    def delete_done(self) -> None:
        """Delete what is done, for when Lambda will not: it is about to kill the function, or all failed."""
        for name, receipts in self.answered.to_delete().items():
            with suppress(errors.OnefoldError):  # then they come back, and are answered from their records
                self._open_queue(name).delete(receipts)

    def tell_trouble(self, queue: str, count: int, error: errors.OnefoldError) -> None:
        """Report that something could not be done with so many messages of a queue."""
        self.runner.reports.of_process(
            "engine-busy", {"queue": queue, "messages": count, "error": error.code, "summary": str(error)[:500]}
        )

    def _mapped(self, name: str) -> Queue:
        if name not in self._queues:
            queue = self._open_queue(name)
            most = None if queue.capabilities.uncounted else self._receives_max.get(name)
            self._queues[name] = MappedQueue(queue, self.answered, self.tell_trouble, receives_max=most)
        return self._queues[name]

    def _make_tasks(self, count: int) -> Tasks:
        from onefold.runner.tasks import Tasks  # and asyncio: only where a job is a coroutine

        return Tasks(count, self.runner, self._report)

    @functools.cached_property
    def _grouper(self) -> Grouper:
        from onefold.runner.grouping import Grouper  # for jobs whose runs go in groups

        return Grouper(self.runner, self.backend, self._clock, self._entropy)

    def _perform_group(self, runs: Sequence[Execution]) -> Sequence[Execution]:
        return self._grouper.perform(runs)

    def _report(self, done: LaneReport) -> None:
        self.reports.append(done)
        self.bell.set()


class ExecutorPools:
    """The pool of a container, from one invocation to the next; who comes while it is out gets one of their own.

    Args:
        make: a pool, with how long an invocation may last (ms).
        margin_ms: what that is longer than what remained of the pool's first one.
    """

    def __init__(self, make: Callable[[int], ExecutorPool], margin_ms: int) -> None:
        self._make = make
        self._margin_ms = margin_ms
        self._lock = threading.Lock()
        self._kept: ExecutorPool | None = None

    @contextmanager
    def take(self, remaining_ms: int) -> Iterator[ExecutorPool]:
        """A pool for one invocation, which comes back at the end of the `with`; an exception breaks it."""
        with self._lock:
            pool, self._kept = self._kept, None
        pool = pool or self._make(remaining_ms + self._margin_ms)
        try:
            yield pool
        except BaseException:
            pool.broken = True
            raise
        finally:
            self._take_back(pool)

    def _take_back(self, pool: ExecutorPool) -> None:
        """Keep it, or let it end: it is broken, or there is one already."""
        with self._lock:
            if not pool.broken and self._kept is None:
                self._kept = pool
                return
        pool.end()


def _joined(backend: Backend, opened: Effects) -> Effects:
    """The same transactions, with the messages of their settlements on this backend."""

    def effects(limit_ms: int) -> EffectTransaction | None:
        inner = opened(limit_ms)
        return JointTransaction(backend, inner) if inner is not None else None

    return effects
