"""Builds workers and schedulers for an app. The command line, the benchmark and the demo call this.

A worker: driver, grouper, waiter, presence, child processes. A scheduler may run in a thread beside it, and says what it
will send next. Never here: the loops (`run/worker.py`, `schedules/scheduler.py`), signals (cli).
Invariants: the presence lock is taken before the first receive; whoever runs a scheduler gets the error it ends with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from onefold import errors, limits
from onefold.contracts.ledger import History
from onefold.contracts.queue import Delivery
from onefold.run.events import Event, Sinks
from onefold.run.grouping import Grouper
from onefold.run.handlers import Job
from onefold.run.longpoll import LongPoll
from onefold.run.names import take
from onefold.run.processes import Spawn
from onefold.run.worker import Worker, WorkerSettings
from onefold.runtime.wiring import Runtime
from onefold.schedules.fire_times import zone_of
from onefold.schedules.schedule import Schedule
from onefold.schedules.scheduler import Scheduler
from onefold.schedules.transactions import SchedulerApp

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue, WaitingQueue
    from onefold.run.driver import Driver
    from onefold.run.events import Sink


def make_worker(
    runtime: Runtime,
    jobs: Mapping[str, Job[Any, Any]],
    job_of: Callable[[Delivery], Job[Any, Any]],
    *,
    settings: WorkerSettings,
    history: History = "brief",
    sinks: Iterable[Sink] = (),
    queues: Iterable[str] | None = None,
    target: str | None = None,
) -> Worker:
    """A worker for an app's jobs, ready to `run()`.

    Args:
        queues: names to receive from; None: every queue that has a job.
        target: `module:attribute` of the app, needed for child processes.

    Raises:
        UsageError: no jobs, an unknown queue, processes without a target.
    """
    known = {job.policy.queue for job in jobs.values()}
    names = sorted(known if queues is None else set(queues))
    for name in names:
        if name not in known:
            raise errors.NotFoundError(
                f"No job is declared on queue {name!r}.", todo=f"Known: {', '.join(sorted(known))}."
            )
    if not names:
        raise errors.UsageError("The app declares no jobs.", todo="Import the modules that do where the app is made.")
    if settings.processes and target is None:
        raise errors.UsageError("Child processes need to know the app.", todo='Name it as "module:attribute".')
    lock_file = runtime.engine.appear()
    heard = Sinks(sinks)
    driver = runtime.driver(jobs, job_of, lease_ms=settings.lease_ms, sinks=heard, history=history)

    def dead(owner: str) -> None:
        heard.emit(Event(at_ms=runtime.clock.now_ms(), name="owner-dead", actor=runtime.owner, detail={"owner": owner}))

    expiring = _Expiring(runtime, driver, names)
    steps_told = len(runtime.steady.steps)

    def maintain() -> int:
        nonlocal steps_told
        runtime.steady.now_ms()
        for by_ms in runtime.steady.steps[steps_told:]:
            heard.emit(
                Event(at_ms=runtime.clock.now_ms(), name="clock-set", actor=runtime.owner, detail={"by_ms": by_ms})
            )
            steps_told += 1
        return runtime.engine.maintain(dead) + driver.closer.look() + expiring.look()

    waiter = runtime.engine.waiter()
    mine = [job for job in jobs.values() if job.policy.queue in names]
    return Worker(
        driver,
        runtime.backend,
        queues=[_polled(runtime.backend.open_queue(name), runtime, waiter.wake) for name in names],
        jobs=mine,
        job_of=job_of,
        grouper=Grouper(driver, runtime.backend, runtime.steady, runtime.entropy),
        clock=runtime.steady,
        waiter=waiter,
        wake=waiter.wake,
        maintain=maintain,
        hurry=runtime.engine.hurry,
        settings=settings,
        spawn=Spawn(target=target, join=runtime.engine.join, lock_file=lock_file) if target is not None else None,
    )


class _Expiring:
    """Warns of dead letters and held messages before they are gone: looks once an hour, where looking receives nothing."""

    def __init__(self, runtime: Runtime, driver: Driver, names: Sequence[str]) -> None:
        self._runtime = runtime
        self._driver = driver
        found = [runtime.settings[name] for name in names if name in runtime.settings]
        self._queues = sorted({one for each in found for one in (each.dead_letter, each.held) if one is not None})
        self._due_ms = 0

    def look(self) -> int:
        """Report what is nearly gone, when it is time to look; 0: there is nothing to be done about it here."""
        clock, engine = self._runtime.steady, self._runtime.engine
        if clock.monotonic_ms() < self._due_ms:
            return 0
        self._due_ms = clock.monotonic_ms() + limits.HOUR_MS
        for name in self._queues:
            if not engine.queues.open(name).capabilities.inspectable:
                continue  # a look would cost receives; an alarm on AWS says from the first dead letter on
            page = engine.queues.peek(name, limit=1)
            left_ms = page[0].expires_at_ms - clock.now_ms() if page else limits.DAY_MS
            if left_ms < limits.DAY_MS:
                self._driver.finisher.announce(
                    "dead-letters-expire",
                    {"in": name, "message": page[0].message_id, "expires_in_ms": left_ms},
                )
        return 0


def _polled(queue: Queue, runtime: Runtime, wake: Callable[[], None]) -> Queue:
    """The queue as a worker receives from it: in threads of its own where a receive waits on the server."""
    if not queue.capabilities.waits:
        return queue
    return LongPoll(cast("WaitingQueue", queue), clock=runtime.steady, wake=wake)


class Upcoming(Struct, frozen=True, kw_only=True):
    """What a scheduler will do.

    Args:
        schedule: its name. at: when it is sent, UTC; within a flexible window that is after its planned time.
        local: the same in the schedule's zone. in_ms: from now; 0 or less when it is due.
    """

    schedule: str
    at: str
    local: str
    in_ms: int


class Ended(Struct, frozen=True, kw_only=True):
    """A schedule that has no further tick: its name, and its expression as it was written."""

    schedule: str
    expression: str


def make_scheduler(house: SchedulerApp, schedules: Mapping[str, Schedule], *, sinks: Iterable[Sink] = ()) -> Scheduler:
    """A scheduler for an app's schedules, ready to `run()`.

    Raises:
        UsageError: the app declares no schedules. ConflictError: another app on this engine has one of that name.
    """
    if not schedules:
        raise errors.UsageError(
            f"App {house.name} declares no schedules.",
            todo="Declare one with @app.schedule(...), in a module that is imported where the app is made.",
        )
    opened = house.runtime()
    take(opened.engine.state, [one.job.name for one in schedules.values()], house.name, opened.clock.now_ms())
    return Scheduler(house, schedules, Sinks(sinks))


def upcoming(scheduler: Scheduler, schedules: Mapping[str, Schedule], now_ms: int, count: int = 5) -> list[Upcoming]:
    """The next ticks of a started scheduler, of each schedule its next one, in order.

    Args:
        count: at most so many.
    """
    found: list[Upcoming] = []
    for name, at_ms in scheduler.next_ticks(count):
        at = datetime.fromtimestamp(at_ms / limits.SECOND_MS, UTC)
        local = at.astimezone(zone_of(schedules[name].timing.zone))
        found.append(
            Upcoming(
                schedule=name, at=f"{at:%Y-%m-%dT%H:%M:%SZ}", local=f"{local:%a %Y-%m-%d %H:%M:%S %Z}", in_ms=at_ms - now_ms
            )
        )  # fmt: skip
    return found


def ended(scheduler: Scheduler, schedules: Mapping[str, Schedule]) -> list[Ended]:
    """The schedules of a started scheduler that have no further tick, by name."""
    return [Ended(schedule=name, expression=schedules[name].expression) for name in scheduler.ended()]


@contextmanager
def beside(scheduler: Scheduler, failed: Callable[[], None]) -> Iterator[None]:
    """Run a scheduler in a thread of its own while the block runs; what is due at its beginning was sent before it.

    Args:
        failed: is called when it ended by an error, which is raised when the block ends.

    Raises:
        As `Scheduler.run`.
    """
    raised: list[BaseException] = []
    with suppress(errors.TransientError):  # the thread tries again
        scheduler.catch_up()

    def run() -> None:
        try:
            scheduler.run()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits for it
            raised.append(error)
            failed()

    thread = threading.Thread(target=run, name="onefold-scheduler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        scheduler.stop()
        thread.join()
    if raised:
        raise raised[0]
