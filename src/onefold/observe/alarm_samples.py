"""The value of each alarm now: a `Sample` for each subject, from one snapshot of an engine and the last hour's events.

A sample says whether the value is bad enough to begin an alarm, good enough to end one, or between the two, in which
case the alarm does not change. Thresholds come from the app: `AppNumbers` has its declared values, a `Snapshot` the
engine's. Never here: how long a value must last (`incidents.py`), reading (`readings.py`), output. Invariant: the same
readings, events and numbers give the same samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from onefold import limits
from onefold.contracts.settings import QueueSettings
from onefold.observe import alarms
from onefold.observe.readings import JobReading, QueueReading, Readings
from onefold.observe.wording import age, counted
from onefold.schedules.fire_times import Timing, between

if TYPE_CHECKING:
    from onefold.registry import Registry

_OLDEST_MS_MIN: Final = 15 * limits.MINUTE_MS  # our choice: a shorter wait is normal
_OLDEST_VISIBILITIES: Final = 1.5  # our choice: the message was received, failed, was received again, and still waits
_EXPIRING_MS: Final = 2 * limits.DAY_MS
_DONE_MINUTES: Final = 30  # the period that `JobReading` counts
_YEAR_MS: Final = 366 * limits.DAY_MS
_FIRES_LOOKED_AT: Final = 2_000
EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "completion-failed": ("completion-failed",),
    "lease-lost": ("lease-lost", "lease-lost-often"),
    "tick-dropped": ("tick-dropped",),
    "tick-refused": ("tick-refused",),
}
"""Events that alarms count, and the alarms that count them."""


class AlarmSample(Struct, frozen=True, kw_only=True):
    """One alarm's value for one subject.

    Args:
        alarm: its name. subject: the queue, job, schedule or map.
        begins: the value is bad enough to begin an alarm. ends: it is good enough to end one. Neither: in between.
        text: the value, for people. owner: the team that owns the fix.
    """

    alarm: str
    subject: str
    begins: bool
    ends: bool
    text: str = ""
    owner: str | None = None


class QueueNumbers(Struct, frozen=True, kw_only=True):
    """What an app declares about one queue: its jobs, their longest timeout, and its owner."""

    jobs: tuple[str, ...]
    timeout_ms: int
    owner: str | None = None


class AppNumbers(Struct, frozen=True, kw_only=True):
    """The declared values of an app from which thresholds are computed; empty if only an engine is known.

    Args:
        queues: by name. owners: by the name of a job or schedule. reconcile_after_ms: by the name of a schedule or map that
            is reconciled. owner: the owner of everything that names none itself.
    """

    queues: Mapping[str, QueueNumbers] = {}
    owners: Mapping[str, str] = {}
    reconcile_after_ms: Mapping[str, int] = {}
    owner: str | None = None


class LateTick(Struct, frozen=True, kw_only=True):
    """A schedule whose next tick is due: when the tick was planned, and by when it must be sent."""

    schedule: str
    planned_at_ms: int
    due_at_ms: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything from which alarms are evaluated.

    Args:
        readings: what was read from the engine. events: instants within the last hour, by event and by job or schedule.
        late: schedules whose next tick is due. numbers: what the app declares.
    """

    readings: Readings
    events: Mapping[tuple[str, str], Sequence[int]] = {}
    late: tuple[LateTick, ...] = ()
    numbers: AppNumbers = AppNumbers()

    def owner(self, name: str) -> str | None:
        """The owner of this job, schedule, map or queue."""
        numbers = self.numbers
        of_queue = numbers.queues.get(name)
        return (of_queue.owner if of_queue is not None else numbers.owners.get(name)) or numbers.owner


def numbers_of(registry: Registry, owner: str | None = None) -> AppNumbers:
    """The numbers of an app's declarations; `owner`: the owner of everything that names none itself."""
    queues = {}
    for name in registry.queues:
        jobs = [job for job in registry.jobs.values() if job.policy.queue == name]
        owners = sorted({job.policy.owner for job in jobs if job.policy.owner})
        queues[name] = QueueNumbers(
            jobs=tuple(sorted(job.name for job in jobs)),
            timeout_ms=max((job.policy.timeout_ms for job in jobs), default=0),
            owner=", ".join(owners) or None,
        )
    return AppNumbers(
        queues=queues,
        owners={job.name: job.policy.owner for job in registry.jobs.values() if job.policy.owner},
        reconcile_after_ms={one.of: one.after_ms for one in registry.reconcilers.values()},
        owner=owner,
    )


