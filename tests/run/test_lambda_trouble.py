"""A Lambda handler in trouble: a mapping that ignores its answer, a store, a queue or a body that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from onefold import errors
from onefold.contracts.entries import Entry
from onefold.runner.settlement import Backend
from tests.run.mapped import (
    REGION,
    VISIBLE_MS,
    Through,
    claim_elsewhere,
    mapped,
    order,
    through,
)
from tests.run.shop import Shop


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)


# -- a mapping that does not heed the answer ---------------------------------------------------------------------------


def test_a_mapping_that_deletes_what_is_named_is_noticed() -> None:
    shop = Shop(errors.TransientError("busy"), "shipped", errors.TransientError("busy"))
    with mapped(shop.app, wrap=through(Remembering)) as world:
        world.reports_failures = False
        shop.ship.send(order(1))
        assert world.poll() == []  # Lambda has deleted what was named
        assert world.left() == 0
        world.clock.advance(2_000)
        shop.ship.send(order(2))
        assert world.poll() == []
        [event] = world.told.of("answer-ignored")
        assert event.detail == {"queue": "orders", "messages": 1}
        [lost] = world.peek("orders-dead")
        assert lost.reason is not None
        assert lost.reason.kind == "mapping"
        # From now on it raises, which no mapping ignores; what is done is deleted by the handler itself.
        shop.ship.send_many([order(2), order(3)])
        with pytest.raises(errors.TransientError, match=r"1 of 2 messages .* would delete the messages that are named"):
            world.poll()
        assert world.left() == 1


class Remembering(Through):
    """SQS's queue buries what its process remembers, also when it is gone."""

    def move_aside(self, moves: Any) -> list[bool]:
        done: list[bool] = []
        for receipt, move in moves:
            held = receipt
            if self.queue.receipt_states([receipt]) == ["gone"]:
                self.queue.send([Entry(body="{}")])
                [again] = self.queue.receive(1, 30_000)
                held = again.receipt
            done += self.queue.move_aside([(held, move)])
        return done


def test_a_mapping_that_heeds_the_answer_is_asked_about_once() -> None:
    shop = Shop(errors.TransientError("busy"))
    asked: list[str] = []

    class Noting(Through):
        def set_visible_in(self, changes: Any) -> Any:
            asked.extend(receipt for receipt, _ in changes)
            return self.queue.set_visible_in(changes)

    with mapped(shop.app, wrap=through(Noting)) as world:
        for number in range(4):
            shop.ship.send(order(number))
            world.poll()
            world.clock.advance(2_000)
    assert len(asked) == 4 + 1  # each was hidden for its pause; one of them was looked after
    assert world.told.of("answer-ignored") == []


# -- a backend that fails --------------------------------------------------------------------------------------------


def _failing(more: dict[str, Exception] | None = None, /, **named: Exception) -> Callable[[Backend], Backend]:
    """A backend whose verbs, named as `store_claim`, raise. `more` may change later."""
    verbs = named if more is None else more

    def wrap(real: Backend) -> Backend:
        class Failing:
            def __init__(self, what: Any, name: str) -> None:
                self._what = what
                self._name = name

            def __getattr__(self, verb: str) -> Any:
                error = verbs.get(f"{self._name}_{verb}")
                if error is None:
                    return getattr(self._what, verb)

                def fail(*_: Any) -> Any:
                    raise error

                return fail

            def adopt(self, *given: Any) -> Any:
                return self.__getattr__("adopt")(*given)

            def disown(self, *given: Any) -> Any:
                return self.__getattr__("disown")(*given)

        return structs.replace(
            real,
            store=Failing(real.store, "store"),  # type: ignore[arg-type]
            open_queue=lambda name: Failing(real.open_queue(name), "queue"),  # type: ignore[arg-type, return-value]
        )

    return wrap


def test_a_store_that_fails_for_now_leaves_the_batch_as_it_is() -> None:
    shop = Shop("shipped")
    with mapped(shop.app, wrap=_failing(store_claim=errors.StorageBusy("throttled"))) as world:
        shop.ship.send_many([order(1), order(2)])
        assert len(world.poll()) == 2
        assert world.visible() == 0  # every try would cost a receive: they come back when their visibility ends
        [event] = world.told.of("engine-busy")
        assert event.detail["error"] == "storage-busy"
        assert shop.calls == []


