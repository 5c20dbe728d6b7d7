"""A shop for tests of the runner: one job whose handler does what it is told to, and what to look at afterwards.

Never here: expectations. Invariant: a handler notes that it was called before it does anything else.
"""

from __future__ import annotations

from typing import Any

import onefold
from onefold.contracts.store import RecordKey
from onefold.testing import World

START_MS = 1_700_000_000_000
Order = dict[str, Any]
PLAIN = onefold.Retry(attempts=3, base="10s", factor=2.0, jitter="none")


class Shop:
    """An app with one job, `ship`, whose handler does what `acts` says, one item for each call; the last one for ever."""

    def __init__(self, *acts: Any, fifo: bool = False, dead_after: int = 10, **options: Any) -> None:
        self.app = onefold.App("shop")
        self.orders = self.app.queue("orders", fifo=fifo, dead_letter=onefold.DeadLetter(after=dead_after))
        self.calls: list[tuple[str, int]] = []
        self._acts = list(acts or ["shipped"])
        options.setdefault("retry", PLAIN)

        @self.app.job(self.orders, key="{id}", group="{customer}" if fifo else None, **options)
        def ship(order: Order, ctx: onefold.Context) -> Any:
            self.calls.append((order["id"], ctx.attempt))
            act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
            if isinstance(act, BaseException):
                raise act
            return act(order, ctx) if callable(act) else act

        self.ship = ship


def told(world: World) -> list[Any]:
    """What was told, without the steps that every run takes."""
    return [event for event in world.events if event.name not in ("sent", "received", "started")]


def names(world: World) -> list[str]:
    return [event.name for event in told(world)]


def dead(world: World, queue: str = "orders-dead") -> list[Any]:
    return world.app.runtime().engine.queues.peek(queue)


def record(world: World, key: str = "o-1") -> Any:
    store = world.app.runtime().engine.store
    return store.read([RecordKey("", "ship", key)], world.clock.now_ms())[0]
