"""A job's settings (`Policy`), what its handler did (`Outcome`), and what follows for the message (`Decision`).

The values that the rules of `record/` work with, and the decision that nearly every delivery gets: it is completed. The
decisions after failures are in `decisions.py`; the meaning of exceptions in `failures.py`; decisions before the handler
runs (duplicates, takeovers) in `guard.py`; the order of the steps in `attempt.py`. The pauses between retries are
computed here (`Backoff`), for retries between deliveries and inside a call (`IN_CALL`); random numbers are passed in as
fractions. Outcomes are sent between a worker and its child processes, so each has a tag.
Never here: clocks, random numbers, storage. Invariant: every run of a handler has exactly one outcome; a decision contains
everything that happens to its delivery: record, message, and what is reported; for every run and every fraction 0 <=
delay_ms <= cap_ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from msgspec import Struct

from onefold import limits
from onefold.contracts import store
from onefold.contracts.ledger import COUNT_PREFIX
from onefold.contracts.queue import Ack, Leave, Settle
from onefold.duration import to_text
from onefold.errors import UsageError

Jitter = Literal["full", "half", "none"]
Executor = Literal["thread", "process"]
Effect = Literal["external", "repeatable", "transactional"]
AfterFailure = Literal["stop", "skip"]
Detail = Mapping[str, str | int | bool | None]

FACTOR_MAX = 10.0  # with a larger factor the second pause would already be the cap
WAIT_MS_MAX = 1_000  # a duplicate of a running job is tried again after at most this, where a wait costs no receive


class Backoff(Struct, frozen=True, kw_only=True):
    """How long to wait before the next try: a pause that grows up to a cap.

    It is spread by jitter, so that runs that failed together are not retried together. No pause is longer than the cap,
    jitter included, nor than the 12 hours for which SQS can hide a message.

    Args:
        base_ms: the pause before the second run; 0 or more.
        factor: growth per failed run, 1 to 10.
        cap_ms: longest pause, jitter included; `base_ms` to 43,200,000 (12 h).
        jitter: `full` draws from 0 to the pause; `half` from half of the pause to one and a half pauses; `none` is
            exact.

    Raises:
        UsageError: a number out of its bounds.
    """

    base_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 15 * limits.MINUTE_MS
    jitter: Jitter = "full"

    def __post_init__(self) -> None:
        if self.jitter not in get_args(Jitter):
            raise UsageError(f"jitter={self.jitter!r} is not known.", todo="It is full, half or none.")
        if not 1 <= self.factor <= FACTOR_MAX:
            raise UsageError(f"factor={self.factor} is out of range.", todo=f"It may be 1 to {FACTOR_MAX:g}.")
        if self.base_ms < 0:
            raise UsageError(f"A first pause of {self.base_ms} ms is not possible.", todo="It may be 0 or more.")
        if not self.base_ms <= self.cap_ms <= limits.VISIBILITY_MS_MAX:
            raise UsageError(
                f"A first pause of {to_text(self.base_ms)} with a longest pause of {to_text(self.cap_ms)} is not possible.",
                meaning="The first pause (base=) is at most the longest (cap=, 15m unless you say otherwise), and that is at"
                " most 12h, for which a message can be hidden.",
                todo='Write both, for example base="1h", cap="6h".',
            )


# Inside a call: 50 ms x 2^n, +-50 %, 3 tries; the cap keeps longer series below a lease.
IN_CALL = Backoff(base_ms=50, factor=2.0, cap_ms=5_000, jitter="half")
IN_CALL_TRIES = 3


def bounds_ms(backoff: Backoff, failed_runs: int) -> tuple[int, int]:
    """The shortest and longest pause after `failed_runs` runs (1 or more) have failed."""
    assert failed_runs >= 1, failed_runs
    # The exponent is bounded so that the float cannot overflow: 10^64 ms is far beyond every cap.
    pause_ms = min(backoff.base_ms * backoff.factor ** min(failed_runs - 1, 64), backoff.cap_ms)
    match backoff.jitter:
        case "full":
            return 0, int(pause_ms)
        case "half":
            # The middle is at most two thirds of the cap: if draws were clipped at the cap, a third of them would be
            # equal.
            pause_ms = min(pause_ms, backoff.cap_ms * 2 / 3)
            return int(pause_ms / 2), int(pause_ms * 1.5)
        case "none":
            return int(pause_ms), int(pause_ms)


def delay_ms(backoff: Backoff, failed_runs: int, fraction: float) -> int:
    """The pause before the next run.

    Args:
        backoff: the policy.
        failed_runs: runs of this budget that failed, 1 or more.
        fraction: a random number from [0, 1).

    Returns:
        Whole milliseconds, 0 to `cap_ms`.
    """
    least_ms, most_ms = bounds_ms(backoff, failed_runs)
    return least_ms + int((most_ms - least_ms) * fraction)


class Policy(Struct, frozen=True, kw_only=True):
    """The settings that decide about a job's deliveries. Immutable; made once from the declaration.

    A call of a guarded function (`onefold.once`) is a delivery too. It has no queue: the caller decides whether to try
    again, so a failure frees its key at once, and where a message would be dead-lettered the key is held for a person.

    Args:
        job: its name.
        effect: `external` (calls something outside: started and recorded one by one), `repeatable` (running twice is
            harmless: may be started and recorded in groups) or `transactional` (all its effects are rows written through
            `ctx.connection`: they commit with the record or not at all).
        attempts_max: runs per budget, 1 or more; the first one counts.
        crashes_max: runs that may end with their process before the operation is quarantined, 1 or more.
        backoff: pauses between deliveries after transient failures.
        on_unknown: what to do when an earlier run's outcome is not known.
        after_failure: FIFO: whether a dead-lettered or parked message stops its group.
        timeout_ms: how long one run may take.
        keep_ms: how long a finished record answers duplicates.
        queue: name of the queue its messages come from; empty for calls of a guarded function.
        uncounted: the queue can hide a message without the receive having counted.
        fifo: the queue has message groups.
        owner: the team that is responsible for fixes.
    """

    job: str
    queue: str
    effect: Effect
    attempts_max: int
    crashes_max: int
    backoff: Backoff
    on_unknown: Literal["rerun", "hold", "probe"]
    after_failure: AfterFailure
    timeout_ms: int
    keep_ms: int
    uncounted: bool = True
    fifo: bool = False
    owner: str | None = None

    @property
    def is_call(self) -> bool:
        """Whether the deliveries are calls of a guarded function."""
        return not self.queue


class Success(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler returned; its result as JSON, the messages it sent, and its outcome counters by name."""

    result: bytes
    outbox: list[store.OutboxItem] = []
    counts: dict[str, int] = {}


