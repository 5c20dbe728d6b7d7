"""What will fire: the ticks of schedules in a stretch of time, merged, with the local times that the clocks skip.

Uses the declared times and, where a scheduler has seen the schedule, its state: from when a rate counts, which ticks were
sent ahead of their time, and whether it is paused. Never here: drawing, opening an engine.
Invariant: the list has the ticks that the scheduler gets from `schedules/fire_times.py`, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from onefold.admin.session import AdminSession
from onefold.contracts.documents import reader
from onefold.duration import to_text
from onefold.errors import UsageError
from onefold.schedules.expressions import RateExpression
from onefold.schedules.fire_times import Timing, between, next_after, run_name, skipped, utc_text, zone_of
from onefold.schedules.schedule import Schedule
from onefold.schedules.ticks import ScheduleState, was_sent
from onefold.schedules.transactions import PREFIX

_state_of = reader(ScheduleState, None)
_NO_STATES: Final[Mapping[str | None, ScheduleState]] = {}


class CalendarRow(Struct, frozen=True, kw_only=True):
    """A tick, or a local time that the clocks skip.

    Args:
        schedule: its name; None for a bare expression. at_ms: the planned instant, UTC ms; for a skipped time, when the
            clocks go forward. utc: the same, `2026-06-01T02:00:00Z`. local: with its offset, in `zone`.
        abbreviation: the abbreviation of the zone at that time, for example BST. key: the key of the tick, and of its run.
        fires: False for a skipped time, a tick that was sent ahead of its time, and one of a paused schedule.
        note: anything unusual.
    """

    schedule: str | None
    at_ms: int
    utc: str
    local: str
    zone: str
    abbreviation: str
    key: str | None
    fires: bool = True
    note: str = ""


class QuietSchedule(Struct, frozen=True, kw_only=True):
    """A schedule without a tick in the stretch; `next_utc`: its first tick afterwards, None if there is none."""

    schedule: str | None
    next_utc: str | None


class Calendar(Struct, frozen=True, kw_only=True):
    """What will fire from `from_utc` up to but not including `to_utc`.

    Args:
        rows: in order of time. silent: schedules without a tick among them; empty if rows were left out.
        assumed: rates without a start that no scheduler is known to have seen; here they count from `from_utc`, but will
            count from when a scheduler first sees them.
        more_from: the instant of the first row that was left out; None if none was.
    """

    from_utc: str
    to_utc: str
    rows: Sequence[CalendarRow]
    silent: Sequence[QuietSchedule]
    assumed: Sequence[str | None]
    more_from: str | None


def calendar(
    timings: Mapping[str | None, Timing],
    from_ms: int,
    to_ms: int,
    *,
    zone: str | None = None,
    rows_max: int = 100,
    states: Mapping[str | None, ScheduleState] = _NO_STATES,
) -> Calendar:
    """What schedules fire in a stretch of time.

    Args:
        timings: by name of the schedule; None for a bare expression.
        from_ms, to_ms: UTC ms; from the first up to but not including the second.
        zone: the zone of the local times; if None, each schedule's own. rows_max: at least 1.
        states: the states of the schedules that a scheduler has seen, by name: see `states_of`.

    Raises:
        UsageError: the end is not after the beginning, or the zone is unknown.
    """
    if to_ms <= from_ms:
        raise UsageError(
            f"The calendar would end at {utc_text(to_ms)}, and begin at {utc_text(from_ms)}.",
            todo="Put the end (--to) after the beginning (--from).",
        )
    if zone is not None:
        zone_of(zone)
    anchors = {name: states[name].anchor_ms if name in states else from_ms for name in timings}
    streams = [_rows(name, timing, from_ms, to_ms, zone, anchors[name]) for name, timing in timings.items()]
    rows = list(islice(merge(*streams, key=_order), rows_max + 1))
    more = rows.pop() if len(rows) > rows_max else None
    fired = {row.schedule for row in rows if row.fires}
    silent = [name for name in timings if name not in fired] if more is None else []
    assumed = [name for name, one in timings.items() if counts_from_first_seen(one) and name not in states]
    return Calendar(
        from_utc=utc_text(from_ms),
        to_utc=utc_text(to_ms),
        rows=[_as_seen(row, states.get(row.schedule)) for row in rows],
        silent=[QuietSchedule(schedule=name, next_utc=_next(timings[name], to_ms, anchors[name])) for name in silent],
        assumed=assumed,
        more_from=more.utc if more is not None else None,
    )


def counts_from_first_seen(timing: Timing) -> bool:
    """Whether its ticks count from when a scheduler first saw it: a rate without a start."""
    return isinstance(timing.expression, RateExpression) and timing.start_ms is None


def states_of(session: AdminSession, schedules: Mapping[str, Schedule]) -> dict[str | None, ScheduleState]:
    """The states of the schedules that a scheduler has seen with their present times."""
    found: dict[str | None, ScheduleState] = {}
    for name, value in zip(schedules, session.engine.state.get([PREFIX + name for name in schedules]), strict=True):
        state = _state_of(value.value) if value is not None else None  # None too if another version wrote it
        if state is not None and state.digest == schedules[name].digest:
            found[name] = state
    return found


def _as_seen(row: CalendarRow, state: ScheduleState | None) -> CalendarRow:
    """A row with what the schedule's state knows of it."""
    if state is None or not row.fires:
        return row
    if row.at_ms > state.last_ms and was_sent(state, row.at_ms):
        return replace(row, fires=False, note="sent ahead of its time")
    return replace(row, fires=False, note="paused") if state.paused_ms is not None else row


