"""Readings of an engine: depth and age of queues, paused jobs, progress of runs, reconciliations.

`Readings` is one reading, as plain values; metrics, alarms and pages use it. A `Reader` takes readings: each part is
read again only when ten times the duration of its last read has passed, so that reading never puts a high load on a
large or remote engine; meanwhile the part is reused.
Never here: what a worker counts (events, `metrics.py`), thresholds, output. Invariants: reading changes nothing and
receives nothing; labels that come from it are names of queues, jobs, schedules and maps, never keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec import Struct

from onefold import limits
from onefold.contracts.admin import roles
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Depth
from onefold.contracts.settings import QueueSettings
from onefold.observe import wording
from onefold.reconcile import findings
from onefold.runner import runs
from onefold.runner.admission import breaker_name, breaker_of

if TYPE_CHECKING:
    from onefold.contracts.engine import Engine
    from onefold.contracts.verbs import Ledger
    from onefold.outside import Clock
    from onefold.runner.runs import RunState, VersionedRun

T = TypeVar("T")
_PAGE: Final = 5_000  # rows of the history that are read at once

LOOK_FACTOR: Final = 10  # reading takes at most a tenth of the time
RUNS_MAX: Final = 200  # runs in one reading: the latest of each schedule and map, and open ones
_GOOD_LOOKED_AT: Final = 20  # runs of one title that are searched for its last good reconciliation
_DONE_MS: Final = 30 * limits.MINUTE_MS
_LATE_MS: Final = 2_000  # other processes' latest rows may not be written yet
_DAY_STATES: Final = ("completed", "duplicate", "failed", "dead", "held")
_STATES: Final = {
    "duplicate": "duplicate", "retry": "failed", "failed": "failed", "dependency-down": "failed", "held": "held",
    "dead-letter": "dead", "quarantine": "dead", "conflict": "dead", "malformed": "dead", "untrusted": "dead",
    "no-job": "dead", "group-stopped": "dead",
}  # fmt: skip
"""Events of a job's message, with the state that each counts as in the day's numbers."""


class QueueReading(Struct, frozen=True, kw_only=True):
    """One queue with its dead-letter and held queues.

    Args:
        settings: as stored in the engine: name, FIFO or not, visibility, retention, in-flight cap.
        visible, in_flight, delayed, to_retry: messages in it; see `Depth`.
        oldest_age_ms: the age of its oldest message that is not delayed; None: there is none, or the engine does not
            report it (SQS).
        dead, held: messages in its dead-letter queue and in its queue of unknown outcomes.
        dead_oldest_age_ms, held_oldest_age_ms: the age of the oldest of them; None as above.
        dead_expires_in_ms: the time until the oldest dead letter is deleted; None as above.
    """

    settings: QueueSettings
    visible: int
    in_flight: int
    delayed: int
    to_retry: int | None = None
    oldest_age_ms: int | None
    dead: int
    held: int
    dead_oldest_age_ms: int | None
    held_oldest_age_ms: int | None
    dead_expires_in_ms: int | None

    @property
    def queue(self) -> str:
        """Its name."""
        return self.settings.name

    @property
    def in_flight_ratio(self) -> float:
        """The used share of its cap on messages in flight, 0 to 1."""
        return self.in_flight / self.settings.in_flight_max


class JobReading(Struct, frozen=True, kw_only=True):
    """One job, as far as the engine knows it.

    Args:
        job: its name.
        done_last_minute, done_last_30_minutes: runs that completed, on any worker.
        paused_until_ms: when its circuit breaker tries again; None if it is not paused.
    """

    job: str
    done_last_minute: int
    done_last_30_minutes: int
    paused_until_ms: int | None


class RunReading(Struct, frozen=True, kw_only=True):
    """One run of a schedule or map.

    Args:
        run: its name. title: its schedule or map. owner: the team that owns a fix.
        started_at_ms: when it began. is_open: it is not known to be finished.
        failure: why its dispatch stopped; None if it did not.
        expected: its operations, or those so far while it is being dispatched.
        completed, failed, dead, held: how many operations are in that state. unfinished: how many have no outcome yet.
        reconciled_at_ms: when it was last reconciled; None: not yet.
        agrees: that reconciliation found everything as it should be. missing, duplicates: operations that it found
            missing, and completed more than once. own_missing, own_duplicates: how much the user's own check found
            missing, and too often, in the units that it counts. None if it was not reconciled.
    """

    run: str
    title: str
    owner: str | None
    started_at_ms: int
    is_open: bool
    failure: str | None
    expected: int
    completed: int
    failed: int
    dead: int
    held: int
    unfinished: int
    reconciled_at_ms: int | None
    agrees: bool
    missing: int | None
    duplicates: int | None
    own_missing: int | None = None
    own_duplicates: int | None = None


class ReconcileReading(Struct, frozen=True, kw_only=True):
    """How up to date the reconciliation of a schedule or map is.

    Args:
        title: the schedule or map. good_age_ms: the time since the last good reconciliation; None: none of its latest
            runs has one.
        waiting_ms: the time since the start of its oldest run, among the latest, that is newer than the last run with a
            good reconciliation; 0: there is none.
    """

    title: str
    good_age_ms: int | None
    waiting_ms: int


class DayReading(Struct, frozen=True, kw_only=True):
    """What happened since midnight UTC.

    Args:
        job: a job, or a schedule or map with the numbers of today's runs.
        counts: by state: completed, duplicate, failed, dead, held; for a schedule or map expected, completed, failed,
            dead, held and, if a run was reconciled, missing and duplicate.
    """

    job: str
    counts: Mapping[str, int]


class Readings(Struct, frozen=True, kw_only=True):
    """One reading of an engine.

    Args:
        at_ms: when it was taken, wall time.
        queues: by name, without dead-letter and held queues. jobs, reconciliations: by name.
        runs: the latest of each schedule and map, open ones, and today's; at most `RUNS_MAX`, by name.
        days: by name of the job, schedule or map.
    """

    at_ms: int
    queues: tuple[QueueReading, ...] = ()
    jobs: tuple[JobReading, ...] = ()
    runs: tuple[RunReading, ...] = ()
    reconciliations: tuple[ReconcileReading, ...] = ()
    days: tuple[DayReading, ...] = ()


def read_queues(engine: Engine, queues: Collection[str] | None = None) -> tuple[QueueReading, ...]:
    """The queues of an engine now, by name, without dead-letter and held queues.

    Args:
        queues: only these; None: all.

    Raises:
        NotFoundError: one of `queues` does not exist. TransientError, StorageError: the engine could not be read.
    """
    if queues is None:
        settings = {one.name: one for one in engine.queues.settings()}
        sources = roles(settings).sources
    else:
        sources = {name: engine.queues.setting(name) for name in queues}
        dead = {one.dead_letter for one in sources.values()} - {None, *sources}
        settings = {**sources, **{str(name): engine.queues.setting(str(name)) for name in dead}}
    names = {name for one in sources.values() for name in (one.name, one.dead_letter, one.held) if name is not None}
    ordered = sorted(names)
    depths = dict(zip(ordered, engine.queues.depths(ordered), strict=True))
    found = [one for name, one in sorted(sources.items()) if depths[name] is not None]  # others were just deleted
    return tuple(_queue(one, depths, settings) for one in found)


class Reader:
    """Takes readings of one engine. Use it from one thread at a time.

    Args:
        clock: the engine's clock.
        queues: only these; None: all that the engine has.
        jobs: names that are listed even if none of their runs is done and they are not paused. reconciled: titles that
            are listed even if they were never reconciled.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        *,
        queues: Collection[str] | None = None,
        jobs: Collection[str] = (),
        reconciled: Collection[str] = (),
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._named = jobs
        self._reconciled = reconciled
        self._queues = _Kept(clock, lambda _: read_queues(engine, queues))
        self._jobs = _Kept(clock, self._look_at_jobs)
        self._runs = _Kept(clock, self._look_at_runs)
        self._day = _Kept(clock, _Day(engine).look)
        self._ended: dict[str, tuple[int, int | None, RunReading]] = {}  # run -> version, reconciled at, reading

    def read(self) -> Readings:
        """Take a reading.

        Raises:
            TransientError, StorageError: the engine could not be read.
        """
        at_ms = self._clock.now_ms()
        found, reconciliations = self._runs.get(at_ms)
        return Readings(
            at_ms=at_ms,
            queues=self._queues.get(at_ms),
            jobs=self._jobs.get(at_ms),
            runs=found,
            reconciliations=reconciliations,
            days=_days(found, self._day.get(at_ms), at_ms),
        )

    def _look_at_jobs(self, at_ms: int) -> tuple[JobReading, ...]:
        state, records = self._engine.state, self._engine.records
        minute = records.count_completed(at_ms - limits.MINUTE_MS, at_ms + 1)
        half_hour = records.count_completed(at_ms - _DONE_MS, at_ms + 1)
        prefix = breaker_name("")
        names = state.names(prefix)
        paused = {}
        for name, stored in zip(names, state.get(names) if names else (), strict=True):
            found = breaker_of(stored.value) if stored is not None else None
            if found is not None and found.is_open:
                paused[name.removeprefix(prefix)] = found.until_ms
        return tuple(
            JobReading(
                job=job,
                done_last_minute=minute.get(job, 0),
                done_last_30_minutes=half_hour.get(job, 0),
                paused_until_ms=paused.get(job),
            )
            for job in sorted({*self._named, *half_hour, *minute, *paused})
        )

    def _look_at_runs(self, at_ms: int) -> tuple[tuple[RunReading, ...], tuple[ReconcileReading, ...]]:
        state = self._engine.state
        titles: dict[str, list[str]] = {}
        for name in runs.names(state):
            titles.setdefault(name.rpartition("/")[0] or name, []).append(name)
        chosen = {some[-1] for some in titles.values()}
        chosen.update(runs.open_names(state)[-(RUNS_MAX - len(chosen)) :] if len(chosen) < RUNS_MAX else ())
        today = wording.instant(at_ms).partition("T")[0]
        chosen.update([name for some in titles.values() for name in some if name.rpartition("/")[2].startswith(today)])
        names = sorted(chosen)[:RUNS_MAX]
        found = [self._run(one) for one in runs.read_all(state, names) if one is not None]
        followed = {*self._reconciled, *(one.title for one in found if one.reconciled_at_ms is not None)}
        latest = [self._reconcile(title, titles.get(title, [])[-_GOOD_LOOKED_AT:], at_ms) for title in sorted(followed)]
        self._ended = {name: kept for name, kept in self._ended.items() if name in chosen}
        return tuple(found), tuple(latest)

    def _run(self, stored: VersionedRun) -> RunReading:
        """One run. A run that has ended is counted once, and again if its document or its reconciliation changes."""
        run = stored.run
        outcome = findings.read(self._engine.state, run.name)
        looked_at_ms = outcome.at_ms if outcome is not None else None
        known = self._ended.get(run.name)
        if known is not None and known[:2] == (stored.version, looked_at_ms):
            return known[2]
        counts = runs.count(self._engine.ledger, run)
        found = RunReading(
            run=run.name,
            title=run.title,
            owner=run.owner,
            started_at_ms=run.started_at_ms,
            is_open=run.ended_at_ms is None,
            failure=run.failure,
            expected=counts.expected,
            completed=counts.done,
            failed=counts.failed,
            dead=counts.dead,
            held=counts.unknown,
            unfinished=counts.missing,
            reconciled_at_ms=looked_at_ms,
            agrees=outcome is not None and outcome.verdict == "agrees",
            missing=None if outcome is None else outcome.missing,
            duplicates=None if outcome is None else outcome.twice,
            own_missing=None if outcome is None or outcome.own is None else outcome.own.missing,
            own_duplicates=None if outcome is None or outcome.own is None else outcome.own.duplicate,
        )
        if not found.is_open:
            self._ended[run.name] = stored.version, looked_at_ms, found
        return found

    def _reconcile(self, title: str, names: Sequence[str], at_ms: int) -> ReconcileReading:
        """The latest runs of one title, newest first, until one with a good reconciliation is found."""
        waiting: list[RunState] = []
        good_ms: int | None = None
        for stored in reversed(runs.read_all(self._engine.state, names)):
            if stored is None:
                continue
            outcome = findings.read(self._engine.state, stored.run.name)
            if outcome is not None and outcome.verdict == "agrees":
                good_ms = outcome.at_ms
                break
            waiting.append(stored.run)
        return ReconcileReading(
            title=title,
            good_age_ms=None if good_ms is None else max(at_ms - good_ms, 0),
            waiting_ms=max((at_ms - one.started_at_ms for one in waiting), default=0),
        )


