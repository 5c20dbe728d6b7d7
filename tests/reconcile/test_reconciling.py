"""Reconciliation after a run: our look at dispatched keys and records, the user's own count, the job that does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

import onefold
from onefold.contracts.ledger import Row
from onefold.contracts.queue import RUN_ATTRIBUTE, Attribute
from onefold.contracts.store import Ask, Claimed, Complete, Hold, ManualDecision, RecordKey
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.reconcile import findings
from onefold.reconcile import reconciler as reconciling
from onefold.reconcile.counts import Totals, compare
from onefold.reconcile.survey import Survey
from onefold.runner import runs
from onefold.runtime.events import Sinks
from onefold.testing.inline import World, inline

RUN = "billing/2026-06-01T02:00:00Z"
OTHER = "0" * 32  # fingerprint of a payload that no test dispatches
START_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z


@dataclass
class Bill:
    customer: str


class Shop:
    """A dispatcher's run, planted by hand as `runner/dispatcher.py` writes it."""

    def __init__(self) -> None:
        self.ill: dict[str, Exception] = {}
        self.rows: dict[str, int] = {}
        self.app = onefold.App("billing-shop")
        self.queue = self.app.queue("bills")
        self.careful = self.app.queue("careful")
        retry = onefold.Retry(attempts=2, base="1s", jitter="none")

        def charge(bill: Bill) -> None:
            if bill.customer in self.ill:
                raise self.ill[bill.customer]
            self.rows[bill.customer] = self.rows.get(bill.customer, 0) + 1

        self.charge = self.app.job(self.queue, key="{customer}", name="charge", owner="billing", retry=retry)(charge)
        self.pay = self.app.job(self.careful, key="{customer}", name="pay", on_unknown="hold")(charge)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def world(shop: Shop) -> Iterator[World]:
    with inline(shop.app, start_ms=START_MS) as opened:
        yield opened


def dispatch(world: World, customers: list[str], job: Any, *, again: bool = False) -> None:
    """What a dispatcher leaves: rows, messages, the run's state."""
    engine = world.app.runtime().engine
    begun = runs.begin(
        engine.state,
        runs.RunState(
            name=RUN, kind="dispatch", title="billing", nominal_at_ms=START_MS, started_at_ms=world.clock.now_ms()
        ),
    )
    messages = [with_run(job.message(Bill(one))) for one in customers]
    engine.ledger.append(
        [
            Row(at_ms=world.clock.now_ms(), event="dispatched", key=one.record, queue=one.queue, run=RUN)
            for one in messages
        ]
    )
    world.app.runtime().send(messages)
    expected = sum(engine.ledger.tally(RUN).values())
    assert begun.run.expected is None or again
    runs.note(engine.state, RUN, expected=expected, dispatched=expected)


def with_run(outgoing: Any) -> Any:
    attributes = {**outgoing.entry.attributes, RUN_ATTRIBUTE: Attribute(RUN)}
    return replace(outgoing, entry=replace(outgoing.entry, attributes=attributes))


def look(world: World, own: Any = None) -> findings.ReconcileOutcome:
    """Look by hand, with an own answer."""
    app = world.app
    one = reconciling.ReconcilePass(
        app.runtime().engine,
        app.jobs,
        reconciling.ReconcileMessage(run=RUN),
        name="by-hand",
        now_ms=world.clock.now_ms(),
    )
    check = one.survey()
    return one.outcome(compare(own, check.pages) if own is not None else None)


def lose(world: World, *customers: str) -> None:
    """Take messages away behind everybody's back."""
    admin = world.app.runtime().engine.queues
    for customer in customers:
        admin.remove([one.message_id for one in admin.find_key(customer)])


def claim(world: World, key: RecordKey, *, start: bool, lease_ms: int, payload: str | None = None) -> Hold:
    """Claim as a worker would that then dies."""
    store, now_ms = world.app.runtime().engine.store, world.clock.now_ms()
    ask = Ask(
        key=key, fingerprint=payload or fingerprint(world, key), owner="dead", lease_until_ms=now_ms + lease_ms,
        start=start, expires_at_ms=now_ms + 10**10,
    )  # fmt: skip
    (found,) = store.claim([ask], now_ms)
    assert isinstance(found, Claimed)
    return found.hold


