"""A dispatcher, the job it sends to, and what is started when a run is complete: shared by tests of dispatchers and runs.

Never here: expectations. Invariant: what the generator yields is what `customers` says at that moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from msgspec import Struct

import onefold
from onefold.runner import runs
from onefold.runner.completion import CompleteRun
from onefold.runner.dispatcher import as_handler
from onefold.runner.runs import Counts, RunState
from onefold.runtime.outgoing import Outgoing
from onefold.runtime.runtime import Runtime

RUN = "billing/2026-06-01T02:00:00Z"
NOMINAL_MS = 1_780_279_200_000
QUICK = onefold.Retry(attempts=3, base="1s", jitter="none")


class Tick(Struct, frozen=True):
    """What a dispatcher is told."""

    schedule: str = "billing"
    nominal_at_ms: int | None = NOMINAL_MS
    run: str = RUN


class Billing:
    """The app.

    Attributes:
        customers: are yielded, in order. yielded: what was, over all tries.
        before: called with each customer before it is yielded; may raise.
        charged: customers in the order of their effects. ill: customer -> what its handler raises.
        closed: what the job was told that waits for complete runs.
    """

    def __init__(self, url: str | None = None, *, batch: int = 10, tasks: bool = False, fifo: bool = False) -> None:
        self.app = onefold.App("billing", url=url)
        self.customers: list[str] = []
        self.yielded: list[str] = []
        self.before: Callable[[str], object] = lambda customer: None
        self.charged: list[str] = []
        self.ill: dict[str, Exception] = {}
        self.closed: list[CompleteRun] = []
        self.ticks = self.app.queue("ticks")
        self.bills = self.app.queue("bills", fifo=fifo)
        self.reports = self.app.queue("reports")
        group = {"group": "{customer}"} if fifo else {}

        @self.app.job(self.bills, key="{customer}", retry=QUICK, on_unknown="hold", owner="money", **group)  # type: ignore[arg-type]
        def charge(bill: dict[str, str]) -> None:
            if bill["customer"] in self.ill:
                raise self.ill[bill["customer"]]
            self.charged.append(bill["customer"])

        @self.app.job(self.reports, key="{run}", when_complete="billing")
        def report(run: CompleteRun) -> None:
            self.closed.append(run)

        self.charge, self.report = charge, report
        function = self._in_task if tasks else self._dispatch
        handler = as_handler(function, self.app._runtime, payload=Tick, owner="money", batch=batch)
        self.tick = self.app.job(self.ticks, key="{run}", name="billing", retry=QUICK)(handler)

    def message(self, customer: str) -> Outgoing:
        self.before(customer)
        self.yielded.append(customer)
        return self.charge.message({"customer": customer})

    def _dispatch(self, tick: Tick) -> Iterator[Outgoing]:
        for customer in list(self.customers):
            yield self.message(customer)

    async def _in_task(self, tick: Tick, ctx: onefold.Context) -> AsyncIterator[Outgoing]:
        assert ctx.key == tick.run
        for customer in list(self.customers):
            yield self.message(customer)

    # -- what stands -------------------------------------------------------------------------------------------------

    @property
    def runtime(self) -> Runtime:
        return self.app.runtime()

    def run(self, name: str = RUN) -> RunState:
        standing = runs.read(self.runtime.engine.state, name)
        assert standing is not None
        return standing.run

    def counts(self, name: str = RUN) -> Counts:
        return runs.count(self.runtime.engine.ledger, self.run(name))

    def told(self, event: str) -> list[str | None]:
        """Keys of the run's rows of that event, in order."""
        rows = self.runtime.engine.ledger.of_run(RUN, limit=100_000)
        return [row.key.key if row.key is not None else None for row in rows if row.event == event]

    def waiting(self) -> list[str | None]:
        """Keys of the messages on the bills' queue, in order."""
        return [message.key for message in self.runtime.engine.queues.peek(self.bills.name, limit=1_000)]


def customers(count: int) -> list[str]:
    return [f"c-{number:05}" for number in range(count)]


def of_run(message: Any) -> Any:
    return message.attributes["onefold.run"].value
