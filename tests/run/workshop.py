"""A worker of an app, run in a thread of the test, and a sink that can be waited for. Nothing here sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onefold import App
from onefold.contracts.verbs import Queue
from onefold.manual_clock import ManualClock
from onefold.options import WorkerSettings
from onefold.runner.processes import Spawn
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend, backend_of
from onefold.runner.setup import make_runner
from onefold.runner.worker import Worker
from onefold.runner.worker_numbers import ExitReport
from onefold.runtime.events import Event, Sinks

PATIENCE_S = 60.0  # a test that waits so long has failed; on a good day nothing waits a tenth of a second


class BreakerUpdate:
    """A sink that keeps every event, and can be waited on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def emit(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def wait_for(self, name: str, count: int = 1) -> list[Event]:
        """The events of this name, once there are `count`."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of(name)) >= count, PATIENCE_S)
        assert came, f"no {count} x {name!r} in {self.names()}"
        return self.of(name)


class Workshop:
    """An app with one worker, not yet running.

    Args:
        backend: the app's own, or one that fails on purpose. spawn: for child processes.
    """

    def __init__(
        self,
        app: App,
        settings: WorkerSettings,
        *,
        backend: Backend | None = None,
        queues: Sequence[Queue] | None = None,
        maintain: Callable[[], int] | None = None,
        spawn: Spawn | None = None,
        lease_ms: int | None = None,
    ) -> None:
        runtime = app.runtime()
        self.told = BreakerUpdate()
        self.lease_ms = lease_ms or settings.lease_ms
        self.waiter = runtime.engine.waiter()
        backend = backend or backend_of(runtime.engine)
        runner: Runner = make_runner(
            runtime,
            app.jobs,
            app.registry.job_of,
            lease_ms=self.lease_ms,
            sinks=Sinks([self.told]),
            history="off",
        )
        runner = _on(runner, backend)
        self.runner = runner
        try:
            self.worker = self._hire(app, runner, backend, queues, settings, maintain, spawn)
        except BaseException:
            self.waiter.close()
            raise
        self._beaten = threading.Condition()
        self._tell_beats()
        self.report: ExitReport | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _hire(
        self,
        app: App,
        runner: Runner,
        backend: Backend,
        queues: Sequence[Queue] | None,
        settings: WorkerSettings,
        maintain: Callable[[], int] | None,
        spawn: Spawn | None,
    ) -> Worker:
        runtime = app.runtime()
        return Worker(
            runner,
            queues=queues or [backend.open_queue(name) for name in app.queues],
            jobs=list(app.jobs.values()),
            waiter=self.waiter,
            maintain=maintain,
            hurry=runtime.engine.hurry,
            settings=settings,
            spawn=spawn,
        )

    def _tell_beats(self) -> None:
        heartbeat = self.worker._beside.heartbeat
        beat = heartbeat._work

        def told() -> int:
            next_ms = beat()
            with self._beaten:
                self._beaten.notify_all()
            return next_ms

        heartbeat._work = told

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.report = self.worker.run()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def pass_time(self, clock: ManualClock, total_ms: int) -> None:
        """Move the clock by steps of a third of the lease, each only after the heartbeat has extended what is in hand."""
        step_ms = self.lease_ms // 3
        end_ms = clock.monotonic_ms() + total_ms
        while clock.monotonic_ms() < end_ms:
            clock.advance(min(step_ms, end_ms - clock.monotonic_ms()))
            self.worker._beside.heartbeat.bell.ring()  # it may have read the time before this step, and not wait yet
            due_ms = clock.monotonic_ms() - step_ms
            with self._beaten:
                assert self._beaten.wait_for(
                    lambda due_ms=due_ms: all(one.asked_at_ms > due_ms for one in self.runner.in_flight.all()),
                    PATIENCE_S,
                )

    def end(self) -> ExitReport:
        """Wait until the worker has ended; its report."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"the worker did not end: {self.told.names()[-20:]}"
        self.waiter.close()
        if self.error is not None:
            raise self.error
        assert self.report is not None
        return self.report


def _on(runner: Runner, backend: Backend) -> Runner:
    runner.backend = backend
    runner.settler._backend = backend
    runner.reports._ledger = backend.ledger
    runner.claims._store, runner.claims._ledger = backend.store, backend.ledger
    runner.source = backend.source
    return runner


@contextmanager
def working(app: App, **settings: Any) -> Iterator[Workshop]:
    """A running worker; drained at the end unless it has ended."""
    shop = Workshop(app, WorkerSettings(**settings))
    shop.start()
    try:
        yield shop
    finally:
        shop.worker.drain()
        shop.end()


def finished(app: App, **settings: Any) -> tuple[ExitReport, BreakerUpdate]:
    """Run a worker until the queues are empty."""
    shop = Workshop(app, WorkerSettings(until_empty=True, **settings))
    shop.start()
    return shop.end(), shop.told
