"""What is due for a schedule at an instant: which ticks to send, which to skip, and its state afterwards.

`ScheduleState` is one schedule's value in State. Each function takes it with the declared times and an instant, and returns
a new one; `schedules/scheduler.py` writes that in the transaction that sends the ticks. A tick is handled once: sent, or
skipped by the `missed` policy and noted in `gaps`, so that setting the clock back neither repeats nor loses any.
Never here: expressions and zones (`fire_times.py`), clocks, sending.
Invariant: of two states computed from the same state only one can be written, and neither sends a tick sent before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import limits
from onefold.codec import digest
from onefold.schedules.expressions import AtExpression, RateExpression
from onefold.schedules.fire_times import Timing, between, next_after, run_name

Missed = Literal["skip", "last", "all"]

MISSED_MAX: Final = 1_000  # our own bound: how many ticks one transaction sends after downtime
PRECISION_MS: Final = limits.MINUTE_MS  # user guide, "Schedule types": a 1:00 schedule is invoked within that minute
SET_BACK_MS: Final = limits.MINUTE_MS  # if the clock is behind a schedule by less, the schedule waits for it
GAPS_MAX: Final = 16  # how many stretches of ticks that were passed over are remembered: the newest
COUNTED_MAX: Final = 1_000  # ticks that were passed over are counted up to here


class ScheduleState(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A schedule's state: the JSON of its value in State.

    Args:
        app: the app that declares it. digest: the digest of its times; a different digest means that they were changed.
        anchor_ms: when a scheduler first saw it; a rate counts from here.
        last_ms: every tick up to here has been dealt with.
        next_ms: the next nominal instant; None when none follows.
        high_ms: the latest instant ever dealt with, if it is after `last_ms`: the clock was set back, or a person had a
            tick sent before its time. Else 0.
        gaps: stretches (after, until] whose ticks were passed over.
        sent: how many ticks were sent. sent_ms: the nominal instant of the last one.
        deleted: it had `delete_after` and has sent its last tick.
        paused_ms: when a person paused it; None if it is not paused.
    """

    app: str
    digest: str
    anchor_ms: int
    last_ms: int
    next_ms: int | None
    high_ms: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    sent: int = 0
    sent_ms: int | None = None
    deleted: bool = False
    paused_ms: int | None = None


class TickPlan(Struct, frozen=True, kw_only=True):
    """What is to be done for a schedule now.

    Args:
        state: what to write to State. ticks: nominal instants to send, in order.
        passed: how many were passed over (at most 1,000 are counted), from `passed_from_ms` to `passed_to_ms`.
    """

    state: ScheduleState
    ticks: Sequence[int] = ()
    passed: int = 0
    passed_from_ms: int | None = None
    passed_to_ms: int | None = None


def first(app: str, digest: str, timing: Timing, now_ms: int, missed: Missed = "last") -> ScheduleState:
    """The state of a schedule that is seen for the first time: it begins now, or at a start in the past if missed="all".

    A rate without a start has its first tick at once. A one-time schedule in the past still has its tick to send:
    EventBridge sends it at once, and so does `advance`, as a late tick, unless missed is "skip".
    """
    anchor_ms = now_ms - now_ms % limits.SECOND_MS
    last_ms = anchor_ms - 1
    if isinstance(timing.expression, AtExpression):
        at_ms = next_after(timing, 0, anchor_ms=anchor_ms)
        last_ms = min(last_ms, at_ms - 1) if at_ms is not None else last_ms
    elif missed == "all" and timing.start_ms is not None:
        last_ms = min(last_ms, timing.start_ms - 1)
    return _begun(ScheduleState(app=app, digest=digest, anchor_ms=anchor_ms, last_ms=last_ms, next_ms=None), timing)


def changed(state: ScheduleState, app: str, digest: str, timing: Timing, now_ms: int) -> ScheduleState:
    """The state of the same schedule with other times: they count from now, and no tick dealt with is sent again.

    If the clock is set back later, ticks before the change can be sent again, because it is not known here which of
    them the old times had too. They have the same keys then, so that they are answered from the record.
    """
    anchor_ms = now_ms - now_ms % limits.SECOND_MS
    last_ms = max(state.last_ms, anchor_ms)
    after = ScheduleState(app=app, digest=digest, anchor_ms=anchor_ms, last_ms=last_ms, next_ms=None)
    return _begun(replace(after, sent=state.sent, sent_ms=state.sent_ms, paused_ms=state.paused_ms), timing)


