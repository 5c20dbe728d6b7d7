"""The list of alarms: what it says of values and times is what is evaluated, and no noisy value makes one come and go."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from onefold import limits
from onefold.contracts.settings import QueueSettings
from onefold.observe.alarm_samples import AlarmSample, Snapshot, samples
from onefold.observe.alarms import AGAIN_MS, ALARMS, Alarm, on
from onefold.observe.incidents import Incident, step
from onefold.observe.readings import JobReading, QueueReading, Readings

MINUTE_MS = limits.MINUTE_MS
SETTINGS = QueueSettings(name="orders", dead_letter="orders-dead", held="orders-held", retention_ms=4 * limits.HOUR_MS)
QUIET = QueueReading(
    settings=SETTINGS, visible=0, in_flight=0, delayed=0, oldest_age_ms=None, dead=0, held=0, dead_oldest_age_ms=None,
    held_oldest_age_ms=None, dead_expires_in_ms=None,
)  # fmt: skip
DONE = JobReading(job="book", done_last_minute=1, done_last_30_minutes=30, paused_until_ms=None)

# Of an alarm over a value: where it begins, where it is neither, and where it ends; as the list says it.
STEPS = [
    ("dlq-not-empty", "dead", 1, None, 0),
    ("held-not-empty", "held", 1, None, 0),
    ("held-old", "held_oldest_age_ms", limits.DAY_MS, None, limits.DAY_MS - 1),
    ("dlq-expiring", "dead_expires_in_ms", 2 * limits.DAY_MS, int(2.1 * limits.DAY_MS), int(2.3 * limits.DAY_MS)),
    ("oldest", "oldest_age_ms", 15 * MINUTE_MS, 12 * MINUTE_MS, 12 * MINUTE_MS - 1),
    ("drain", "visible", 120, 96, 95),  # one a minute is done: 2 h, which are half the retention, and 80 % of that
    ("in-flight-cap", "in_flight", 96_000, 86_500, 86_399),  # 72 % are 86,400
]


def sample(alarm: str, **values: int) -> AlarmSample:
    """An alarm's sample of a queue that has these values; of a dead-letter queue that keeps messages for 14 days."""
    if "dead_expires_in_ms" in values:
        values |= {"dead": 1, "dead_oldest_age_ms": 14 * limits.DAY_MS - values["dead_expires_in_ms"]}
    queue = replace(QUIET, **values)
    readings = Readings(at_ms=0, queues=(queue,), jobs=(DONE,), runs=(), reconciliations=())
    (found,) = [one for one in samples(Snapshot(readings=readings)) if one.alarm == alarm]
    return found


@pytest.mark.parametrize(("alarm", "name", "begins", "neither", "ends"), STEPS)
def test_it_begins_and_ends_where_the_list_says(
    alarm: str, name: str, begins: int, neither: int | None, ends: int
) -> None:
    found = sample(alarm, **{name: begins})
    assert (found.begins, found.ends) == (True, False)
    if neither is not None:
        found = sample(alarm, **{name: neither})
        assert (found.begins, found.ends) == (False, False)
    found = sample(alarm, **{name: ends})
    assert (found.begins, found.ends) == (False, True)


def course(alarm: Alarm, values: list[bool], step_ms: int) -> tuple[list[tuple[str, int]], Incident | None]:
    """What is reported of a value that is bad, or good, so often."""
    incident: Incident | None = None
    reports: list[tuple[str, int]] = []
    for number, bad in enumerate(values):
        value = AlarmSample(alarm=alarm.name, subject="orders", begins=bad, ends=not bad)
        incident = step(incident, alarm, value, 1_000_000 + number * step_ms)
        if incident is not None and incident.owed:
            reports += [(one.kind, one.at_ms) for one in incident.owed]
            incident = replace(incident, owed=())
    return reports, incident


EVERY = [one for one in ALARMS.values() if one in on("embedded")]


@pytest.mark.parametrize("alarm", EVERY, ids=lambda one: one.name)
def test_a_value_that_flaps_all_day_calls_nobody_more_often_than_each_half_hour(alarm: Alarm) -> None:
    for bad, good in ((1, 1), (8, 1), (1, 8), (30, 30)):  # looks of 15 seconds
        day = list(itertools.islice(itertools.cycle([True] * bad + [False] * good), 24 * 240))
        reports, _ = course(alarm, day, 15_000)
        loud = [at_ms for kind, at_ms in reports if kind != "ended"]
        assert all(after - before >= AGAIN_MS for before, after in itertools.pairwise(loud)), (bad, good)
        kinds = [kind for kind, _ in reports]
        assert all(pair in (("began", "ended"), ("ended", "began"), ("began", "goes-on"), ("goes-on", "goes-on"),
                            ("goes-on", "ended")) for pair in itertools.pairwise(kinds))  # fmt: skip


@pytest.mark.parametrize("alarm", EVERY, ids=lambda one: one.name)
def test_one_that_stays_on_is_repeated_as_the_list_says(alarm: Alarm) -> None:
    days = 3
    reports, _ = course(alarm, [True] * (days * 1_440), MINUTE_MS)
    assert reports[0][0] == "began"
    assert reports[0][1] == 1_000_000 + alarm.for_ms
    between = {after[1] - before[1] for before, after in itertools.pairwise(reports)}
    assert between == ({alarm.again_ms} if alarm.again_ms else set())
    assert alarm.again_ms is None or alarm.again_ms >= AGAIN_MS


@pytest.mark.parametrize("alarm", EVERY, ids=lambda one: one.name)
def test_it_ends_when_its_value_was_good_for_the_time_of_the_list(alarm: Alarm) -> None:
    held = alarm.for_ms // MINUTE_MS + 1
    reports, _ = course(alarm, [True] * held + [False] * 60, MINUTE_MS)
    assert [kind for kind, _ in reports] == ["began", "ended"]
    assert reports[1][1] - (1_000_000 + held * MINUTE_MS) == alarm.clear_ms
