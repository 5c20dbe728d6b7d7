"""`why` of a schedule and a date: did it fire, when, how often; what was dispatched; what did not take effect, and where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

import onefold
from onefold.admin import days, reconcile
from onefold.admin.days import Day, DayRun
from onefold.admin.session import AdminSession
from onefold.contracts.state import Change
from onefold.contracts.store import Ask, Claimed, Complete
from onefold.runner import runs
from tests.faces.month import ACTOR, DUE_MS, RUN, Month, opened

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
Opened = Callable[..., AbstractContextManager[Month]]


@pytest.fixture
def month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.chdir(tmp_path)
    return partial(opened, tmp_path)


def why(there: Month, text: str, name: str = "monthly_billing") -> Day:
    return days.explain(there.session, there.app.schedules, name, text)


def june(there: Month) -> DayRun:
    (found,) = why(there, "2026-06").runs
    return found


@pytest.mark.parametrize(
    ("text", "zone", "from_at", "to_at"),
    [
        ("2026", "UTC", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("2026-06", "Europe/London", "2026-05-31T23:00:00Z", "2026-06-30T23:00:00Z"),
        ("2026-12", "UTC", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("2026-03-29", "Europe/London", "2026-03-29T00:00:00Z", "2026-03-29T23:00:00Z"),
        ("2026-10-25", "Europe/London", "2026-10-24T23:00:00Z", "2026-10-26T00:00:00Z"),
        ("2026-06-01T03:00", "Europe/London", "2026-06-01T02:00:00Z", "2026-06-01T02:01:00Z"),
        ("2026-06-01T02:00:00Z", "Europe/London", "2026-06-01T02:00:00Z", "2026-06-01T02:00:01Z"),
        ("2026-06-01T04:00:00+02:00", "UTC", "2026-06-01T02:00:00Z", "2026-06-01T02:00:01Z"),
    ],
)
def test_what_a_date_means(text: str, zone: str, from_at: str, to_at: str) -> None:
    found = days.range_of(text, zone)
    instants = [days.range_of(at).from_ms for at in (from_at, to_at)]
    assert [found.from_ms, found.to_ms] == instants


def test_what_was_refused_as_a_conflict_did_not_take_effect(month: Opened) -> None:
    with month("a b") as there:
        charge, bill = there.module.charge, there.module.Bill
        plain = charge.message(bill("2026-06", "a"))
        other = replace(plain, fingerprint="0" * 32)
        now_ms = there.clock.now_ms()
        ask = Ask(
            key=other.record, fingerprint=other.fingerprint, owner="earlier", lease_until_ms=now_ms + 1_000, start=True,
            expires_at_ms=now_ms * 2,
        )  # fmt: skip
        store = there.session.engine.store
        (claimed,) = store.claim([ask], now_ms)
        assert isinstance(claimed, Claimed)
        store.write([(claimed.hold, Complete(result=b"null", expires_at_ms=now_ms * 2))], now_ms)
        there.clock.advance(1_000)
        there.fire()
        found = june(there)
        assert (found.dispatched, found.counts) == (2, {"done": 1, "dead": 1})
        assert [(one.state, one.why.split(":")[0]) for one in found.left] == [("dead", "ConflictError")]
        assert not days.is_right(found)


def test_an_app_without_schedules_was_named_all_the_same(month: Opened) -> None:
    with month("a") as there:
        with pytest.raises(onefold.errors.NotFoundError) as of_an_app:
            days.explain(there.session, {}, "nightly", "2026")
        engine = AdminSession(there.app.runtime(), actor=ACTOR)
        with pytest.raises(onefold.errors.NotFoundError) as of_an_engine:
            days.explain(engine, {}, "nightly", "2026")
    assert of_an_app.value.meaning == "No run of it began here."
    assert of_an_engine.value.meaning == "No app was named, and no run of it began here."


@pytest.mark.parametrize("text", ["", "yesterday", "26-06", "2026-13", "2026-02-30", "0000", "2026-6", "9999-12-31"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(onefold.errors.UsageError, match="is not a valid date"):
        days.range_of(text)


def test_a_month_that_went_well(month: Opened) -> None:
    with month("a b c") as there:
        there.clock.advance(2_000)
        there.fire()
        asked = why(there, "2026-06")
        assert (asked.expression, asked.owner, asked.range.zone) == ("cron(0 3 1 * ? *)", "finance", "Europe/London")
        found = june(there)
        assert (found.run, found.fired, found.times) == (RUN, "fired", 1)
        assert (found.planned, found.began) == ("2026-06-01 03:00:00 BST", "2026-06-01 03:00:02 BST")
        assert (found.dispatched, found.counts, found.left) == (3, {"done": 3}, ())
        assert found.tick == "Done at 2026-06-01 03:00:02 BST, with 1 run."
        assert found.reconciled is None
        reconcile.reconcile(there.session, there.app, RUN)
        reconciled = june(there).reconciled
        assert reconciled is not None
        assert reconciled.verdict == "agrees"


def test_every_range_that_holds_it_finds_it_and_no_other(month: Opened) -> None:
    with month("a") as there:
        there.fire()
        for text in ("2026-06-01", "2026-06-01T03:00", "2026-06-01T02:00:00Z"):
            assert [one.run for one in why(there, text).runs] == [RUN]
        assert why(there, "2026-06-02").runs == ()
        assert [one.fired for one in why(there, "2026").runs] == [
            *["before"] * 5, "fired", *["ahead"] * 6,
        ]  # fmt: skip
        assert why(there, "2026-05").runs[0].tick == "it was first taken up by a scheduler at 2026-06-01 02:00:00 BST"


def test_a_schedule_that_fired_twice_says_so(month: Opened) -> None:
    with month("a b") as there:
        there.fire()
        there.app.runtime().send([there.module.monthly_billing.outgoing(DUE_MS)])
        there.world.run()
        found = june(there)
        assert (found.times, found.dispatched, found.counts) == (2, 2, {"done": 2})


def test_what_did_not_take_effect_is_named_with_payload_and_owner(month: Opened) -> None:
    with month("a b! c d") as there:
        there.dispatch()
        there.lose("d")
        there.die("c", lease_ms=1_000)
        there.world.run()
        found = june(there)
        assert found.counts == {"done": 2, "dead": 1, "missing": 1, "doubtful": 1}
        named = {one.key: (one.state, one.queue, one.owner) for one in found.left}
        assert named == {
            "2026-06/b": ("dead", "bills-dead", "billing"),
            "2026-06/c": ("done", None, "billing"),
            "2026-06/d": ("missing", None, "billing"),
        }
        (dead,) = [one for one in found.left if one.state == "dead"]
        assert dead.message_id is not None
        assert there.session.engine.queues.find([dead.message_id])[0] is not None


def test_only_the_first_are_named(month: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(days, "LEFT_MAX", 2)
    with month("a! b! c! d!") as there:
        there.fire()
        found = june(there)
        assert (len(found.left), found.others, found.counts) == (2, 2, {"dead": 4})


def test_a_dispatch_that_failed_says_why_and_where_its_tick_is(month: Opened) -> None:
    with month("a RAISE b") as there:
        for _ in range(20):
            there.fire()
            there.clock.advance(HOUR_MS)
        found = june(there)
        assert found.state is not None
        assert found.state.failure == "ConnectionError: the customer list is away"
        assert found.tick.startswith("In the dead-letter queue billing-schedules-dead, expires in 13d8h. (attempts)")
        assert found.tick.endswith("ConnectionError: the customer list is away (owner: finance)")
        assert any(step.startswith("onefold dlq") for step in found.todo)


def test_a_tick_that_nobody_has_sent_says_what_to_look_at(month: Opened) -> None:
    with month("a") as there:
        there.clock.advance(HOUR_MS)
        found = june(there)
        assert (found.fired, found.began) == ("not-fired", None)
        assert found.tick == "it is due, and no scheduler has sent it yet: is one running?"


def test_ticks_that_were_passed_over_are_told_as_such(month: Opened) -> None:
    with month("a") as there:
        there.clock.advance(65 * DAY_MS)  # June, July and August are due: missed="last" sends August's
        there.fire()
        june_run, july_run, august_run = why(there, "2026").runs[5:8]
        assert (june_run.fired, july_run.fired, august_run.fired) == ("not-fired", "not-fired", "fired")
        assert june_run.tick == "no scheduler ran then, and it was passed over afterwards (missed='last')"


def test_where_another_scheduler_sends_ticks_only_their_absence_is_known(month: Opened) -> None:
    with month("a") as there:
        there.session.engine.state.put([Change("schedule/monthly_billing", None, 1)])
        assert [one.fired for one in why(there, "2026").runs[4:7]] == ["not-fired", "not-fired", "ahead"]
        assert june(there).tick == "no scheduler has taken up the schedule, and no tick of it was ever handled here"
        there.app.runtime().send([there.module.monthly_billing.outgoing(DUE_MS)])  # as EventBridge Scheduler does
        there.world.run()
        there.clock.advance(31 * DAY_MS)
        found = why(there, "2026").runs[4:8]
        assert [one.fired for one in found] == ["before", "fired", "not-fired", "ahead"]
        assert found[0].tick == "it was first seen here at 2026-06-01 03:00:00 BST"
        assert found[2].tick == "its tick was never handled here, or its run was deleted after 90 days"


def test_without_an_app_what_began_is_told(month: Opened) -> None:
    with month("a b") as there:
        there.fire()
        bare = AdminSession(there.session._runtime, actor=ACTOR)
        found = days.explain(bare, {}, "monthly_billing", "2026-06")
        assert (found.declared, found.expression, found.range.zone) == (False, None, "UTC")
        assert [(one.run, one.planned, one.counts) for one in found.runs] == [
            (RUN, "2026-06-01 02:00:00 UTC", {"done": 2})
        ]


def test_a_map_run_is_found_by_its_start(month: Opened) -> None:
    with month("a") as there:
        state = there.session.engine.state
        runs.begin(state, runs.RunState(name="enrich/7", kind="map", title="enrich", started_at_ms=DUE_MS, expected=0))
        (found,) = why(there, "2026-06-01", "enrich").runs
        assert (found.run, found.planned, found.times, found.tick) == ("enrich/7", None, None, "")
        assert why(there, "2026-06-02", "enrich").runs == ()


def test_a_name_that_nobody_knows_gets_a_near_one(month: Opened) -> None:
    with month("a") as there:
        with pytest.raises(onefold.errors.NotFoundError, match="There is no schedule 'monthly-billing'") as caught:
            why(there, "2026-06", "monthly-billing")
        assert "Did you mean monthly_billing?" in str(caught.value)


def test_what_did_not_fire_for_one_reason_is_one_row_where_it_does_not_fit(
    month: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    with month("a") as there:
        there.fire()
        monkeypatch.setattr(days, "RUNS_MAX", 4)
        found = why(there, "2026")
        assert [(one.fired, one.count) for one in found.runs] == [("before", 5), ("fired", 1), ("ahead", 6)]
        assert (found.runs[0].planned, found.runs[0].until) == ("2026-01-01 03:00:00 GMT", "2026-05-01 03:00:00 BST")
        assert (found.not_shown, found.is_right) == (0, True)


def test_a_run_that_is_not_as_it_should_be_is_judged_wherever_it_stands(
    month: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    with month("a b") as there:
        there.dispatch()
        there.lose("b")
        there.world.run()
        monkeypatch.setattr(days, "RUNS_MAX", 1)
        found = why(there, "2026")
        assert RUN in [one.run for one in found.runs]
        assert (found.wrong, found.wrong_not_shown, found.is_right) == (1, 0, False)


def test_what_nobody_looked_at_is_never_right(month: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with month("a") as there:
        there.fire()
        assert why(there, "2026").is_right
        monkeypatch.setattr(days, "JUDGED_MAX", 0)
        found = why(there, "2026")
        assert (found.unjudged, found.not_shown, found.is_right) == (1, 1, False)
