"""Runs an app's jobs in a test: the production code in this thread, on a clock that the test moves. Nothing sleeps.

    def test_books_once():
        with onefold.testing.inline(app) as world:
            book_courier.send(Order("o-1"))
            world.run()
            world.clock.advance(60_000)
            world.run()
            world.run_until(datetime(2026, 6, 1, 4, tzinfo=UTC))     # and every tick of a schedule up to that time

The engine is the real SQLite engine on `:memory:`; visibility, retries, lifetimes and dead letters follow the clock.
Never here: imitations of anything in `runner/`. Invariant: a worker runs the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from onefold import duration, errors
from onefold.app import App
from onefold.contracts.queue import Depth
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner.execution import Execution
from onefold.runner.executors import Grouper
from onefold.runner.runner import Runner
from onefold.runner.setup import make_runner
from onefold.runner.sink_queues import QueuedSinks
from onefold.runtime.events import Event, Sinks
from onefold.schedules.scheduler import Scheduler

_LEASE_MS = 30_000


class Recorder:
    """A sink that keeps every event."""

    is_quick: Final = True  # it never waits

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)


class World:
    """An app opened for a test.

    Attributes:
        clock: the app's clock; `advance(milliseconds)` moves it.
        events: all events so far.
    """

    def __init__(
        self, app: App, clock: ManualClock, runner: Runner, recorder: Recorder, sinks: Sinks | None = None
    ) -> None:
        self.app = app
        self.clock = clock
        self._runner = runner
        self._recorder = recorder
        self._sinks = Sinks([*app.sinks, recorder]) if sinks is None else sinks
        self._runtime = app.runtime()
        self._grouper = Grouper(runner)
        self._scheduler = Scheduler(self._runtime, self._sinks)
        if app.schedules:
            self._scheduler.start()

    @property
    def events(self) -> list[Event]:
        """All events so far, in order."""
        return self._recorder.events

    def names(self) -> list[str]:
        """The names of all events, in order."""
        return [event.name for event in self.events]

    def run(self, rounds_max: int = 1_000, *, queues: Collection[str] | None = None) -> int:
        """Deliver visible messages until there are none; returns the number of deliveries.

        Args:
            queues: deliver only from these; None: from all queues of the app.

        Raises:
            RuntimeError: a message was still visible after `rounds_max` receives of ten.
        """
        count = 0
        for _ in range(rounds_max):
            some = self._runner.source.receive(list(self.app.queues if queues is None else queues), 10)
            if not some:
                if self._runner.closer.check():
                    continue  # the queue of a job that starts when a run is complete
                self._sinks.flush()
                return count
            count += len(some)
            self._perform(self._runner.begin(some))
        raise RuntimeError(f"The queues were not empty after {rounds_max} receives; does a job send to itself?")

    def run_for(self, total_ms: int, step_ms: int = 1_000) -> int:
        """Advance the clock in steps, delivering what becomes visible; returns the number of deliveries."""
        count = self.run()
        for _ in range(0, total_ms, step_ms):
            self.clock.advance(step_ms)
            count += self.run()
        return count

    def tick(self) -> int:
        """Send the due ticks, as `onefold scheduler` does; returns how many there were. `run` delivers them."""
        count = self._scheduler.catch_up()
        self._sinks.flush()
        return count

    def run_until(self, at: datetime) -> int:
        """Advance to a time from tick to tick, delivering what becomes visible; returns the number of deliveries.

        Args:
            at: an aware datetime; if it is in the past, only what is already due is done.

        Raises:
            UsageError: `at` has no time zone.
        """
        until_ms, count = duration.instant_ms(at, "at"), 0
        while True:
            self.tick()
            count += self.run()
            now_ms = self.clock.now_ms()
            if now_ms >= until_ms:
                return count
            instants = [one.at_ms for one in self._scheduler.next_due(1)]
            for name in self.app.queues:
                ready_ms = self._runtime.engine.queues.next_ready_ms(name)
                instants += [] if ready_ms is None else [ready_ms]
            next_ms = min([*instants, until_ms])
            self.clock.advance(max(next_ms - now_ms, 1))

    def another(self) -> World:
        """A second worker of the app on the same engine and clock, which does not know what this one has in flight."""
        return World(self.app, self.clock, _runner(self.app, self._sinks), self._recorder, self._sinks)

    def depth(self, queue: str) -> Depth:
        """How many messages a queue has."""
        return self._runtime.engine.queues.open(queue).depth()

    def _perform(self, ready: list[Execution]) -> None:
        while ready:
            run, ready = ready[0], ready[1:]
            if run.job.policy.effect == "transactional":
                ready = ready + self._grouper.perform([run])
            else:
                self._runner.perform(run)
                ready = ready + self._runner.finish([run])


@contextmanager
def inline(app: App, *, seed: int = 0, start_ms: int = 1_700_000_000_000) -> Iterator[World]:
    """Open an app on a private engine in memory with a manual clock; afterwards it has its own engine and clock again.

    Args:
        seed: the seed of ids and jitter; the same seed gives the same run.
        start_ms: the clock's first time, in milliseconds since the epoch.

    Raises:
        UsageError: `app` is not an app, or a start hook raised.
    """
    if not isinstance(app, App):
        raise errors.UsageError(
            f"inline() was given {app!r:.80}, which is not an onefold.App.",
            todo="Import the app and pass it: from shop import app; onefold.testing.inline(app).",
        )
    clock, recorder = ManualClock(start_ms), Recorder()
    sinks = QueuedSinks([*app.sinks, recorder])
    try:
        with app._reopened("sqlite://:memory:", clock, SeededEntropy(seed)):  # noqa: SLF001 - for this
            app.hooks.start("inline")
            try:
                yield World(app, clock, _runner(app, sinks), recorder, sinks)
            finally:
                app.hooks.stop("inline")
    finally:
        sinks.end()


def _runner(app: App, sinks: Sinks) -> Runner:
    return make_runner(app.runtime(), app.jobs, app.registry.job_of, lease_ms=_LEASE_MS, sinks=sinks, history="full")