class Note(Struct, frozen=True, gc=False):
    """Something to report: an event's name and the numbers that decided."""

    event: str
    detail: Detail = {}


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """What is done with one delivery.

    Args:
        write: the record's transition; None does not change it.
        settle: what happens to the message.
        notes: what to report.
        clear: hold of a completed run whose outbox is sent with this settlement.
        outbox: messages of that completed run, to be sent before its outbox is cleared.
    """

    write: store.Outcome | None
    settle: Settle
    notes: tuple[Note, ...] = ()
    clear: store.Hold | None = None
    outbox: tuple[store.OutboxItem, ...] = ()


def completion(result: bytes, policy: Policy, now_ms: int, outbox: list[store.OutboxItem]) -> store.Complete:
    """The write that completes the record of a run that returned; it answers duplicates as long as the policy says."""
    return store.Complete(result=result, expires_at_ms=now_ms + policy.keep_ms, outbox=outbox)


def completed(outcome: Success, policy: Policy, attempt: int, now_ms: int) -> Decision:
    """Decide a delivery whose handler returned. Arguments as for `decisions.settle`."""
    write = completion(outcome.result, policy, now_ms, outcome.outbox)
    detail: Detail = {"attempt": attempt}
    if outcome.counts:
        detail = {**detail, **{f"{COUNT_PREFIX}{name}": count for name, count in outcome.counts.items()}}
    return Decision(write=write, settle=Ack(), notes=(Note("completed", detail),))


def lease_lost(attempt: int) -> Decision:
    """Leave a delivery whose run lost its lease: the process that took the operation over decides."""
    return Decision(write=None, settle=Leave(), notes=(Note("lease-lost", {"attempt": attempt}),))


class Failed(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler raised.

    Args:
        kind: the kind of failure (see `record/failures.py`).
        error: class name of the exception.
        summary: one line without the payload.
        retry_in_ms: how long the dependency asked us to wait; None: the policy decides.
        crashed: the run was ended with its process (hard timeout, signal).
        at: the last frame of the handler's own code, for example `shop.py:12 in book`; empty if nothing was raised.
        trace: frames without locals (see `record/error_text.py`); empty if nothing was raised.
    """

    kind: Literal["transient", "permanent", "dependency-down", "unknown"]
    error: str
    summary: str
    retry_in_ms: int | None = None
    crashed: bool = False
    at: str = ""
    trace: str = ""


class NotStarted(Struct, frozen=True, gc=False, tag=True):
    """The handler was not called after all (drain, deadline near, rate limit); `why` is for people."""

    why: str
    delay_ms: int = 0


class Unstorable(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler returned something that cannot be stored: the effect happened, but its result is lost."""

    summary: str


class LeaseGone(Struct, frozen=True, gc=False, tag=True):
    """The run lost its lease: another process owns the operation now."""


Outcome = Success | Failed | NotStarted | Unstorable | LeaseGone
