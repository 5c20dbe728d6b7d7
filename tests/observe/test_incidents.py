"""What becomes of an alarm over time, whatever its value does: when it begins, is reported, ends, is silenced."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from onefold import errors, limits
from onefold.clock import steady
from onefold.contracts.state import VALUE_BYTES_MAX, Change
from onefold.contracts.verbs import State
from onefold.engines.urls import open_engine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.observe import incidents
from onefold.observe.alarm_samples import AlarmSample
from onefold.observe.alarms import AGAIN_MS, ALARMS, Alarm
from onefold.observe.incidents import Incident, Report, Silence, step

MINUTE_MS = limits.MINUTE_MS
DEAD, OLDEST, HELD = ALARMS["dlq-not-empty"], ALARMS["oldest"], ALARMS["held-not-empty"]
Value = str  # "bad", "good", "between", "gone"


def sample(value: Value, alarm: Alarm) -> AlarmSample | None:
    if value == "gone":
        return None
    return AlarmSample(alarm=alarm.name, subject="orders", begins=value == "bad", ends=value == "good", text=value)


class Course:
    """An alarm taken along a course of values; what was owed is taken out after each step, as a watch does."""

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        self.now_ms = 1_000_000
        self.incident: Incident | None = None
        self.reports: list[Report] = []

    def go(self, value: Value, minutes: float = 1, *, silenced: bool = False) -> list[str]:
        """One step, then time passes; what was reported, as words."""
        self.incident = step(self.incident, self.alarm, sample(value, self.alarm), self.now_ms, silenced=silenced)
        found = list(self.incident.owed) if self.incident is not None else []
        if self.incident is not None and found:
            self.incident = replace(self.incident, owed=())
        self.reports += found
        self.now_ms += round(minutes * MINUTE_MS)
        return [one.kind + (" silently" if one.silenced else "") for one in found]


def test_a_count_begins_at_once_and_ends_after_a_minute_without() -> None:
    course = Course(DEAD)
    assert course.go("bad") == ["began"]
    assert course.go("good", 0.5) == []
    assert course.go("good", 0.5) == []
    assert course.go("good") == ["ended"]
    assert [one.id for one in course.reports] == [
        "dlq-not-empty/orders/1000000#1",
        "dlq-not-empty/orders/1000000#2",
    ]


def test_a_condition_has_to_hold_for_its_time() -> None:
    course = Course(OLDEST)
    assert [course.go("bad", 5), course.go("between"), course.go("bad", 9)] == [[], [], []]
    assert course.go("bad", 1) == []  # it was between for a moment: the time begins anew
    assert course.go("bad") == ["began"]


def test_between_the_two_values_an_alarm_stays_as_it_is() -> None:
    course = Course(DEAD)
    assert course.go("between") == []
    course.go("bad")
    course.go("good", 0.5)
    assert course.go("between", 5) == []
    assert course.go("good") == []  # good only from now on
    assert course.go("good") == ["ended"]


def test_a_subject_that_is_gone_ends_its_alarm() -> None:
    course = Course(DEAD)
    course.go("bad")
    assert [course.go("gone"), course.go("gone")] == [[], ["ended"]]


def test_a_page_is_reported_again_each_half_hour_and_a_ticket_each_day() -> None:
    page, ticket = Course(DEAD), Course(HELD)
    assert [page.go("bad", 29), page.go("bad", 1), page.go("bad", 30), page.go("bad")] == [
        ["began"], [], ["goes-on"], ["goes-on"],
    ]  # fmt: skip
    assert [ticket.go("bad", 60 * 23), ticket.go("bad", 60), ticket.go("bad")] == [["began"], [], ["goes-on"]]


def test_what_comes_back_soon_is_the_same_incident_and_waits_for_its_half_hour() -> None:
    course = Course(DEAD)
    for value in ("bad", "good", "good"):
        course.go(value)
    assert course.go("bad", 26) == []  # three minutes after it began
    assert course.go("bad", 1) == []
    assert course.go("bad") == ["began"]
    assert len({one.incident for one in course.reports}) == 1
    assert [one.number for one in course.reports] == [1, 2, 3]


def test_what_comes_back_later_is_another_incident() -> None:
    course = Course(DEAD)
    for value in ("bad", "good", "good"):
        course.go(value)
    course.go("good", 60)
    assert course.go("good") == []
    assert course.incident is None
    assert course.go("bad") == ["began"]
    assert len({one.incident for one in course.reports}) == 2


def test_a_silence_keeps_the_history_and_what_is_still_on_afterwards_is_reported() -> None:
    course = Course(DEAD)
    assert course.go("bad", silenced=True) == ["began silently"]
    assert course.go("bad", 60, silenced=True) == []
    assert course.go("bad") == ["began"]
    course.go("good")
    assert course.go("good", silenced=True) == ["ended"]  # who heard of the beginning hears of the end


def test_what_begins_and_ends_in_a_silence_is_sent_to_nobody() -> None:
    course = Course(DEAD)
    words = [course.go(value, silenced=True) for value in ("bad", "good", "good")]
    assert words == [["began silently"], [], ["ended silently"]]


VALUES = st.sampled_from(["bad", "good", "between", "gone"])
COURSES = st.lists(st.tuples(VALUES, st.sampled_from([0, 0.25, 1, 5, 17, 45]), st.booleans()), max_size=80)


@given(alarm=st.sampled_from(sorted(ALARMS)), course=COURSES)
def test_whatever_a_value_does_nobody_is_called_twice_within_half_an_hour(
    alarm: str, course: list[tuple[Value, float, bool]]
) -> None:
    walked = Course(ALARMS[alarm])
    for value, minutes, silenced in course:
        walked.go(value, minutes, silenced=silenced)
    sent = [one for one in walked.reports if not one.silenced]
    loud = [one.at_ms for one in sent if one.kind != "ended"]
    assert all(after - before >= AGAIN_MS for before, after in itertools.pairwise(loud))
    is_open = False
    for one in sent:  # an end follows a beginning, a beginning an end
        assert is_open == (one.kind != "began")
        is_open = one.kind != "ended"
    assert len({one.id for one in walked.reports}) == len(walked.reports)


@given(course=COURSES)
def test_a_noisy_value_cannot_end_an_alarm_before_it_was_good_for_its_time(
    course: list[tuple[Value, float, bool]],
) -> None:
    walked, good_ms = Course(DEAD), 0
    for value, minutes, silenced in course:
        at_ms, before = walked.now_ms, walked.incident
        words = walked.go(value, minutes, silenced=silenced)
        if before is not None and before.phase == "on" and value in ("good", "gone"):
            assert ("ended" in " ".join(words)) <= (at_ms - good_ms >= DEAD.clear_ms)
        good_ms = good_ms if value in ("good", "gone") and good_ms else at_ms


@given(course=COURSES)
def test_killed_after_any_step_the_same_reports_are_owed_again(course: list[tuple[Value, float, bool]]) -> None:
    """What is owed stays in the document, with its names, until it was taken out."""
    walked, kept, now_ms = Course(DEAD), None, 1_000_000
    for value, minutes, silenced in course:
        walked.go(value, minutes, silenced=silenced)
        kept = step(kept, DEAD, sample(value, DEAD), now_ms, silenced=silenced)
        now_ms += round(minutes * MINUTE_MS)
        owed = {one.id for one in kept.owed} if kept is not None else set()
        assert owed <= {one.id for one in walked.reports}


# -- documents -------------------------------------------------------------------------------------------------------


@pytest.fixture
def state() -> Iterator[State]:
    engine = open_engine("sqlite://:memory:", clock=steady(ManualClock()), entropy=SeededEntropy(1), owner="test")
    yield engine.state
    engine.close()


def report(number: int) -> Report:
    return Report(
        incident="i" * 300, number=number, kind="began", alarm="dlq-not-empty", subject="q" * 80, severity="page",
        at_ms=number, since_ms=0, text="x" * 100, owner="the team that owns it",
    )  # fmt: skip


def test_the_history_is_bounded_and_has_each_report_once(state: State) -> None:
    incidents.keep(state, [report(1), report(2)])
    incidents.keep(state, [report(2), report(3)])
    assert [one.number for one in incidents.history(state)] == [1, 2, 3]
    incidents.keep(state, [report(number) for number in range(1_000)])
    kept = incidents.history(state)
    assert 50 <= len(kept) <= incidents.HISTORY_MAX
    assert kept[-1].number == 999
    (stored,) = state.get([incidents.HISTORY])
    assert stored is not None
    assert len(stored.value) < VALUE_BYTES_MAX


def quiet(name: str, *, until_ms: int = 100, at_ms: int = 0) -> Silence:
    return Silence(name=name, until_ms=until_ms, reason="known", by="person:ann", at_ms=at_ms)


def test_a_silence_covers_what_it_names_until_it_is_over(state: State) -> None:
    incidents.silence(state, quiet("stalled/orders"))
    incidents.silence(state, quiet("oldest"))
    (oldest, stalled) = incidents.silences(state, 99)
    assert stalled.covers("stalled", "orders", 99)
    assert not stalled.covers("stalled", "lines", 99)
    assert oldest.covers("oldest", "lines", 99)
    assert not oldest.covers("oldest", "lines", 100)
    assert quiet("*").covers("missing", "monthly", 5)
    assert incidents.silences(state, 100) == []
    incidents.silence(state, quiet("oldest", until_ms=50, at_ms=50))
    assert [one.name for one in incidents.silences(state, 50)] == ["stalled/orders"]


def test_a_silence_that_cannot_be_is_refused(state: State) -> None:
    with pytest.raises(errors.NotFoundError, match="no alarm 'nonsense'"):
        incidents.silence(state, quiet("nonsense"))
    with pytest.raises(errors.UsageError, match="31 days is too long"):
        incidents.silence(state, quiet("*", until_ms=31 * limits.DAY_MS))
    for number in range(incidents.SILENCES_MAX):
        incidents.silence(state, quiet(f"oldest/{number}"))
    with pytest.raises(errors.UsageError, match="100 silences already"):
        incidents.silence(state, quiet("*"))
    assert len(incidents.silences(state, 1)) == incidents.SILENCES_MAX


def test_one_process_leads_until_it_ends_or_is_silent(state: State) -> None:
    assert incidents.lead(state, "a", 0, 45_000)
    assert not incidents.lead(state, "b", 44_000, 45_000)
    assert incidents.lead(state, "a", 44_000, 45_000)
    assert incidents.is_watched(state, 88_000)
    assert not incidents.is_watched(state, 89_000)
    assert incidents.lead(state, "b", 89_000, 45_000)
    incidents.resign(state, "a")  # it is not the one
    assert not incidents.lead(state, "a", 90_000, 45_000)
    incidents.resign(state, "b")
    assert incidents.lead(state, "a", 90_000, 45_000)
    assert incidents.lead(state, "b", 0, 45_000)  # the clock was set back: a lease that far ahead is none


def test_a_document_that_cannot_be_read_is_written_anew(state: State) -> None:
    place = incidents.state_name_of("dlq-not-empty", "orders")
    state.put([Change(place, b'{"what": 1}', 0), Change(incidents.HISTORY, b"[1]", 0)])
    assert incidents.incidents(state) == []
    assert incidents.read(state, [place]) == {place: (None, 1)}
    incidents.keep(state, [report(1)])
    assert [one.number for one in incidents.history(state)] == [1]
