"""When to extend a lease, for how long, and until when to trust it.

The same arithmetic applies to a record's lease and a message's visibility; they are extended together. Times are
milliseconds of one clock (monotonic, in the process that holds the lease): the instant of the *request* counts, not
that of the answer, because the lease may have begun that early.

    asked ---- a third of the lease ----> due -- retries every twelfth --> trusted until ...margin... > lease ends

An extension is due after a third of the lease. This costs at most three writes per lease, and an extension that fails
(throttled, file locked) can be tried again for more than half of the lease before anything is lost. The lease is
trusted until asked + lease - margin. The margin covers the difference between the clocks of two hosts and the time it
takes to stop a handler; after that instant another worker may already be running the operation.

A process that was stopped may continue only after the lease has ended by its own clock. Perhaps nobody has taken the
operation over; only the store knows. So it goes on trying to extend the lease, for as long as it would have tried
before, until the store answers.

Never here: threads, clocks, what is done with the run. Invariant: a lease that another process may have taken is not
trusted.
"""

from __future__ import annotations

from msgspec import Struct

from onefold import limits

MARGIN_SHARE = 10  # the margin is a tenth of the lease
MARGIN_MS_MIN = 100  # but at least this (a slow fsync)
MARGIN_MS_MAX = 5_000  # and at most this (hosts that keep time by NTP differ by less than a second)
CEILING_SLACK_MS = 2_000  # an extension must reach the queue before the 12 hours are over by the queue's clock


class Lease(Struct, frozen=True, kw_only=True):
    """A lease as its holder knows it. All instants are of one clock.

    Args:
        asked_at_ms: when the claim, or the last extension that succeeded, was asked for.
        lease_ms: how long it holds from then on, 1 or more.
        received_at_ms: when the receive was asked for; None for a lease without a message.
        tried_at_ms: when an extension last failed since `asked_at_ms`; None when none did.
        tried_from_ms: when the first failed in the present series of tries without a long gap (`failed_from_ms`).
        is_claimed: a record names its owner, so that it can still be extended after its end.
    """

    asked_at_ms: int
    lease_ms: int
    received_at_ms: int | None = None
    tried_at_ms: int | None = None
    tried_from_ms: int | None = None
    is_claimed: bool = False


class Extend(Struct, frozen=True):
    """Extend now, for `lease_ms` from now (shorter than the lease only near the 12-hour ceiling)."""

    lease_ms: int


class Rest(Struct, frozen=True):
    """Nothing to do before `until_ms`."""

    until_ms: int


class Over(Struct, frozen=True):
    """No longer trusted: stop the handler.

    Args:
        ceiling: whether the reason is that a message cannot be hidden for more than 12 hours.
    """

    ceiling: bool


Step = Extend | Rest | Over


def margin_ms(lease_ms: int) -> int:
    """How long before its end a lease stops being trusted: a tenth of it, 100 ms to 5 s, never more than half."""
    return min(max(lease_ms // MARGIN_SHARE, MARGIN_MS_MIN), MARGIN_MS_MAX, lease_ms // 2)


def trusted_until_ms(asked_at_ms: int, lease_ms: int) -> int:
    """The instant after which the holder must not rely on a lease asked for at `asked_at_ms`."""
    return asked_at_ms + lease_ms - margin_ms(lease_ms)


def ceiling_ms(received_at_ms: int) -> int:
    """The instant up to which a message can be kept hidden: 12 hours after its receive, less the time for a call."""
    return received_at_ms + limits.VISIBILITY_MS_MAX - CEILING_SLACK_MS


def due_at_ms(lease: Lease) -> int:
    """When the next extension should be asked for."""
    due_ms = lease.asked_at_ms + lease.lease_ms // 3
    if lease.tried_at_ms is not None:
        due_ms = max(due_ms, lease.tried_at_ms + max(lease.lease_ms // 12, 1))
    return due_ms


def failed_from_ms(lease: Lease, now_ms: int) -> int:
    """The value of `Lease.tried_from_ms` after an extension that failed at `now_ms`."""
    return now_ms if lease.tried_from_ms is None or _stood(lease, now_ms) else lease.tried_from_ms


def _stood(lease: Lease, now_ms: int) -> bool:
    """Whether nothing was tried for so long that the process must have been stopped."""
    return lease.tried_at_ms is None or now_ms - lease.tried_at_ms > lease.lease_ms // 3


def _again_ms(lease: Lease, now_ms: int) -> int | None:
    """When to try to extend a lease that is not trusted any more; None: not again."""
    if _stood(lease, now_ms):
        return now_ms
    trusted_ms = trusted_until_ms(lease.asked_at_ms, lease.lease_ms)
    from_ms, for_ms = lease.tried_from_ms, trusted_until_ms(0, lease.lease_ms) - lease.lease_ms // 3
    if from_ms is None or from_ms < trusted_ms or now_ms >= from_ms + for_ms:
        return None
    return due_at_ms(lease)


def next_step(lease: Lease, now_ms: int) -> Step:
    """What to do about a lease at `now_ms`: extend it, wait, or stop trusting it."""
    trusted_ms = trusted_until_ms(lease.asked_at_ms, lease.lease_ms)
    if now_ms >= trusted_ms:
        reached = lease.received_at_ms is not None and lease.asked_at_ms + lease.lease_ms >= ceiling_ms(
            lease.received_at_ms
        )
        fits = lease.received_at_ms is None or now_ms + lease.lease_ms <= ceiling_ms(lease.received_at_ms)
        again_ms = _again_ms(lease, now_ms) if lease.is_claimed and fits and not reached else None
        if again_ms is None:
            return Over(ceiling=reached)
        return Rest(again_ms) if now_ms < again_ms else Extend(lease.lease_ms)
    due_ms = due_at_ms(lease)
    if now_ms < due_ms:
        return Rest(min(due_ms, trusted_ms))
    if lease.received_at_ms is None:
        return Extend(lease.lease_ms)
    room_ms = ceiling_ms(lease.received_at_ms) - now_ms
    if now_ms + room_ms <= lease.asked_at_ms + lease.lease_ms:
        return Rest(trusted_ms)  # extending would not move the end
    return Extend(min(lease.lease_ms, room_ms))
