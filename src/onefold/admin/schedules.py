"""Schedules for an operator: what each has sent and will send next; sending a tick now; pausing and resuming.

A tick that a person sends has its usual key, and its schedule's state records that it was sent: when its time comes no
scheduler sends it again, and a tick that was already sent is refused here. A paused schedule sends nothing; ticks of the
pause are skipped when it is resumed, and can be sent one by one.
Never here: when a tick is due, what a state means (`schedules/ticks.py`), output.
Invariant: a state is changed only by compare-and-set, in the transaction that sends the tick where the engine has one.
EventBridge Scheduler keeps its own state: a schedule that it fires is paused there, and its ticks can be sent from here.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits
from onefold.admin.calendars import counts_from_first_seen
from onefold.admin.jobs import no_job
from onefold.admin.session import AdminSession
from onefold.contracts.documents import TRIES, decode
from onefold.contracts.state import Change
from onefold.contracts.store import RecordKey
from onefold.runner import runs
from onefold.schedules import ticks
from onefold.schedules.fire_times import between, next_after, run_name, utc_text
from onefold.schedules.schedule import Schedule
from onefold.schedules.ticks import ScheduleState
from onefold.schedules.transactions import PREFIX

if TYPE_CHECKING:
    from onefold.app import App

_state_of = msgspec.json.Decoder(ScheduleState).decode

Phase = Literal["on", "paused", "ended", "unseen", "differs"]


class ScheduleView(Struct, frozen=True, kw_only=True):
    """One schedule of an app.

    Args:
        schedule, expression, zone, job, queue, owner: as declared; `job` runs its ticks.
        phase: `on`; `paused` by a person; `ended`: no tick follows; `unseen`: no scheduler of this engine has seen it (a
            schedule that EventBridge fires is never seen); `differs`: a scheduler with other times started later, and
            those count.
        paused_since_ms: None if not paused. sent: how many ticks were sent. sent_ms: the planned instant of the latest.
        next_ms, next_key: the next tick that was not sent; None if none follows or it is not known.
    """

    schedule: str
    expression: str
    zone: str
    job: str
    queue: str
    owner: str | None
    phase: Phase
    paused_since_ms: int | None
    sent: int
    sent_ms: int | None
    next_ms: int | None
    next_key: str | None


class TickByHand(Struct, frozen=True, kw_only=True):
    """A tick that a person has sent, or would send: its schedule, its key and run, its planned instant, its queue."""

    schedule: str
    run: str
    planned_at_ms: int
    queue: str


def views(session: AdminSession, app: App) -> list[ScheduleView]:
    """The schedules of an app, by name."""
    declared = app.schedules
    names = sorted(declared)
    found = session.engine.state.get([PREFIX + name for name in names]) if names else ()
    return [
        _view(declared[name], None if one is None else decode(PREFIX + name, one.value, _state_of), session.now_ms())
        for name, one in zip(names, found, strict=True)
    ]


def view(session: AdminSession, app: App, name: str) -> ScheduleView:
    """One schedule.

    Raises:
        NotFoundError: the app declares none of that name.
    """
    schedule = declared(app, name)
    state, _ = _read(session, name)
    return _view(schedule, state, session.now_ms())


def declared(app: App, name: str) -> Schedule:
    """A schedule by its name.

    Raises:
        NotFoundError: the app declares none; names the one that was probably meant.
    """
    found = app.schedules.get(name)
    if found is None:
        missing = no_job(app.schedules, name)
        raise errors.NotFoundError(
            f"The app has no schedule {name!r:.100}.",
            meaning=missing.meaning.replace("Its jobs are", "Its schedules are"),
            todo=missing.todo,
        )
    return found


def _view(schedule: Schedule, state: ScheduleState | None, now_ms: int) -> ScheduleView:
    phase: Phase = "on"
    next_ms = None
    if state is None:
        phase = "unseen"
        if not counts_from_first_seen(schedule.timing):
            next_ms = next_after(schedule.timing, now_ms, anchor_ms=now_ms)
    elif state.digest != schedule.digest or state.app != schedule.job.app:
        phase = "differs"
    else:
        next_ms = None if state.deleted else ticks.next_unsent(state, schedule.timing, state.last_ms)
        phase = "paused" if state.paused_ms is not None else "ended" if next_ms is None else "on"
    return ScheduleView(
        schedule=schedule.name,
        expression=schedule.expression,
        zone=schedule.timing.zone,
        job=schedule.job.name,
        queue=schedule.job.policy.queue,
        owner=schedule.owner,
        phase=phase,
        paused_since_ms=state.paused_ms if state is not None else None,
        sent=state.sent if state is not None else 0,
        sent_ms=state.sent_ms if state is not None else None,
        next_ms=next_ms,
        next_key=run_name(schedule.name, next_ms) if next_ms is not None else None,
    )


def _read(session: AdminSession, name: str) -> tuple[ScheduleState | None, int]:
    found = session.engine.state.get([PREFIX + name])[0]
    return (None, 0) if found is None else (decode(PREFIX + name, found.value, _state_of), found.version)


# -- a tick now --------------------------------------------------------------------------------------------------------


def tick_of(session: AdminSession, app: App, name: str, at: str | None = None) -> TickByHand:
    """The tick that `run_now` would send.

    Args:
        at: its planned instant, as in its key; None: the next tick, unless it was already sent ahead of its time.

    Raises:
        As `run_now`.
    """
    schedule = declared(app, name)
    state, _ = _read(session, name)
    return _checked(session, schedule, state, at)


def _checked(session: AdminSession, schedule: Schedule, state: ScheduleState | None, at: str | None) -> TickByHand:
    planned_ms = _planned(session, schedule, state, at)
    tick = TickByHand(
        schedule=schedule.name, run=run_name(schedule.name, planned_ms), planned_at_ms=planned_ms,
        queue=schedule.job.policy.queue,
    )  # fmt: skip
    record = session.engine.store.read([RecordKey("", schedule.job.name, tick.run)], session.now_ms())[0]
    begun = runs.read(session.engine.state, tick.run)
    if begun is not None or (record is not None and record.status in ("in_progress", "completed")):
        did = "has run" if record is not None and record.status == "completed" else "was sent"
        raise errors.ConflictError(
            f"Tick {tick.run} {did} already.",
            meaning="A tick is not run a second time. Nothing was sent.",
            todo=f"See what happened to it: `onefold why {tick.run}`. Another tick can be named by its time.",
        )
    return tick


def _planned(session: AdminSession, schedule: Schedule, state: ScheduleState | None, at: str | None) -> int:
    now_ms = session.now_ms()
    same = state is not None and state.digest == schedule.digest and state.app == schedule.job.app
    if state is not None and not same:
        raise errors.ConflictError(
            f"Schedule {schedule.name} has other times on this engine, or belongs to another app.",
            meaning="A scheduler that declares it differently started later. Nothing was sent.",
            todo="Start a scheduler of this app, or name the app whose schedule it is.",
        )
    if state is None and counts_from_first_seen(schedule.timing):
        raise errors.ConflictError(
            f"No scheduler has seen {schedule.name} yet, and its rate counts from then.",
            meaning="Its ticks have no times yet. Nothing was sent.",
            todo="Start onefold scheduler, or give the schedule a start=.",
        )
    anchor_ms = now_ms if state is None else state.anchor_ms
    if at is None:
        next_ms = (
            next_after(schedule.timing, now_ms, anchor_ms=anchor_ms)
            if state is None
            else ticks.next_unsent(state, schedule.timing, state.last_ms)
        )
        if next_ms is None:
            raise errors.NotFoundError(
                f"Schedule {schedule.name} has no further tick.", todo="Name an earlier one by its time."
            )
        first_ms = next_after(schedule.timing, now_ms, anchor_ms=anchor_ms)
        if first_ms is not None and first_ms < next_ms:
            raise errors.ConflictError(
                f"The next tick of {schedule.name}, {utc_text(first_ms)}, was sent already, ahead of its time.",
                meaning="Sending the tick after that as well may be a repetition of the same command. Nothing was sent.",
                todo=f"To send the tick after that, name it: --tick {utc_text(next_ms)} (on the page: its row under"
                " /schedules).",
            )
        return next_ms
    planned_ms = _instant(at)
    if not list(between(schedule.timing, planned_ms, planned_ms + 1, anchor_ms=anchor_ms)):
        near_ms = next_after(schedule.timing, planned_ms, anchor_ms=anchor_ms)
        raise errors.UsageError(
            f"Schedule {schedule.name} has no tick at {at!r:.60}.",
            meaning=f"Its next one after that is {utc_text(near_ms)}." if near_ms is not None else "None follows it.",
            todo="`onefold calendar` lists its ticks. Nothing was sent.",
        )
    return planned_ms


def _instant(at: str) -> int:
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise errors.UsageError(
            f"{at!r:.60} is not an instant.",
            todo="Write it as in the tick's key: 2026-06-01T02:00:00Z. Nothing was sent.",
        )
    return int(found.timestamp() * limits.SECOND_MS)


def run_now(
    session: AdminSession, app: App, name: str, at: str | None = None, *, reason_text: str | None = None
) -> TickByHand:
    """Send a tick now, under its usual key; when its time comes it is not sent again.

    Args:
        at: as `tick_of`.

    Raises:
        NotFoundError: the schedule does not exist, or has no further tick. UsageError: it has no tick at that time.
        ConflictError: the tick (without `at`: the next one) was sent already, or other times count. StorageBusy: schedulers
            keep changing it.
    """
    schedule, runtime = declared(app, name), app.runtime()

    def write() -> TickByHand:
        state, version = _read(session, name)
        tick = _checked(session, schedule, state, at)
        now_ms = session.now_ms()
        run = runs.of_tick(
            tick.run, name, tick.planned_at_ms, now_ms, dispatches=schedule.dispatches, owner=schedule.owner
        )
        session.engine.state.put(runs.began(run))
        runtime.send([schedule.outgoing(tick.planned_at_ms)])
        runs.report_refused(runtime, tick.run, runs.send_reconciliations(runtime, tick.run, name, now_ms))
        session.engine.ledger.append(
            [session.row("tick-by-hand", queue=tick.queue, run=tick.run, schedule=name, reason_text=reason_text)]
        )
        if state is not None:
            _put(session, name, ticks.sent_by_hand(state, schedule.timing, tick.planned_at_ms), version)
        return tick

    return session.together(write)


def _put(session: AdminSession, name: str, after: ScheduleState, version: int) -> None:
    if not session.engine.state.put([Change(PREFIX + name, msgspec.json.encode(after), version)])[0]:
        raise errors.StorageBusy(f"Schedule {name} was changed by a scheduler just now.", todo="Try again.")


# -- pausing -----------------------------------------------------------------------------------------------------------


def pause(session: AdminSession, app: App, name: str, *, reason_text: str | None = None) -> bool:
    """Have a schedule send no ticks until `resume`; False if it was already paused.

    Raises:
        NotFoundError: the schedule does not exist. ConflictError: no scheduler has seen it. StorageBusy: try again.
    """
    return _change(session, declared(app, name), "schedule-paused", reason_text)


def resume(session: AdminSession, app: App, name: str, *, reason_text: str | None = None) -> bool:
    """Resume a paused schedule; False if it was not paused. Ticks of the pause are skipped.

    A running scheduler notices within ten seconds. Errors as `pause`.
    """
    return _change(session, declared(app, name), "schedule-resumed", reason_text)


def _change(session: AdminSession, schedule: Schedule, event: str, reason_text: str | None) -> bool:
    for left in reversed(range(TRIES)):
        state, version = _read(session, schedule.name)
        now_ms = session.now_ms()
        if state is None:
            raise errors.ConflictError(
                f"No scheduler has seen {schedule.name} on {session.url}.",
                meaning="There is nothing to pause. What EventBridge Scheduler fires is paused there.",
                todo="Start onefold scheduler first; on AWS: aws scheduler update-schedule --state DISABLED.",
            )
        pauses = event == "schedule-paused"
        if pauses == (state.paused_ms is not None):
            return False
        after = replace(state, paused_ms=now_ms) if pauses else ticks.resumed(state, schedule.timing, now_ms)
        try:
            _put(session, schedule.name, after, version)
        except errors.StorageBusy:
            if not left:
                raise
            continue
        session.record(event, schedule=schedule.name, reason_text=reason_text)
        return True
    raise AssertionError("the last try has answered")