def test_a_fifo_group_that_could_not_be_begun_waits_a_while() -> None:
    shop = Shop("shipped", fifo=True)
    with mapped(shop.app, wrap=_failing(store_claim=errors.StorageBusy("throttled"))) as world:
        shop.ship.send_many([order(1), order(2)])
        assert len(world.poll("orders.fifo")) == 2
        assert world.receive("orders.fifo") == []
        world.clock.advance(60_000)
        assert len(world.receive("orders.fifo")) == 2


def test_a_store_that_cannot_be_used_raises_what_is_wrong() -> None:
    shop = Shop("shipped")
    missing = errors.StorageError("Table onefold does not exist.", todo="Create it.")
    with mapped(shop.app, wrap=_failing(store_claim=missing)) as world:
        shop.ship.send_many([order(1), order(2)])
        with pytest.raises(errors.StorageError, match="Table onefold does not exist"):
            world.poll()
        assert world.left() == 2


def test_a_record_that_cannot_be_written_is_loud_and_its_message_stays() -> None:
    shop = Shop("shipped")
    with mapped(shop.app, wrap=_failing(store_write=errors.StorageBusy("throttled"))) as world:
        runtime = world.app.runtime()
        runtime.clock.wait = lambda waiter, timeout_ms: True  # type: ignore[method-assign]  # its pauses between tries
        shop.ship.send(order(1))
        assert len(world.poll()) == 1
        assert world.told.names()[-1] == "completion-failed"


def test_a_pause_that_cannot_be_set_costs_only_time() -> None:
    shop = Shop(errors.TransientError("busy"), "shipped")
    denied = errors.UsageError("Not allowed: sqs:ChangeMessageVisibility.", todo="Add it.")
    with mapped(shop.app, wrap=_failing(queue_set_visible_in=denied)) as world:
        shop.ship.send(order(1))
        assert len(world.poll()) == 1
        [event] = world.told.of("engine-busy")
        assert "sqs:ChangeMessageVisibility" in str(event.detail["summary"])
        world.clock.advance(VISIBLE_MS)
        assert world.poll() == []
        assert shop.calls == [("o-1", 1), ("o-1", 2)]


def test_a_dead_letter_that_cannot_be_moved_stays() -> None:
    shop = Shop(errors.PermanentError("no such customer"))
    gone = errors.UsageError("Queue orders has no dead-letter queue.", todo="Make one.")
    with mapped(shop.app, wrap=_failing(queue_move_aside=gone)) as world:
        shop.ship.send(order(1))
        assert len(world.poll()) == 1
        assert world.left() == 1
        assert "no dead-letter queue" in str(world.told.of("engine-busy")[0].detail["summary"])


def test_a_body_that_cannot_be_fetched_stays_and_the_others_are_done() -> None:
    shop = Shop("shipped")
    fetched = errors.TransientError("S3 did not answer")

    class Away(Through):
        def adopt(self, records: Any, visible_ms: int) -> Any:
            if any("o-2" in record["body"] for record in records):
                raise fetched
            return super().adopt(records, visible_ms)

    with mapped(shop.app, wrap=through(Away)) as world:
        shop.ship.send_many([order(1), order(2), order(3)])
        assert len(world.poll()) == 1
        assert sorted(key for key, _ in shop.calls) == ["o-1", "o-3"]


def test_a_run_that_was_left_in_the_middle_blocks_nothing_later() -> None:
    shop = Shop("shipped")
    broken: dict[str, Exception] = {}
    with mapped(shop.app, wrap=_failing(broken)) as world:
        shop.ship.send(order(1))
        [first] = world.receive()
        claim_elsewhere(world, shop, first, lease_ms=1)
        world.clock.advance(2)
        broken["store_start"] = errors.StorageError("The table is gone.", todo="Bring it back.")
        with pytest.raises(errors.StorageError):
            world.invoke([first], timeout_ms=5_000)
        broken.clear()
        world.clock.advance(VISIBLE_MS)
        assert world.poll() == []
        assert shop.calls == [("o-1", 2)]


def test_a_defect_ends_the_crew_and_not_the_container() -> None:
    shop = Shop("shipped")
    with mapped(shop.app, wrap=_failing(store_claim=errors.InvariantBroken("a defect"))) as world:
        shop.ship.send(order(1))
        with pytest.raises(errors.InvariantBroken):
            world.poll()
        assert world.left() == 1