class _Day:
    """Counts the rows of today's history, each once; only new rows are read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._from_ms = 0
        self._counts: dict[str, Counter[str]] = {}

    def look(self, at_ms: int) -> Mapping[str, Counter[str]]:
        """The counts by job and state, until shortly before `at_ms`."""
        midnight_ms = at_ms - at_ms % limits.DAY_MS
        if self._from_ms < midnight_ms:
            self._from_ms, self._counts = midnight_ms, {}
        until_ms = at_ms - at_ms % limits.SECOND_MS - _LATE_MS  # completions are counted by whole seconds
        if until_ms > self._from_ms:
            for job, count in self._engine.records.count_completed(self._from_ms, until_ms).items():
                self._of(job)["completed"] += count
            for row in rows(self._engine.ledger, self._from_ms, until_ms):
                state = _STATES.get(row.event)
                if state is not None and row.key is not None:
                    self._of(row.key.job)[state] += 1
            self._from_ms = until_ms
        return self._counts

    def _of(self, job: str) -> Counter[str]:
        return self._counts.setdefault(job, Counter(dict.fromkeys(_DAY_STATES, 0)))


def rows(ledger: Ledger, from_ms: int, to_ms: int) -> Iterator[Row]:
    """All rows with from_ms <= at_ms < to_ms, page by page. Rows of one millisecond are never split between pages."""
    limit = _PAGE
    while from_ms < to_ms:
        page = ledger.between(from_ms, to_ms, limit)
        if len(page) < limit:
            yield from page
            return
        last_ms = page[-1].at_ms
        if last_ms == from_ms:  # a page cannot hold all rows of this millisecond
            limit *= 2
            continue
        yield from (row for row in page if row.at_ms < last_ms)
        from_ms, limit = last_ms, _PAGE


def _days(found: Sequence[RunReading], counts: Mapping[str, Counter[str]], at_ms: int) -> tuple[DayReading, ...]:
    titles: dict[str, Counter[str]] = {}
    for run in found:
        if run.started_at_ms >= at_ms - at_ms % limits.DAY_MS:
            states = {"expected": run.expected, "completed": run.completed, "failed": run.failed, "dead": run.dead}
            looked = {"missing": run.missing, "duplicate": run.duplicates}
            of = titles.setdefault(run.title, Counter())
            of.update({**states, "held": run.held} | {name: n for name, n in looked.items() if n is not None})
    by_name = {**counts, **titles}
    return tuple(DayReading(job=name, counts=dict(by_name[name])) for name in sorted(by_name))


class _Kept(Generic[T]):
    """A part of a reading, kept for `LOOK_FACTOR` times the duration of its read."""

    def __init__(self, clock: Clock, look: Callable[[int], T]) -> None:
        self._clock = clock
        self._look = look
        self._found: T | None = None
        self._until_ms = 0

    def get(self, at_ms: int) -> T:
        """The part; `at_ms`: wall time."""
        before_ms = self._clock.monotonic_ms()
        if self._found is None or before_ms >= self._until_ms:
            self._found = self._look(at_ms)
            after_ms = self._clock.monotonic_ms()
            self._until_ms = after_ms + LOOK_FACTOR * (after_ms - before_ms)
        return self._found


def _queue(
    settings: QueueSettings, depths: Mapping[str, Depth | None], all_settings: Mapping[str, QueueSettings]
) -> QueueReading:
    dead_letter = settings.dead_letter if settings.dead_letter != settings.name else None
    own = depths[settings.name] or _NOTHING
    dead, held = (depths.get(name or "") or _NOTHING for name in (dead_letter, settings.held))
    kept = all_settings.get(dead_letter or "")
    expires_ms = None
    if dead.oldest_age_ms is not None and kept is not None:
        expires_ms = max(kept.retention_ms - dead.oldest_age_ms, 0)
    return QueueReading(
        settings=settings,
        visible=own.visible,
        in_flight=own.in_flight,
        delayed=own.delayed,
        to_retry=own.to_retry,
        oldest_age_ms=own.oldest_age_ms,
        dead=_all(dead),
        held=_all(held),
        dead_oldest_age_ms=dead.oldest_age_ms,
        held_oldest_age_ms=held.oldest_age_ms,
        dead_expires_in_ms=expires_ms,
    )


_NOTHING: Final = Depth(visible=0, in_flight=0, delayed=0)


def _all(depth: Depth) -> int:
    return depth.visible + depth.in_flight + depth.delayed
