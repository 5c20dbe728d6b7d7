"""Builds a worker for an app: runner, waiter, presence, maintenance, child processes.

The command line, the benchmark and the demo call this. Never here: the loop (`worker.py`), signals (cli).
Invariant: the presence lock is taken before the first receive.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, cast

from onefold import errors, limits, payload_defaults, redact  # noqa: F401 - loaded while files can still be opened
from onefold.contracts.ledger import History
from onefold.contracts.queue import Delivery
from onefold.interrupts import ignored
from onefold.options import WorkerSettings
from onefold.record import failures  # noqa: F401 - imported now, as the first failure may be that no file can be opened
from onefold.runner import completion  # noqa: F401 - imported now, for the first message of a run, for the same reason
from onefold.runner.handlers import Job
from onefold.runner.longpoll import LongPoll
from onefold.runner.processes import Spawn
from onefold.runner.roster import QUEUES_MAX, Roster, WorkerEntry, forget
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend, backend_of
from onefold.runner.setup import make_runner
from onefold.runner.sink_queues import QueuedSinks
from onefold.runner.worker import Worker
from onefold.runtime.events import Event, Sink
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.contracts.verbs import QueueReceiver, WaitingQueue
    from onefold.outside import Clock
    from onefold.record.delivery import Detail

_NAMES_CHARS_MAX: Final = 1_000  # of the jobs' names in the log line of a worker's start
_HOST_CHARS_MAX = 100


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
        backend: used instead of the engine's own contracts, for demonstrations of what these are for.

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
        raise errors.UsageError(
            "The app declares no jobs.", todo="Where the app is created, import the modules that declare them."
        )
    engine = runtime.engine
    lock_file = engine.appear()
    backend = backend_of(engine) if backend is None else backend
    runner = make_runner(
        runtime,
        jobs,
        job_of,
        lease_ms=settings.lease_ms,
        sinks=QueuedSinks(sinks),
        history=history,
        backend=backend,
    )
    tracing = runner.tracing

    def traced(queue: QueueReceiver) -> QueueReceiver:
        return queue if tracing is None else tracing.receiver(queue)

    mine = [job for job in jobs.values() if job.policy.queue in names]
    waiter = engine.waiter()
    now_ms = runtime.now_ms()
    entry = WorkerEntry(
        owner=runtime.owner, app=runtime.registry.name, host=socket.gethostname()[:_HOST_CHARS_MAX], pid=os.getpid(),
        queues=tuple(names[:QUEUES_MAX]), started_at_ms=now_ms, seen_at_ms=now_ms,
    )  # fmt: skip
    roster = Roster(engine.state, entry, runtime.steady, embedded=engine.commit is not None)
    worker = Worker(
        runner,
        queues=[_polled(traced(backend.open_queue(name)), runtime.steady, waiter.wake) for name in names],
        jobs=mine,
        waiter=waiter,
        maintain=Maintenance(runtime, runner, names, mine, roster).check,
        ended=roster.leave,
        hurry=engine.hurry,
        settings=settings,
        spawn=Spawn(target=target, join=engine.join, lock_file=lock_file) if target is not None else None,
        hooks=runtime.hooks,
        mark=engine.renewal_mark(),
        about={
            "jobs": ", ".join(sorted(job.name for job in mine))[:_NAMES_CHARS_MAX],
            "place": _engine_location(engine.url),
            "threads": settings.threads,
            "pid": os.getpid(),
            "version": metadata.version("onefold"),
        },
    )
    roster.asked = worker.drain
    return worker


def _engine_location(url: str) -> str:
    """Where the engine is, for a log: a file's whole path, or a URL without what may be a password."""
    path = url.removeprefix("sqlite:///")
    return os.path.abspath(path.partition("?")[0]) if path != url else redact.shown_url(url).strip("'")


def _polled(queue: QueueReceiver, clock: Clock, wake: Callable[[], None]) -> QueueReceiver:
    """The queue as a worker receives from it: a `LongPoll` around it if its receives wait on the server."""
    return LongPoll(cast("WaitingQueue", queue), clock=clock, wake=wake) if queue.capabilities.waits else queue


class Maintenance:
    """A worker's upkeep of its engine, every half second: free the work of dead owners, close runs, renew its document.

    Once an hour it also removes what limits have left behind and, where reading a queue receives nothing, warns of dead
    letters and held messages before they expire.

    Args:
        queues: names of the queues the worker works on. jobs: the jobs on these. roster: the worker's own document.
    """

    def __init__(
        self, runtime: Runtime, runner: Runner, queues: Sequence[str], jobs: Sequence[Job[Any, Any]], roster: Roster
    ) -> None:
        self._roster = roster
        self._jobs = jobs
        self._runtime = runtime
        self._runner = runner
        found = [runtime.settings[name] for name in queues if name in runtime.settings]
        self._expiring = sorted({one for each in found for one in (each.dead_letter, each.held) if one is not None})
        self._hourly_due_ms = 0
        self._steps_reported = len(runtime.steady.steps)

    def check(self) -> None:
        """Do what is due.

        Raises:
            TransientError: the engine could not do it; the next call tries again.
        """
        clock = self._runtime.steady
        clock.now_ms()  # this detects a step
        for by_ms in clock.steps[self._steps_reported :]:
            self._emit("clock-set", {"by_ms": by_ms})
            self._steps_reported += 1
        self._runtime.engine.maintain(self._report_dead_owner)
        with ignored(errors.UsageError):  # a role may lack permission to write it; it only helps people
            self._roster.check()
        self._runner.closer.check()
        if clock.monotonic_ms() >= self._hourly_due_ms:
            self._hourly_due_ms = clock.monotonic_ms() + limits.HOUR_MS
            with ignored(errors.UsageError):  # a role may lack permission to list names
                self._runner.admission.sweep(self._jobs)
            for name in self._expiring:
                self._warn_of_expiring(name)

    def _report_dead_owner(self, owner: str) -> None:
        self._emit("owner-dead", {"owner": owner})
        with ignored(errors.OnefoldError):  # if this fails, they end with their leases
            self._runner.admission.free(owner, self._runtime.registry.jobs.values())
        with ignored(errors.OnefoldError):  # it is forgotten after a day
            forget(self._runtime.engine.state, [owner])

    def _emit(self, name: str, detail: Detail) -> None:
        runtime = self._runtime
        self._runner.reports.emit(Event(at_ms=runtime.clock.now_ms(), name=name, actor=runtime.owner, detail=detail))

    def _warn_of_expiring(self, name: str) -> None:
        """Warn of dead letters and held messages before they expire, where reading the queue receives nothing."""
        clock, queues = self._runtime.steady, self._runtime.engine.queues
        if not queues.open(name).capabilities.inspectable:
            return  # reading would cost receives; an alarm on AWS reports the first dead letter
        page = queues.peek(name, limit=1)
        left_ms = page[0].expires_at_ms - clock.now_ms() if page else limits.DAY_MS
        if left_ms < limits.DAY_MS:
            detail: Detail = {"in": name, "message": page[0].message_id, "expires_in_ms": left_ms}
            self._runner.reports.of_process("dead-letters-expire", detail)
