"""A job's circuit breaker: pauses the job while its dependency as a whole refuses, instead of emptying its queue.

    closed --dependency-down, or N failures in a row--> open --pause over--> half-open --probe answered--> closed
                                                          ^                     |
                                                          `--- probe failed ----'   (pause x 2, up to a cap)

The value lives in `State`, one per job, shared by all processes and changed by compare-and-set; versions are handled by the
caller. An unchanged value is returned as the same object, so that a healthy job writes nothing. Paused deliveries use up no
attempt. There is one probe at a time: while it runs no other delivery is admitted; if its worker does not report in time,
another delivery becomes the probe.

If one message is refused while others get through, the dependency is not down. `is_to_blame` detects that, and the failure
is then counted like any other; otherwise one forbidden message would pause its job forever.

Never here: State, alarms, what counts as dependency-down (`failures.py`).
Invariant: an open breaker admits nothing before its pause ends, and then one delivery at a time.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from onefold import limits
from onefold.errors import UsageError

Event = Literal["paused", "probing", "resumed"]
Answer = Literal["answered", "failing", "down", "none"]

_SUSPECTS_MAX = 16  # operations remembered for opening the breaker; the value stays far below State's 64 KiB


class BreakerPolicy(Struct, frozen=True, kw_only=True):
    """When a job pauses, and for how long.

    Args:
        in_a_row: transient and unknown failures in a row, over all processes, that pause the job too; None: only
            dependency-down does. Any response of the dependency, also a permanent refusal of one message, resets the count.
        pause_ms: the first pause; doubles with every probe that fails.
        pause_ms_max: the longest pause.
        probe_ms: how long a probe may take before another delivery is tried in its place.

    Raises:
        UsageError: a number out of its bounds.
    """

    in_a_row: int | None = None
    pause_ms: int = 30 * limits.SECOND_MS
    pause_ms_max: int = 15 * limits.MINUTE_MS
    probe_ms: int = 5 * limits.MINUTE_MS

    def __post_init__(self) -> None:
        if self.in_a_row is not None and self.in_a_row < 2:
            raise UsageError(
                f"in_a_row={self.in_a_row} is out of range.",
                meaning="A job that pauses after one failure never retries anything else.",
                todo="It is 2 or more, or None.",
            )
        if not 1 <= self.pause_ms <= self.pause_ms_max <= limits.VISIBILITY_MS_MAX or self.probe_ms < 1:
            raise UsageError(
                f"A pause of {self.pause_ms} to {self.pause_ms_max} ms with a probe of {self.probe_ms} ms is not possible.",
                todo=f"Keep 1 <= pause <= longest pause <= {limits.VISIBILITY_MS_MAX} ms, and a probe of 1 ms or more.",
            )


class Breaker(Struct, frozen=True, omit_defaults=True):
    """The state of a breaker; JSON-able.

    Args:
        failures: in a row, while closed.
        pauses: in a row; 0: closed.
        until_ms: end of the pause, wall time.
        probe: the operation that is being tried, or empty; `probe_until_ms`: the end of its time.
        suspects: operations that opened the breaker or failed as its probe, newest last.
        summary: the dependency's error; for people.
    """

    failures: int = 0
    pauses: int = 0
    until_ms: int = 0
    probe: str = ""
    probe_until_ms: int = 0
    suspects: tuple[str, ...] = ()
    summary: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the job is paused or being probed."""
        return self.pauses > 0


CLOSED = Breaker()


class BreakerRuling(Struct, frozen=True):
    """The result of `admit`.

    Args:
        admitted: whether this delivery may be claimed now.
        breaker: to be stored when it is another object than the one given.
        wait_ms: when not admitted: how long to hide the message.
        event: what to report.
    """

    admitted: bool
    breaker: Breaker
    wait_ms: int = 0
    event: Event | None = None


class BreakerUpdate(Struct, frozen=True):
    """The result of `after_run`: the value, to be stored when it is another object, and what to report."""

    breaker: Breaker
    event: Event | None = None


