"""`stuck`: runs whose process or lease has ended and that were not taken over, and runs past their timeout.

Each is listed with what happens next, and whether that needs a person. Never here: output.
Invariant: asking changes nothing, and receives nothing.
"""

from __future__ import annotations

from msgspec import Struct

from onefold.admin import reading
from onefold.admin.session import AdminSession
from onefold.contracts.admin import Peeked, roles
from onefold.contracts.store import Record
from onefold.observe.operation_state import HANGS, paused_text, what_of_stopped
from onefold.observe.wording import age, pause


class StuckRun(Struct, frozen=True, kw_only=True):
    """A run whose process or lease has ended and that was not taken over yet, or one past its timeout.

    Args:
        job, tenant, key: the operation. owner: id of the process that had it.
        silent_ms: time since its lease ended; 0 if the lease holds, but its process has ended or its handler is late.
        explanation: what happens next, and when.
        resolves: whether that happens by itself.
    """

    job: str
    tenant: str
    key: str
    owner: str
    silent_ms: int
    explanation: str
    resolves: bool


def runs(session: AdminSession) -> list[StuckRun]:
    """Runs that may need a person, each explained, longest silent first.

    These are runs whose process has ended or is suspended, or whose lease has ended, and that nobody has taken over; if
    the app is known, also runs whose handler has passed its timeout and has not ended.
    """
    now_ms = session.now_ms()
    found = []
    records = session.engine.records.scan(status="in_progress", limit=1_000)
    asked = session.has_queues and not session.closed_queues()
    kinds = roles(session.settings()) if records else None
    set_aside = {*kinds.dead, *kinds.held} if kinds is not None else set()
    dead = session.engine.dead({record.owner for record in records})
    for record in records:
        if record.lease_until_ms > now_ms and record.owner not in dead:
            if (late := _late(session, record, now_ms)) is not None:
                found.append(late)
            continue
        stopped = session.engine.stopped_process(record) if record.owner not in dead else None
        if stopped is not None:
            text, resolves = " ".join((f"its {paused_text(stopped)}.", *what_of_stopped(stopped))), False
        else:
            message = _message_of(session, record)
            text, resolves = _what_happens_next(
                message,
                now_ms,
                is_dead=record.owner in dead,
                left_ms=record.lease_until_ms - now_ms,
                may_wait=record.message_id is not None and not asked,
                is_set_aside=message is not None and message.queue in set_aside,
            )
        found.append(
            StuckRun(
                job=record.key.job,
                tenant=record.key.scope,
                key=record.key.key,
                owner=record.owner,
                silent_ms=max(now_ms - record.lease_until_ms, 0),
                explanation=text,
                resolves=resolves,
            )
        )
    return sorted(found, key=lambda one: -one.silent_ms)


def _message_of(session: AdminSession, record: Record) -> Peeked | None:
    """The message that would bring a run back; on SQS, where looking would receive it, None."""
    if record.message_id is None:
        return None
    (found,) = session.engine.queues.find([record.message_id])
    if found is None and session.engine.commit is not None:  # a message that is moved gets another id
        of_key = [one for one in session.engine.queues.find_key(record.key.key) if _is_of(session, one, record)]
        found = of_key[0] if of_key else None
    return found


def _is_of(session: AdminSession, message: Peeked, record: Record) -> bool:
    return reading.read(session, message).key == record.key


def _late(session: AdminSession, record: Record, now_ms: int) -> StuckRun | None:
    """A run whose handler has passed its timeout; None if it has not, or if its job is not known."""
    job = session.job(record.key.job)
    if job is None or record.started_at_ms is None or record.started_fence != record.fence:
        return None
    running_ms, timeout_ms = now_ms - record.started_at_ms, job.policy.timeout_ms
    if running_ms < timeout_ms:
        return None
    return StuckRun(
        job=record.key.job,
        tenant=record.key.scope,
        key=record.key.key,
        owner=record.owner,
        silent_ms=0,
        explanation=f"its handler has run for {age(running_ms)} by owner {record.owner}, past its timeout of "
        f"{pause(timeout_ms)}, and its lease is renewed: nothing else runs this key. {HANGS}",
        resolves=False,
    )


def _what_happens_next(
    message: Peeked | None,
    now_ms: int,
    *,
    is_dead: bool,
    left_ms: int,
    may_wait: bool = False,
    is_set_aside: bool = False,
) -> tuple[str, bool]:
    if message is not None and is_set_aside:
        ended = "its process has ended, and " if is_dead else ""
        text = (
            f"{ended}its message is in {message.queue}, from which no worker takes it over; the outcome of the run is "
        )
        return f"{text}unknown. To send it back: onefold dlq redrive {message.message_id}", False
    if message is None and may_wait:
        ended = "its process has ended; " if is_dead else ""
        text = (
            f"{ended}its message (not looked for: that would receive it) is visible again when its visibility timeout is "
            "over, and a worker then takes the run over; is one running?"
        )
        return text, True
    if message is None:
        ended = "its process has ended, and " if is_dead else ""
        frees = (
            "a program that begins to call, or a worker on this machine, frees it at once; any other "
            if is_dead
            else "a "
        )
        wait = f"; {frees}call waits for its lease to end, in {pause(left_ms)}" if left_ms > 0 else ""
        return (
            f"{ended}no message is left to bring it back; repeat the call, or send it again with the same key{wait}",
            False,
        )
    if is_dead and message.visible_at_ms > now_ms:
        return (
            "its process has ended: a worker on this machine frees its message and takes it over; is one running?",
            True,
        )
    if message.visible_at_ms > now_ms:
        wait = pause(message.visible_at_ms - now_ms)
        return f"its message is visible again in {wait}, and the worker that receives it takes the run over", True
    since = age(now_ms - message.visible_at_ms)
    return (
        f"its message has been visible for {since}: a worker that receives it takes the run over; is one running?",
        True,
    )
