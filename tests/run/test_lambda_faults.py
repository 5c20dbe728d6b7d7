"""A Lambda handler on a backend that fails now and then, before and after it has done what it was asked: nothing is lost.

Batches come until the queue is empty. Every call of the store, and every hiding and burying of a message, fails with a
seeded chance, half of the time after it was carried out. Records are written in the end, so no effect happens twice; a
handler that raises is called again, and a FIFO group keeps its order throughout.
"""

from __future__ import annotations

import random  # noqa: TID251 - the test's own seeded dice
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

import onefold
from onefold import errors
from onefold.runner.settlement import Backend
from tests.run.mapped import REGION, START_MS, VISIBLE_MS, Hasty, Mapped, mapped

CHANCE = 0.05
MESSAGES = 60
ROUNDS_MAX = 2_000


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)


class Shaky:
    """A contract whose verbs fail now and then."""

    VERBS = frozenset(
        {"claim", "write", "start", "set_visible_in", "move_aside", "clear_outbox", "get", "put", "append"}
    )

    def __init__(self, real: Any, fails: Callable[[], str]) -> None:
        self._real = real
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._real, name)
        if name not in self.VERBS:
            return verb

        def call(*args: Any, **more: Any) -> Any:
            how = self._fails()
            if how == "before":
                raise errors.StorageBusy(f"{name} was refused")
            answer = verb(*args, **more)
            if how == "after":
                raise errors.StorageBusy(f"the answer of {name} was lost")
            return answer

        return call

    def adopt(self, *given: Any) -> Any:
        return self._real.adopt(*given)

    def disown(self, *given: Any) -> Any:
        return self._real.disown(*given)


def shaky(dice: random.Random, injected: Counter[str]) -> Callable[[Backend], Backend]:
    def fails() -> str:
        how = dice.choice(("before", "after")) if dice.random() < CHANCE else ""
        injected[how] += 1
        return how

    def wrap(real: Backend) -> Backend:
        return structs.replace(
            real,
            store=Shaky(real.store, fails),  # type: ignore[arg-type]
            state=Shaky(real.state, fails),  # type: ignore[arg-type]
            ledger=Shaky(real.ledger, fails),  # type: ignore[arg-type]
            open_queue=lambda name: Shaky(real.open_queue(name), fails),  # type: ignore[arg-type, return-value]
        )

    return wrap


def work_off(world: Mapped, name: str) -> None:
    """Batches until nothing is left."""
    for _ in range(ROUNDS_MAX):
        batch = world.receive(name)
        if batch:
            world.invoke(batch)
        elif not world.left(name):
            return
        else:
            world.clock.advance(VISIBLE_MS // 3)
    raise AssertionError(f"{world.left(name)} messages are still there: {Counter(world.told.names())}")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("fifo", [False, True])
def test_nothing_is_lost_and_nothing_happens_twice(fifo: bool, seed: int) -> None:
    dice = random.Random(seed)
    app = onefold.App("shop", history="off")
    orders = app.queue("orders", fifo=fifo, dead_letter=onefold.DeadLetter(after=1_000))
    calls: list[tuple[str, str]] = []

    @app.job(
        orders,
        key="{id}",
        group="{customer}" if fifo else None,
        retry=onefold.Retry(attempts=500, crashes=500, base="1s", factor=1.0, jitter="none"),
    )
    def ship(order: dict[str, Any]) -> str:
        raised = dice.random() < CHANCE
        calls.append((order["id"], "raised" if raised else "done"))
        if raised:
            raise errors.TransientError("busy")
        return "shipped"

    sent = [{"id": f"o-{number:02}", "customer": f"c-{number % 4}"} for number in range(MESSAGES)]
    injected: Counter[str] = Counter()
    with mapped(app, wrap=shaky(dice, injected), clock=Hasty(START_MS), concurrency=1) as world:
        ship.send_many(sent)
        work_off(world, orders.name)
        assert not world.peek("orders-dead.fifo" if fifo else "orders-dead")
        for order in sent:
            record = world.record(order["id"])
            assert record is not None
            assert record.status == "completed"
    assert injected["before"] + injected["after"] > 0
    done = [key for key, what in calls if what == "done"]
    lost = [event for event in world.told.of("completion-failed") if event.key is not None]
    assert Counter(done) == Counter([order["id"] for order in sent] + [event.key.key for event in lost if event.key])
    if fifo:
        for customer in range(4):
            mine = [key for key in done if int(key[2:]) % 4 == customer]
            assert mine == sorted(mine)
