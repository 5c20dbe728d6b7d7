"""What becomes of a delivery, on the production path: runner, SQLite in memory, a clock that the test moves.

Most tests use `onefold.testing.inline`, as a user would; those with several processes or a failing backend use `bench`.
Message groups have a file of their own (test_fifo.py).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import onefold
from onefold.contracts.admin import Edit
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute, Reason
from onefold.contracts.store import RecordKey
from onefold.record.keys import idempotency_key
from onefold.runner.handlers import AMENDS_ATTRIBUTE
from onefold.testing import inline
from tests.run.bench import Fault, opened
from tests.run.shop import PLAIN, START_MS, Order, Shop, dead, names, record, told

# -- success and duplicates --------------------------------------------------------------------------------


def test_success() -> None:
    shop = Shop("L-1")
    with inline(shop.app) as world:
        receipt = shop.ship.send({"id": "o-1"})
        assert world.run() == 1
        assert names(world) == ["completed"]
        assert shop.calls == [("o-1", 1)]
        stored = record(world)
        assert (stored.status, stored.result, stored.attempts) == ("completed", b'"L-1"', 1)
        assert stored.message_id == receipt.message_id
        assert stored.expires_at_ms == START_MS + 90 * 86_400_000
        depth = world.depth("orders")
        assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)


def test_a_duplicate_is_answered_from_the_record() -> None:
    shop = Shop("L-1")
    with inline(shop.app) as world:
        first = shop.ship.send({"id": "o-1"})
        world.run()
        world.clock.advance(60_000)
        shop.ship.send({"id": "o-1"})
        assert world.run() == 1
        assert names(world) == ["completed", "duplicate"]
        assert told(world)[1].detail["of"] == first.message_id
        assert shop.calls == [("o-1", 1)]
        assert world.depth("orders").visible == 0


def test_two_of_one_key_in_one_batch_run_once_and_nobody_waits() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.ship.send_many([{"id": "o-1"}, {"id": "o-1"}, {"id": "o-2"}])
        assert world.run() == 3
        assert sorted(names(world)) == ["completed", "completed", "duplicate"]
        assert shop.calls == [("o-1", 1), ("o-2", 1)]


def test_the_context_says_which_operation_and_run_it_is() -> None:
    seen: list[Any] = []

    def look(order: Order, ctx: onefold.Context) -> None:
        seen.append((ctx.job, ctx.key, ctx.scope, ctx.fence, ctx.attempt, ctx.attempts_max, ctx.remaining_ms))
        seen.append(ctx.idempotency_key)
        assert ctx.message is not None
        seen.append(ctx.message.receive_count)

    shop = Shop(look, timeout="30s")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run()
    assert seen == [("ship", "o-1", "", 1, 1, 3, 30_000), idempotency_key(RecordKey("", "ship", "o-1")), 1]


def test_an_async_handler() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")

    @app.job(orders, key="{id}")
    async def ship(order: Order) -> str:
        return f"shipped {order['id']}"

    with inline(app) as world:
        ship.send({"id": "o-1"})
        world.run()
        assert record(world).result == b'"shipped o-1"'


# -- failures ----------------------------------------------------------------------------------------------


def test_a_transient_error_backs_off_and_succeeds() -> None:
    shop = Shop(TimeoutError("no answer"), onefold.TransientError("not now"), "L-1")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run()
        assert names(world) == ["unknown", "retry"]  # a lost answer: rerun, after the same pause
        assert record(world).status == "unknown"
        assert world.run_for(9_000) == 0  # 10 s, then 20 s
        world.clock.advance(1_000)
        assert world.run() == 1
        assert record(world).status == "failed"
        assert record(world).failure.summary == "not now"
        assert world.run_for(19_000) == 0
        world.clock.advance(1_000)
        assert world.run() == 1
        assert shop.calls == [("o-1", 1), ("o-1", 2), ("o-1", 3)]
        assert names(world) == ["unknown", "retry", "retry", "completed"]
        assert (record(world).status, record(world).failure) == ("completed", None)


def test_used_up_attempts_are_dead_lettered_with_the_whole_reason() -> None:
    shop = Shop(onefold.TransientError("not now"), owner="fulfilment")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run_for(60_000)
        assert shop.calls == [("o-1", 1), ("o-1", 2), ("o-1", 3)]
        assert names(world) == ["retry", "retry", "dead-letter"]
        (letter,) = dead(world)
        assert letter.reason is not None
        assert "in Shop.__init__.<locals>.ship\nonefold.errors.TransientError: not now" in str(letter.reason.trace)
        assert msgspec.structs.replace(letter.reason, trace=None) == Reason(
            kind="attempts",
            summary="not now",
            error="TransientError",
            job="ship",
            key="o-1",
            attempts=3,
            crashes=0,
            first_at_ms=START_MS,
            last_at_ms=START_MS + 30_000,
            owner="fulfilment",
        )
        assert (letter.source, letter.key) == ("orders", "o-1")
        assert (record(world).status, record(world).budget_closed) == ("failed", True)
        assert world.depth("orders").visible == 0


def test_a_permanent_error_is_dead_lettered_at_once() -> None:
    shop = Shop(onefold.PermanentError("no such street"))
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        assert world.run() == 1
        assert names(world) == ["dead-letter"]
        (letter,) = dead(world)
        assert (letter.reason.kind, letter.reason.attempts) == ("permanent", 1)


def test_a_job_says_itself_what_its_exceptions_mean() -> None:
    shop = Shop(KeyError("street"), permanent=[KeyError])
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run()
        assert dead(world)[0].reason.kind == "permanent"


def test_a_malformed_message_is_dead_lettered_and_never_run() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        queue = world.app.runtime().engine.queues.open("orders")
        queue.send([Entry(body="no JSON at all"), Entry(body='{"id":null}'), Entry(body='{"street":"x"}')])
        world.run()
        assert shop.calls == []
        assert names(world) == ["malformed"] * 3
        assert [letter.reason.kind for letter in dead(world)] == ["malformed"] * 3
        assert all(letter.reason.error == "PayloadError" for letter in dead(world))


def test_a_message_that_others_sent_is_a_job_too() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        world.app.runtime().engine.queues.open("orders").send([Entry(body='{"id": "o-1"}')])
        shop.ship.send({"id": "o-1"})
        world.run()
        assert sorted(names(world)) == ["completed", "duplicate"]


def test_a_conflict_names_both() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        first = shop.ship.send({"id": "o-1", "total": 5})
        world.run()
        shop.ship.send({"id": "o-1", "total": 7})
        world.run()
        assert names(world) == ["completed", "conflict"]
        assert shop.calls == [("o-1", 1)]
        (letter,) = dead(world)
        assert (letter.reason.kind, letter.reason.key) == ("conflict", "o-1")
        fingerprints = [shop.ship.outgoing({"id": "o-1", "total": total}).fingerprint[:12] for total in (5, 7)]
        assert first.message_id in letter.reason.summary
        assert all(fingerprint in letter.reason.summary for fingerprint in fingerprints)
        assert record(world).status == "completed"


def test_an_edited_payload_is_no_conflict_while_nothing_is_completed() -> None:
    shop = Shop(onefold.PermanentError("no such street"), "L-1")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1", "street": "nowhere"})
        world.run()
        (letter,) = dead(world)
        fixed = shop.ship.outgoing({"id": "o-1", "street": "Main Street"})
        before = shop.ship.outgoing({"id": "o-1", "street": "nowhere"}).fingerprint
        attributes = {**fixed.entry.attributes, AMENDS_ATTRIBUTE: Attribute(before)}
        queues = world.app.runtime().engine.queues
        queues.move([(letter.message_id, "orders", Edit(body=fixed.entry.body, attributes=attributes))])
        world.run()
        assert names(world) == ["dead-letter", "completed"]


def test_a_handler_that_asks_for_the_end_of_its_process_ends_its_run_only() -> None:
    """Nobody knows what it had done by then."""
    shop = Shop(SystemExit(3), "L-1")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run_for(10_000)
        assert names(world) == ["unknown", "retry", "completed"]


# -- unknown outcomes --------------------------------------------------------------------------------------


def test_an_unknown_outcome_that_is_run_again() -> None:
    shop = Shop(onefold.OutcomeUnknown("sent, no answer"), "L-1", on_unknown="rerun")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run()
        assert (record(world).status, record(world).parked, record(world).doubt) == ("unknown", False, True)
        world.run_for(10_000)
        assert names(world) == ["unknown", "retry", "completed"]
        assert shop.calls == [("o-1", 1), ("o-1", 2)]


def test_an_unknown_outcome_that_is_held() -> None:
    shop = Shop(onefold.OutcomeUnknown("sent, no answer"), on_unknown="hold", owner="fulfilment")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run()
        assert names(world) == ["unknown", "held"]
        (held,) = dead(world, "orders-held")
        assert (held.reason.kind, held.reason.key, held.reason.owner) == ("unknown", "o-1", "fulfilment")
        assert (record(world).status, record(world).parked) == ("unknown", True)
        assert record(world).expires_at_ms is None
        shop.ship.send({"id": "o-1"})  # whoever sends it again waits with it
        world.run_for(60_000)
        assert len(dead(world, "orders-held")) == 2
        assert shop.calls == [("o-1", 1)]


@pytest.mark.parametrize(
    ("found", "calls", "events", "result"),
    [
        (onefold.Done("L-0"), 1, ["unknown", "retry", "probe", "completed"], b'"L-0"'),
        (onefold.NotDone(), 2, ["unknown", "retry", "probe", "completed"], b'"L-1"'),
        (onefold.StillUnknown("down"), 1, ["unknown", "retry", "probe", "unknown", "held"], None),
        ("perhaps", 1, ["unknown", "retry", "probe", "unknown", "held"], None),
        (ValueError("a probe that fails"), 1, ["unknown", "retry", "probe", "unknown", "held"], None),
    ],
)
def test_an_unknown_outcome_that_is_asked_for(found: Any, calls: int, events: list[str], result: bytes | None) -> None:
    def probe(order: Order) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    shop = Shop(onefold.OutcomeUnknown("sent, no answer"), "L-1", on_unknown=probe)
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run_for(10_000)
        assert len(shop.calls) == calls
        assert names(world) == events
        assert record(world).result == result
        assert len(dead(world, "orders-held")) == (result is None)


def test_an_async_probe_with_a_context() -> None:
    async def probe(order: Order, ctx: onefold.Context) -> onefold.Done:
        return onefold.Done(f"fence {ctx.fence}")

    shop = Shop(onefold.OutcomeUnknown("sent"), on_unknown=probe)
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run_for(10_000)
        assert record(world).result == b'"fence 2"'


def test_a_result_that_cannot_be_stored_is_parked() -> None:
    shop = Shop(object())
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run_for(60_000)
        assert len(shop.calls) == 1
        assert names(world) == ["unknown", "held"]
        (held,) = dead(world, "orders-held")
        assert (held.reason.kind, held.reason.error) == ("unknown", "PayloadError")
        assert record(world).parked


# -- crashes, takeovers, budgets ---------------------------------------------------------------------------


class Crash(KeyboardInterrupt):
    """The process ends in the middle of a handler."""


def test_after_crashes_the_operation_is_quarantined_with_its_evidence() -> None:
    shop = Shop(Crash(), retry=onefold.Retry(attempts=10, crashes=3))
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        for _ in range(3):
            with pytest.raises(Crash):
                bench.process().run()
            bench.clock.advance(30_000)
        last = bench.process()
        last.run()
        assert last.names() == ["takeover", "quarantine"]
        assert last.of("takeover").detail["crashes"] == 3
        assert len(shop.calls) == 3
        (letter,) = bench.messages("orders-dead")
        assert letter.reason is not None
        assert (letter.reason.kind, letter.reason.error, letter.reason.crashes) == (
            "quarantine",
            "WorkerDied",
            3,
        )


def test_crashes_are_counted_by_key_not_by_message() -> None:
    shop = Shop(Crash(), retry=onefold.Retry(attempts=10, crashes=2))
    with opened(shop.app) as bench:
        for _ in range(2):
            shop.ship.send({"id": "o-1"})
            with pytest.raises(Crash):
                bench.process().run()
            bench.clock.advance(30_000)
            for one in bench.receive():
                bench.backend.open_queue("orders").delete([one.receipt])
        shop.ship.send({"id": "o-1"})
        last = bench.process()
        last.run()
        assert last.names() == ["takeover", "quarantine"]


def test_a_redrive_opens_a_new_budget() -> None:
    shop = Shop(*[onefold.TransientError("not now")] * 3, "L-1")
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run_for(60_000)
        (letter,) = dead(world)
        fence, total = record(world).fence, record(world).attempts_total
        world.app.runtime().engine.queues.move([(letter.message_id, "orders", None)])
        world.run()
        assert shop.calls[-1] == ("o-1", 1)  # the first run of the new budget
        assert names(world)[-1] == "completed"
        assert (record(world).fence, record(world).attempts_total) == (fence + 1, total + 1)


def test_a_run_that_is_taken_over_is_refused_and_told() -> None:
    shop = Shop("late", "L-2")
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        slow, quick = bench.process(), bench.process()
        (run,) = slow.begin()
        slow.runner.perform(run)
        bench.clock.advance(30_000)
        quick.run()
        assert quick.names() == ["takeover", "unknown", "completed"]
        assert slow.runner.finish([run]) == []
        assert slow.names() == ["lease-lost"]
        stored = bench.record("o-1")
        assert stored is not None
        assert (stored.result, stored.fence) == (b'"L-2"', 2)
        assert "lease-lost" in [row.event for row in bench.history("o-1")]


def test_another_process_waits_for_a_running_one_without_using_up_receives() -> None:
    shop = Shop("L-1", dead_after=3)
    with opened(shop.app) as bench:
        shop.ship.send_many([{"id": "o-1"}, {"id": "o-1"}])
        busy, other = bench.process(), bench.process()
        (run,) = busy.begin(bench.receive(count_max=1))
        other.run_for(20_000)
        assert set(other.names()) == {"running-elsewhere"}
        assert len(other.names()) == 21  # looks again every second, for nothing
        busy.perform([run])
        other.run_for(2_000)
        assert other.names()[-1] == "duplicate"
        assert bench.messages("orders-dead") == []
        assert len(shop.calls) == 1


def test_an_unstarted_claim_that_is_taken_over_is_plain_work() -> None:
    shop = Shop(onefold.OutcomeUnknown("sent"), "L-1", on_unknown="hold")
    with opened(shop.app) as bench:
        # A claim in doubt that never got to its start: still in doubt, so still held.
        shop.ship.send({"id": "o-1"})
        bench.process().begin()
        bench.clock.advance(30_000)
        second = bench.process()
        second.run()
        assert second.names() == ["takeover", "unknown", "held"]
        assert shop.calls == []


# -- the outbox --------------------------------------------------------------------------------------------


def letters_app(*outcomes: Any) -> tuple[onefold.App, Any, list[str]]:
    app = onefold.App("shop")
    orders, letters = app.queue("orders"), app.queue("letters")
    written: list[str] = []
    left = list(outcomes)

    @app.job(letters, key="{id}")
    def write(letter: Order) -> None:
        written.append(letter["id"])

    @app.job(orders, key="{id}", retry=PLAIN, on_unknown="hold")
    def ship(order: Order) -> str:
        receipt = write.send({"id": f"letter-{len(left)}"})
        assert receipt.message_id is None  # it waits in the outbox
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    return app, ship, written


def test_messages_of_a_handler_leave_when_it_completes() -> None:
    app, ship, written = letters_app(onefold.TransientError("not now"), "L-1")
    with inline(app) as world:
        ship.send({"id": "o-1"})
        world.run()
        assert (written, world.depth("letters").visible) == ([], 0)
        world.run_for(10_000)
        assert written == ["letter-1"]


@pytest.mark.parametrize("failure", [onefold.PermanentError("never"), onefold.OutcomeUnknown("sent")])
def test_messages_of_a_handler_stay_when_it_does_not(failure: Exception) -> None:
    app, ship, written = letters_app(failure)
    with inline(app) as world:
        ship.send({"id": "o-1"})
        world.run_for(60_000)
        assert (written, world.depth("letters").visible) == ([], 0)


# -- what is not begun, what cannot be written -------------------------------------------------------------


def test_a_message_for_an_unknown_job_is_given_back_and_waits() -> None:
    shop = Shop(dead_after=3)
    with inline(shop.app) as world:
        attributes = {"onefold.job": Attribute("invoice")}
        world.app.runtime().engine.queues.open("orders").send([Entry(body='{"id":"i-1"}', attributes=attributes)])
        world.run_for(600_000, step_ms=10_000)
        assert set(names(world)) == {"released", "waits-for-job"}
        assert names(world).count("waits-for-job") == 1
        assert 5 <= names(world).count("released") <= 10  # longer each time, and no receive was counted
        assert all("'invoice', which is not declared" in str(event.detail["why"]) for event in told(world))
        assert dead(world) == []
        assert world.depth("orders").delayed + world.depth("orders").in_flight == 1


def test_a_dependency_that_is_down_uses_up_no_attempt() -> None:
    shop = Shop(*[onefold.DependencyDown("the key was rotated")] * 20, "L-1", dead_after=5)
    with inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run()
        assert names(world)[0] == "dependency-down"
        assert (record(world).status, record(world).attempts) == ("released", 0)
        assert record(world).failure.error == "DependencyDown"
        world.run_for(240_000, step_ms=10_000)
        assert dead(world) == []
        assert {attempt for _, attempt in shop.calls} == {1}


@pytest.mark.parametrize("one_transaction", [True, False])
def test_completing_fails_after_the_effect(one_transaction: bool) -> None:
    shop = Shop("L-1", "L-2")
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        fault = Fault("commit.commit" if one_transaction else "store.write", times=1_000)
        broken = bench.process(fault=fault, one_transaction=one_transaction)
        broken.run()
        assert broken.names() == ["completion-failed"]
        assert broken.events[0].severity == "critical"
        assert bench.clock.waits == [50, 100, 200, 400, 800]
        # The message is left alone; its redelivery meets the unknown outcome, and the policy decides.
        assert bench.backend.open_queue("orders").depth().in_flight == 1
        bench.clock.advance(30_000)
        second = bench.process()
        second.run()
        assert second.names() == ["takeover", "unknown", "completed"]
        assert "completion-failed" in [row.event for row in bench.history("o-1")]


def test_a_failure_that_cannot_be_written_is_not_told_as_done() -> None:
    shop = Shop(onefold.PermanentError("never"))
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        broken = bench.process(fault=Fault("commit.commit", times=1_000))
        broken.run()
        assert broken.names() == ["unsettled"]
        assert bench.messages("orders-dead") == []


def test_a_claim_that_fails_leaves_what_is_ready_to_be_performed() -> None:
    shop = Shop()
    with opened(shop.app) as bench:
        # o-1 completes in one process; here its duplicate ends at once, and the claim of the third then fails.
        shop.ship.send({"id": "o-1"})
        bench.process().run()
        shop.ship.send_many([{"id": "o-1"}, {"id": "o-1"}, {"id": "o-2"}])
        fault = Fault("store.claim", times=0)
        process = bench.process(fault=fault)
        deliveries = bench.receive()
        original = process.runner.settle

        def settle_then_break(runs: Any) -> Any:
            fault.left = 1
            return original(runs)

        process.runner.settle = settle_then_break  # type: ignore[method-assign]  # the second claim fails
        ready = process.begin(deliveries)
        process.runner.settle = original  # type: ignore[method-assign]
        assert [run.facts.key and run.facts.key.key for run in ready] == ["o-2"]
        process.perform(ready)
        bench.clock.advance(30_000)
        process.run()
        assert sorted(process.names()) == ["completed", "duplicate", "duplicate"]


def test_a_claim_that_fails_at_once_leaves_the_messages_alone() -> None:
    shop = Shop()
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        process = bench.process(fault=Fault("store.claim"))
        with pytest.raises(onefold.TransientError):
            process.begin()
        bench.clock.advance(30_000)
        process.run()  # nothing of the first try is left behind in this process
        assert process.names() == ["completed"]


def test_a_start_that_fails_gives_the_run_back_without_an_attempt() -> None:
    shop = Shop(onefold.OutcomeUnknown("sent"), "L-1")
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        process = bench.process(fault=Fault("store.start"))
        process.run_for(60_000)
        assert process.names() == ["unknown", "retry", "released", "completed"]
        assert shop.calls == [("o-1", 1), ("o-1", 2)]


def test_runs_given_back_at_a_drain_can_be_claimed_at_once() -> None:
    shop = Shop()
    with opened(shop.app) as bench:
        shop.ship.send_many([{"id": "o-1"}, {"id": "o-2"}])
        first = bench.process()
        first.runner.release(bench.receive(), "drain")
        assert first.names() == ["released", "released"]
        second = bench.process()
        assert second.run() == 2
        assert [one.receive_count for one in second.events] == [1, 1]  # waiting was no receive