def admit(breaker: Breaker, policy: BreakerPolicy, operation: str, now_ms: int) -> BreakerRuling:
    """Whether a delivery of `operation` may be claimed at `now_ms` (wall time).

    While the breaker is open, the first delivery after the pause becomes the probe; store the result before claiming, so
    that there is only one probe. Operations that were refused before wait half a pause longer, because another
    operation shows better whether the dependency refuses all of them.
    """
    if not breaker.is_open:
        return BreakerRuling(True, breaker)
    from_ms = breaker.until_ms + (policy.pause_ms // 2 if operation in breaker.suspects else 0)
    if now_ms < from_ms and breaker.probe != operation:
        return BreakerRuling(False, breaker, from_ms - now_ms)
    if breaker.probe and breaker.probe != operation and now_ms < breaker.probe_until_ms:
        # The probe usually ends long before its limit; check again after a while.
        return BreakerRuling(False, breaker, min(breaker.probe_until_ms - now_ms, policy.pause_ms))
    probing = msgspec.structs.replace(breaker, probe=operation, probe_until_ms=now_ms + policy.probe_ms)
    return BreakerRuling(True, probing, event="probing")


def after_run(
    breaker: Breaker,
    policy: BreakerPolicy,
    operation: str,
    answer: Answer,
    now_ms: int,
    *,
    retry_in_ms: int | None = None,
    summary: str = "",
) -> BreakerUpdate:
    """The breaker after a run of `operation` has ended.

    Args:
        answer: `answered`: the dependency responded (success, a permanent refusal of this message); `failing`: transient or
            unknown; `down`: dependency-down; `none`: the run ended before it called the dependency.
        now_ms: wall time.
        retry_in_ms: how long the dependency asked us to wait.
        summary: its error.
    """
    if breaker.is_open:
        if breaker.probe != operation:
            return BreakerUpdate(breaker)  # this run began before the pause; only the probe decides
        if answer == "answered":
            kept = tuple(one for one in breaker.suspects if one != operation)
            return BreakerUpdate(Breaker(suspects=kept), "resumed")
        if answer == "none":
            return BreakerUpdate(msgspec.structs.replace(breaker, probe="", probe_until_ms=0))
        return _pause(breaker, policy, operation, now_ms, retry_in_ms, summary)
    if answer == "answered":
        if not breaker.failures and operation not in breaker.suspects:
            return BreakerUpdate(breaker)
        return BreakerUpdate(Breaker(suspects=tuple(one for one in breaker.suspects if one != operation)))
    if answer == "none":
        return BreakerUpdate(breaker)
    failures = breaker.failures + 1
    if answer == "down" or (policy.in_a_row is not None and failures >= policy.in_a_row):
        return _pause(breaker, policy, operation, now_ms, retry_in_ms, summary)
    if policy.in_a_row is None:
        return BreakerUpdate(breaker)  # not counted
    return BreakerUpdate(msgspec.structs.replace(breaker, failures=failures))


def _pause(
    breaker: Breaker,
    policy: BreakerPolicy,
    operation: str,
    now_ms: int,
    retry_in_ms: int | None,
    summary: str,
) -> BreakerUpdate:
    grown_ms = policy.pause_ms << min(breaker.pauses, 32)
    pause_ms = max(min(grown_ms, policy.pause_ms_max), min(retry_in_ms or 0, limits.VISIBILITY_MS_MAX))
    suspects = (*(one for one in breaker.suspects if one != operation), operation)[-_SUSPECTS_MAX:]
    paused = Breaker(pauses=breaker.pauses + 1, until_ms=now_ms + pause_ms, suspects=suspects, summary=summary[:200])
    return BreakerUpdate(paused, "paused")


def is_to_blame(breaker: Breaker, operation: str) -> bool:
    """Whether only `operation` is refused: it paused the job before, and then another operation got through.

    Such a failure is treated as transient: it uses an attempt, and does not pause the job again.
    """
    return not breaker.is_open and operation in breaker.suspects


def resume(breaker: Breaker) -> BreakerUpdate:
    """Close the breaker at a person's request."""
    return BreakerUpdate(CLOSED, "resumed") if breaker.is_open else BreakerUpdate(breaker)
