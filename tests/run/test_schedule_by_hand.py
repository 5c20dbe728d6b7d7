"""What a person does with a schedule: a tick sent now is never sent again, a pause passes ticks over, others see it soon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from onefold import errors
from onefold.admin import activity, schedules
from onefold.admin.session import AdminSession, jobs_of
from onefold.entropy import SeededEntropy
from onefold.observe import incidents
from onefold.observe.watch import Watch
from onefold.schedules import ticks
from onefold.schedules.fire_times import Timing, between, parse
from onefold.schedules.scheduler import LOOK_MS
from onefold.schedules.ticks import ScheduleState
from tests.run.ticking import DAY_MS, HOUR_MS, MINUTE_MS, Place, at, clock_at, places

HOURLY = "cron(0 * * * ? *)"
TWO, THREE = "nightly/2026-06-01T02:00:00Z", "nightly/2026-06-01T03:00:00Z"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Place]:
    with places(Place(tmp_path / "shop.db", clock_at("2026-06-01T01:30:00"), HOURLY)) as (made,):
        made.step()
        yield made


def session_of(one: Place) -> AdminSession:
    return AdminSession(one.app.runtime(), actor="person:ada", jobs=jobs_of(one.app))


def test_the_next_tick_sent_now_is_not_sent_when_its_time_comes(one: Place) -> None:
    session = session_of(one)
    sent = schedules.run_now(session, one.app, "nightly", reason_text="the export came late")
    assert (sent.run, one.waiting()) == (TWO, [TWO])
    assert schedules.view(session, one.app, "nightly").next_key == THREE
    assert one.step(HOUR_MS) == 0
    assert one.step(HOUR_MS) == 1
    assert one.waiting() == [TWO, THREE]
    (deed,) = activity.audit(session).deeds
    assert (deed.event, deed.run, deed.reason) == ("tick-by-hand", TWO, "the export came late")


def test_several_are_brought_forward_one_after_the_other(one: Place) -> None:
    session = session_of(one)
    assert schedules.run_now(session, one.app, "nightly").run == TWO
    with pytest.raises(
        errors.ConflictError, match=r"T02:00:00Z, was sent already, ahead of its time(.|\n)*--tick .*T03"
    ):
        schedules.run_now(session, one.app, "nightly")
    assert one.waiting() == [TWO]
    assert schedules.run_now(session, one.app, "nightly", "2026-06-01T03:00:00Z").run == THREE
    schedules.run_now(session, one.app, "nightly", "2026-06-01T05:00:00Z")
    for _ in range(5):
        one.step(HOUR_MS)
    assert sorted(one.waiting()) == [f"nightly/2026-06-01T0{hour}:00:00Z" for hour in (2, 3, 4, 5, 6)]


def test_another_scheduler_does_not_send_it_either(one: Place) -> None:
    schedules.run_now(session_of(one), one.app, "nightly")
    one.again()
    assert one.step(HOUR_MS) == 0


@pytest.mark.parametrize("named", [None, "2026-06-01T02:00:00Z"])
def test_a_tick_that_was_sent_is_refused(one: Place, named: str | None) -> None:
    session = session_of(one)
    one.step(HOUR_MS)
    with pytest.raises(errors.ConflictError, match="was sent already"):
        schedules.run_now(session, one.app, "nightly", "2026-06-01T02:00:00Z")
    if named is None:
        assert schedules.run_now(session, one.app, "nightly").run == THREE
    assert one.waiting() == ([TWO] if named else [TWO, THREE])


def test_one_that_was_passed_over_can_be_sent_once(tmp_path: Path) -> None:
    with places(Place(tmp_path / "shop.db", clock_at("2026-06-01T01:30:00"), HOURLY, missed="skip")) as (one,):
        one.step()
        one.step(2 * HOUR_MS)
        assert one.waiting() == []
        session = session_of(one)
        schedules.run_now(session, one.app, "nightly", "2026-06-01T02:00:00Z")
        with pytest.raises(errors.ConflictError, match="was sent already"):
            schedules.run_now(session, one.app, "nightly", "2026-06-01T02:00:00Z")
        assert one.waiting() == [TWO]


@pytest.mark.parametrize("named", ["2026-06-01T02:30:00Z", "tomorrow", "2026-06-01T02:00:00"])
def test_a_time_without_a_tick_is_refused(one: Place, named: str) -> None:
    with pytest.raises(errors.UsageError, match=r"has no tick at|is not an instant"):
        schedules.run_now(session_of(one), one.app, "nightly", named)
    assert one.waiting() == []


def test_a_paused_schedule_sends_nothing_and_goes_on_with_its_next_tick(one: Place) -> None:
    session = session_of(one)
    assert schedules.pause(session, one.app, "nightly", reason_text="the warehouse moves")
    assert not schedules.pause(session, one.app, "nightly")
    assert schedules.view(session, one.app, "nightly").phase == "paused"
    assert one.step(3 * HOUR_MS) == 0
    assert one.scheduler.ended() == []
    assert schedules.resume(session, one.app, "nightly")
    assert not schedules.resume(session, one.app, "nightly")
    one.step(LOOK_MS)
    assert one.step(HOUR_MS) == 1
    assert one.waiting() == ["nightly/2026-06-01T05:00:00Z"]
    assert [deed.event for deed in activity.audit(session).deeds] == ["schedule-resumed", "schedule-paused"]


def test_a_tick_of_the_pause_can_be_sent_by_hand(one: Place) -> None:
    session = session_of(one)
    schedules.pause(session, one.app, "nightly")
    one.step(2 * HOUR_MS)
    schedules.run_now(session, one.app, "nightly", "2026-06-01T02:00:00Z")
    schedules.resume(session, one.app, "nightly")
    one.step(LOOK_MS)
    one.step(HOUR_MS)
    assert one.waiting() == [TWO, "nightly/2026-06-01T04:00:00Z"]


def test_a_scheduler_that_starts_leaves_a_paused_schedule_alone(one: Place) -> None:
    schedules.pause(session_of(one), one.app, "nightly")
    one.again()
    assert one.step(DAY_MS) == 0
    assert one.scheduler.ended() == []


def test_nobody_misses_the_ticks_of_a_paused_schedule(one: Place) -> None:
    session, watch = session_of(one), Watch(one.app.runtime(), None)

    def alarms() -> list[str]:
        one.clock.advance(2 * HOUR_MS)
        watch.look()
        return [each.alarm for each in incidents.incidents(one.app.runtime().engine.state) if each.phase == "on"]

    schedules.pause(session, one.app, "nightly")
    assert alarms() == []
    schedules.resume(session, one.app, "nightly")
    assert alarms() == ["no-tick"]  # nobody runs a scheduler


def test_what_no_scheduler_has_seen(tmp_path: Path) -> None:
    with places(Place(tmp_path / "shop.db", clock_at("2026-06-01T01:30:00"), HOURLY)) as (fresh,):
        session = session_of(fresh)
        assert schedules.view(session, fresh.app, "nightly").phase == "unseen"
        with pytest.raises(errors.ConflictError, match="No scheduler has seen"):
            schedules.pause(session, fresh.app, "nightly")
        assert schedules.run_now(session, fresh.app, "nightly").run == TWO  # as where EventBridge fires it
        fresh.step()
        assert fresh.step(HOUR_MS) == 1  # it does not know; the record answers the second one
        assert fresh.waiting() == [TWO, TWO]
        with pytest.raises(errors.NotFoundError, match="no schedule 'nightyl'"):
            schedules.pause(session, fresh.app, "nightyl")


@pytest.mark.parametrize("seed", range(40))
def test_by_hand_and_by_time_no_tick_is_sent_twice(seed: int) -> None:
    """Sends by hand, pauses and times down by chance: no tick comes twice, and none is lost but in a pause."""
    chance, timing = SeededEntropy(seed), Timing(parse(HOURLY))
    begin_ms = now_ms = at("2026-06-01T01:30:00")
    state: ScheduleState = ticks.first("shop", "d", timing, now_ms)
    sent: list[int] = []
    paused_from_ms, excused = None, set[int]()
    for _ in range(60):
        now_ms += (MINUTE_MS, 10 * MINUTE_MS, HOUR_MS)[int(chance.fraction() * 3)]
        roll = chance.fraction()
        if roll < 0.2:
            ahead = [
                one for one in between(timing, begin_ms, now_ms + 5 * HOUR_MS, anchor_ms=begin_ms) if one not in sent
            ]
            if ahead:
                planned_ms = ahead[int(chance.fraction() * len(ahead))]
                state = ticks.sent_by_hand(state, timing, planned_ms)
                sent.append(planned_ms)
        elif roll < 0.3 and state.paused_ms is None:
            paused_from_ms, state = state.last_ms, replace(state, paused_ms=now_ms)
        elif roll < 0.5 and state.paused_ms is not None:
            assert paused_from_ms is not None
            excused.update(between(timing, paused_from_ms, now_ms + 1, anchor_ms=begin_ms))
            state = ticks.resumed(state, timing, now_ms)
        if state.paused_ms is None:
            plan = ticks.advance("nightly", state, timing, now_ms, missed="all")
            state = plan.state
            sent.extend(plan.ticks)
    if state.paused_ms is None:
        assert set(between(timing, begin_ms, now_ms, anchor_ms=begin_ms)) <= set(sent) | excused
    assert len(sent) == len(set(sent))