# -- thresholds ------------------------------------------------------------------------------------------------------


def oldest_limit_ms(settings: QueueSettings) -> int:
    """The age at which a queue's oldest message is an alarm; the same on an engine, in CloudWatch and in Prometheus."""
    return min(max(_OLDEST_MS_MIN, int(_OLDEST_VISIBILITIES * settings.visibility_ms)), settings.retention_ms // 2)


def expiring_lead_ms(retention_ms: int) -> int:
    """How long before a dead letter's deletion its alarm begins; `retention_ms`: the dead-letter queue's."""
    return min(_EXPIRING_MS, retention_ms // 2)


def stalled_after_ms(timeout_ms: int) -> int:
    """How long messages may wait in a queue while none is done; `timeout_ms`: the longest of its jobs."""
    return max(alarms.STALLED_MS, timeout_ms)


def drain_limit_ms(settings: QueueSettings) -> int:
    """The time above which draining a queue takes too long."""
    return settings.retention_ms // alarms.DRAIN_PARTS


def longest_gap_ms(timing: Timing, from_ms: int) -> int | None:
    """The longest gap between two ticks of a schedule in the year from `from_ms`; None if there are fewer than two."""
    times = between(timing, from_ms, from_ms + _YEAR_MS, anchor_ms=from_ms)
    fires = list(itertools.islice(times, _FIRES_LOOKED_AT))
    gap_ms = max((after - before for before, after in itertools.pairwise(fires)), default=None)
    return None if gap_ms is None else gap_ms + timing.window_ms


# -- samples ---------------------------------------------------------------------------------------------------------


def samples(snapshot: Snapshot) -> Iterator[AlarmSample]:
    """One sample per alarm and subject to which it applies."""
    done = {one.job: one for one in snapshot.readings.jobs}
    for queue in snapshot.readings.queues:
        yield from _of_queue(snapshot, queue, done)
    for job in snapshot.readings.jobs:
        paused = job.paused_until_ms is not None
        yield _sample(
            snapshot, "breaker-open", job.job, paused, not paused, "it is paused" if paused else "it is not paused"
        )
    yield from _of_events(snapshot)
    yield from _of_ticks(snapshot)
    yield from _of_runs(snapshot)


def _sample(snapshot: Snapshot, alarm: str, subject: str, begins: bool, ends: bool, text: str) -> AlarmSample:
    return AlarmSample(alarm=alarm, subject=subject, begins=begins, ends=ends, text=text, owner=snapshot.owner(subject))


def _of_queue(snapshot: Snapshot, queue: QueueReading, done: Mapping[str, JobReading]) -> Iterator[AlarmSample]:
    name, settings = queue.queue, queue.settings

    def sample(alarm: str, begins: bool, ends: bool, text: str) -> AlarmSample:
        return _sample(snapshot, alarm, name, begins, ends, text)

    def rising(alarm: str, value: float, limit: float, text: str, band: float = alarms.BAND) -> AlarmSample:
        return sample(alarm, value >= limit, value < limit * band, text)

    yield rising("dlq-not-empty", queue.dead, 1, f"{counted(queue.dead, 'dead letter')} in {settings.dead_letter}")
    yield rising("held-not-empty", queue.held, 1, f"{counted(queue.held, 'message')} in {settings.held}")
    held_ms = queue.held_oldest_age_ms or 0
    yield rising("held-old", held_ms, limits.DAY_MS, f"the oldest was held {age(held_ms)} ago", 1)
    left_ms = queue.dead_expires_in_ms
    if left_ms is None:
        yield sample("dlq-expiring", False, True, "no dead letter")
    else:
        lead_ms = expiring_lead_ms(left_ms + (queue.dead_oldest_age_ms or 0))
        yield sample(
            "dlq-expiring",
            left_ms <= lead_ms,
            left_ms > lead_ms + lead_ms // 10,
            f"the oldest is deleted in {age(left_ms)}",
        )
    oldest_ms = queue.oldest_age_ms or 0
    yield rising("oldest", oldest_ms, oldest_limit_ms(settings), f"the oldest message has waited for {age(oldest_ms)}")
    own = snapshot.numbers.queues.get(name)
    mine = done.values() if own is None else [done[job] for job in own.jobs if job in done]
    finished = sum(one.done_last_30_minutes for one in mine)
    after_ms = stalled_after_ms(own.timeout_ms if own is not None else 0)
    yield sample(
        "stalled",
        queue.visible > 0 and not finished and oldest_ms >= after_ms,
        not queue.visible or finished > 0,
        f"{counted(queue.visible, 'message')} wait, the oldest for {age(oldest_ms)}, and {finished} were done in 30 minutes",
    )
    drain_ms = queue.visible * _DONE_MINUTES * limits.MINUTE_MS // finished if finished else 0
    yield rising("drain", drain_ms, drain_limit_ms(settings), f"{queue.visible:,} messages will take {age(drain_ms)}")
    ratio = queue.in_flight_ratio
    yield rising("in-flight-cap", ratio, alarms.IN_FLIGHT_RATIO, f"{queue.in_flight:,} in flight, {ratio:.0%}", 0.9)


def _of_events(snapshot: Snapshot) -> Iterator[AlarmSample]:
    at_ms = snapshot.readings.at_ms
    for (event, subject), instants in snapshot.events.items():
        quarter = _within(instants, at_ms - alarms.EVENT_MS)
        hour = _within(instants, at_ms - alarms.HOUR_MS)
        for alarm in EVENTS.get(event, ()):
            if alarm == "lease-lost-often":
                bad, good, count, what = hour > alarms.LEASES_LOST_MAX, hour <= alarms.LEASES_LOST_MAX, hour, "an hour"
            else:
                least = alarms.REFUSED_MIN if alarm == "tick-refused" else 1
                bad, good, count, what = quarter >= least, not quarter, quarter, "15 minutes"
            yield _sample(snapshot, alarm, subject, bad, good, f"{counted(count, 'event')} within {what}")


def _within(instants: Iterable[int], from_ms: int) -> int:
    return sum(1 for at_ms in instants if at_ms > from_ms)


def _of_ticks(snapshot: Snapshot) -> Iterator[AlarmSample]:
    for one in snapshot.late:
        late_ms = snapshot.readings.at_ms - one.due_at_ms
        text = f"its tick is {age(max(snapshot.readings.at_ms - one.planned_at_ms, 0))} late"
        yield _sample(snapshot, "no-tick", one.schedule, late_ms >= alarms.TICK_LATE_MS, False, text)


def _of_runs(snapshot: Snapshot) -> Iterator[AlarmSample]:
    """Samples for each schedule or map in the snapshot, from its latest run and its open ones."""
    titles: dict[str, list[tuple[bool, int, int, bool]]] = {}
    for one in snapshot.readings.runs:
        disagrees = one.reconciled_at_ms is not None and not one.agrees
        missing, twice = max(one.missing or 0, one.own_missing or 0), max(one.duplicates or 0, one.own_duplicates or 0)
        facts = one.failure is not None, missing, twice, disagrees
        titles.setdefault(one.title, []).append(facts)
    rows: tuple[tuple[str, int, Callable[[int], str]], ...] = (
        ("map-failed", 0, lambda count: f"{counted(count, 'run')} stopped before the end"),
        ("missing", 1, lambda count: f"{counted(count, 'operation')} missing"),
        ("duplicate-effects", 2, lambda count: f"{counted(count, 'operation')} done more than once"),
        ("reconcile-failed", 3, lambda count: f"{counted(count, 'run')} with a difference"),
    )
    for title, facts_of_runs in titles.items():
        for alarm, index, text in rows:
            count = sum(int(facts[index]) for facts in facts_of_runs)
            yield _sample(snapshot, alarm, title, count > 0, not count, text(count))
    for reconciliation in snapshot.readings.reconciliations:
        after_ms = snapshot.numbers.reconcile_after_ms.get(reconciliation.title)
        if after_ms is not None:
            waits_ms = reconciliation.waiting_ms
            said = (
                f"a run began {age(waits_ms)} ago, and no check has confirmed it"
                if waits_ms
                else "every run was checked"
            )
            yield _sample(snapshot, "reconcile-late", reconciliation.title, waits_ms > 2 * after_ms, not waits_ms, said)
