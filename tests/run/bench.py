"""An app on a private engine with a clock that jumps, and as many processes on it as a test needs. Nothing here sleeps.

`inline` of onefold.testing is one process without faults; here a process can leave its runs unfinished, another one can
follow it, and every verb of the backend can be made to fail. Never here: expectations.
Invariant: a process drives the production path, whatever is wrong with its backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from onefold import App, errors
from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import History, Row
from onefold.contracts.queue import Delivery
from onefold.contracts.store import Record, RecordKey
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.outside import Waiter
from onefold.runner.execution import Execution
from onefold.runner.executors import Grouper
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend, backend_of
from onefold.runner.setup import make_runner
from onefold.runtime.events import Event, Sinks
from onefold.runtime.runtime import Runtime


class JumpingClock(ManualClock):
    """A clock for one thread: whoever waits finds the time passed."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[int] = []

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        """Let the time pass at once, unless somebody has woken the waiter already."""
        self.waits.append(timeout_ms)
        if waiter.wait(0):
            return True
        self.advance(timeout_ms)
        return waiter.wait(0)


class Elsewhere:
    """A store as another process has opened it: of the same records, and another object."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Faulty:
    """One contract of a backend; `fault` is asked before and after each verb and may raise."""

    def __init__(self, real: Any, name: str, fault: Callable[[str, str], None], calls: list[str]) -> None:
        self._real = real
        self._name = name
        self._fault = fault
        self._calls = calls

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._real, verb)
        if not callable(attribute):
            return attribute

        def call(*args: Any) -> Any:
            name = f"{self._name}.{verb}"
            self._calls.append(name)
            self._fault(name, "before")
            answer = attribute(*args)
            self._fault(name, "after")
            return answer

        return call


class Apart:
    """A store whose history is another system: a claim and its rows are two writes."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.capabilities = replace(store.capabilities, notes_claims=False)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)


class Process:
    """One process: a runner with an owner id of its own.

    Attributes:
        events: what it told. calls: the verbs it called.
    """

    def __init__(
        self,
        bench: Bench,
        owner: str,
        *,
        fault: Callable[[str, str], None] = lambda verb, side: None,
        one_transaction: bool = True,
        history: History = "brief",
    ) -> None:
        self.owner = owner
        self.events: list[Event] = []
        self.calls: list[str] = []
        self._bench = bench
        real = bench.backend

        def wrapped(contract: Any, name: str) -> Any:
            return Faulty(contract, name, fault, self.calls)

        self.backend = Backend(
            store=wrapped(real.store, "store") if one_transaction else Apart(wrapped(real.store, "store")),
            ledger=wrapped(real.ledger, "ledger"),
            state=wrapped(real.state, "state"),
            commit=(commit := wrapped(real.commit, "commit") if one_transaction else None),
            open_queue=lambda name: wrapped(real.open_queue(name), "queue"),
            effects=commit.effects if commit is not None else None,
        )
        self.runner: Runner = bench.runner(self.backend, owner, Sinks([self]), history)
        self.grouper = Grouper(self.runner)

    def emit(self, event: Event) -> None:
        """Keep what is told."""
        self.events.append(event)

    def names(self) -> list[str]:
        """What it told, in order."""
        return [event.name for event in self.events]

    def of(self, name: str) -> Event:
        """The only event of this name."""
        (event,) = [event for event in self.events if event.name == name]
        return event

    def begin(self, deliveries: Sequence[Delivery] | None = None) -> list[Execution]:
        """Begin these deliveries, or whatever is visible now."""
        return self.runner.begin(self._bench.receive() if deliveries is None else deliveries)

    def perform(self, ready: list[Execution]) -> None:
        """Perform and finish runs, and whatever waited behind them."""
        while ready:
            run, *rest = ready
            if run.job.policy.effect == "external":
                self.runner.perform(run)
                ready = rest + self.runner.finish([run])
            else:
                ready = self.grouper.perform([one for one in ready if one.job.policy.effect != "external"])
                ready = [one for one in rest if one.job.policy.effect == "external"] + ready

    def run(self) -> int:
        """Deliver whatever is visible until nothing is; how many deliveries there were."""
        count = 0
        while deliveries := self._bench.receive():
            count += len(deliveries)
            self.perform(self.begin(deliveries))
        return count

    def run_for(self, total_ms: int, step_ms: int = 1_000) -> int:
        """Let time pass in steps and deliver whatever becomes visible."""
        count = self.run()
        for _ in range(0, total_ms, step_ms):
            self._bench.clock.advance(step_ms)
            count += self.run()
        return count


class Bench:
    """An opened app.

    Attributes:
        clock: the engine's and everybody's. backend: the real one.
    """

    def __init__(self, app: App, runtime: Runtime, clock: JumpingClock) -> None:
        self.app = app
        self.runtime = runtime
        self.clock = clock
        self.backend = backend_of(runtime.engine)
        self.owner = runtime.owner
        self._processes = 0

    def process(self, **options: Any) -> Process:
        """Another process."""
        self._processes += 1
        return Process(self, f"p{self._processes}", **options)

    def runner(self, backend: Backend, owner: str, sinks: Sinks, history: History = "brief") -> Runner:
        """A runner of another owner, on a backend made of this one's."""
        opened = self.runtime._opened
        assert opened is not None
        opened.owner = owner
        try:
            return make_runner(
                self.runtime, self.app.jobs, self.app.registry.job_of, lease_ms=30_000, sinks=sinks, history=history,
                backend=backend,
            )  # fmt: skip
        finally:
            opened.owner = self.owner

    def receive(self, count_max: int = 10) -> list[Delivery]:
        """What is visible now, in every queue that has jobs."""
        return [one for name in self.app.queues for one in self.backend.open_queue(name).receive(count_max)]

    def record(self, key: str, job: str = "ship") -> Record | None:
        """The record as it stands."""
        return self.backend.store.read([RecordKey("", job, key)], self.clock.now_ms())[0]

    def history(self, key: str, job: str = "ship") -> list[Row]:
        """The ledger's rows of a key."""
        return self.backend.ledger.of_key(RecordKey("", job, key))

    def messages(self, queue: str) -> list[Peeked]:
        """What is in a queue."""
        return self.runtime.engine.queues.peek(queue)

    def write(self, statement: str, *values: object) -> None:
        """One statement on the engine's own file."""
        self.runtime.engine.database.write(lambda connection: connection.execute(statement, values))  # type: ignore[attr-defined]  # SQLite's own

    def rows(self, query: str) -> list[Any]:
        """What a query finds on the engine's own file."""
        found: list[Any] = self.runtime.engine.database.read(  # type: ignore[attr-defined]  # SQLite's own
            lambda connection: connection.execute(query).fetchall()
        )
        return found


@contextmanager
def opened(app: App) -> Iterator[Bench]:
    """The app on a private engine in memory."""
    clock = JumpingClock()
    with app._reopened("sqlite://:memory:", clock, SeededEntropy(0)) as runtime:
        yield Bench(app, runtime, clock)


class Fault:
    """Makes verbs fail for now.

    Args:
        verb: which. times: how often. side: before it took effect, or after it, so that its answer is lost.
    """

    def __init__(self, verb: str, times: int = 1, side: str = "before") -> None:
        self._verb = verb
        self._side = side
        self.left = times

    def __call__(self, verb: str, side: str) -> None:
        """Asked before and after each call."""
        if verb == self._verb and side == self._side and self.left:
            self.left -= 1
            raise errors.StorageBusy(f"{verb} failed on purpose.", todo="Try again.")
