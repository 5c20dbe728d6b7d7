"""`why` for a day: what a schedule or map job did in a year, in a month, on a day, or at one instant.

It answers the questions of a runbook: did the schedule fire, when, how many times; what was dispatched; what took effect
once; what did not, where its payload is, and who is responsible for the fix. Planned instants come from the declaration,
the rest from runs, records, history and queues, so a tick that should have fired and did not is listed too.
Never here: one operation's history (`why.py`), output. Invariant: reading changes nothing.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Literal

from msgspec import Struct

from onefold import errors, limits
from onefold.admin import why
from onefold.admin.session import AdminSession
from onefold.contracts.documents import reader
from onefold.contracts.ledger import Row
from onefold.contracts.store import RecordKey
from onefold.maps import state as map_state
from onefold.reconcile import findings
from onefold.reconcile.findings import Example, ReconcileOutcome, example_of
from onefold.reconcile.survey import Survey
from onefold.runner import runs
from onefold.runner.runs import RunState
from onefold.runtime.events import EVENTS
from onefold.schedules.expressions import RateExpression
from onefold.schedules.fire_times import between, run_name
from onefold.schedules.schedule import Schedule
from onefold.schedules.ticks import ScheduleState
from onefold.schedules.transactions import PREFIX
from onefold.zones import zone_of

RUNS_MAX: Final = 31  # rows shown that are right, and as many that are not; further ones are only judged and counted
JUDGED_MAX: Final = 2_000  # runs of one answer that are examined; further ones are reported as unjudged
LEFT_MAX: Final = 20  # operations that are not done, listed for each run
_PLANNED_MAX: Final = 600_000  # planned instants of a range that are examined: a leap year has 527,040 minutes
_PAGE: Final = 500  # runs read at once
_TITLES_MAX: Final = 1_000  # runs whose titles a misspelt name is compared with
_FIRST_ROWS: Final = 100  # of a run's rows, including those of its tick
_TROUBLE: Final = ("tick-refused", "tick-dropped", "dead-letter")
_FORM: Final = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")

Fired = Literal["fired", "not-fired", "ahead", "before"]


_state_of = reader(ScheduleState, None)


class TimeRange(Struct, frozen=True, kw_only=True):
    """What a date means.

    Args:
        text: as typed. zone: the zone it is in.
        from_ms, to_ms: its first instant, and the first instant after it.
    """

    text: str
    zone: str
    from_ms: int
    to_ms: int


class DayRun(Struct, frozen=True, kw_only=True):
    """One planned instant, one run that was not planned, or several instants in a row that did not fire for one reason.

    Args:
        run: its name.
        fired: whether it began; `ahead`: it is in the future; `before`: the schedule did not exist yet.
        planned_at_ms, began_at_ms: when it should have begun, and when it did; planned, began: in the range's zone.
        count: planned instants that this is about; until: the last of them, in the range's zone, if there are several.
        times: messages of its tick that were accepted: more than 1 if the schedule fired again; None if it has no tick.
        by_hand: who had its tick sent by hand, and the reason; empty if a scheduler sent it.
        tick: the state of its tick, or why it did not fire, in a sentence; todo: what to do about that.
        state: the state of the run; None if it did not begin.
        counts: its operations by state, as in `reconcile/survey.py`, with `twice` and `doubtful`.
        left: the first of its operations that did not simply take effect once, with payload and owner.
        others: how many more of them there are.
        reconciled: what the last reconciliation found.
    """

    run: str
    fired: Fired
    planned_at_ms: int | None
    planned: str | None
    began_at_ms: int | None = None
    began: str | None = None
    count: int = 1
    until: str | None = None
    times: int | None = None
    by_hand: str = ""
    tick: str = ""
    todo: tuple[str, ...] = ()
    state: RunState | None = None
    dispatched: int = 0
    counts: Mapping[str, int] = {}
    left: tuple[Example, ...] = ()
    others: int = 0
    reconciled: ReconcileOutcome | None = None


class Day(Struct, frozen=True, kw_only=True):
    """What a schedule did in a range of time.

    Args:
        schedule: its name, or that of a map job. declared: whether the named app declares it.
        expression, owner: those of the declaration.
        range: what was asked about. now_ms: when it was asked.
        runs: by time: the first that are right, and the first that are not.
        not_shown: instants and runs of the range that are not among them.
        wrong: instants and runs with a problem; wrong_not_shown: how many of them are not in `runs`.
        unjudged: instants and runs that were not examined because there are too many.
    """

    schedule: str
    declared: bool
    expression: str | None
    owner: str | None
    range: TimeRange
    now_ms: int
    runs: tuple[DayRun, ...]
    not_shown: int
    wrong: int
    wrong_not_shown: int
    unjudged: int

    @property
    def is_right(self) -> bool:
        """Whether everything planned so far fired once and took effect once; False if that is not known."""
        return not (self.wrong or self.unjudged)


def is_right(one: DayRun) -> bool:
    """Whether a planned instant or a run has done by now what it should have done."""
    if one.fired in ("ahead", "before"):
        return True
    state = one.state
    if state is None or state.failure is not None or state.expected is None:
        return False
    last = one.reconciled
    if last is not None and last.own is not None and last.own.differs(last.dispatched - last.done):
        return False  # only another reconciliation can clear what the user's own check finds
    return not any(count for state, count in one.counts.items() if state != "done")


def range_of(text: str, zone: str = "UTC") -> TimeRange:
    """What a date means in a zone.

    Args:
        text: `2026`, `2026-06`, `2026-06-01`, or an instant: `2026-06-01T03:00` in the zone, or `2026-06-01T02:00:00Z`.

    Raises:
        UsageError: it is none of these.
    """
    where = zone_of(zone)
    found = _FORM.fullmatch(text)
    try:
        if found is not None:
            year, month, day = (int(part) if part is not None else None for part in found.groups())
            assert year is not None
            first = datetime(year, month or 1, day or 1, tzinfo=where)
            return TimeRange(text=text, zone=zone, from_ms=_ms(first), to_ms=_ms(_next(first, month, day)))
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=where)
        length_ms = limits.SECOND_MS if text.count(":") > 1 else limits.MINUTE_MS
        return TimeRange(text=text, zone=zone, from_ms=_ms(at), to_ms=_ms(at) + length_ms)
    except (ValueError, OverflowError):
        raise errors.UsageError(
            f"{text!r:.60} is not a valid date.",
            todo="Write 2026, 2026-06, 2026-06-01, or an instant such as 2026-06-01T02:00:00Z.",
        ) from None


def _next(first: datetime, month: int | None, day: int | None) -> datetime:
    if day is not None:
        return first + timedelta(days=1)
    if month is None or month == 12:
        return first.replace(year=first.year + 1, month=1)
    return first.replace(month=month + 1)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * limits.SECOND_MS)


def explain(session: AdminSession, schedules: Mapping[str, Schedule], name: str, text: str) -> Day:
    """What a schedule did in a range of time.

    Args:
        schedules: those that the app declares; empty if no app is known: then only what began is reported.
        name: the name of a schedule, a dispatcher or a map job.
        text: the range, as for `range_of`; read in the schedule's zone if that is known, else in UTC.

    Raises:
        UsageError: it is not a date. NotFoundError: nothing with that name is declared, and no run of it ever began.
    """
    schedule = schedules.get(name)
    asked = range_of(text, schedule.timing.zone if schedule is not None else "UTC")
    names = _names(session, name)
    lookup = _DayLookup(session, name, schedule, asked)
    began = lookup.began(names)
    if schedule is None and not lookup.known:
        raise _unknown(session, schedules, name)
    rows = lookup.rows(began)
    return Day(
        schedule=name,
        declared=schedule is not None,
        expression=schedule.expression if schedule is not None else None,
        owner=schedule.owner if schedule is not None else None,
        range=asked,
        now_ms=session.now_ms(),
        runs=tuple(rows.runs),
        not_shown=rows.right_not_shown + rows.wrong_not_shown + rows.unjudged,
        wrong=rows.wrong,
        wrong_not_shown=rows.wrong_not_shown,
        unjudged=rows.unjudged,
    )


def _names(session: AdminSession, name: str) -> list[str]:
    """Runs that may belong to this schedule or map: those named after it, and map runs, whose names a person chose."""
    state = session.engine.state
    mapped = (one.removeprefix(map_state.PREFIX) for one in state.names(map_state.PREFIX))
    return sorted({*runs.names(state, f"{name}/"), *mapped})


def _unknown(session: AdminSession, schedules: Mapping[str, Schedule], name: str) -> errors.NotFoundError:
    state = session.engine.state
    titles = {one.run.title for one in runs.read_all(state, runs.names(state)[-_TITLES_MAX:]) if one is not None}
    known = sorted({*schedules, *titles})
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    there = f"There are: {', '.join(known[:10])}." if known else "No schedule is declared, and no run ever began."
    unnamed = "No app was named, and no" if session.jobs is None else "No"
    return errors.NotFoundError(
        f"There is no schedule {name!r} in {session.url}.",
        meaning=f"{unnamed} run of it began here.",
        todo=f"Did you mean {near[0]}?" if near else there,
    )


class _DayRows:
    """The rows of an answer: only the first right and the first wrong ones are kept, but all are counted."""

    def __init__(self) -> None:
        self.runs: list[DayRun] = []
        self.wrong = self.right_not_shown = self.wrong_not_shown = self.unjudged = 0
        self._shown = {True: 0, False: 0}

    def add(self, one: DayRun) -> None:
        right = is_right(one)
        self.wrong += 0 if right else one.count
        if self._shown[right] < RUNS_MAX:
            self._shown[right] += 1
            self.runs.append(one)
        elif right:
            self.right_not_shown += one.count
        else:
            self.wrong_not_shown += one.count


class _DayLookup:
    """Finds the runs and missing ticks of one schedule in one range."""

    def __init__(self, session: AdminSession, name: str, schedule: Schedule | None, asked: TimeRange) -> None:
        self._session = session
        self._name = name
        self._schedule = schedule
        self._range = asked
        self._zone = zone_of(asked.zone)
        self._policies = (
            {one.name: one.policy for one in session.jobs.named.values()} if session.jobs is not None else {}
        )
        self.known = False  # whether any run of it began
        self._first_ms: int | None = None  # the earliest of those runs
        value = session.engine.state.get([PREFIX + name])[0]
        self._schedule_state = _state_of(value.value) if value is not None else None

    # -- which runs ------------------------------------------------------------------------------------------------------

    def began(self, names: Sequence[str]) -> dict[str, int]:
        """The runs of the range that began, by name, with their planned or actual start; read one page at a time."""
        began: dict[str, int] = {}
        for first in range(0, len(names), _PAGE):
            for one in runs.read_all(self._session.engine.state, names[first : first + _PAGE]):
                if one is None or one.run.title != self._name:
                    continue
                at_ms = planned_or_begun_ms(one.run)
                self.known = True
                self._first_ms = at_ms if self._first_ms is None else min(at_ms, self._first_ms)
                if self._range.from_ms <= at_ms < self._range.to_ms:
                    began[one.run.name] = at_ms
        return began

    def _planned(self) -> Iterator[int]:
        """The planned instants of the range, ascending."""
        if self._schedule is None:
            return iter(())
        timing = self._schedule.timing
        anchor_ms = self._schedule_state.anchor_ms if self._schedule_state is not None else timing.start_ms
        if anchor_ms is None and isinstance(timing.expression, RateExpression):
            return iter(())  # it counts from when a scheduler first saw it, and none has
        return between(timing, self._range.from_ms, self._range.to_ms, anchor_ms=anchor_ms or 0)

    def _instants(self, began: Mapping[str, int]) -> Iterator[tuple[int, str, bool]]:
        """Planned instants and runs by time: the instant, the run's name, and whether it began."""
        every = ((at_ms, run_name(self._name, at_ms)) for at_ms in self._planned())
        planned = ((at_ms, name, False) for at_ms, name in every if name not in began)
        return heapq.merge(planned, sorted((at_ms, name, True) for name, at_ms in began.items()))

    def rows(self, began: Mapping[str, int]) -> _DayRows:
        """The rows of the range. If they are many, consecutive instants that did not fire for one reason are one row."""
        rows = _DayRows()
        folds = sum(1 for _ in islice(self._instants(began), RUNS_MAX + 1)) > RUNS_MAX
        judged = 0
        last: tuple[Fired, str, str, int, int, int] | None = None  # what did not fire: why, run, from, until, count
        instants = self._instants(began)
        for at_ms, name, is_begun in islice(instants, _PLANNED_MAX):
            why_not: tuple[Fired, str] = ("fired", "") if is_begun else self._unfired(at_ms)
            if last is not None and folds and why_not == last[:2]:
                last = (*last[:4], at_ms, last[5] + 1)
                continue
            if last is not None:
                rows.add(self._unfired_row(*last))
            last = None if is_begun else (*why_not, name, at_ms, at_ms, 1)
            if is_begun and judged < JUDGED_MAX:
                rows.add(self.run(name))
                judged += 1
            elif is_begun:
                rows.unjudged += 1
        if last is not None:
            rows.add(self._unfired_row(*last))
        rows.unjudged += sum(1 for _ in instants)
        return rows

    # -- one run ---------------------------------------------------------------------------------------------------------

    def _unfired_row(self, fired: Fired, why_not: str, run: str, from_ms: int, until_ms: int, count: int) -> DayRun:
        return DayRun(
            run=run,
            fired=fired,
            planned_at_ms=from_ms,
            planned=self._said(from_ms),
            count=count,
            until=self._said(until_ms) if count > 1 else None,
            tick=why_not,
        )

    def run(self, name: str) -> DayRun:
        """A run that began, with its outcome so far."""
        (found,) = runs.read_all(self._session.engine.state, [name])
        if found is None:  # deleted since it was listed
            return DayRun(run=name, fired="not-fired", planned_at_ms=None, planned=None, tick="it was deleted just now")
        state, planned_at_ms = found.run, found.run.nominal_at_ms
        survey = Survey(self._session.engine, name, self._session.now_ms(), self._policies)
        left: list[Example] = []
        others = 0
        for item in survey.walk():
            if len(left) < LEFT_MAX:
                left.append(example_of(item))
            else:
                others += 1
        tick, todo, times, by_hand = self._tick(name) if state.kind != "map" else ("", (), None, "")
        counts: dict[str, int] = dict(survey.counts.items())
        counts |= {mark: count for mark, count in (("twice", survey.twice), ("doubtful", survey.doubtful)) if count}
        return DayRun(
            run=name,
            fired="fired",
            planned_at_ms=planned_at_ms,
            planned=self._local(planned_at_ms),
            began_at_ms=state.started_at_ms,
            began=self._local(state.started_at_ms),
            times=times,
            by_hand=by_hand,
            tick=tick,
            todo=todo,
            state=state,
            dispatched=survey.dispatched,
            counts=counts,
            left=tuple(left),
            others=others,
            reconciled=findings.read(self._session.engine.state, name),
        )

    def _local(self, at_ms: int | None) -> str | None:
        return self._said(at_ms) if at_ms is not None else None

    def _said(self, at_ms: int) -> str:
        return f"{datetime.fromtimestamp(at_ms // 1_000, tz=UTC).astimezone(self._zone):%Y-%m-%d %H:%M:%S %Z}"

    def _unfired(self, planned_at_ms: int) -> tuple[Fired, str]:
        """Why a planned instant has no run."""
        if planned_at_ms > self._session.clock.wall.now_ms():
            return "ahead", ""
        state = self._schedule_state
        if state is None and self._first_ms is None:
            return "not-fired", "no scheduler has taken up the schedule, and no tick of it was ever handled here"
        first_ms = state.anchor_ms if state is not None else self._first_ms
        if first_ms is not None and planned_at_ms < first_ms:
            what = "taken up by a scheduler" if state is not None else "seen here"
            return "before", f"it was first {what} at {self._local(first_ms)}"
        if state is None:
            return "not-fired", "its tick was never handled here, or its run was deleted after 90 days"
        if any(after_ms < planned_at_ms <= until_ms for after_ms, until_ms in state.gaps):
            missed = self._schedule.missed if self._schedule is not None else "?"
            return "not-fired", f"no scheduler ran then, and it was passed over afterwards (missed={missed!r})"
        if planned_at_ms > state.last_ms:
            return "not-fired", "it is due, and no scheduler has sent it yet: is one running?"
        return "not-fired", "its time passed and nothing was sent: it had other times then, or its run was deleted"

    def _tick(self, run: str) -> tuple[str, tuple[str, ...], int | None, str]:
        """The state of a run's tick, what to do about it, how often it was sent, and who sent it by hand, and why."""
        ledger = self._session.engine.ledger
        found = why.explain(self._session, run, job=self._name, say=self._said).stories
        first = ledger.of_run(run, _FIRST_ROWS)
        ids = {row.message_id for row in ledger.of_key(RecordKey("", self._name, run)) if row.message_id is not None}
        ids |= {message_id for story in found for message_id in story.messages}
        ids |= {
            one.message_id
            for one in self._session.engine.records.find(run)
            if one.key.job == self._name and one.message_id
        }
        times = max(sum(row.event == "ticked" for row in first), len(ids))
        by_hand = ", ".join(_who_and_why(row) for row in first if row.event == "tick-by-hand")
        if found:
            return found[0].text, found[0].todo, times, by_hand
        trouble = next((row for row in reversed(first) if row.event in _TROUBLE), None)
        if trouble is None:
            return "nothing is known of its tick any more", (), times, by_hand
        return f"{EVENTS[trouble.event].text}: {trouble.detail.get('summary')}", (), times, by_hand


def _who_and_why(row: Row) -> str:
    reason = row.detail.get("reason_text")
    return f"by hand, by {(row.actor or '?').removeprefix('person:')}" + (f": {reason}" if reason else "")


def planned_or_begun_ms(run: RunState) -> int:
    """The instant that decides which day a run belongs to: the planned one, or else its start."""
    return run.nominal_at_ms if run.nominal_at_ms is not None else run.started_at_ms
