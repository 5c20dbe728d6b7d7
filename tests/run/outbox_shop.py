"""A shop whose own tables are in another database than the engine's, for tests of outbox tables and relays.

Never here: expectations, databases. Invariant: relays of one shop share the engine, each with a runtime of its own if asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onefold
from onefold.contracts.outbox import OutboxTable
from onefold.engines.urls import open_outbox
from onefold.runtime.events import Event, Sinks
from onefold.runtime.relay import Relay

Order = dict[str, Any]


def nothing(order: Order) -> None: ...


class Heard:
    """A sink that keeps events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def names(self) -> list[str]:
        return [one.name for one in self.events]


class OutboxShop:
    """An app with an outbox: a plain job, one with unique keys, one that keeps order."""

    def __init__(self, engine_url: str, outbox_url: str, **options: Any) -> None:
        self.app = onefold.App("shop", url=engine_url, outbox=outbox_url, history="full", **options)
        orders, groups = self.app.queue("orders"), self.app.queue("groups", fifo=True)
        self.ship = self.app.job(orders, key="{id}", name="ship")(nothing)
        self.invoice = self.app.job(orders, key="{id}", name="invoice", unique=True)(nothing)
        self.pack = self.app.job(groups, key="{id}", name="pack", group="{customer}")(nothing)
        self.outbox_url = outbox_url
        self.heard = Heard()

    def relay(self, wrapped: Callable[[OutboxTable], Any] = lambda table: table) -> Relay:
        runtime = self.app.runtime()
        runtime.take_names_of(self.app.jobs)
        return Relay(runtime, wrapped(open_outbox(self.outbox_url)), Sinks([self.heard]))

    def waiting(self, queue: str = "orders") -> list[str]:
        return [str(one.key) for one in self.app.runtime().engine.queues.peek(queue, limit=10_000)]
