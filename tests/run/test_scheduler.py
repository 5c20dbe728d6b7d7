"""One scheduler on a manual clock: which ticks it sends, time spent down, clocks that are set, schedules that change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onefold import App, Job, Tick, errors
from onefold.contracts.state import Change
from onefold.manual_clock import ManualClock
from onefold.runner import runs
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import LOOK_MS, Scheduler
from onefold.testing import inline
from tests.run.ticking import DAY_MS, HOUR_MS, MINUTE_MS, Place, at, clock_at, places

HOURLY = "cron(0 * * * ? *)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def test_a_tick_is_sent_at_its_time_and_once(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T01:30:00"), HOURLY)) as (one,):
        assert one.step() == 0
        assert one.step(30 * MINUTE_MS - 1) == 0
        assert one.step(1) == 1
        assert one.step() == 0
        assert one.waiting() == ["nightly/2026-06-01T02:00:00Z"]
        assert one.step(HOUR_MS) == 1


def test_a_tick_begins_its_run_and_says_so(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T01:59:00"), HOURLY, owner="billing")) as (one,):
        one.step()
        one.step(MINUTE_MS + 40)
        engine = one.app.runtime().engine
        standing = runs.read(engine.state, "nightly/2026-06-01T02:00:00Z")
        assert standing is not None
        assert (standing.run.kind, standing.run.title, standing.run.expected) == ("tick", "nightly", 1)
        assert (standing.run.nominal_at_ms, standing.run.owner) == (at("2026-06-01T02:00:00"), "billing")
        (row,) = engine.ledger.of_run("nightly/2026-06-01T02:00:00Z")
        assert (row.event, row.detail["late_ms"]) == ("ticked", 40)


def test_the_function_gets_the_planned_time_and_its_own_zone() -> None:
    app = App("shop", url="sqlite://:memory:")
    seen: list[Tick] = []

    @app.schedule("cron(0 3 1 * ? *)", tz="Europe/London")
    def monthly(tick: Tick) -> None:
        seen.append(tick)

    with inline(app, start_ms=at("2026-05-31T23:00:00")) as world:
        world.run_until(datetime(2026, 6, 1, 2, 0, 30, tzinfo=UTC))
        world.clock.advance(DAY_MS)
        assert world.tick() == world.run() == 0
    (tick,) = seen
    assert tick.run == "monthly/2026-06-01T02:00:00Z"
    assert tick.nominal_at_ms == at("2026-06-01T02:00:00")
    assert tick.local.isoformat() == "2026-06-01T03:00:00+01:00"


def test_a_dispatcher_sends_its_messages_and_the_run_counts_them() -> None:
    app = App("shop", url="sqlite://:memory:")
    bills = app.queue("bills")
    billed: list[str] = []

    @app.job(bills, key="{customer}")
    def bill(order: dict[str, Any]) -> None:
        billed.append(order["customer"])

    assert isinstance(bill, Job)

    @app.schedule("rate(1 day)")
    def daily(tick: Tick) -> Any:
        for customer in range(3):
            yield bill.message({"customer": f"{tick.nominal_at_ms}-{customer}"})

    with inline(app, start_ms=at("2026-06-01T00:00:00")) as world:
        world.run_until(datetime(2026, 6, 3, 12, tzinfo=UTC))
        engine = app.runtime().engine
        found = runs.read_all(engine.state, runs.names(engine.state, "daily/"))
        assert [one.run.expected for one in found if one is not None] == [3, 3, 3]
    assert len(set(billed)) == len(billed) == 9


def test_a_message_that_is_due_in_weeks_waits_beside_the_ticks() -> None:
    app = App("shop", url="sqlite://:memory:")
    done: list[str] = []

    @app.job(app.queue("bills"), key="{n}")
    def remind(order: dict[str, str]) -> None:
        done.append(order["n"])

    @app.schedule("rate(1 day)")
    def daily(tick: Tick) -> None:
        done.append(tick.run)

    with inline(app, start_ms=at("2026-06-01T00:00:00")) as world:
        remind.send({"n": "later"}, run_at=datetime(2026, 6, 21, 12, tzinfo=UTC))
        world.run_until(datetime(2026, 6, 21, 11, 59, tzinfo=UTC))
        assert "later" not in done
        world.run_until(datetime(2026, 6, 21, 12, 0, 1, tzinfo=UTC))
    assert done[-1] == "later"
    assert len(done) == 22


# -- time spent down -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "sent"),
    [
        ("skip", []),
        ("last", ["2026-06-01T06:00:00Z"]),
        ("all", [f"2026-06-01T0{hour}:00:00Z" for hour in (2, 3, 4, 5, 6)]),
    ],
)
def test_what_becomes_of_ticks_whose_time_passed_while_no_scheduler_ran(
    path: Path, missed: Any, sent: list[str]
) -> None:
    with places(Place(path, clock_at("2026-06-01T01:30:00"), HOURLY, missed=missed)) as (one,):
        one.step()
        one.clock.advance(5 * HOUR_MS)
        one.again()
        assert one.step() == len(sent)
        assert one.ticks() == sent
        passed = [(event.detail["schedule"], event.detail["count"]) for event in one.told.of("ticks-missed")]
        assert passed == ([("nightly", 5 - len(sent))] if len(sent) < 5 else [])
        assert one.step(30 * MINUTE_MS) == 1  # at 07:00, on time


def test_all_sends_at_most_the_latest_that_may_be_sent(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T01:30:00"), HOURLY, missed="all", missed_max=2)) as (one,):
        one.step()
        one.clock.advance(5 * HOUR_MS)
        one.again()
        assert one.step() == 2
        assert one.ticks() == ["2026-06-01T05:00:00Z", "2026-06-01T06:00:00Z"]


def test_all_with_a_start_in_the_past_owes_what_was_planned_since_then(path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    monthly = "cron(0 3 1 * ? *)"
    with places(Place(path, clock_at("2026-06-01T12:00:00"), monthly, missed="all", start=start)) as (one,):
        assert one.step() == 6
        assert one.ticks() == [f"2026-0{month}-01T03:00:00Z" for month in range(1, 7)]
        one.again()
        assert one.step() == 0


# -- clocks that are set ---------------------------------------------------------------------------------------------


def test_a_clock_set_back_an_hour_repeats_no_tick_and_stops_none(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T01:59:00"), "cron(0/10 * * * ? *)")) as (one,):
        one.step()
        for _ in range(6):
            one.step(10 * MINUTE_MS)
        before = one.ticks()
        assert len(before) == len(set(before)) == 6
        one.clock.jump(-HOUR_MS)
        for _ in range(8):
            one.step(10 * MINUTE_MS)
        after = one.ticks()
        assert len(after) == len(set(after)) == 8, "in the hour that came again nothing is sent; then it goes on"
        (event,) = one.told.of("clock-set")
        assert event.detail == {"by_ms": -HOUR_MS, "schedules_ahead": 1}


def test_after_a_jump_forward_that_was_wrong_the_passed_ticks_are_sent_at_their_time(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T01:30:00"), HOURLY, missed="skip")) as (one,):
        one.step()
        one.clock.jump(5 * HOUR_MS)  # 06:30: 02:00 to 06:00 are passed over
        assert one.step() == 0
        one.clock.jump(-5 * HOUR_MS)
        assert one.step() == 0
        assert one.step(30 * MINUTE_MS) == 1
        assert one.ticks() == ["2026-06-01T02:00:00Z"]
        assert [event.detail["by_ms"] for event in one.told.of("clock-set")] == [5 * HOUR_MS, -5 * HOUR_MS]


def test_a_clock_that_was_set_back_while_nothing_ran_is_noticed_at_the_start(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T01:59:00"), HOURLY)) as (one,):
        one.step()
        one.step(MINUTE_MS)
        one.clock.jump(-HOUR_MS)
        one.again()
        one.step()
        assert [event.detail for event in one.told.of("clock-set")] == [{"schedules_ahead": 1}]
        assert one.step(HOUR_MS) == 0, "02:00 came again"
        assert one.step(HOUR_MS) == 1


def test_a_clock_that_is_only_regulated_is_no_news(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T01:30:00"), HOURLY)) as (one,):
        one.step()
        for _ in range(20):
            one.clock.jump(-150)
            one.step(LOOK_MS)
        assert one.told.of("clock-set") == []


# -- windows, bounds, ends -------------------------------------------------------------------------------------------


def test_a_flexible_window_delays_a_tick_by_the_same_time_everywhere(tmp_path: Path) -> None:
    sent_at: list[list[int]] = []
    for name in ("a.db", "b.db"):
        with places(Place(tmp_path / name, clock_at("2026-06-01T01:59:00"), HOURLY, window="15m")) as (one,):
            one.step()
            found: list[int] = []
            for _ in range(76):
                found += [one.clock.now_ms()] * one.step(MINUTE_MS)
            sent_at.append(found)
            assert one.ticks() == ["2026-06-01T02:00:00Z", "2026-06-01T03:00:00Z"]
    assert sent_at[0] == sent_at[1]
    assert all(0 <= (at_ms - at("2026-06-01T02:00:00")) % HOUR_MS <= 15 * MINUTE_MS for at_ms in sent_at[0])


def test_nothing_fires_before_the_start_and_after_the_end(path: Path) -> None:
    start, end = datetime(2026, 6, 1, 3, tzinfo=UTC), datetime(2026, 6, 1, 5, tzinfo=UTC)
    with places(Place(path, clock_at("2026-06-01T00:30:00"), HOURLY, start=start, end=end)) as (one,):
        one.step()
        for _ in range(9):
            one.step(HOUR_MS)
        assert one.ticks() == [f"2026-06-01T0{hour}:00:00Z" for hour in (3, 4, 5)]
        assert one.told.of("schedule-ended") == []


def test_a_one_time_schedule_is_sent_once_and_forgotten(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T00:30:00"), "at(2026-06-01T01:00:00)", delete_after=True)) as (one,):
        one.step()
        assert one.step(HOUR_MS) == 1
        assert len(one.told.of("schedule-ended")) == 1
        one.again()
        assert one.step(DAY_MS) == 0
        assert one.scheduler.next_due(1) == []


def test_a_one_time_schedule_in_the_past_is_sent_once_at_the_start(path: Path) -> None:
    with places(Place(path, clock_at("2026-06-01T00:30:00"), "at(2020-01-01T00:00:00)")) as (one,):
        assert one.step() == 1
        one.again()
        assert one.step(DAY_MS) == 0


def test_a_one_time_schedule_in_the_past_may_be_skipped_and_says_so(path: Path) -> None:
    clock = clock_at("2026-06-01T00:30:00")
    with places(Place(path, clock, "at(2020-01-01T00:00:00)", missed="skip")) as (one,):
        assert one.step() == 0
        (passed,) = one.told.of("ticks-missed")
        assert (passed.detail["count"], passed.detail["from_ms"]) == (1, at("2020-01-01T00:00:00"))
        assert one.scheduler.ended() == ["nightly"]


# -- changes ---------------------------------------------------------------------------------------------------------


def test_other_times_count_from_the_next_start(path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(path, clock, HOURLY), Place(path, clock, "cron(30 * * * ? *)")) as (old, new):
        old.step()
        old.step(MINUTE_MS)
        assert new.step() == 0
        assert [event.detail["expression"] for event in new.told.of("schedule-changed")] == ["cron(30 * * * ? *)"]
        assert new.step(30 * MINUTE_MS) == 1
        assert new.ticks() == ["2026-06-01T02:00:00Z", "2026-06-01T02:30:00Z"]


@pytest.mark.parametrize("stored", [b"[]", b"\xff", b'{"app": 1}'])
def test_a_schedule_whose_state_cannot_be_read_is_reported_and_waits_while_the_others_go_on(
    path: Path, stored: bytes
) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(path, clock, HOURLY)) as (place,):

        @place.app.schedule(HOURLY, name="other")
        def other(tick: Tick) -> None: ...

        state = place.app.runtime().engine.state
        assert state.put([Change("schedule/nightly", stored, 0)]) == [True]
        scheduler = Scheduler(place.app.runtime(), Sinks([place.told]))
        scheduler.catch_up()
        clock.advance(MINUTE_MS)
        assert scheduler.catch_up() == 1
        assert place.waiting() == ["other/2026-06-01T02:00:00Z"]
        (event,) = place.told.of("schedule-unreadable")
        assert event.detail["schedule"] == "nightly"
        assert "'schedule/nightly' in the engine's state cannot be read" in str(event.detail["why"])
        (kept,) = state.get(["schedule/nightly"])
        assert kept is not None
        assert kept.value == stored


def test_of_two_schedulers_with_other_times_the_one_that_started_later_counts(path: Path) -> None:
    clock = clock_at("2026-06-01T01:50:00")
    with places(Place(path, clock, HOURLY), Place(path, clock, "cron(0,20 * * * ? *)")) as (old, new):
        old.step()
        new.step()
        assert old.step(10 * MINUTE_MS) == 0, "02:00 is in both: the older one leaves it"
        assert [event.detail["schedule"] for event in old.told.of("schedule-superseded")] == ["nightly"]
        assert new.step() == 1
        for _ in range(12):
            old.step(10 * MINUTE_MS)
            new.step()
        ticks = new.ticks()
        assert len(ticks) == len(set(ticks)) == 5
        assert len(old.told.of("schedule-superseded")) == 1, "it is said once"


def test_a_superseded_schedule_is_taken_up_again_when_its_times_come_back(path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(path, clock, HOURLY), Place(path, clock, "rate(1 day)"), Place(path, clock, HOURLY)) as three:
        old, new, back = three
        old.step()
        new.step()
        old.step(MINUTE_MS)
        assert old.told.of("schedule-superseded")
        back.step()
        old.step(LOOK_MS)
        assert old.step(HOUR_MS) == 1


def test_a_name_that_belongs_to_another_app_is_refused(path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(path, clock, HOURLY), Place(path, clock, HOURLY, app="bank")) as (shop, bank):
        shop.step()
        with pytest.raises(errors.ConflictError, match="nightly belongs to app shop") as caught:
            bank.step()
        assert "another name=" in caught.value.todo
        assert shop.step(MINUTE_MS) == 1


# -- the loop --------------------------------------------------------------------------------------------------------


def test_the_loop_waits_for_the_next_instant_and_ends_when_told(path: Path) -> None:
    import threading

    class Watched(ManualClock):
        def __init__(self) -> None:
            super().__init__(at("2026-06-01T01:59:55"))
            self.waits: list[int] = []
            self.waiting = threading.Semaphore(0)

        def wait(self, waiter: Any, timeout_ms: int) -> bool:
            self.waits.append(timeout_ms)
            self.waiting.release()
            return super().wait(waiter, timeout_ms)

    clock = Watched()
    with places(Place(path, clock, "cron(* * * * ? *)")) as (one,):
        thread = threading.Thread(target=one.scheduler.run)
        thread.start()
        assert clock.waiting.acquire(timeout=60)
        assert clock.waits == [5_000], "until 02:00:00, and not a look in between"
        clock.advance(5_000)
        one.told.wait_for("ticked")
        assert clock.waiting.acquire(timeout=60)
        assert clock.waits[1:] == [LOOK_MS], "the next one is a minute away; the clock is looked at before"
        one.scheduler.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert one.told.names()[-1] == "scheduler-stopped"


def test_a_hundred_schedules_that_are_due_together_are_one_transaction(path: Path) -> None:
    app = App("shop", url=f"sqlite:///{path}", clock=(clock := clock_at("2026-06-01T01:59:00")))
    for number in range(100):
        app.schedule(HOURLY, name=f"s{number}")(_nothing)
    scheduler = Scheduler(app.runtime(), Sinks())
    scheduler.catch_up()
    engine = app.runtime().engine
    calls: list[int] = []
    together = engine.together
    engine.together = lambda some, **more: (calls.append(len(some)), together(some, **more))[1]  # type: ignore[method-assign]
    clock.advance(MINUTE_MS)
    assert scheduler.catch_up() == 100
    assert calls == [1]
    app.close()


def _nothing(tick: Tick) -> None:
    """Work."""
