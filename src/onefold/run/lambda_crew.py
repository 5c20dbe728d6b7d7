"""Who runs handlers in a Lambda container: made at its first invocation, kept for the next ones.

One driver, threads for plain functions, one event loop for coroutines: clients that a coroutine has opened stay usable
from one invocation to the next. With a concurrency of 1 plain functions are called in the invoking thread, as in any
Lambda handler.
Never here: what runs, and when. Invariant: a crew whose invocation ended with an exception is not used again.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from onefold import errors
from onefold.run.completion import Closer
from onefold.run.executors import Done, Here, Threads
from onefold.run.grouping import Grouper
from onefold.run.lambda_queue import Answered, MappedQueue
from onefold.run.settlement import JointTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onefold.contracts.engine import Engine
    from onefold.contracts.verbs import EffectTransaction, Queue
    from onefold.decide.batch import OnFailure
    from onefold.outside import Clock, Entropy
    from onefold.run.completion import Closer
    from onefold.run.driver import Driver
    from onefold.run.execution import Execution
    from onefold.run.executors import Lane
    from onefold.run.grouping import Grouper
    from onefold.run.handlers import Job
    from onefold.run.settlement import Backend
    from onefold.run.tasks import Tasks

    Effects = Callable[[int], EffectTransaction | None]
    """Opens a transaction for handlers' own rows, of at most so many milliseconds."""

FIFO_DROPPED_MS: Final = 60_000  # ours: FIFO messages that could not be begun, because the store failed, wait so long


class LambdaSettings(Struct, frozen=True, kw_only=True):
    """What a user may choose about a Lambda handler.

    Args:
        concurrency: plain functions at one time, 1 or more; 1: in the invoking thread, one after the other. By default as
            many as a mapping's default batch has: what is claimed together is marked as started, so it must start together.
        tasks: coroutines at one time, 1 or more.
        margin_ms: kept back of an invocation's time for settling; at most half of that time is.
        on_failure: what a message that stays holds up; `batch` counts on a standard queue too.
        heartbeat: extend leases and visibilities while handlers run, instead of leases that last for the whole invocation.
        raise_for_batch: raise when not one message of a batch is done.
    """

    concurrency: int = 10
    tasks: int = 100
    margin_ms: int = 1_000
    on_failure: OnFailure = "group"
    heartbeat: bool = False
    raise_for_batch: bool = False

    def check(self) -> None:
        """Refuse what cannot be worked with.

        Raises:
            UsageError: a value out of its range.
        """
        for name, least in (("concurrency", 1), ("tasks", 1), ("margin_ms", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise errors.UsageError(
                    f"{name}={value!r} is out of range.", todo=f"It is a whole number, {least} or more."
                )
        if self.on_failure not in ("group", "batch"):
            raise errors.UsageError(f"on_failure={self.on_failure!r} is not known.", todo="It is group or batch.")


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
        with self._lock:
            if self._made is None:
                self._made = Closer(self._engine, self._jobs, self._clock, self._since_ms)
            return self._made


class Crew:
    """Driver and lanes.

    Args:
        backend: the engine's own. make_driver: a driver on a backend, with a lease.
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
        make_driver: Callable[[Backend, int], Driver],
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
        self.answered = Answered(clock)
        self._open_queue = backend.open_queue
        self._queues: dict[str, MappedQueue] = {}
        self._receives_max = receives_max
        self.backend = structs.replace(backend, commit=None, effects=None, open_queue=self._mapped)
        if effects is not None:
            self.backend = structs.replace(self.backend, effects=_joined(self.backend, effects))
        self.driver = make_driver(self.backend, lease_ms)
        self.driver.dropped_ms = FIFO_DROPPED_MS
        self.reports: deque[Done] = deque()
        self.bell = threading.Event()
        self._clock = clock
        self._entropy = entropy
        transactional = any(job.policy.effect == "transactional" for job in jobs)
        has_tasks = any(job.is_async for job in jobs)
        has_plain = transactional or not all(job.is_async for job in jobs)
        self._here = not has_plain or (settings.concurrency == 1 and not has_tasks)  # in the invoking thread
        kind = Here if self._here else Threads
        self.plain = kind(settings.concurrency, self.driver, self._perform_group, self._report)
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
        """Delete what is done, for when Lambda will not: it is about to kill the function, or is told that all failed."""
        for name, receipts in self.answered.to_delete().items():
            with suppress(errors.OnefoldError):  # then they come back, and are answered from their records
                self._open_queue(name).delete(receipts)

    def tell_trouble(self, queue: str, count: int, error: errors.OnefoldError) -> None:
        """Tell that something could not be done with so many messages of a queue."""
        self.driver.finisher.announce(
            "engine-busy", {"queue": queue, "messages": count, "error": error.code, "summary": str(error)[:500]}
        )

    def _mapped(self, name: str) -> Queue:
        if name not in self._queues:
            queue = self._open_queue(name)
            most = None if queue.capabilities.uncounted else self._receives_max.get(name)
            self._queues[name] = MappedQueue(queue, self.answered, self.tell_trouble, receives_max=most)
        return self._queues[name]

    def _make_tasks(self, count: int) -> Tasks:
        from onefold.run.tasks import Tasks  # and asyncio: only where a job is a coroutine

        return Tasks(count, self.driver, self._report)

    @functools.cached_property
    def _grouper(self) -> Grouper:
        return Grouper(self.driver, self.backend, self._clock, self._entropy)

    def _perform_group(self, runs: Sequence[Execution]) -> Sequence[Execution]:
        return self._grouper.perform(runs)

    def _report(self, done: Done) -> None:
        self.reports.append(done)
        self.bell.set()


class Crews:
    """The crew of a container, from one invocation to the next; who comes while it is out gets one of their own.

    Args:
        make: a crew, with how long an invocation may last (ms).
        margin_ms: what that is longer than what remained of the crew's first one.
    """

    def __init__(self, make: Callable[[int], Crew], margin_ms: int) -> None:
        self._make = make
        self._margin_ms = margin_ms
        self._lock = threading.Lock()
        self._kept: Crew | None = None

    @contextmanager
    def take(self, remaining_ms: int) -> Iterator[Crew]:
        """A crew for one invocation, which comes back at the end of the `with`; an exception breaks it."""
        with self._lock:
            crew, self._kept = self._kept, None
        crew = crew or self._make(remaining_ms + self._margin_ms)
        try:
            yield crew
        except BaseException:
            crew.broken = True
            raise
        finally:
            self._take_back(crew)

    def _take_back(self, crew: Crew) -> None:
        """Keep it, or let it end: it is broken, or there is one already."""
        with self._lock:
            if not crew.broken and self._kept is None:
                self._kept = crew
                return
        crew.end()


def _joined(backend: Backend, opened: Effects) -> Effects:
    """The same transactions, with the messages of their settlements on this backend."""

    def effects(limit_ms: int) -> EffectTransaction | None:
        inner = opened(limit_ms)
        return JointTransaction(backend, inner) if inner is not None else None

    return effects
