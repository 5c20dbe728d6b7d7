"""Settling many held operations with one decision: which are meant, what would happen to each, and doing it.

A plan names each operation with the hold that was judged, and has a digest of all of it. When it is carried out, an
operation is settled only if it still has that hold; one that another person has settled, or that ran again, is left alone
and reported.
Never here: what settling one does (`held.py`), output. Invariants: planning changes nothing; what the plan does not name is
not touched; each settled operation has its own row, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from onefold import errors
from onefold.admin import held
from onefold.admin.dead_letters import fits_pattern
from onefold.admin.held import HeldOperation, SettledOperation
from onefold.admin.session import AdminSession
from onefold.codec import digest, encode
from onefold.contracts.admin import roles

_DIGEST_CHARS = 12


class HeldSelect(Struct, frozen=True, kw_only=True):
    """Which held operations are meant; all conditions must hold.

    Args:
        queue: where its messages are: a held queue, or the queue that they came from.
        job: its name. key, tenant, run, error (class of the exception): with `*` and `?`.
        fingerprint: the fingerprint of its failure, or at least its first 4 characters.
        older_ms, newer_ms: it has been held for at least, or at most, this long.
    """

    queue: str | None = None
    job: str | None = None
    key: str | None = None
    tenant: str | None = None
    run: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    older_ms: int | None = None
    newer_ms: int | None = None

    def is_empty(self) -> bool:
        """Whether it selects everything."""
        return self == HeldSelect()


class NotSettled(Struct, frozen=True, kw_only=True):
    """An operation that was left alone, and why."""

    job: str
    tenant: str
    key: str
    why: str


class SettlePlan(Struct, frozen=True, kw_only=True):
    """What settling many would do. Nothing was changed.

    Args:
        done: whether their effects happened. result: JSON that answers duplicates of each; None for null.
        operations: each with its present hold.
        refused: those that this decision cannot settle: they took effect, or are calls whose result is missing.
        is_whole: False if more operations are held than one plan takes (1,000): plan again afterwards.
        digest: the digest of all of this; equal digests mean the same plan.
    """

    done: bool
    result: str | None
    operations: tuple[HeldOperation, ...]
    refused: tuple[NotSettled, ...]
    is_whole: bool
    digest: str


class SettledMany(Struct, frozen=True, kw_only=True):
    """What was settled, and what was left because it is no longer held, or not under the hold that was judged."""

    settled: tuple[SettledOperation, ...]
    left: tuple[NotSettled, ...]


def selected(session: AdminSession, select: HeldSelect) -> list[HeldOperation]:
    """The held operations that a selection names, longest held first; at most 1,000 are read."""
    return [one for one in held.listed(session) if _fits(session, one, select)]


def _fits(session: AdminSession, one: HeldOperation, select: HeldSelect) -> bool:
    age_ms = session.now_ms() - one.since_ms
    patterns = ((select.key, one.key), (select.tenant, one.tenant), (select.run, one.run), (select.error, one.error))
    return (
        (select.queue is None or one.queue in _held_queues(session, select.queue))
        and select.job in (None, one.job)
        and all(pattern is None or fits_pattern(text or "", pattern) for pattern, text in patterns)
        and (select.fingerprint is None or one.fingerprint.startswith(select.fingerprint))
        and (select.older_ms is None or age_ms >= select.older_ms)
        and (select.newer_ms is None or age_ms <= select.newer_ms)
    )


def _held_queues(session: AdminSession, name: str) -> tuple[str, ...]:
    """The held queue with that name, or the held queue of the queue with that name.

    Raises:
        NotFoundError: there is neither.
    """
    kinds = roles(session.settings())
    if name in kinds.held:
        return (name,)
    source = kinds.sources.get(name)
    if source is not None and source.held is not None:
        return (source.held,)
    raise errors.NotFoundError(
        f"{name!r} is neither a held queue nor a queue that has one.",
        meaning=f"Held queues here: {', '.join(sorted(kinds.held)) or 'none'}.",
        todo="See `onefold queue list`.",
    )


def plan(session: AdminSession, select: HeldSelect, *, done: bool, result: str | None = None) -> SettlePlan:
    """What settling these would do; nothing is changed.

    Args:
        done, result: as `held.settle`, for each of them.

    Raises:
        UsageError: a result without done.
    """
    if result is not None and not done:
        raise errors.UsageError("A result was given for an effect that did not happen.", todo="Leave the result out.")
    every = held.listed(session)
    chosen = [one for one in every if _fits(session, one, select)]
    refused = tuple(
        NotSettled(job=one.job, tenant=one.tenant, key=one.key, why=why)
        for one in chosen
        if (why := _refusal(session, one, done=done, result=result)) is not None
    )
    left_out = {(one.job, one.tenant, one.key) for one in refused}
    operations = tuple(one for one in chosen if (one.job, one.tenant, one.key) not in left_out)
    named = sorted([one.job, one.tenant, one.key, one.hold] for one in operations)
    return SettlePlan(
        done=done,
        result=result,
        operations=operations,
        refused=refused,
        is_whole=len(every) < held.LISTED_MAX,
        digest=digest(encode([done, result, named]))[:_DIGEST_CHARS],
    )


def _refusal(session: AdminSession, one: HeldOperation, *, done: bool, result: str | None) -> str | None:
    """Why one of many operations cannot be settled by this decision; None if it can."""
    if one.took_effect and not done:
        return "It took effect: it ended, and only its result could not be recorded. Settle it by itself."
    try:
        held.check_decision(session, one, done=done, result=result, reason_text=None)
    except errors.UsageError as error:
        return error.what
    return None


def carry_out(
    session: AdminSession,
    planned: SettlePlan,
    *,
    reason_text: str,
    idle: bool = False,
    report: Callable[[SettledOperation | NotSettled], object] = lambda _: None,
) -> SettledMany:
    """Settle what a plan names, one operation after the other. An operation that cannot be settled is left alone.

    Args:
        reason_text: why, for the ledger. idle: as `held.settle`. report: called after each.

    Raises:
        UsageError: no reason. TransientError: the engine cannot be used now; what was settled before stays settled.
    """
    if not reason_text.strip():
        raise errors.UsageError(
            "Settling many operations needs a reason.", meaning="Nothing was changed.", todo="Say why, for the history."
        )
    settled, left = [], []
    for one in planned.operations:
        try:
            done = held.settle(
                session, one.key, done=planned.done, result=planned.result, job=one.job, tenant=one.tenant, hold=one.hold,
                reason_text=reason_text, idle=idle,
            )  # fmt: skip
        except errors.StorageError:
            raise
        except errors.UsageError as error:  # a conflict, an operation that is gone, a group that is not idle
            why = NotSettled(job=one.job, tenant=one.tenant, key=one.key, why=error.what)
            left.append(why)
            report(why)
        else:
            settled.append(done)
            report(done)
    return SettledMany(settled=tuple(settled), left=tuple(left))