def is_ahead(state: ScheduleState, now_ms: int) -> bool:
    """Whether the clock was set back by more than a minute from the last instant this schedule has dealt with."""
    return state.last_ms > now_ms + SET_BACK_MS


def rewound(state: ScheduleState, timing: Timing, now_ms: int) -> ScheduleState:
    """The schedule after the clock was set back to `now_ms`: it continues from there, and remembers what was sent."""
    anchor_ms = state.anchor_ms
    if isinstance(timing.expression, RateExpression) and anchor_ms > now_ms:  # first seen while the clock was ahead
        anchor_ms -= (anchor_ms - now_ms) // timing.expression.period_ms * timing.expression.period_ms
    high_ms = max(state.high_ms, state.last_ms)
    return _aimed(replace(state, anchor_ms=anchor_ms, last_ms=now_ms, high_ms=high_ms), timing)


def resumed(state: ScheduleState, timing: Timing, now_ms: int) -> ScheduleState:
    """The schedule after its pause: it continues from now. Ticks during the pause are skipped, whatever `missed` says."""
    after = replace(state, paused_ms=None)
    known_ms = max(state.last_ms, state.high_ms)
    if now_ms <= state.last_ms:
        return after
    gaps = (*state.gaps, (known_ms, now_ms))[-GAPS_MAX:] if now_ms > known_ms else state.gaps
    return _aimed(
        replace(after, last_ms=now_ms, gaps=gaps, high_ms=state.high_ms if state.high_ms > now_ms else 0), timing
    )


def sent_by_hand(state: ScheduleState, timing: Timing, nominal_ms: int) -> ScheduleState:
    """The schedule after a person had a tick sent that was not due yet or was passed over; it is not sent again."""
    known_ms = max(state.last_ms, state.high_ms)
    gaps = _without(state.gaps, nominal_ms - 1, nominal_ms)
    if nominal_ms - 1 > known_ms:
        gaps = (*gaps, (known_ms, nominal_ms - 1))[-GAPS_MAX:]
    high_ms = max(state.high_ms, nominal_ms) if nominal_ms > state.last_ms else state.high_ms
    sent_ms = max(state.sent_ms or nominal_ms, nominal_ms)
    return _aimed(replace(state, gaps=gaps, high_ms=high_ms, sent=state.sent + 1, sent_ms=sent_ms), timing)


def next_unsent(state: ScheduleState, timing: Timing, after_ms: int) -> int | None:
    """The first nominal instant after `after_ms` that was not sent; None when none follows."""
    at_ms = next_after(timing, max(after_ms, state.last_ms), anchor_ms=state.anchor_ms)
    while at_ms is not None and was_sent(state, at_ms):
        at_ms = next_after(timing, at_ms, anchor_ms=state.anchor_ms)
    return at_ms


def advance(
    schedule: str, state: ScheduleState, timing: Timing, now_ms: int, *, missed: Missed, missed_max: int = MISSED_MAX
) -> TickPlan:
    """Which ticks of a schedule are to be sent at `now_ms`, and its state afterwards.

    Args:
        missed: for ticks that could not be sent within a minute of their time: `skip` them, send the `last`, or send
            `all`, but only the latest `missed_max`. A tick that is on time is always sent.
    """
    late_ms = now_ms - PRECISION_MS - timing.window_ms
    ticks = _punctual(schedule, state, timing, max(late_ms, state.last_ms), now_ms)
    wanted = {"skip": 0, "last": 0 if ticks else 1, "all": missed_max}[missed]
    if wanted and late_ms > state.last_ms:
        ticks = [*_latest(state, timing, late_ms, wanted), *ticks]
    until_ms = max(ticks[-1] if ticks else state.last_ms, late_ms)
    if until_ms == state.last_ms:
        return TickPlan(state=_aimed(state, timing))  # woken early
    gap_until_ms = min(ticks[0] - 1 if ticks else until_ms, late_ms)
    count, from_ms, to_ms = _passed(state, timing, gap_until_ms)
    fresh = [at_ms for at_ms in ticks if not was_sent(state, at_ms)]
    gaps = _without(state.gaps, max(gap_until_ms, state.last_ms), until_ms)
    known_ms = max(state.last_ms, state.high_ms)  # up to here the gaps record what was skipped
    if count and gap_until_ms > known_ms:
        gaps = (*gaps, (known_ms, gap_until_ms))[-GAPS_MAX:]
    after = replace(
        state,
        last_ms=until_ms,
        high_ms=state.high_ms if state.high_ms > until_ms else 0,
        gaps=gaps,
        sent=state.sent + len(fresh),
        sent_ms=fresh[-1] if fresh else state.sent_ms,
    )
    return TickPlan(state=_aimed(after, timing), ticks=fresh, passed=count, passed_from_ms=from_ms, passed_to_ms=to_ms)