def fingerprint(world: World, key: RecordKey) -> str:
    return str(world.app.jobs[key.job].message(Bill(key.key)).fingerprint)


@pytest.mark.parametrize("crashed", [False, True])
def test_what_was_refused_as_a_conflict_is_dead_though_its_key_is_done(shop: Shop, world: World, crashed: bool) -> None:
    """A complete record says that a key is done, and not that it is done with what this run dispatched."""
    key = RecordKey("", "charge", "a")
    if crashed:
        claim(world, key, start=True, lease_ms=1_000, payload=OTHER)
        world.clock.advance(1_000)
    hold = claim(world, key, start=True, lease_ms=1_000, payload=OTHER)
    store = world.app.runtime().engine.store
    assert store.write([(hold, Complete(result=b"null", expires_at_ms=START_MS * 2))], world.clock.now_ms()) == [True]
    world.clock.advance(60_000)
    dispatch(world, ["a", "b"], shop.charge)
    found = look(world)
    assert (found.verdict, found.done, found.waiting, found.doubtful) == ("late", 0, 2, 0)
    world.run()
    found = look(world)
    assert (found.verdict, found.dispatched, found.done, found.dead) == ("disagrees", 2, 1, 1)
    assert found.doubtful == 0
    (example,) = found.examples
    assert (example.key, example.state, example.queue) == ("a", "dead", "bills-dead")
    assert example.why.startswith("ConflictError: The key was used before with another payload")
    lose(world, "a")
    found = look(world)
    assert (found.done, found.missing) == (1, 1)
    assert found.examples[0].why == "its key was used before with another payload; the message that was refused is gone"


def test_what_an_earlier_message_with_the_same_payload_did_is_done(shop: Shop, world: World) -> None:
    world.app.runtime().send([shop.charge.message(Bill("a"))])
    world.run()
    world.clock.advance(60_000)
    dispatch(world, ["a"], shop.charge)
    assert (look(world).verdict, look(world).waiting) == ("late", 1)
    world.run()
    assert (look(world).verdict, look(world).done, shop.rows) == ("agrees", 1, {"a": 1})


def test_what_was_refused_while_the_other_payload_failed_is_dead(shop: Shop, world: World) -> None:
    claim(world, RecordKey("", "charge", "a"), start=True, lease_ms=60_000, payload=OTHER)
    dispatch(world, ["a"], shop.charge)
    world.run()
    found = look(world)
    assert (found.verdict, found.running, found.dead) == ("disagrees", 0, 1)


# -- our own look ----------------------------------------------------------------------------------------------------


