"""Ticks that their queue does not take: tried again, then in the dead-letter queue under EventBridge Scheduler's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onefold import Tick, errors
from onefold.admin import dead_letters, redrive
from onefold.admin.redrive import Redrive
from onefold.admin.session import AdminSession, SessionJobs
from onefold.contracts.entries import Entry
from onefold.contracts.queue import JOB_ATTRIBUTE, RUN_ATTRIBUTE, Attribute
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import Change
from onefold.runner import runs
from onefold.runtime.events import Sinks
from onefold.runtime.outgoing import Outgoing, Receipt
from onefold.schedules import ScheduleRetry
from onefold.schedules import scheduler as schedulers
from onefold.schedules.scheduler import LOOK_MS, Scheduler
from onefold.schedules.undelivered import PREFIX
from tests.run.ticking import DAY_MS, HOUR_MS, MINUTE_MS, Loose, Place, clock_at, places

HOURLY = "cron(0 * * * ? *)"
DEAD = "shop-schedules-dead"
ANOTHER = (
    b"""{"schedule":"x","scheduled_at":"y","first_at_ms":0,"again_at_ms":0,"code":"","message":"","lasting":false}"""
)


def throttled(place: Place, *, refuses: int) -> Callable[[], Scheduler]:
    """A scheduler on an engine without transactions, whose queue is throttled for a while."""
    runtime: Any = place.app.runtime()
    runtime._opened.engine = Loose(runtime.engine)
    send, left = runtime.send, refuses

    def refusing(outgoing: Sequence[Outgoing]) -> list[Receipt]:
        nonlocal left
        if left:
            left -= 1
            raise errors.OverLimitError("The queue is throttled.", todo="Wait.")
        answer: list[Receipt] = send(outgoing)
        return answer

    runtime.send = refusing

    def again() -> Scheduler:
        place.scheduler = Scheduler(runtime, Sinks([place.told]))
        return place.scheduler

    again()
    return again


def text(attributes: Any, name: str) -> str:
    return str(attributes[name].value)


def test_a_tick_whose_queue_is_gone_goes_to_the_dead_letter_queue_at_once(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        one.step()
        engine = one.app.runtime().engine
        engine.queues.drop("shop-schedules")
        assert one.step(MINUTE_MS) == 0
        (letter,) = one.take(DEAD)
        assert letter.body == '{"schedule":"nightly","scheduled_at":"2026-06-01T02:00:00Z"}'
        assert set(letter.attributes) == {
            JOB_ATTRIBUTE, RUN_ATTRIBUTE, "ERROR_CODE", "ERROR_MESSAGE", "EXECUTION_ID", "RETRY_ATTEMPTS", "SCHEDULED_TIME",
            "SCHEDULE_ARN", "TARGET_ARN",
        }, "EXHAUSTED_RETRY_CONDITION is only for errors that may pass"  # fmt: skip
        assert text(letter.attributes, "ERROR_CODE") == "not-found"
        assert "shop-schedules" in text(letter.attributes, "ERROR_MESSAGE")
        assert text(letter.attributes, "RETRY_ATTEMPTS") == "0"
        assert text(letter.attributes, "SCHEDULED_TIME") == "2026-06-01T02:00:00Z"
        assert text(letter.attributes, "SCHEDULE_ARN").endswith(":schedule/shop/nightly")
        assert text(letter.attributes, "TARGET_ARN").endswith(":shop-schedules")
        standing = runs.read(engine.state, "nightly/2026-06-01T02:00:00Z")
        assert standing is not None
        assert runs.count(engine.ledger, standing.run).dead == 1

        engine.queues.create(QueueSettings(name="shop-schedules", dead_letter=DEAD, receives_max=10))
        assert one.step(HOUR_MS) == 1, "the schedule goes on"


def test_a_letter_that_pretends_to_be_of_a_schedule_reaches_no_other_queue(tmp_path: Path) -> None:
    with places(Place(tmp_path / "shop.db", clock_at("2026-06-01T01:59:00"), HOURLY)) as (one,):
        one.step()
        engine = one.app.runtime().engine
        engine.queues.create(QueueSettings(name="mails-dead"))
        pretended = {JOB_ATTRIBUTE: Attribute("nightly"), "SCHEDULE_ARN": Attribute("arn:s")}
        engine.queues.open("mails-dead").send([Entry(body="{}", attributes=pretended)])
        session = AdminSession(
            one.app.runtime(),
            actor="person:me",
            jobs=SessionJobs(named=one.app.jobs, of=one.app.registry.job_of, history="brief"),
        )
        (letter,) = engine.queues.peek("mails-dead")
        assert redrive.target(session, letter) is None
        with pytest.raises(errors.UsageError, match="did not come from another queue"):
            Redrive(session, [letter], watch=False).run(lambda tally: None)
        assert one.waiting() == []


def test_a_dead_letter_of_a_schedule_says_why_and_can_be_sent_back(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        one.step()
        engine = one.app.runtime().engine
        settings = engine.queues.setting("shop-schedules")
        engine.queues.drop("shop-schedules")
        one.step(MINUTE_MS)
        engine.queues.create(settings)
        session = AdminSession(
            one.app.runtime(),
            actor="person:me",
            jobs=SessionJobs(named=one.app.jobs, of=one.app.registry.job_of, history="brief"),
        )
        letters = list(dead_letters.find(session, dead_letters.Select(queue=DEAD)))
        (letter,) = [dead_letters.letter(session, message) for message in letters]
        assert (letter.job, letter.key, letter.error) == ("nightly", "nightly/2026-06-01T02:00:00Z", "not-found")
        assert "A scheduler could not send it: There is no queue 'shop-schedules'" in letter.summary
        assert Redrive(session, letters, watch=False).run(lambda tally: None).end == "done"
        assert one.waiting() == ["nightly/2026-06-01T02:00:00Z"]


def test_one_schedule_that_is_refused_does_not_keep_the_others(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        other = one.app.queue("other")
        one.app.schedule(HOURLY, name="weekly", queue=other)(lambda tick: None)
        one.app.close()  # queues are made when it opens
        one.again()
        one.step()
        one.app.runtime().engine.queues.drop("other")
        assert one.step(MINUTE_MS) == 1
        assert one.waiting() == ["nightly/2026-06-01T02:00:00Z"]
        assert one.waiting("other-dead") == ["weekly/2026-06-01T02:00:00Z"]


@pytest.mark.parametrize("dead_letter", [True, False])
def test_a_tick_that_nobody_takes_is_said_to_be_dropped(tmp_path: Path, dead_letter: bool) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY, dead_letter=dead_letter)) as (one,):
        one.step()
        queues = one.app.runtime().engine.queues
        queues.drop("shop-schedules")
        queues.drop(DEAD)
        assert one.step(MINUTE_MS) == 0
        (event,) = one.told.of("tick-dropped")
        assert event.severity == "critical"
        assert event.run == "nightly/2026-06-01T02:00:00Z"
        assert ("dead_letter" in event.detail) is dead_letter
        engine = one.app.runtime().engine
        assert [row.event for row in engine.ledger.of_run(event.run)] == ["tick-dropped"]
        standing = runs.read(engine.state, event.run)
        assert standing is not None
        assert runs.count(engine.ledger, standing.run).dead == 1


def test_a_throttled_tick_is_sent_again_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:59")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        throttled(one, refuses=4)
        one.step()
        tries: list[int] = []
        for second in range(40):
            before = len(one.told.of("tick-refused"))
            sent = one.step(1_000)
            if sent or len(one.told.of("tick-refused")) > before:
                tries.append(second)
        assert tries == [0, 1, 3, 7, 15]
        assert one.waiting() == ["nightly/2026-06-01T02:00:00Z"]
        assert one.told.of("ticked")[0].detail["retries"] == 4


@pytest.mark.parametrize(
    ("retry", "condition", "retries"),
    [
        (ScheduleRetry(retries=2, age="24h"), "MaximumRetryAttempts", "2"),
        (ScheduleRetry(retries=185, age="60s"), "MaximumEventAgeInSeconds", "6"),
        (ScheduleRetry(retries=0, age="24h"), "MaximumRetryAttempts", "0"),
    ],
)
def test_in_the_end_it_goes_to_the_dead_letter_queue_with_what_ended_it(
    tmp_path: Path, retry: ScheduleRetry, condition: str, retries: str
) -> None:
    clock = clock_at("2026-06-01T01:59:59")
    with places(Place(tmp_path / "shop.db", clock, HOURLY, retry=retry)) as (one,):
        throttled(one, refuses=1_000)
        one.step()
        for _ in range(200):
            one.step(1_000)
        (letter,) = one.take(DEAD)
        assert text(letter.attributes, "EXHAUSTED_RETRY_CONDITION") == condition
        assert text(letter.attributes, "RETRY_ATTEMPTS") == retries
        assert len(letter.attributes) == 10, "as many as a message may have"
        assert one.app.runtime().engine.state.names("undelivered-tick/") == []


def test_another_scheduler_sends_what_one_left(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:59")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        again = throttled(one, refuses=1)
        one.step()
        assert one.step(1_000) == 0
        again()  # as after kill -9
        assert one.step(2_000) == 1
        assert one.waiting() == ["nightly/2026-06-01T02:00:00Z"]


def test_unsent_ticks_of_a_removed_schedule_are_said_once_and_wait_until_it_is_declared_again(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:59")
    before = Place(tmp_path / "shop.db", clock, HOURLY)
    without = Place(tmp_path / "shop.db", clock, "rate(1 day)", name="daily")
    stranger = Place(tmp_path / "shop.db", clock, "rate(1 day)", name="weekly", app="other")
    with places(before, without, stranger):
        throttled(before, refuses=1)
        before.step()
        assert before.step(1_000) == 0
        without.step()
        stranger.step()
        unsent = "undelivered-tick/nightly/2026-06-01T02:00:00Z"
        assert [one.state_name for one in without.scheduler.next_due(10)] == ["schedule/daily"]
        read: list[str] = []
        state: Any = without.app.runtime().engine.state
        get = state.get

        def note(names: Sequence[str]) -> Any:
            read.extend(names)
            return get(names)

        state.get = note
        for _ in range(5):
            without.step(LOOK_MS)
            stranger.step(LOOK_MS)
        (said,) = without.told.of("ticks-orphaned")
        assert (said.severity, said.detail) == ("warning", {"schedule": "nightly", "count": 1})
        assert stranger.told.of("ticks-orphaned") == []
        assert [name for name in read if "nightly" in name] == []
        assert state.names("undelivered-tick/") == [unsent]

        assert before.again().catch_up() == 1
        assert "nightly/2026-06-01T02:00:00Z" in before.waiting()
        assert state.names("undelivered-tick/") == []


def test_what_comes_next_is_said_behind_ticks_that_are_to_be_sent_again(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:59")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        throttled(one, refuses=1)
        one.step()
        assert one.step(1_000) == 0
        (comes,) = schedulers.upcoming(one.scheduler, one.app.schedules, clock.now_ms(), count=1)
        assert (comes.schedule, comes.at) == ("nightly", "2026-06-01T03:00:00Z")


def test_185_retries_take_a_day() -> None:
    from onefold.schedules.undelivered import Unsent, next_failure

    one = Unsent(schedule="s", scheduled_at="t", first_at_ms=0, again_at_ms=1_000, code="x", message="y", lasting=False)
    error = errors.OverLimitError("throttled")
    while one.retries < 185:
        one = next_failure(one, error, one.again_at_ms)
    assert 0.95 * DAY_MS < one.again_at_ms < 1.05 * DAY_MS


def test_while_the_engine_cannot_be_written_ticks_wait_for_it(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:59")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        one.step()
        engine: Any = one.app.runtime().engine
        together = engine.together

        def busy(calls: Any, *, synced: bool = True) -> Any:
            raise errors.StorageBusy("The disk is full.")

        engine.together = busy
        with pytest.raises(errors.StorageBusy):
            one.step(1_000)
        engine.together = together
        assert one.step(1_000) == 1
        assert one.ticks() == ["2026-06-01T02:00:00Z"]
        assert one.told.of("tick-refused") == []


def test_a_dispatcher_whose_tick_was_given_up_is_seen_to_have_stopped(tmp_path: Path) -> None:
    def dispatch(tick: Tick) -> Iterator[Outgoing]:
        yield from ()

    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        one.app.schedule(HOURLY, name="billing", queue=one.app.queue("other"))(dispatch)
        one.app.close()  # queues are made when it opens
        one.again()
        one.step()
        engine = one.app.runtime().engine
        engine.queues.drop("other")
        one.step(MINUTE_MS)
        assert one.waiting("other-dead") == ["billing/2026-06-01T02:00:00Z"]
        standing = runs.read(engine.state, "billing/2026-06-01T02:00:00Z")
        assert standing is not None
        assert (standing.run.expected, standing.run.dispatched) == (None, 0)
        assert (standing.run.failure or "").startswith("Its tick was given up: There is no queue 'other'")


def test_a_look_whose_queue_is_gone_stops_no_schedule_and_is_told(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        one.app.reconcile("nightly", queue=one.app.queue("looks"))
        one.app.close()  # queues are made when it opens
        one.again()
        one.step()
        one.app.runtime().engine.queues.drop("looks")
        assert one.step(MINUTE_MS) == 1
        assert one.waiting() == ["nightly/2026-06-01T02:00:00Z"]
        (told,) = [event for event in one.told.events if event.name == "look-refused"]
        assert told.run == "nightly/2026-06-01T02:00:00Z"
        assert "looks" in str(told.detail["summary"])


@pytest.mark.parametrize("stored", [b"[]", b'{"schedule":"\xff"}', b'{"schedule": 1}', ANOTHER])
def test_a_stored_tick_that_cannot_be_read_is_reported_once_and_stays_while_the_others_go_on(
    tmp_path: Path, stored: bytes
) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        state = one.app.runtime().engine.state
        damaged = [PREFIX + "nightly/2026-06-01T00:00:00Z", PREFIX + "nightly/2026-06-01T01:00:00Z"]
        gone = [PREFIX + "gone/2026-06-01T01:00:00Z", "schedule/gone"]  # not declared any more
        state.put([Change(name, stored, 0) for name in (damaged[0], *gone)])
        one.step()
        state.put([Change(damaged[1], stored, 0)])
        assert one.step(MINUTE_MS) == 1
        assert one.step(HOUR_MS) == 1
        assert [event.run for event in one.told.of("tick-unreadable")] == [
            "nightly/2026-06-01T00:00:00Z", "nightly/2026-06-01T01:00:00Z"
        ]  # fmt: skip
        assert {event.detail["schedule"] for event in one.told.of("tick-unreadable")} == {"nightly"}
        assert [value.value for value in state.get(damaged) if value is not None] == [stored, stored]


def test_a_stored_tick_that_becomes_unreadable_before_it_is_due_does_not_end_the_scheduler(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    with places(Place(tmp_path / "shop.db", clock, HOURLY)) as (one,):
        throttled(one, refuses=1)
        one.step()
        one.step(MINUTE_MS)
        state = one.app.runtime().engine.state
        (name,) = state.names(PREFIX)
        (kept,) = state.get([name])
        assert kept is not None
        assert state.put([Change(name, b"{}", kept.version)]) == [True]
        assert one.step(HOUR_MS) == 1
        assert [event.run for event in one.told.of("tick-unreadable")] == ["nightly/2026-06-01T02:00:00Z"]
