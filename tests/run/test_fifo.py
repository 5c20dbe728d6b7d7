"""Message groups: in order, whatever fails, and whoever else has a message of the group in hand."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import onefold
from onefold.admin import groups
from onefold.admin.session import AdminSession
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from onefold.limits import MINUTE_MS
from onefold.testing import inline
from tests.run.bench import Fault, opened
from tests.run.shop import Order, Shop, dead, record, told


def group(*numbers: int, customer: str = "c") -> list[Order]:
    return [{"id": f"o-{number}", "customer": customer} for number in numbers]


def test_a_group_runs_in_order_and_waits_for_a_retry() -> None:
    shop = Shop(onefold.TransientError("not now"), "shipped", fifo=True)
    with inline(shop.app) as world:
        shop.ship.send_many([*group(1, 2, 3), *group(4, customer="d")])
        world.run()
        # The other group did not wait.
        assert shop.calls == [("o-1", 1), ("o-4", 1)]
        world.run_for(10_000)
        assert shop.calls[2:] == [("o-1", 2), ("o-2", 1), ("o-3", 1)]
        released = [event for event in told(world) if event.name == "released"]
        assert [event.detail["why"] for event in released] == ["an earlier message of its group is not done"] * 2


@pytest.mark.parametrize(
    ("first", "second"),
    [("東京", "大阪"), ("x" * 200 + "1", "x" * 200 + "2"), ("a b", "a_b"), ("é", "_")],
)
def test_operations_with_one_payload_and_keys_of_their_own_are_all_sent(first: str, second: str) -> None:
    shop = Shop(lambda order, ctx: ran.append(ctx.key), fifo=True)
    ran: list[str] = []
    with inline(shop.app) as world:
        for key in (first, second, first):
            shop.ship.send(group(1)[0], key=key)
        world.run()
        assert ran == [first, second]


def test_jobs_tenants_and_apps_that_share_a_fifo_queue_do_not_share_deduplication_ids() -> None:
    def ids(app: onefold.App, name: str, **options: Any) -> Any:
        @app.job(app.queue(name.replace(".", "-"), fifo=True), key="{id}", group="{id}", name=name, **options)
        def job(order: dict[str, str]) -> None: ...

        return [job.outgoing({"id": "1", "x": "a"}, key=key).entry.dedup_id for key in ("x.1", "1", "2")]

    one, other = onefold.App("one"), onefold.App("other")
    made = [*ids(one, "ship"), *ids(one, "ship.x"), *ids(one, "ship.y", tenant="{x}"), *ids(other, "ship")]
    assert len({*made}) == 12
    assert all(len(text) <= 128 and text.isascii() and text.isprintable() and " " not in text for text in made)


def test_a_dead_letter_stops_its_group() -> None:
    shop = Shop(onefold.PermanentError("never"), "shipped", fifo=True)
    with inline(shop.app) as world:
        sent = shop.ship.send_many([*group(1, 2, 3), *group(4, customer="d")])
        world.run()
        shop.ship.send_many(group(5))
        world.run()
        assert [call for call in shop.calls if call[0] != "o-4"] == [("o-1", 1)]
        letters = dead(world, "orders-dead.fifo")
        assert [(letter.key, letter.reason.kind) for letter in letters] == [
            ("o-1", "permanent"),
            ("o-2", "group-stopped"),
            ("o-3", "group-stopped"),
            ("o-5", "group-stopped"),
        ]
        assert all(sent[0].message_id in letter.reason.summary for letter in letters[1:])
        assert record(world, "o-2") is None  # never claimed: a redrive is a first run


@pytest.mark.parametrize("after_failure", ["stop", "skip"])
def test_what_the_queue_itself_dead_letters_stops_its_group_as_a_worker_does(after_failure: str) -> None:
    """Its worker was killed each time, so the receive count was used up before anybody could say why."""
    shop = Shop("shipped", fifo=True, dead_after=3, after_failure=after_failure)
    with inline(shop.app) as world:
        (first, *_) = shop.ship.send_many(group(1, 2, 3))
        engine = world.app.runtime().engine
        for _ in range(3):
            assert [one.key for one in engine.queues.open("orders.fifo").receive(1)] == ["o-1"]
            world.clock.advance(MINUTE_MS)
        world.run()
        shop.ship.send_many(group(4))
        world.run()
        letters = [(letter.key, letter.reason.kind) for letter in dead(world, "orders-dead.fifo")]
        if after_failure == "skip":
            assert [key for key, _ in shop.calls] == ["o-2", "o-3", "o-4"]
            assert letters == [("o-1", "receives")]
            assert engine.state.names("stopped/") == []
            return
        assert shop.calls == []
        assert letters == [("o-1", "receives"), *((f"o-{number}", "group-stopped") for number in (2, 3, 4))]
        (flag,) = engine.state.get(["stopped/orders.fifo/c"])
        assert flag.value.decode() == first.message_id
        session = AdminSession(world.app.runtime(), actor="person:ada")
        assert len(groups.start_again(session, "orders.fifo", "c")) == 4
        world.run()
        assert [key for key, _ in shop.calls] == ["o-1", "o-2", "o-3", "o-4"]
        assert engine.state.names("stopped/") == []


def test_a_held_message_stops_its_group_too() -> None:
    shop = Shop(onefold.OutcomeUnknown("sent"), "shipped", fifo=True, on_unknown="hold")
    with inline(shop.app) as world:
        shop.ship.send_many(group(1, 2))
        world.run()
        assert shop.calls == [("o-1", 1)]
        assert [letter.key for letter in dead(world, "orders-held.fifo")] == ["o-1"]
        assert [letter.key for letter in dead(world, "orders-dead.fifo")] == ["o-2"]


def test_a_group_passes_over_a_dead_letter_when_told_so() -> None:
    shop = Shop(onefold.PermanentError("never"), "shipped", fifo=True, after_failure="skip")
    with inline(shop.app) as world:
        shop.ship.send_many(group(1, 2, 3))
        world.run()
        assert shop.calls == [("o-1", 1), ("o-2", 1), ("o-3", 1)]
        assert [letter.key for letter in dead(world, "orders-dead.fifo")] == ["o-1"]


def test_a_group_waits_for_a_message_that_has_no_job_here() -> None:
    shop = Shop(fifo=True)
    with inline(shop.app) as world:
        other = {"onefold.job": Attribute("invoice")}
        queue = world.app.runtime().engine.queues.open("orders.fifo")
        queue.send([Entry(body='{"id":"i-1"}', attributes=other, group="c", dedup_id="i-1")])
        shop.ship.send_many([*group(1), *group(2, customer="d")])
        world.run_for(120_000, step_ms=5_000)
        assert shop.calls == [("o-2", 1)]


def test_what_waits_behind_a_key_holds_up_its_own_group() -> None:
    # o-1 comes twice, in two groups; what follows the second one in its group must not pass it.
    shop = Shop(fifo=True)
    with inline(shop.app) as world:
        shop.ship.send_many([*group(1, customer="c"), *group(1, 2, customer="d")])
        world.run()
        seen = [(event.name, event.key and event.key.key) for event in told(world)]
        assert seen == [("completed", "o-1"), ("conflict", "o-1"), ("group-stopped", "o-2")]
        assert shop.calls == [("o-1", 1)]


def test_a_group_does_not_go_on_past_a_run_that_lost_its_lease() -> None:
    shop = Shop(fifo=True)
    with opened(shop.app) as bench:
        shop.ship.send_many(group(1, 2))
        slow = bench.process()
        (run,) = slow.begin()
        slow.runner.perform(run)
        bench.clock.advance(30_000)
        quick = bench.process()
        (again,) = quick.begin()
        assert slow.runner.finish([run]) == []  # o-2 is not begun here
        assert "lease-lost" in slow.names()
        quick.perform([again])
        assert shop.calls == [("o-1", 1), ("o-1", 2), ("o-2", 1)]


def test_a_group_that_is_not_done_takes_back_what_lies_in_the_buffer() -> None:
    shop = Shop(onefold.TransientError("not now"), "shipped", fifo=True)
    with opened(shop.app) as bench:
        shop.ship.send_many([*group(1, 2, 3, 4), *group(5, customer="d")])
        process = bench.process()
        received = bench.receive()
        hand = process.runner.in_flight
        hand.take(received, 0)
        by_key = {one.key: one for one in received}
        first, chosen, buffered, other = (by_key[key] for key in ("o-1", "o-3", "o-4", "o-5"))
        (run,) = process.begin([first, by_key["o-2"]])
        process.runner.perform(run)
        assert process.runner.finish([run]) == []
        # o-2 waited behind o-1, o-3 is about to be begun, o-4 lies in the buffer: all of them are the queue's again.
        assert process.begin([chosen]) == []
        assert not hand.keeps(buffered)
        assert hand.keeps(other)
        hand.over([buffered])  # as the buffer does
        assert hand._returned == set()
        process.run_for(10_000)
        process.perform(process.begin([other]))
        assert shop.calls == [("o-1", 1), ("o-1", 2), ("o-2", 1), ("o-3", 1), ("o-4", 1), ("o-5", 1)]
        assert {event.receive_count for event in process.events if event.name == "completed"} == {1, 2}


def test_nothing_slips_in_between_the_end_of_a_run_and_who_waited_behind_it() -> None:
    shop = Shop(fifo=True)
    with opened(shop.app) as bench:
        shop.ship.send_many(group(1, 2, 3))
        process = bench.process()
        received = bench.receive()
        (run,) = process.begin(received[:2])
        process.runner.perform(run)
        free = process.runner._free
        begun: list[Any] = []
        later = threading.Thread(target=lambda: begun.extend(process.begin(received[2:])))

        def free_and_look(settled: Any) -> Any:
            followers = free(settled)
            if settled and not later.ident:
                later.start()
                later.join(0.2)  # it would be there by now; it waits, because o-2 has not entered
                assert later.is_alive()
            return followers

        process.runner._free = free_and_look  # type: ignore[method-assign]  # a look into the gap
        ready = process.runner.finish([run])
        later.join(60)
        assert begun == []
        process.perform(ready)
        assert shop.calls == [("o-1", 1), ("o-2", 1), ("o-3", 1)]


def test_a_group_that_cannot_be_begun_goes_back_in_order() -> None:
    shop = Shop(fifo=True)
    with opened(shop.app) as bench:
        shop.ship.send_many([*group(1, 2), *group(3, customer="d")])
        process = bench.process(fault=Fault("store.claim"))
        with pytest.raises(onefold.TransientError):
            process.begin()
        process.run()
        assert process.names() == ["released"] * 3 + ["completed"] * 3
        assert [call for call in shop.calls if call[0] != "o-3"] == [("o-1", 1), ("o-2", 1)]


def test_a_group_does_not_go_on_past_what_could_not_be_written() -> None:
    shop = Shop(onefold.PermanentError("never"), "shipped", fifo=True)
    with opened(shop.app) as bench:
        shop.ship.send_many(group(1, 2))
        fault = Fault("commit.commit", times=6)
        broken = bench.process(fault=fault)
        broken.perform(broken.begin())
        assert fault.left == 0
        assert shop.calls == [("o-1", 1)]