def wakes_at(schedule: str, state: ScheduleState, timing: Timing) -> int | None:
    """When the schedule has to be checked next; None: never."""
    if state.next_ms is None or state.deleted or state.paused_ms is not None:
        return None
    return _fires_at(schedule, timing, state.next_ms)


def next_fire(schedule: str, state: ScheduleState, timing: Timing) -> int | None:
    """Like `wakes_at`, for the next tick that a person has not had sent already: what people are told comes next."""
    if wakes_at(schedule, state, timing) is None:
        return None
    at_ms = next_unsent(state, timing, state.last_ms)
    return None if at_ms is None else _fires_at(schedule, timing, at_ms)


# -- parts -----------------------------------------------------------------------------------------------------------


def _fires_at(schedule: str, timing: Timing, nominal_ms: int) -> int:
    """When a tick is sent: somewhere in its window, at a time that depends only on the schedule and nominal instant."""
    if not timing.window_ms:
        return nominal_ms
    return nominal_ms + int(digest(run_name(schedule, nominal_ms).encode())[:8], 16) * timing.window_ms // 2**32


def _begun(state: ScheduleState, timing: Timing) -> ScheduleState:
    """A new state; ticks before it count as passed over, so that they are sent if the clock turns out to be ahead."""
    return _aimed(replace(state, gaps=((0, state.last_ms),)), timing)


def _aimed(state: ScheduleState, timing: Timing) -> ScheduleState:
    return replace(state, next_ms=next_after(timing, state.last_ms, anchor_ms=state.anchor_ms))


def _punctual(schedule: str, state: ScheduleState, timing: Timing, after_ms: int, now_ms: int) -> list[int]:
    """Ticks that are due now and not late, in order; none overtakes a tick that still waits in its window."""
    found: list[int] = []
    for at_ms in between(timing, after_ms + 1, now_ms + 1, anchor_ms=state.anchor_ms):
        if _fires_at(schedule, timing, at_ms) > now_ms:
            break
        found.append(at_ms)
    return found


def _latest(state: ScheduleState, timing: Timing, until_ms: int, count: int) -> Sequence[int]:
    """The `count` latest ticks after `state.last_ms` and up to `until_ms`, in order."""
    span_ms = count * limits.MINUTE_MS  # searched from the end, so that long downtime costs no more than short downtime
    while True:
        after_ms = max(state.last_ms, until_ms - span_ms)
        found = deque(between(timing, after_ms + 1, until_ms + 1, anchor_ms=state.anchor_ms), maxlen=count)
        if len(found) == count or after_ms == state.last_ms:
            return found
        span_ms *= 2


def _passed(state: ScheduleState, timing: Timing, until_ms: int) -> tuple[int, int | None, int | None]:
    """How many ticks after `state.last_ms` and up to `until_ms` were not sent; the first, and the last one counted."""
    count, first_ms, last_ms = 0, None, None
    for at_ms in between(timing, state.last_ms + 1, until_ms + 1, anchor_ms=state.anchor_ms):
        if was_sent(state, at_ms):
            continue
        count, first_ms, last_ms = count + 1, first_ms or at_ms, at_ms
        if count == COUNTED_MAX:
            break
    return count, first_ms, last_ms


def was_sent(state: ScheduleState, at_ms: int) -> bool:
    """Whether a tick after `last_ms` was already sent: before the clock was set back, or by a person."""
    return at_ms <= state.high_ms and not any(after < at_ms <= until for after, until in state.gaps)


def _without(gaps: Sequence[tuple[int, int]], after_ms: int, until_ms: int) -> tuple[tuple[int, int], ...]:
    """The gaps without the stretch after `after_ms` and up to `until_ms`."""
    left: list[tuple[int, int]] = []
    for after, until in gaps:
        if until <= after_ms or after >= until_ms:
            left.append((after, until))
            continue
        if after < after_ms:
            left.append((after, after_ms))
        if until > until_ms:
            left.append((until_ms, until))
    return tuple(left)
