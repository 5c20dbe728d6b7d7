"""A Lambda handler and time: deadlines, what runs side by side, what a batch costs, the heartbeat."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

import onefold
from onefold import errors
from onefold.contracts.store import Ask
from onefold.runner.settlement import Backend
from tests.run.mapped import (
    REGION,
    LambdaContext,
    Through,
    claim_elsewhere,
    event_of,
    mapped,
    order,
    through,
    until,
)
from tests.run.shop import PLAIN, Shop
from tests.run.workshop import PATIENCE_S


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)


# -- time ------------------------------------------------------------------------------------------------------------


def test_what_cannot_end_in_time_is_given_back_unstarted() -> None:
    shop = Shop(lambda order, ctx: world.clock.advance(4_000), timeout="5s")
    with mapped(shop.app, concurrency=1) as world:
        shop.ship.send_many([order(number) for number in range(6)])
        stays = world.poll(timeout_ms=14_000)
        # 13 s without the margin: started at 0, 4 and 8 s; at 12 s there are not 5 s left any more.
        assert [key for key, _ in shop.calls] == ["o-0", "o-1", "o-2"]
        assert len(stays) == 3
        assert world.visible() == 3  # at once, not when their visibility ends
        assert world.record("o-3") is None  # no attempt was used, nothing was claimed
        assert world.told.names().count("released") == 3
        assert world.poll(timeout_ms=14_000) == []
        assert {attempt for _, attempt in shop.calls} == {1}


def test_a_timeout_longer_than_the_function_lets_experience_decide() -> None:
    shop = Shop(lambda order, ctx: world.clock.advance(1_000), timeout="5m")
    with mapped(shop.app, concurrency=1) as world:
        shop.ship.send_many([order(number) for number in range(10)])
        assert len(world.poll(timeout_ms=11_000)) == 2
        # A run takes 1 s, so one is started while 3 s are left: 0, 1, ... 7 s of the 10 that there are.
        assert len(shop.calls) == 8


def test_at_least_one_is_tried_however_short_the_time() -> None:
    shop = Shop("shipped", timeout="5m")
    with mapped(shop.app, concurrency=1, margin="10s") as world:
        shop.ship.send(order(1))
        assert world.poll(timeout_ms=1_000) == []


def test_a_handler_is_told_the_time_of_its_invocation() -> None:
    left: list[int | None] = []
    shop = Shop(lambda order, ctx: left.append(ctx.remaining_ms), timeout="5m")
    with mapped(shop.app, margin="2s") as world:
        shop.ship.send(order(1))
        assert world.poll(timeout_ms=30_000) == []
    assert left == [28_000]


def test_a_claim_lasts_as_long_as_the_invocation_and_a_margin() -> None:
    leases: list[int] = []

    def noting(real: Backend) -> Backend:
        class Noting:
            def __getattr__(self, name: str) -> Any:
                return getattr(real.store, name)

            def claim(self, asks: Sequence[Ask], now_ms: int, *rows_of: Any) -> Any:
                leases.extend(ask.lease_until_ms - now_ms for ask in asks)
                return real.store.claim(asks, now_ms, *rows_of)

        return structs.replace(real, store=Noting())  # type: ignore[arg-type]

    shop = Shop(lambda order, ctx: world.clock.advance(1_000), timeout="5s")
    with mapped(shop.app, concurrency=1, wrap=noting) as world:
        shop.ship.send_many([order(1), order(2)])
        assert world.poll(timeout_ms=30_000) == []
    assert leases == [31_000, 30_000]


def test_what_fetching_the_batch_took_is_not_given_to_handlers() -> None:
    left: list[int | None] = []

    class Slow(Through):
        def adopt(self, records: Any, visible_ms: int) -> Any:
            world.clock.advance(5_000)  # large bodies, out of S3
            return super().adopt(records, visible_ms)

    shop = Shop(lambda order, ctx: left.append(ctx.remaining_ms), timeout="5m")
    with mapped(shop.app, wrap=through(Slow)) as world:
        shop.ship.send(order(1))
        assert world.poll(timeout_ms=30_000) == []
    assert left == [24_000]


def test_what_waits_behind_another_is_not_started_when_the_time_is_over() -> None:
    shop = Shop(lambda order, ctx: _slow_then_fail(world.clock.advance), timeout="5s")
    with mapped(shop.app) as world:
        shop.ship.send_many([order(1), order(1)])
        first, second = world.receive()
        assert world.invoke([first, second], timeout_ms=8_000) == [first.message_id, second.message_id]
        assert shop.calls == [("o-1", 1)]
        record = world.record("o-1")
        assert record is not None
        assert record.attempts == 1


def _slow_then_fail(advance: Callable[[int], None]) -> None:
    advance(4_000)
    raise errors.TransientError("busy")


def test_a_thread_that_overruns_leaves_the_batch_to_lambda_and_what_is_done_is_deleted() -> None:
    slow, done, go_on = threading.Event(), threading.Event(), threading.Event()

    def act(order: Any, ctx: Any) -> str:
        if order["id"] == "o-2":
            slow.set()
            assert go_on.wait(PATIENCE_S)
        return "shipped"

    shop = Shop(act, timeout="5s")
    with mapped(shop.app) as world:
        shop.ship.send_many([order(1), order(2)])
        deliveries = world.receive()

        def invoke() -> None:
            world.handler(event_of(deliveries), LambdaContext(world.clock, 10_000))
            done.set()

        thread = threading.Thread(target=invoke, daemon=True)
        thread.start()
        assert slow.wait(PATIENCE_S)

        def is_recorded() -> bool:
            world.clock.advance(1)  # nobody waits longer than some milliseconds for a slower sibling
            record = world.record("o-1")
            return record is not None and record.status == "completed"

        until(is_recorded)
        assert world.left() == 2
        world.clock.advance(9_600)  # past the job's timeout, and past half of the margin
        until(lambda: world.left() == 1)
        assert not done.is_set()
        assert world.told.names().count("overrun") == 1
        go_on.set()
        thread.join(PATIENCE_S)
        assert done.is_set()


# -- at one time -----------------------------------------------------------------------------------------------------


def test_plain_functions_run_side_by_side() -> None:
    together = threading.Barrier(10)
    shop = Shop(lambda order, ctx: together.wait(PATIENCE_S))
    with mapped(shop.app) as world:
        shop.ship.send_many([order(number) for number in range(10)])
        assert world.poll() == []


def test_a_batch_larger_than_the_threads_is_worked_through() -> None:
    shop = Shop("shipped")
    with mapped(shop.app, concurrency=3) as world:
        shop.ship.send_many([order(number) for number in range(50)])
        assert world.poll(count=50) == []
        assert len(shop.calls) == 50


def test_with_a_concurrency_of_one_handlers_run_in_the_invoking_thread_in_order() -> None:
    threads = []
    shop = Shop(lambda order, ctx: threads.append(threading.get_ident()))
    with mapped(shop.app, concurrency=1) as world:
        shop.ship.send_many([order(number) for number in range(5)])
        assert world.poll() == []
    assert set(threads) == {threading.get_ident()}
    assert [key for key, _ in shop.calls] == [f"o-{number}" for number in range(5)]


def test_coroutines_run_together_on_one_loop_for_every_invocation() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    loops = set()
    waiting: list[asyncio.Event] = []

    @app.job(orders, key="{id}", retry=PLAIN)
    async def ship(order: dict[str, Any]) -> str:
        loops.add(asyncio.get_running_loop())
        if not waiting:
            waiting.append(asyncio.Event())
        if order["last"]:
            waiting[0].set()
        await asyncio.wait_for(waiting[0].wait(), PATIENCE_S)
        return "shipped"

    with mapped(app) as world:
        for turn in range(2):
            waiting.clear()
            ship.send_many([{"id": f"{turn}-{number}", "last": number == 29} for number in range(30)])
            assert world.poll(count=30) == []
    assert len(loops) == 1


def test_a_coroutine_is_stopped_when_the_invocation_must_end() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    begun = threading.Event()

    @app.job(orders, key="{id}", retry=PLAIN, on_unknown="hold")
    async def ship(order: dict[str, Any]) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    with mapped(app) as world:
        ship.send({"id": "o-1"})
        deliveries = world.receive()
        found: list[Any] = []
        thread = threading.Thread(
            target=lambda: found.append(world.handler(event_of(deliveries), LambdaContext(world.clock, 10_000))),
            daemon=True,
        )
        thread.start()
        assert begun.wait(PATIENCE_S)
        world.clock.advance(9_000)
        thread.join(PATIENCE_S)
        assert found == [{"batchItemFailures": []}]  # it is in the held queue
        [held] = world.peek("orders-held")
        assert held.reason is not None
        assert held.reason.error == "HandlerTimeout"


def test_fast_handlers_cost_one_claim_and_one_write() -> None:
    calls: list[str] = []
    shop = Shop("shipped")
    with mapped(shop.app, wrap=lambda real: _counting(real, calls)) as world:
        for turn in range(2):
            shop.ship.send_many([order(10 * turn + number) for number in range(10)])
            assert world.poll() == []
    assert calls == ["state.get", "store.claim", "store.write", "store.claim", "store.write"]


def test_duplicates_cost_one_claim() -> None:
    calls: list[str] = []
    shop = Shop("shipped")
    shop.app.history = "off"
    with mapped(shop.app, wrap=lambda real: _counting(real, calls)) as world:
        for _ in range(2):
            shop.ship.send_many([order(number) for number in range(10)])
            assert world.poll() == []
    assert calls == ["state.get", "store.claim", "store.write", "store.claim"]


def _counting(real: Backend, calls: list[str]) -> Backend:
    class Counted:
        def __init__(self, what: Any, name: str) -> None:
            self._what = what
            self._name = name

        def __getattr__(self, verb: str) -> Any:
            found = getattr(self._what, verb)
            if not callable(found):
                return found

            def call(*args: Any, **more: Any) -> Any:
                calls.append(f"{self._name}.{verb}")
                return found(*args, **more)

            return call

    parts = {name: Counted(getattr(real, name), name) for name in ("store", "ledger", "state")}
    return structs.replace(real, **parts)


def test_what_ended_its_process_before_runs_alone_and_last() -> None:
    under_way: list[str] = []
    seen: list[tuple[str, int, int]] = []

    def act(order: Any, ctx: Any) -> str:
        under_way.append(order["id"])
        recorded = sum(1 for key in ("o-2", "o-3") if (record := world.record(key)) and record.status == "completed")
        seen.append((order["id"], len(under_way), recorded))
        under_way.remove(order["id"])
        return "shipped"

    shop = Shop(act)
    with mapped(shop.app) as world:
        shop.ship.send_many([order(0), order(1), order(2), order(3)])
        deliveries = world.receive()
        for one in deliveries[:2]:
            claim_elsewhere(world, shop, one, lease_ms=1)
        world.clock.advance(2)
        assert world.invoke(deliveries) == []
    assert [one for one in seen if one[0] in ("o-0", "o-1")] == [("o-0", 1, 2), ("o-1", 1, 2)]


# -- heartbeat -------------------------------------------------------------------------------------------------------


def test_a_heartbeat_keeps_leases_short_and_extends_them() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def act(order: Any, ctx: Any) -> str:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return "shipped"

    shop = Shop(act, timeout="10m")
    with mapped(shop.app, heartbeat=True) as world:
        shop.ship.send(order(1))
        deliveries = world.receive()
        answers: list[Any] = []
        thread = threading.Thread(
            target=lambda: answers.append(world.handler(event_of(deliveries), LambdaContext(world.clock, 600_000))),
            daemon=True,
        )
        thread.start()
        assert begun.wait(PATIENCE_S)
        lease_ms = world.clock.now_ms() + 30_000
        for _ in range(6):
            until(lambda lease_ms=lease_ms: (world.record("o-1").lease_until_ms or 0) >= lease_ms)  # type: ignore[union-attr, misc]
            world.clock.advance(10_000)
            lease_ms = world.clock.now_ms() + 30_000
        go_on.set()
        thread.join(PATIENCE_S)
        assert answers == [{"batchItemFailures": []}]
        assert world.told.of("lease-lost") == []
