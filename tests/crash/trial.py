"""One trial of the crash loop: a process works on real queues and records, dies at one point, and another one finishes.

A `Scenario` declares jobs, sends messages and says what must be true at the end; `Trial` runs it on the production path
(runner, grouper, SQLite in memory, a manual clock) with every operation on a wire. After the death either time passes
until leases and visibilities are over, or the dead owner is found at once. The result is read with plain SQL and peeks,
never through the code under test. Does not contain: expectations.
Invariant: the second process has no faults, and has a bounded time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

import onefold
from onefold.contracts.admin import Peeked
from onefold.contracts.queue import Delivery
from onefold.engines.sqlite.processes import free_in
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner.execution import Execution
from onefold.runner.executors import Grouper
from onefold.runner.runner import Runner
from onefold.runner.settlement import backend_of
from onefold.runner.setup import make_runner
from onefold.runtime.events import Event, Sinks
from onefold.runtime.runtime import Runtime
from tests.crash.wires import Death, Side, Wire

LEASE_MS = 30_000
STEP_MS = 2_000
ROUNDS_MAX = 100

Ends = Literal["time passes", "found dead"]


class Point(NamedTuple):
    """Where the first process dies, and how others learn of its death."""

    at: int | None
    side: Side = "before"
    then: Ends = "time passes"


class Scenario(Protocol):
    """What is run. Each trial has an object of its own."""

    def declare(self, app: onefold.App, trial: Trial) -> None:
        """Declare queues and jobs; handlers have their effects through the trial."""
        ...

    def send(self) -> None:
        """Send the messages."""
        ...

    def check(self, trial: Trial) -> None:
        """Assert what must be true once everything has drained."""
        ...


class Trial:
    """One scenario, one point of death.

    Attributes:
        wire: with the trace of the first process.
        booked: effects outside, in order, by key.
        doubted: keys that had their effect but no completed record at the death.
        died: where it died; None when nothing broke.
    """

    def __init__(self, scenario: Scenario, point: Point, *, one_transaction: bool) -> None:
        self.scenario = scenario
        self.point = point
        self.one_transaction = one_transaction
        self.wire = Wire(point.at, point.side)
        self.booked: list[str] = []
        self.doubted: set[str] = set()
        self.died: str | None = None
        self.events: list[Event] = []
        self.clock = ManualClock()
        self.app = onefold.App("trial")
        self._living = self.wire
        self._grouper: Grouper | None = None
        scenario.declare(self.app, self)

    def emit(self, event: Event) -> None:
        """Receive an event."""
        self.events.append(event)

    def book(self, key: str) -> None:
        """Have an effect outside; on the wire, so that the process can die right before and right after it."""
        self._living.call("effect", self.booked.append, key)

    # -- two processes ---------------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[Runtime]:
        """The engine, while the trial is examined."""
        with self.app._reopened("sqlite://:memory:", self.clock, SeededEntropy(0)) as runtime:
            runtime.engine.database.write(lambda connection: connection.execute("CREATE TABLE effect (key TEXT)"))  # type: ignore[attr-defined]  # SQLite's own
            yield runtime

    def run(self, runtime: Runtime) -> None:
        """Send, work until the death or the end, and let another process finish."""
        self.scenario.send()
        real = backend_of(runtime.engine)
        self._backend = self.wire.backend(real, one_transaction=self.one_transaction)
        try:
            self._work(runtime)
        except Death as death:
            self.died = f"{self.point.side} {death.args[0]} (call {self.point.at})"
            self.wire.clean_up()
            self.doubted = {key for key in self.booked if self.status(key) != "completed"}
            if self.point.then == "time passes":
                self.clock.advance(2 * LEASE_MS + 1)
            else:
                owner, now_ms = runtime.owner, self.clock.now_ms()
                runtime.engine.database.write(lambda connection: free_in(connection, owner, "second", now_ms))  # type: ignore[attr-defined]  # as above
        runtime._opened.owner = "second"  # type: ignore[union-attr]
        self._living = Wire()
        self._backend = self._living.backend(real, one_transaction=self.one_transaction)
        self._work(runtime)

    def _work(self, runtime: Runtime) -> None:
        """Do what a worker's loop does, in this thread, until nothing is left in the queues that have jobs."""
        runner = make_runner(
            runtime,
            self.app.jobs,
            self.app.registry.job_of,
            lease_ms=LEASE_MS,
            sinks=Sinks([self]),
            history="brief",
            backend=self._backend,
        )
        self._grouper = Grouper(runner)
        for _ in range(ROUNDS_MAX):
            received = [one for name in self.app.queues for one in self._receive(runtime, name)]
            if received:
                self._perform(runner, runner.begin(received))
                continue
            if all(self._is_empty(name) for name in self.app.queues):
                return
            self.clock.advance(STEP_MS)
        raise AssertionError(f"not drained after {ROUNDS_MAX} rounds; died {self.died}")

    def _receive(self, runtime: Runtime, name: str) -> list[Delivery]:
        deliveries: list[Delivery] = self._backend.open_queue(name).receive(10)
        return deliveries

    def _is_empty(self, name: str) -> bool:
        depth = self.app.runtime().engine.queues.depth(name)
        return depth.visible + depth.in_flight + depth.delayed == 0

    def _perform(self, runner: Runner, ready: list[Execution]) -> None:
        assert self._grouper is not None
        while ready:
            grouped = [run for run in ready if run.job.policy.effect != "external"]
            following = self._grouper.perform(grouped) if grouped else []
            for run in ready:
                if run.job.policy.effect == "external":
                    runner.perform(run)
                    following += runner.finish([run])
            ready = following

    # -- what stands -----------------------------------------------------------------------------------------

    def _rows(self, query: str, *values: object) -> list[Any]:
        database = self.app.runtime().engine.database  # type: ignore[attr-defined]  # SQLite's own
        rows: list[Any] = database.read(lambda connection: connection.execute(query, values).fetchall())
        return rows

    def status(self, key: str) -> str | None:
        """The record's state; None when there is none."""
        rows = self._rows("SELECT status, parked FROM onefold_record WHERE key = ?", key)
        if not rows:
            return None
        status, parked = rows[0]
        return "parked" if parked else ("in progress", "completed", "failed", "unknown", "released")[status]

    def rows(self) -> Counter[str]:
        """The rows that transactional handlers have left, by key."""
        return Counter(key for (key,) in self._rows("SELECT key FROM effect"))

    def told(self, key: str) -> list[str]:
        """The history of a key in the ledger: events, oldest first."""
        return [event for (event,) in self._rows("SELECT event FROM onefold_ledger WHERE key = ? ORDER BY id", key)]

    def messages(self, queue: str) -> list[Peeked]:
        """What is in a queue."""
        return self.app.runtime().engine.queues.peek(queue)


def trial(make: Callable[[], Scenario], point: Point, *, one_transaction: bool, check: bool = True) -> Trial:
    """Run one trial and check it."""
    one = Trial(make(), point, one_transaction=one_transaction)
    with one.opened() as runtime:
        one.run(runtime)
        if check:
            try:
                one.scenario.check(one)
            except AssertionError as error:
                raise AssertionError(f"died {one.died}, then {point.then}: {error}") from error
    return one


def every_point(make: Callable[[], Scenario], *, one_transaction: bool) -> list[Trial]:
    """A trial without a death, then one for every call, before and after, and both ways of noticing."""
    clean = trial(make, Point(None), one_transaction=one_transaction)
    assert clean.died is None
    trials = [clean]
    for at in range(len(clean.wire.trace)):
        for side in ("before", "after"):
            for then in ("time passes", "found dead"):
                one = trial(make, Point(at, side, then), one_transaction=one_transaction)  # type: ignore[arg-type]  # from the tuples above
                assert one.died is not None
                trials.append(one)
    return trials
