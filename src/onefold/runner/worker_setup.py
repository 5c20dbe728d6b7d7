"""Builds a worker for an app: runner, grouper, waiter, presence, child processes.

The command line, the benchmark and the demo call this. Never here: the loop (`runner/worker.py`), signals (cli).
Invariant: the presence lock is taken before the first receive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from onefold import errors, limits
from onefold.contracts.ledger import History
from onefold.contracts.queue import Delivery
from onefold.contracts.state import group_flag
from onefold.interrupts import ignored
from onefold.record import failures  # noqa: F401 - now: the first failure may come when no file can be opened
from onefold.runner.admission import Admission
from onefold.runner.completion import Closer
from onefold.runner.grouping import Grouper
from onefold.runner.handlers import Job
from onefold.runner.longpoll import LongPoll
from onefold.runner.processes import Spawn
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend, backend_of
from onefold.runner.worker import Worker, WorkerSettings
from onefold.runtime.events import Event, Sinks
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue, WaitingQueue
    from onefold.runtime.events import Sink


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
    backend: Backend | None = None,
) -> Worker:
    """A worker for an app's jobs, ready to `run()`.

    Args:
        queues: names to receive from; None: every queue that has a job.
        target: `module:attribute` of the app, needed for child processes.
        backend: instead of the engine's own contracts, for demonstrations of what they are for.

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
    backend = backend_of(runtime.engine) if backend is None else backend
    runner = make_runner(
        runtime, jobs, job_of, lease_ms=settings.lease_ms, sinks=heard, history=history, backend=backend
    )

    def dead(owner: str) -> None:
        heard.emit(Event(at_ms=runtime.clock.now_ms(), name="owner-dead", actor=runtime.owner, detail={"owner": owner}))

    mine = [job for job in jobs.values() if job.policy.queue in names]
    hourly = _Hourly(runtime, runner, names, mine)
    steps_told = len(runtime.steady.steps)

    def maintain() -> int:
        nonlocal steps_told
        runtime.steady.now_ms()
        for by_ms in runtime.steady.steps[steps_told:]:
            heard.emit(
                Event(at_ms=runtime.clock.now_ms(), name="clock-set", actor=runtime.owner, detail={"by_ms": by_ms})
            )
            steps_told += 1
        return runtime.engine.maintain(dead) + runner.closer.look() + hourly.look()

    waiter = runtime.engine.waiter()
    return Worker(
        runner,
        backend,
        queues=[_polled(backend.open_queue(name), runtime, waiter.wake) for name in names],
        jobs=mine,
        job_of=job_of,
        grouper=Grouper(runner, backend, runtime.steady, runtime.entropy),
        clock=runtime.steady,
        waiter=waiter,
        wake=waiter.wake,
        maintain=maintain,
        hurry=runtime.engine.hurry,
        settings=settings,
        spawn=Spawn(target=target, join=runtime.engine.join, lock_file=lock_file) if target is not None else None,
    )


def make_runner(
    runtime: Runtime,
    jobs: Mapping[str, Job[Any, Any]],
    job_of: Callable[[Delivery], Job[Any, Any]],
    *,
    lease_ms: int,
    sinks: Sinks,
    history: History,
    backend: Backend | None = None,
) -> Runner:
    """A runner for these jobs on an opened engine; the runtime's own events go to its sinks from now on.

    Raises:
        ConflictError: another app's job on this engine has the name of one.
    """
    runtime.take_names_of(jobs)
    engine = runtime.engine
    backend = backend_of(engine) if backend is None else backend
    closer = Closer(engine, jobs, runtime.steady)
    runtime.attach(sinks, closer.touch)
    engine.stop_groups(lambda queue, group, job: _flag_of(jobs, queue, group, job))
    return Runner(
        backend,
        job_of,
        clock=runtime.steady,
        entropy=runtime.entropy,
        never=runtime.never(),
        owner=runtime.owner,
        lease_ms=lease_ms,
        sinks=sinks,
        history=history,
        admission=Admission(backend.state, clock=runtime.steady, owner=runtime.owner, lease_ms=lease_ms),
        closer=closer,
        settings=runtime.settings,
    )


def _flag_of(jobs: Mapping[str, Job[Any, Any]], queue: str, group: str, named: str | None) -> str | None:
    """The flag that stops a group by a message's job; a message whose job nobody here knows stops its group."""
    own = [one for one in jobs.values() if one.policy.queue == queue]
    job = jobs.get(named) if named is not None else own[0] if len(own) == 1 else None
    return group_flag(queue, group) if job is None or job.policy.after_failure == "stop" else None


class _Hourly:
    """Once an hour: removes what limits left behind, and warns of dead letters and held messages before they are gone.

    Only where looking receives nothing.
    """

    def __init__(self, runtime: Runtime, runner: Runner, names: Sequence[str], jobs: Sequence[Job[Any, Any]]) -> None:
        self._jobs = jobs
        self._runtime = runtime
        self._runner = runner
        found = [runtime.settings[name] for name in names if name in runtime.settings]
        self._queues = sorted({one for each in found for one in (each.dead_letter, each.held) if one is not None})
        self._due_ms = 0

    def look(self) -> int:
        """Report what is nearly gone, when it is time to look; 0: there is nothing to be done about it here."""
        clock, engine = self._runtime.steady, self._runtime.engine
        if clock.monotonic_ms() < self._due_ms:
            return 0
        self._due_ms = clock.monotonic_ms() + limits.HOUR_MS
        with ignored(errors.UsageError):  # a role may not list names
            self._runner.admission.sweep(self._jobs)
        for name in self._queues:
            if not engine.queues.open(name).capabilities.inspectable:
                continue  # a look would cost receives; an alarm on AWS says from the first dead letter on
            page = engine.queues.peek(name, limit=1)
            left_ms = page[0].expires_at_ms - clock.now_ms() if page else limits.DAY_MS
            if left_ms < limits.DAY_MS:
                self._runner.reports.of_process(
                    "dead-letters-expire",
                    {"in": name, "message": page[0].message_id, "expires_in_ms": left_ms},
                )
        return 0


def _polled(queue: Queue, runtime: Runtime, wake: Callable[[], None]) -> Queue:
    """The queue as a worker receives from it: in threads of its own where a receive waits on the server."""
    if not queue.capabilities.waits:
        return queue
    return LongPoll(cast("WaitingQueue", queue), clock=runtime.steady, wake=wake)