def _rows(
    name: str | None, timing: Timing, from_ms: int, to_ms: int, zone: str | None, anchor_ms: int
) -> Iterator[CalendarRow]:
    ticks = (_tick(name, timing, at_ms, zone) for at_ms in between(timing, from_ms, to_ms, anchor_ms=anchor_ms))
    if timing.dst == "next-valid":
        return ticks
    return merge(ticks, _skips(name, timing, from_ms, to_ms), key=_order)


def _order(row: CalendarRow) -> tuple[int, bool]:
    """By instant; at one instant, skipped local times come first, because they are earlier on the clock."""
    return row.at_ms, row.fires


def _tick(name: str | None, timing: Timing, at_ms: int, zone: str | None) -> CalendarRow:
    notes = []
    if timing.dst == "next-valid" and (moved := [wall for _, wall in skipped(timing, at_ms, at_ms + 1)]):
        notes.append(f"for {_span(moved)}, which the clocks skip")
    if not isinstance(timing.expression, RateExpression) and (twice := _comes_twice(at_ms, timing.zone)):
        notes.append(f"{twice} comes twice; fires the first time")
    if timing.window_ms:
        notes.append(f"within {to_text(timing.window_ms)}")
    local = datetime.fromtimestamp(at_ms // 1_000, zone_of(zone or timing.zone))
    return CalendarRow(
        schedule=name,
        at_ms=at_ms,
        utc=utc_text(at_ms),
        local=local.isoformat(),
        zone=zone or timing.zone,
        abbreviation=local.tzname() or "",
        key=run_name(name, at_ms) if name is not None else None,
        note=", ".join(notes),
    )


def _comes_twice(at_ms: int, zone: str) -> str | None:
    """The time of day of an instant if the zone's clocks show it twice; else None."""
    local = datetime.fromtimestamp(at_ms // 1_000, zone_of(zone))
    first, second = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    return None if first == second else f"{local:%H:%M}"


def _skips(name: str | None, timing: Timing, from_ms: int, to_ms: int) -> Iterator[CalendarRow]:
    """One row for each time that the clocks skip ticks by going forward, between the schedule's start and end."""
    begin_ms = from_ms if timing.start_ms is None else max(from_ms, timing.start_ms)
    end_ms = to_ms if timing.end_ms is None else min(to_ms, timing.end_ms + 1)
    for at_ms, lost in groupby(skipped(timing, begin_ms, end_ms), key=lambda found: found[0]):
        walls = [wall for _, wall in lost]
        yield CalendarRow(
            schedule=name,
            at_ms=at_ms,
            utc=utc_text(at_ms),
            local=walls[0],
            zone=timing.zone,
            abbreviation="",
            key=None,
            fires=False,
            note=f"{_span(walls)} is skipped: the clocks go forward",
        )


def _span(walls: Sequence[str]) -> str:
    """The times of day, as text, of some local times of one day: `02:30`, or `02:00 to 02:45`."""
    first, last = walls[0].partition("T")[2], walls[-1].partition("T")[2]
    return first if len(walls) == 1 else f"{first} to {last}"


def _next(timing: Timing, to_ms: int, anchor_ms: int) -> str | None:
    at_ms = next_after(timing, to_ms - 1, anchor_ms=anchor_ms)
    return None if at_ms is None else utc_text(at_ms)