def test_a_run_that_is_done_agrees(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b", "c"], shop.charge)
    world.run()
    found = look(world)
    assert (found.verdict, found.findings, found.examples) == ("agrees", (), ())
    assert (found.expected, found.dispatched, found.done) == (3, 3, 3)


def test_what_is_not_done_yet_is_late(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b", "c"], shop.charge)
    shop.ill["b"] = ValueError("odd")
    world.run()
    found = look(world)
    assert (found.verdict, found.done, found.waiting, found.missing) == ("late", 2, 1, 0)
    assert found.findings == ("1 not done yet: waiting or running.",)
    (example,) = found.examples
    assert (example.key, example.state, example.why, example.owner) == ("b", "waiting", "ValueError: odd", "billing")


def test_a_message_that_is_gone_is_missing(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b", "c"], shop.charge)
    lose(world, "b")
    world.run()
    found = look(world)
    assert (found.verdict, found.done, found.missing) == ("disagrees", 2, 1)
    assert found.findings == ("1 missing: dispatched, not done, and no message of it is left.",)
    assert found.examples[0].why == "its message is gone, and nothing ever claimed it"


@pytest.mark.parametrize("table", ["onefold_message", "onefold_waiting"])
def test_a_message_whose_row_was_deleted_by_hand_is_missing(shop: Shop, world: World, table: str) -> None:
    """Whichever of the file's two rows of a message somebody deletes, nobody can receive it any more."""
    dispatch(world, ["a", "b", "c"], shop.charge)
    delete_by_hand(world, table, "SELECT id FROM onefold_message WHERE key = 'b'")
    world.run()
    found = look(world)
    assert (found.verdict, found.done, found.missing, found.waiting) == ("disagrees", 2, 1, 0)
    assert found.examples[0].why == "its message is gone, and nothing ever claimed it"


def test_a_dead_letter_whose_row_was_deleted_by_hand_is_missing(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b"], shop.charge)
    shop.ill["b"] = onefold.PermanentError("no such card")
    world.run()
    delete_by_hand(world, "onefold_received", "SELECT id FROM onefold_message WHERE key = 'b'")
    found = look(world)
    assert (found.missing, found.dead, found.examples[0].state) == (1, 0, "missing")


def delete_by_hand(world: World, table: str, which: str) -> None:
    engine = world.app.runtime().engine
    assert isinstance(engine, SqliteEngine)
    count = engine.database.write(
        lambda connection: connection.execute(f"DELETE FROM {table} WHERE id IN ({which})").rowcount
    )
    assert count == 1


def test_a_dead_letter_is_named_with_its_queue_reason_and_owner(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b"], shop.charge)
    shop.ill["b"] = onefold.PermanentError("no such card")
    world.run()
    found = look(world)
    (example,) = found.examples
    assert (found.verdict, found.dead, example.state, example.queue) == ("disagrees", 1, "dead", "bills-dead")
    assert (example.why, example.owner) == ("PermanentError: no such card", "billing")
    assert example.message_id is not None


def test_a_dead_letter_that_is_gone_is_missing_and_was_a_dead_letter(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b"], shop.charge)
    shop.ill["b"] = onefold.PermanentError("no such card")
    world.run()
    lose(world, "b")
    (example,) = look(world).examples
    assert example.state == "missing"
    assert example.why.startswith("it was a dead letter, and its message is gone, purged or expired perhaps")
    assert example.why.endswith("no such card")


def test_a_held_outcome_is_no_missing_one(shop: Shop, world: World) -> None:
    dispatch(world, ["a"], shop.pay)
    shop.ill["a"] = onefold.OutcomeUnknown("the bank did not answer")
    world.run()
    found = look(world)
    assert (found.verdict, found.held, found.missing) == ("disagrees", 1, 0)
    assert "the bank did not answer" in found.examples[0].why


def test_a_run_under_way_is_running_then_stuck(shop: Shop, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch(world, ["a"], shop.charge)
    key = RecordKey("", "charge", "a")
    claim(world, key, start=True, lease_ms=5_000)
    assert (look(world).verdict, look(world).running) == ("late", 1)
    world.clock.advance(5_000)
    found = look(world)
    assert (found.verdict, found.stuck) == ("disagrees", 1)
    assert found.examples[0].why == "a run of it went silent; its message comes back and takes it over"
    with monkeypatch.context() as stopped:
        stopped.setattr(type(world.app.runtime().engine), "stopped_process", lambda *_: 4_711)
        assert "a run of it went silent; its process 4711 is stopped" in look(world).examples[0].why
    lose(world, "a")
    assert look(world).examples[0].why == "a run of it went silent; no message is left to take it over"


def test_what_its_queue_has_buried_is_dead_though_its_record_has_no_end(shop: Shop, world: World) -> None:
    dispatch(world, ["a"], shop.charge)
    claim(world, RecordKey("", "charge", "a"), start=True, lease_ms=5_000)
    queue = world.app.runtime().engine.queues.open("bills")
    for _ in range(11):  # its workers die, again and again, until the queue itself gives it up
        queue.receive(1, 5_000)
        world.clock.advance(5_000)
    found = look(world)
    assert (found.verdict, found.dead, found.stuck) == ("disagrees", 1, 0)
    assert (found.examples[0].state, found.examples[0].queue) == ("dead", "bills-dead")
    assert "Received 10 times" in found.examples[0].why


def test_a_second_run_after_a_silent_one_is_doubtful_until_the_count_says_once(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b"], shop.charge)
    claim(world, RecordKey("", "charge", "a"), start=True, lease_ms=1_000)
    world.clock.advance(1_000)
    world.run()
    found = look(world)
    assert (found.verdict, found.done, found.doubtful, found.twice) == ("disagrees", 2, 1, 0)
    assert found.findings == ("1 may have taken effect more than once: a run died and was run again.",)
    assert look(world, {"a": 1, "b": 1}).verdict == "agrees"
    found = look(world, {"a": 2, "b": 1})
    assert found.verdict == "disagrees"
    assert found.findings[-1] == "Your own check expected 2 keys and found 3: 1 too many."


def test_a_doubt_that_a_person_settles_is_none(shop: Shop, world: World) -> None:
    dispatch(world, ["a"], shop.pay)
    claim(world, RecordKey("", "pay", "a"), start=True, lease_ms=1_000)
    world.clock.advance(1_000)
    world.run()
    assert look(world).held == 1
    engine = world.app.runtime().engine
    decision = ManualDecision(done=True, result=b"null", expires_at_ms=10**14)
    assert engine.records.settle(RecordKey("", "pay", "a"), decision, world.clock.now_ms())
    found = look(world)
    assert (found.verdict, found.doubtful) == ("agrees", 0)


def test_what_completed_twice_is_found_by_its_rows(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b"], shop.charge)
    world.run()
    engine = world.app.runtime().engine
    key = RecordKey("", "charge", "a")
    now_ms = world.clock.now_ms()
    assert engine.records.settle(key, ManualDecision(done=False, result=b"", expires_at_ms=10**14), now_ms) is False
    world.clock.advance(91 * 86_400_000)  # the record has expired; the rows have not
    dispatch(world, ["a"], shop.charge, again=True)
    claim(world, key, start=True, lease_ms=1_000)
    world.clock.advance(1_000)
    world.run()
    found = look(world)
    assert (found.twice, found.verdict) == (1, "disagrees")
    assert "1 completed more than once." in found.findings


def test_what_completed_twice_without_a_crash_is_found_too(shop: Shop, world: World) -> None:
    dispatch(world, ["a", "b"], shop.charge)
    world.run()
    world.clock.advance(91 * 86_400_000)  # its record has expired: nothing of it says that there was one before
    dispatch(world, ["b"], shop.charge, again=True)
    world.run()
    found = look(world)
    assert (found.dispatched, found.done, found.twice, found.doubtful) == (2, 1, 1, 0)
    (example,) = [one for one in found.examples if one.twice]
    assert (example.key, example.why) == ("b", f"completed 2 times, {91 * 86_400_000} ms apart")


def test_keys_that_share_a_bit_are_told_apart(shop: Shop, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.reconcile.survey._TABLE_BITS", 3)
    dispatch(world, [f"c-{number}" for number in range(30)], shop.charge)
    world.run()
    assert (look(world).verdict, look(world).twice) == ("agrees", 0)


def test_what_was_dispatched_again_is_one_operation(shop: Shop, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.reconcile.survey.PAGE", 2)  # so that the second time is on a later page
    dispatch(world, ["a", "b", "c"], shop.charge)
    dispatch(world, ["a", "b", "c"], shop.charge, again=True)
    lose(world, "c")
    world.run()
    survey = Survey(world.app.runtime().engine, RUN, world.clock.now_ms(), {})
    (item,) = survey.walk()
    assert (item.key.key, item.state) == ("c", "missing")
    assert (survey.dispatched, survey.counts) == (3, {"done": 2, "missing": 1})


def test_an_unfinished_dispatch_is_late_and_a_failed_one_disagrees(shop: Shop, world: World) -> None:
    engine = world.app.runtime().engine
    runs.begin(engine.state, runs.RunState(name=RUN, kind="dispatch", title="billing", started_at_ms=START_MS))
    assert look(world).findings == ("It is still being dispatched: 0 so far.",)
    runs.note(engine.state, RUN, failure="ValueError: row 10001")
    found = look(world)
    assert (found.verdict, found.findings) == ("disagrees", ("Its dispatch failed: ValueError: row 10001",))


def test_a_run_that_says_more_than_its_ledger_disagrees(shop: Shop, world: World) -> None:
    dispatch(world, ["a"], shop.charge)
    world.run()
    runs.note(world.app.runtime().engine.state, RUN, expected=5)
    assert look(world).findings == ("It dispatched 5; the ledger names 1.",)


def test_more_than_state_holds_is_left_out_and_counted(shop: Shop, world: World) -> None:
    customers = [f"{number:02}-{chr(0x1F4B7) * 500}" for number in range(30)]  # a key of four bytes a sign
    dispatch(world, customers, shop.charge)
    lose(world, *customers)
    outcome = look(world, dict.fromkeys(customers, 2))
    engine = world.app.runtime().engine
    findings.record(engine, outcome, actor="person:ada", sinks=Sinks([]))
    stands = findings.read(engine.state, RUN)
    assert stands is not None
    assert stands.own is not None
    assert (stands.missing, stands.own.duplicate) == (30, 30)
    assert 5 < len(stands.examples) < findings.EXAMPLES_MAX
    assert len(stands.examples) + stands.left_out == 30
    assert [one.key for one in stands.own.differences] == customers[:20]


def test_a_key_that_was_never_dispatched_is_named_by_its_beginning(shop: Shop, world: World) -> None:
    dispatch(world, ["a"], shop.charge)
    outcome = look(world, {"x" * 100_000: 1})
    findings.record(world.app.runtime().engine, outcome, actor="person:ada", sinks=Sinks([]))
    assert outcome.own is not None
    assert [one.key for one in outcome.own.differences] == ["a", "x" * 600]


# -- the job ---------------------------------------------------------------------------------------------------------


def begin_with_follow_ups(world: World) -> None:
    """What a scheduler does in the transaction that begins a run."""
    assert runs.send_reconciliations(world.app.runtime(), RUN, "billing", world.clock.now_ms()) == []


def declared(shop: Shop, **options: Any) -> list[reconciling.Reconciliation]:
    seen: list[reconciling.Reconciliation] = []

    @shop.app.reconcile("billing", after="30m", owner="finance", **options)
    def statements_exist(check: reconciling.Reconciliation) -> dict[str, int]:
        seen.append(check)
        return shop.rows

    return seen


def test_it_looks_once_some_time_after_the_run(shop: Shop) -> None:
    seen = declared(shop)
    with inline(shop.app, start_ms=START_MS) as world:
        begin_with_follow_ups(world)
        begin_with_follow_ups(world)  # the scheduler fired twice
        dispatch(world, ["a", "b"], shop.charge)
        world.run_for(29 * 60_000, 60_000)
        assert not seen
        world.run_for(60_000, 60_000)
        assert [(one.run, one.schedule, one.dispatched, one.done, one.look) for one in seen] == [
            (RUN, "billing", 2, 2, 1)
        ]
        assert f"{seen[0].local:%Y-%m-%d %H:%M %Z}" == "2026-06-01 02:00 UTC"
        assert list(seen[0].pages()) == [["a", "b"]]
        (event,) = [one for one in world.events if one.name.startswith("reconcile")]
        assert (event.name, event.run, event.detail["verdict"], event.detail["own_found"]) == (
            "reconciled",
            RUN,
            "agrees",
            2,
        )
        engine = world.app.runtime().engine
        outcome = findings.read(engine.state, RUN)
        assert outcome is not None
        assert (outcome.verdict, outcome.own.found if outcome.own else None) == ("agrees", 2)
        assert [row.event for row in engine.ledger.of_run(RUN)][-1] == "reconciled"
        assert engine.records.find(RUN)[0].result == b'{"dispatched":2,"done":2,"verdict":"agrees"}'


def test_what_is_wrong_is_told_loudly_and_the_missing_know_it(shop: Shop) -> None:
    declared(shop)
    with inline(shop.app, start_ms=START_MS) as world:
        begin_with_follow_ups(world)
        dispatch(world, ["a", "b"], shop.charge)
        lose(world, "b")
        world.run_for(30 * 60_000, 60_000)
        (event,) = [one for one in world.events if one.name.startswith("reconcile")]
        assert (event.name, event.severity, event.detail["missing"]) == ("reconcile-failed", "error", 1)
        engine = world.app.runtime().engine
        assert [row.event for row in engine.ledger.of_key(RecordKey("", "charge", "b"))][-1] == "missing"
        assert engine.ledger.tally(RUN)["missing"] == 1


def test_what_is_late_is_looked_at_again_a_few_times(shop: Shop) -> None:
    seen = declared(shop)
    with inline(shop.app, start_ms=START_MS) as world:
        begin_with_follow_ups(world)
        dispatch(world, ["a", "b"], shop.charge)
        take_all(world)
        world.run_for(5 * 60 * 60_000, 60_000)
        assert [one.look for one in seen] == [1, 2, 3, 4]
        names = [one.name for one in world.events if one.name.startswith("reconcile")]
        assert names == ["reconcile-failed"] * 4


def take_all(world: World) -> None:
    """Receive everything and never settle it, for as long as SQS lets one."""
    queue = world.app.runtime().engine.queues.open("bills")
    assert len(queue.receive(10, 43_200_000)) == 2


def test_a_coroutine_counts_too(shop: Shop) -> None:
    @shop.app.reconcile("billing", after="1s")
    async def statements_exist(check: reconciling.Reconciliation) -> Totals:
        return Totals(expected=check.dispatched, found=sum(shop.rows.values()), what="statements")

    with inline(shop.app, start_ms=START_MS) as world:
        begin_with_follow_ups(world)
        dispatch(world, ["a", "b"], shop.charge)
        world.run()
        shop.rows["a"] = 0
        world.run_for(1_000)
        outcome = findings.read(world.app.runtime().engine.state, RUN)
        assert outcome is not None
        assert outcome.findings == ("Your own check expected 2 statements and found 1: 1 missing.",)


def test_without_a_function_only_records_are_looked_at(shop: Shop) -> None:
    shop.app.reconcile("billing", after="1s")
    with inline(shop.app, start_ms=START_MS) as world:
        begin_with_follow_ups(world)
        world.run_for(1_000)
        outcome = findings.read(world.app.runtime().engine.state, RUN)
        assert outcome is not None
        assert (outcome.verdict, outcome.own) == ("agrees", None)


def test_a_check_that_fails_is_retried_as_any_job_and_writes_nothing(shop: Shop) -> None:
    @shop.app.reconcile("billing", after="1s")
    def broken(check: reconciling.Reconciliation) -> dict[str, int]:
        raise ConnectionError("the database is away")

    with inline(shop.app, start_ms=START_MS) as world:
        begin_with_follow_ups(world)
        world.run_for(3_600_000, 60_000)
        assert findings.read(world.app.runtime().engine.state, RUN) is None
        assert world.depth("onefold-reconcile-dead").visible == 1


@pytest.mark.parametrize(
    ("of", "options", "error"),
    [
        (3, {}, onefold.errors.UsageError),
        ("", {}, onefold.errors.UsageError),
        ("billing", {"after": "0s"}, onefold.errors.UsageError),
        ("billing", {"after": "15d"}, onefold.errors.UsageError),
        ("billing", {"afer": "1h"}, onefold.errors.UsageError),
    ],
)
def test_a_declaration_that_cannot_be_right_is_refused(
    shop: Shop, of: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        shop.app.reconcile(of, **options)
    assert not shop.app.reconcilers


@pytest.mark.parametrize("wrong", [lambda: {"k": 1}, lambda check, ctx: {}])
def test_a_check_that_cannot_be_called_is_refused_where_it_is_declared(shop: Shop, wrong: Any) -> None:
    """It would fail half an hour after the run that it is to look at."""
    with pytest.raises(onefold.errors.UsageError, match="cannot be called with one argument"):
        shop.app.reconcile("billing")(wrong)


def test_one_reconciliation_has_one_check_and_one_name(shop: Shop) -> None:
    one = shop.app.reconcile("billing")
    one(lambda check: {})
    with pytest.raises(onefold.errors.ConflictError):
        one(lambda check: {})
    with pytest.raises(onefold.errors.ConflictError):
        shop.app.reconcile("billing")
    assert shop.app.reconcile("billing", name="again", after="1d").is_for(RUN, "billing")
    assert not one.is_for("other/2026-06-01T02:00:00Z", "other")
