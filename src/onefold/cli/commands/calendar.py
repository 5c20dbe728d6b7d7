"""`onefold calendar`: what schedules will fire, in local time and UTC, with the key of each tick.

It parses and prints; the rows come from `admin/calendars.py`. Never here: expressions, zones.
Invariant: a time without an offset is read in --tz, or else in UTC, never in the machine's own zone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from onefold import duration, errors, limits
from onefold.admin import calendars
from onefold.admin.calendars import Calendar, CalendarRow
from onefold.admin.session import open_session
from onefold.cli import options, render, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column
from onefold.clock import SystemClock
from onefold.schedules.fire_times import Dst, Timing, parse, zone_of
from onefold.schedules.schedule import Schedule
from onefold.schedules.ticks import ScheduleState

_SPAN_MS = 31 * limits.DAY_MS
_SPAN_MS_MAX = 36_500 * limits.DAY_MS
_LATEST = datetime(2200, 1, 1, tzinfo=UTC)  # years end with 2199 in cron


@declared(
    "calendar",
    example="onefold calendar shop:app --from 2027-03-01 --to 90d\n"
    'onefold calendar --expression "cron(0 3 1 * ? *)" --tz Europe/London --json',
)
@click.argument("app", required=False)
@click.option("--expression", metavar="TEXT", help="A bare expression instead of an app: cron, rate or at.")
@click.option(
    "--from",
    "begin",
    metavar="TIME",
    help="First instant, for example 2027-03-01 or 2027-03-01T03:00Z; by default now.",
)
@click.option(
    "--to", "end", metavar="TIME", help="End, not included: a time, or a duration such as 90d; by default 31d."
)
@click.option("--tz", metavar="ZONE", help="Zone of the local times, and of a bare expression (by default UTC).")
@click.option(
    "--dst",
    type=click.Choice(["eventbridge", "next-valid"]),
    help="What a clock change does to a bare expression; by default eventbridge.",
)
@click.option(
    "--rows", type=options.WholeType(1, 100_000), default=100, show_default=True, help="Show at most this many."
)
def command(
    app: str | None,
    expression: str | None,
    begin: str | None,
    end: str | None,
    tz: str | None,
    dst: Dst | None,
    rows: int,
) -> Answer:
    """Print when an app's schedules, or one expression, will fire: local time, UTC and the key of each tick.

    The embedded scheduler and EventBridge Scheduler use the same keys and instants. Local times that the clocks skip
    are listed as skipped. From the app's file, if it exists, come the instant from which a rate without a start counts,
    the ticks that were sent ahead of their time, and pauses. `onefold runs` shows what was already sent.
    """
    if tz is not None:
        zone_of(tz)
    clock = SystemClock()
    states: dict[str | None, ScheduleState] = {}
    if expression is not None:
        if app is not None:
            raise errors.UsageError(f"Both an app ({app}) and --expression were given.", todo="Give one of them.")
        timings: dict[str | None, Timing] = {
            None: Timing(parse(expression), zone=tz or "UTC", dst=dst or "eventbridge")
        }
    else:
        if dst is not None:
            raise errors.UsageError("--dst was given without --expression.", todo="An app's schedules declare theirs.")
        declared_schedules, states = _of_app(app)
        timings = {name: one.timing for name, one in declared_schedules.items()}
    from_ms = _instant_ms(begin, "--from", tz) if begin is not None else clock.now_ms()
    to_ms = from_ms + _SPAN_MS if end is None else _end_ms(end, tz, from_ms)
    found = calendars.calendar(timings, from_ms, to_ms, zone=tz, rows_max=rows, states=states)
    return Answer(found, draw=lambda: _draw(found, timings))


def _of_app(app: str | None) -> tuple[dict[str, Schedule], dict[str | None, ScheduleState]]:
    """The app's schedules, and their states from its file; on AWS, EventBridge has them."""
    name = app or os.environ.get("ONEFOLD_APP")
    if name is None:
        raise click.UsageError("Name the app as module:attribute, for example shop:app, or give --expression.")
    found = target.load(name)
    schedules = {one.name: one for one in found.schedules.values()}
    if not found.url.startswith("sqlite:///"):
        return schedules, {}
    try:
        session = open_session(found.url, actor=target.actor(), read_only=True)
    except errors.OnefoldError:  # no file yet, or this user may not read it: show the declared times
        return schedules, {}
    try:
        return schedules, calendars.states_of(session, schedules)
    finally:
        session.close()


def _end_ms(text: str, tz: str | None, from_ms: int) -> int:
    if text[-1:].isalpha() and not text.endswith("Z"):
        return from_ms + duration.to_ms(text, "--to", least_ms=1, most_ms=_SPAN_MS_MAX)
    return _instant_ms(text, "--to", tz)


def _instant_ms(text: str, what: str, tz: str | None) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=zone_of(tz or "UTC"))
    if at is None or not datetime(1970, 1, 1, tzinfo=UTC) <= at <= _LATEST:
        raise errors.UsageError(
            f"{what} {text!r} is not a valid instant from 1970 to 2199.",
            todo="Write for example 2027-03-01, 2027-03-01T03:00 or 2027-03-01T03:00Z.",
        )
    return round(at.timestamp() * limits.SECOND_MS)


# -- drawing ---------------------------------------------------------------------------------------------------------


def _draw(found: Calendar, timings: Mapping[str | None, Timing]) -> None:
    if not timings:
        render.line("The app declares no schedules.")
        return
    named = None not in timings
    if found.rows:
        columns = [Column("local time"), Column("UTC"), Column("key" if named else "", folds=True)]
        render.draw(render.table(columns, [_cells(row, named) for row in found.rows]))
    for one in found.silent:
        later = f"the next is at {one.next_utc}" if one.next_utc else "and none is left until the end of 2199"
        render.line(f"{one.schedule or 'The expression'} has no tick from {found.from_utc} to {found.to_utc}; {later}.")
    for name in found.assumed:
        text = f"{name or 'The rate'} has no start: counted from {found.from_utc} here, in fact from when it is first seen."
        render.line(text, "dim")
    if found.more_from is not None:
        render.line(f"More follows from {found.more_from} on: raise --rows, or begin there with --from.", "dim")


def _cells(row: CalendarRow, named: bool) -> tuple[str, str, str]:
    if not row.fires and row.key is None:
        at = datetime.fromisoformat(row.local)
        return f"{at:%a %Y-%m-%d %H:%M}", render.NOTHING, f"{f'{row.schedule}: ' if named else ''}{row.note}"
    at = datetime.fromisoformat(row.local)
    utc = datetime.fromisoformat(row.utc)
    form = "%H:%M:%S" if utc.second else "%H:%M"
    day = "" if at.date() == utc.date() else f"{utc:%d %b} "  # otherwise the key would have no room in 80 columns
    rest = f"{row.key or ''} {f'({row.note})' if row.note else ''}".strip()
    return f"{at:%a %Y-%m-%d} {at:{form}} {row.abbreviation}", f"{day}{utc:{form}}", rest
