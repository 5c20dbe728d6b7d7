"""The watch of an engine: what its looks write, who looks, what events it counts, what thresholds it takes from the app."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import onefold
from onefold import errors, limits
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import VALUE_BYTES_MAX, Change
from onefold.contracts.store import RecordKey
from onefold.observe import alarm_samples, alarms, incidents, watch
from onefold.observe.alarm_samples import AppNumbers, Snapshot, numbers_of, oldest_limit_ms, samples, stalled_after_ms
from onefold.observe.readings import QueueReading, Readings
from onefold.observe.watch import EventNotes, Watch, beside
from onefold.runtime.events import Event
from onefold.testing.alarm_drills import WORK, Drill
from onefold.testing.inline import inline


@pytest.fixture
def drill() -> Iterator[Drill]:
    made = Drill()
    with made.running():
        yield made


def changes_of(drill: Drill) -> int:
    """How often anything in State was written."""
    state = drill.app.runtime().engine.state
    return sum(one.version for one in state.get(state.names("")) if one is not None)


def test_a_look_at_an_engine_at_rest_writes_only_who_looks(drill: Drill) -> None:
    drill.watch.look()
    before = changes_of(drill)
    for _ in range(3):
        drill.world.clock.advance(15_000)
        assert drill.watch.look() == []
    assert changes_of(drill) == before + 3


def test_an_incident_that_goes_on_is_not_written_again(drill: Drill) -> None:
    drill.send("a")
    queues = drill.app.runtime().engine.queues
    queues.move([(one.message_id, f"{WORK}-dead", None) for one in queues.peek(WORK)])
    assert [one.alarm for one in drill.watch.look()] == ["dlq-not-empty"]
    before = changes_of(drill)
    drill.world.clock.advance(15_000)
    assert drill.watch.look() == []
    assert changes_of(drill) == before + 1


def test_what_is_forgotten_leaves_nothing_behind(drill: Drill) -> None:
    drill.emit("completion-failed")
    drill.until("completion-failed", "began")
    drill.until("completion-failed", "ended")
    drill.world.clock.advance(2 * limits.HOUR_MS)
    drill.watch.look()
    state = drill.app.runtime().engine.state
    assert [one.alarm for one in incidents.incidents(state) if one.alarm == "completion-failed"] == []
    assert watch.noted(state, drill.world.clock.now_ms()) == {("completion-failed", "drill-work"): []}


def test_an_incident_of_an_alarm_that_is_not_known_is_removed(drill: Drill) -> None:
    state = drill.app.runtime().engine.state
    old = incidents.Incident(alarm="of-another-version", subject="x", phase="on", began_at_ms=1)
    state.put([Change(old.state_name, incidents.encoded(old), 0), Change(f"{incidents.PREFIX}broken", b"{", 0)])
    drill.watch.look()
    assert state.names(incidents.PREFIX) == []


def test_while_another_process_leads_nothing_is_evaluated(drill: Drill) -> None:
    state, clock = drill.app.runtime().engine.state, drill.world.clock
    assert incidents.lead(state, "another", clock.now_ms(), watch.LEADER_MS)
    drill.emit("completion-failed")
    assert drill.watch.look() == []
    assert watch.noted(state, clock.now_ms()) != {}  # but what happened here is written down for it
    clock.advance(watch.LEADER_MS)
    assert [one.alarm for one in drill.watch.look()] == ["completion-failed"]


# -- events ----------------------------------------------------------------------------------------------------------


def event(name: str, job: str, at_ms: int) -> Event:
    return Event(at_ms=at_ms, name=name, key=RecordKey("", job, "o-1"))


def test_events_are_counted_per_job_and_forgotten_after_an_hour(drill: Drill) -> None:
    state, notes, now_ms = drill.app.runtime().engine.state, EventNotes(), drill.world.clock.now_ms()
    for at_ms in range(5):
        notes.emit(event("lease-lost", "book", now_ms + at_ms))
    notes.emit(event("lease-lost", "pay", now_ms))
    notes.emit(event("completed", "book", now_ms))
    notes.write(state, now_ms)
    notes.write(state, now_ms)  # nothing is counted twice
    found = watch.noted(state, now_ms)
    assert {name: len(instants) for name, instants in found.items()} == {
        ("lease-lost", "book"): 5,
        ("lease-lost", "pay"): 1,
    }
    assert watch.noted(state, now_ms + limits.HOUR_MS + 5) == {("lease-lost", "book"): [], ("lease-lost", "pay"): []}


def test_events_that_cannot_be_written_are_kept_for_later(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    state, notes, now_ms = drill.app.runtime().engine.state, EventNotes(), drill.world.clock.now_ms()
    notes.emit(event("completion-failed", "book", now_ms))

    def busy(*_: object) -> None:
        raise errors.StorageBusy("no")

    with monkeypatch.context() as patched:
        patched.setattr(watch, "change", busy)
        with pytest.raises(errors.StorageBusy):
            notes.write(state, now_ms)
    notes.write(state, now_ms)
    assert list(watch.noted(state, now_ms)) == [("completion-failed", "book")]


def test_any_number_of_events_and_jobs_fits(drill: Drill) -> None:
    state, notes, now_ms = drill.app.runtime().engine.state, EventNotes(), drill.world.clock.now_ms()
    for round_ in range(20):
        for number in range(200):
            notes.emit(event("lease-lost", f"{number:0128}" + "é" * 200, now_ms + round_))
        notes.write(state, now_ms)
    (stored,) = state.get([watch.EVENT_NOTES])
    assert stored is not None
    assert len(stored.value) < VALUE_BYTES_MAX
    assert len(watch.noted(state, now_ms)) > 100


# -- beside a worker -------------------------------------------------------------------------------------------------


def test_beside_a_worker_an_event_is_evaluated_at_once_and_errors_come_out(tmp_path: object) -> None:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db")
    app.queue("orders")
    runtime, reported = app.runtime(), threading.Event()
    made = Watch(runtime, None)
    made.notes.emit(event("completion-failed", "book", runtime.now_ms()))
    with beside(made, lambda _: reported.set()):
        assert reported.wait(60)
    assert not incidents.is_watched(runtime.engine.state, runtime.now_ms())  # it has resigned

    def broken() -> list[incidents.Report]:
        raise RuntimeError("a defect")

    made.look = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a defect"), beside(made):
        pass
    app.close()


# -- numbers ---------------------------------------------------------------------------------------------------------


def reading(**changes: object) -> QueueReading:
    settings = QueueSettings(name="orders", dead_letter="orders-dead", held="orders-held")
    counts = dict.fromkeys(("visible", "in_flight", "delayed", "dead", "held"), 0)
    ages = dict.fromkeys(("oldest_age_ms", "dead_oldest_age_ms", "held_oldest_age_ms", "dead_expires_in_ms"))
    facts: dict[str, object] = {"settings": settings, **counts, **ages}
    return QueueReading(**{**facts, **changes})  # type: ignore[arg-type]


def values(queue: QueueReading, numbers: AppNumbers = AppNumbers()) -> dict[str, tuple[bool, bool]]:  # noqa: B008 - frozen
    look = Snapshot(readings=Readings(at_ms=0, queues=(queue,)), numbers=numbers)
    return {one.alarm: (one.begins, one.ends) for one in samples(look)}


@pytest.mark.parametrize(
    ("visibility_ms", "retention_ms", "limit_ms"),
    [
        (30_000, 4 * limits.DAY_MS, 15 * limits.MINUTE_MS),
        (20 * limits.MINUTE_MS, 4 * limits.DAY_MS, 30 * limits.MINUTE_MS),
        (limits.HOUR_MS, limits.HOUR_MS, 30 * limits.MINUTE_MS),
    ],
)
def test_the_oldest_message_is_judged_by_its_queue(visibility_ms: int, retention_ms: int, limit_ms: int) -> None:
    settings = QueueSettings(name="orders", visibility_ms=visibility_ms, retention_ms=retention_ms)
    assert oldest_limit_ms(settings) == limit_ms
    at = {age_ms: values(reading(settings=settings, oldest_age_ms=age_ms))["oldest"] for age_ms in (
        limit_ms, limit_ms - 1, limit_ms * 8 // 10, limit_ms * 8 // 10 - 1,
    )}  # fmt: skip
    assert list(at.values()) == [(True, False), (False, False), (False, False), (False, True)]


def test_a_job_that_may_take_hours_does_not_stall_its_queue_after_half_an_hour() -> None:
    app = onefold.App("shop")
    queue = app.queue("orders")

    @app.job(queue, key="{id}", timeout="2h", owner="billing")
    def book(payload: dict[str, str]) -> None:
        """Nothing."""

    numbers = numbers_of(app.registry, "platform")
    assert stalled_after_ms(numbers.queues["orders"].timeout_ms) == 2 * limits.HOUR_MS
    waits = reading(visible=1, oldest_age_ms=limits.HOUR_MS)
    assert values(waits)["stalled"] == (True, False)
    assert values(waits, numbers)["stalled"] == (False, False)
    look = Snapshot(
        readings=Readings(at_ms=0, queues=(waits, reading(settings=QueueSettings(name="other")))), numbers=numbers
    )
    assert {one.subject: one.owner for one in samples(look)} == {"orders": "billing", "other": "platform"}


def test_every_sample_names_an_alarm_of_this_side() -> None:
    for one in samples(Snapshot(readings=Readings(at_ms=0, queues=(reading(),)))):
        assert "embedded" in alarms.ALARMS[one.alarm].sides
        assert not (one.begins and one.ends)
    assert {name for names in alarm_samples.EVENTS.values() for name in names} <= alarms.ALARMS.keys()


def test_an_engine_of_sqs_that_does_not_say_ages_makes_no_alarm_of_it() -> None:
    found = values(reading(visible=5, dead=2, held=1))
    assert [name for name, (begins, _) in found.items() if begins] == ["dlq-not-empty", "held-not-empty"]


def test_an_app_without_targets_has_its_incidents_kept_and_nothing_sent() -> None:
    made = Drill()
    with inline(made.app) as world:
        made.world, made.watch = world, Watch(made.app.runtime(), None, notes=made.notes)
        made.emit("completion-failed")
        (report,) = made.watch.look()
        state = made.app.runtime().engine.state
        assert incidents.history(state) == [report]
        assert [replace(one, owed=()) == one for one in incidents.incidents(state)] == [True]
