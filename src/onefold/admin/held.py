"""Unknown outcomes that wait for a person: list them, and settle one as done or as not done.

Settling as done completes the record with the result the person gives, and deletes the key's held messages: they would
only be answered from it. Settling as not done releases the record and sends one message back to its queue; the duplicates
are deleted, because that one represents all of them. The record comes first in both, so that a crash in between leaves
messages that are answered or sent back by settling again, never a message without its record. A group that the message
stopped is started before the message is deleted, for the same reason.
Only what is provably the same operation with the same payload is deleted; any other held message goes back to its queue,
where the guard judges it. A person judges one hold, which belongs to one run. Lists show its name, settling names it, and
the store compares it: a later run under the same key that is held too is not settled by a decision about the earlier run.
Never here: deciding what happened.
Invariant: a held operation that is not done keeps at least one message until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits, redact
from onefold.admin import groups, reading
from onefold.admin.dead_letters import fingerprint_of
from onefold.admin.session import AdminSession
from onefold.codec import canonical
from onefold.contracts.admin import Moved, Peeked, roles
from onefold.contracts.ledger import Row
from onefold.contracts.store import ManualDecision, Record, RecordKey
from onefold.observe.wording import instant, operation
from onefold.runner.handlers import run_of

_KEEP_MS = (
    90 * limits.DAY_MS
)  # how long the record answers duplicates if the job's own `keep` is not known: the default of `keep`
LISTED_MAX = 1_000
_UNDONE = "--not-done --reason-text TEXT"
_NAMED_MAX = 5  # operations of one key that an error names


class HeldOperation(Struct, frozen=True, kw_only=True):
    """One operation that is held.

    Args:
        job, tenant, key: those of the operation.
        hold: names this hold, `FENCE@SINCE_MS`: a later run under the same key has another one. Pass it to `settle`.
        state: `held`; or `left-over`: its record was settled, but a crash left messages here; settle it again.
        since_ms: when it was parked.
        error, summary, attempts, crashes: what is known of the run in doubt. owner: the team that is responsible.
        took_effect: its run reached its end, and only its result could not be recorded.
        run: the run that its message belongs to, or None. fingerprint: the fingerprint of its failure
            (`dead_letters.fingerprint_of`).
        queue: where its messages are; None if it has none (a call under @once).
        message_ids: the message of the run first, then its duplicates.
        expires_in_ms: until the first of the messages is gone; the record itself stays.
        message_gone: it was the run of a message that is in no held queue any more: it expired, or was deleted.
    """

    job: str
    tenant: str
    key: str
    hold: str
    state: Literal["held", "left-over"]
    since_ms: int
    error: str | None
    summary: str
    attempts: int
    crashes: int
    owner: str | None
    queue: str | None
    message_ids: tuple[str, ...]
    expires_in_ms: int | None
    message_gone: bool = False
    took_effect: bool = False
    run: str | None = None
    fingerprint: str = ""


class SettledOperation(Struct, frozen=True, kw_only=True):
    """What settling did.

    Args:
        job, tenant, key: which operation. done: how it was settled.
        sent_back: new ids of messages that went back to their queue.
        deleted: duplicates that were deleted, including the run's message if it is done.
        group_restarted: messages of its FIFO group that waited behind it and are processed now.
        left: messages with another payload that were sent to the held queue directly, so there is no queue to send them
            back to; they stay there.
        replaced: the result, JSON, that a person had given before; None if this is the first.
        lacks_result: it was settled as done without a result, and the job's return type does not allow null.
        is_unchecked: it was settled as done without a result, and the job's return type is not known: no app was named.
        message_gone: it was settled as not done, and the message that would run it again has expired or was deleted.
    """

    job: str
    tenant: str
    key: str
    done: bool
    sent_back: tuple[str, ...]
    deleted: int
    group_restarted: int
    left: int
    replaced: str | None = None
    lacks_result: bool = False
    is_unchecked: bool = False
    message_gone: bool = False


def listed(session: AdminSession, key: str | None = None) -> list[HeldOperation]:
    """What is held, longest first; at most 1,000 operations.

    Args:
        key: only operations with this business key.
    """
    store = session.engine.records
    parked = store.scan(parked=True, limit=LISTED_MAX) if key is None else store.find(key, LISTED_MAX)
    records = {record.key: record for record in parked if record.parked}
    messages = _messages(session, key)
    strays = [one for one in messages if one not in records]
    stray_records = dict(zip(strays, session.engine.store.read(strays, session.now_ms()), strict=True))
    found = [_held(session, one, record, messages.get(one, [])) for one, record in records.items()]
    found += [_left_over(session, one, stray_records[one], messages[one]) for one in strays]
    return sorted((one for one in found if key in (None, one.key)), key=lambda one: one.since_ms)


def bodies(session: AdminSession, held: HeldOperation) -> list[tuple[str, str]]:
    """Message id and body of each message of a held operation, for a person who asked for them."""
    found = session.engine.queues.find(list(held.message_ids))
    return [(one.message_id, one.body) for one in found if one is not None]


def hold_of(record: Record | None) -> str:
    """The name of a record's present hold, as in `HeldOperation.hold`; `0@0` if there is no record."""
    return f"{record.fence}@{record.updated_at_ms}" if record is not None else "0@0"


def _messages(session: AdminSession, key: str | None) -> dict[RecordKey, list[Peeked]]:
    """Held messages by operation, all or those of one key; unreadable ones are listed under their own id."""
    found: dict[RecordKey, list[Peeked]] = {}
    for queue in sorted(roles(session.settings()).held):
        for message in session.every(queue):
            if key is not None and message.key not in (None, key):
                continue
            known = reading.read(session, message)
            name = known.key or RecordKey("", known.job or "?", message.key or message.message_id)
            found.setdefault(name, []).append(message)
    return found


def _held(session: AdminSession, key: RecordKey, record: Record, messages: Sequence[Peeked]) -> HeldOperation:
    ordered = sorted(messages, key=lambda one: one.message_id != record.message_id)
    job, failure = session.job(key.job), record.failure
    return HeldOperation(
        job=key.job,
        tenant=key.scope,
        key=key.key,
        hold=hold_of(record),
        state="held",
        since_ms=record.updated_at_ms,
        error=failure.error if failure is not None else None,
        summary=failure.summary if failure is not None else "",
        attempts=record.attempts,
        crashes=record.crashes,
        owner=job.policy.owner if job is not None else _owner(ordered),
        queue=ordered[0].queue if ordered else None,
        message_ids=tuple(one.message_id for one in ordered),
        expires_in_ms=_expires_in_ms(session, ordered),
        message_gone=session.has_queues and record.message_id is not None and not ordered,
        took_effect=failure is not None and failure.took_effect,
        run=next(filter(None, map(run_of, ordered)), None),
        fingerprint=fingerprint_of(
            key.job,
            failure.kind if failure is not None else "none",
            failure.error if failure is not None else None,
            failure.summary if failure is not None else "",
        ),
    )


def _left_over(
    session: AdminSession, key: RecordKey, record: Record | None, messages: Sequence[Peeked]
) -> HeldOperation:
    status = f"its record says {record.status}" if record is not None else "nothing is recorded under its key"
    return HeldOperation(
        job=key.job,
        tenant=key.scope,
        key=key.key,
        hold=hold_of(record),
        state="left-over",
        since_ms=messages[0].sent_at_ms,
        error=None,
        summary=f"Not held any more: {status}. Settle it again to clear its messages.",
        attempts=0,
        crashes=0,
        owner=_owner(messages),
        queue=messages[0].queue,
        message_ids=tuple(one.message_id for one in messages),
        expires_in_ms=_expires_in_ms(session, messages),
        run=next(filter(None, map(run_of, messages)), None),
    )


def _owner(messages: Sequence[Peeked]) -> str | None:
    return next((one.reason.owner for one in messages if one.reason is not None and one.reason.owner), None)


def _expires_in_ms(session: AdminSession, messages: Sequence[Peeked]) -> int | None:
    return (
        min((one.expires_at_ms for one in messages), default=session.now_ms()) - session.now_ms() if messages else None
    )


# -- settling --------------------------------------------------------------------------------------------------------


def settle(
    session: AdminSession,
    key: str,
    *,
    done: bool,
    result: str | None = None,
    job: str | None = None,
    tenant: str | None = None,
    hold: str | None = None,
    reason_text: str | None = None,
    idle: bool = False,
) -> SettledOperation:
    """Settle a held operation as a person decides. If it was settled as done before, its result can be replaced.

    Args:
        key, job, tenant: which; job and tenant if several operations have the key.
        hold: the `HeldOperation.hold` that was judged; None: the one that is found now. No other is settled.
        done: whether the effect happened. False for a run that took effect needs a reason_text that says who undid it.
        result: JSON that answers duplicates from now on; only with done. Required for a call under @once, whose later
            calls return it; for a job the default is null.
        reason_text: why, for the ledger.
        idle: nobody sends to the queue of a group that it stopped, and no worker receives from it (`groups.py`).

    Raises:
        NotFoundError: nothing with this key is held. UsageError: several are, or a result without done; it stopped its
            group on SQS, and `idle` is not set.
        PayloadError: the result is not of the job's result type. UsageError: it is not JSON, or is missing.
        ConflictError: it was settled the other way before, or a run other than the one that was judged is held now.
    """
    if result is not None and not done:
        raise errors.UsageError("A result was given for an effect that did not happen.", todo="Leave --result out.")
    if done and result is not None and hold is None:
        corrected = _corrected(session, key, job, tenant, result, reason_text)
        if corrected is not None:
            return corrected
    held = find(session, key, job, tenant, undo=not done)
    record_key = RecordKey(held.tenant, held.job, held.key)
    before = session.engine.store.read([record_key], session.now_ms())[0]
    judged = hold or held.hold
    if judged != held.hold or judged != hold_of(before):
        raise _judged_another(record_key, judged, before)
    stored = check_decision(session, held, done=done, result=result, reason_text=reason_text)
    messages = [one for one in session.engine.queues.find(list(held.message_ids)) if one is not None]
    stopped = _stopped_groups(session, messages)
    for source, group in stopped:
        groups.check_can_start(session, source, group, idle=idle)
    run = next((name for name in map(run_of, messages) if name is not None), None)
    if not session.has_queues and before is not None and before.message_id is not None:
        raise errors.UsageError(
            f"{operation(record_key)} is held with the message {before.message_id}, and this URL has no queues.",
            meaning="Settled here, its message would stay in the held queue. Nothing was changed.",
            todo="Settle it by naming the app, or the URL that its queues are in.",
        )
    if held.state == "held" and before is not None:
        _settle_record(session, before, done=done, result=stored, run=run, reason_text=reason_text)
    elif (before is not None and before.status == "completed") != done:
        status = before.status if before is not None else "absent"
        raise errors.ConflictError(
            f"{operation(record_key)} is not held any more: its record is {status}.",
            meaning="Messages of it were left in the held queue by an interrupted command. Nothing was changed.",
            todo=f"Settle it again as {'--done' if status == 'completed' else '--not-done'}; that clears them.",
        )
    fingerprint = before.fingerprint if before is not None else None
    settled = _settle_messages(
        session, record_key, messages, stopped, fingerprint, done=done, reason_text=reason_text, idle=idle
    )
    is_new = done and result is None and held.state == "held"
    return replace(
        settled,
        lacks_result=is_new and lacks_result(session, held.job),
        is_unchecked=is_new and session.job(held.job) is None,
        message_gone=held.message_gone and not done,
    )


def _judged_another(key: RecordKey, hold: str, now: Record | None) -> errors.ConflictError:
    """The error for a hold that is over.

    Args:
        hold: the one that was judged. now: the present record.
    """
    if now is None:
        is_now = "nothing is recorded under its key"
    elif now.parked:
        is_now = f"it is held as {hold_of(now)}, since {instant(now.updated_at_ms)}"
    else:
        is_now = f"its record has been {now.status} since {instant(now.updated_at_ms)}"
    return errors.ConflictError(
        f"{operation(key)} is not held as {hold} now: {is_now}.",
        meaning="A hold belongs to one run, and what was found out about it does not apply to another. Nothing was changed.",
        todo=f"Look again: `{redact.command('onefold held show', key.key)}` and `{redact.command('onefold why', key.key)}`.",
    )


def nothing_held(session: AdminSession, key: str, *, undo: bool = False) -> errors.NotFoundError:
    """The error for a key under which nothing is held, with what its records say.

    Args:
        undo: whether it was to be settled as not done.
    """
    records = session.engine.records.find(key, _NAMED_MAX)
    known = "; ".join(
        f"{operation(record.key)} is {'done' if record.status == 'completed' else record.status}" for record in records
    )
    return errors.NotFoundError(
        f"Nothing with the key {key!r} is held{f': {known}' if known else ''}.",
        meaning="Nothing was changed.",
        todo=_CANNOT_UNDO
        if undo and any(record.status == "completed" for record in records)
        else f"See `onefold held list` and `{redact.command('onefold why', key)}`.",
    )


_CANNOT_UNDO = (
    "What is done cannot be settled as not done: its duplicates may have been answered. If the effect did not happen, do it "
    "under another key. To correct the result: --done --result JSON."
)


def find(session: AdminSession, key: str, job: str | None, tenant: str | None, *, undo: bool = False) -> HeldOperation:
    """The held operation with this key.

    Args:
        job, tenant: needed if several operations have the key. undo: whether it is to be settled as not done.

    Raises:
        NotFoundError: nothing with this key is held. UsageError: several are.
    """
    fitting = [one for one in listed(session, key) if job in (None, one.job) and tenant in (None, one.tenant)]
    if not fitting:
        raise nothing_held(session, key, undo=undo)
    if len(fitting) > 1:
        ways = (
            f"--job {redact.shell_word(one.job)}" + (f" --tenant {redact.shell_word(one.tenant)}" if one.tenant else "")
            for one in fitting
        )
        names = ", ".join(operation(RecordKey(one.tenant, one.job, one.key)) for one in fitting)
        raise errors.UsageError(
            f"{len(fitting)} operations with the key {key!r} are held: {names}.",
            meaning="Nothing was changed.",
            todo=f"Say which, with {' or '.join(ways)}.",
        )
    return fitting[0]


def _corrected(
    session: AdminSession, key: str, job: str | None, tenant: str | None, result: str, reason_text: str | None
) -> SettledOperation | None:
    """Replace the result of what a person has settled as done; None if no such operation has the key."""
    if listed(session, key):
        return None
    by_hand = [
        (record.key, record.result)
        for record in session.engine.records.find(key, LISTED_MAX)
        if record.status == "completed"
        and record.result is not None
        and job in (None, record.key.job)
        and tenant in (None, record.key.scope)
        and _was_settled(session, record.key)
    ]
    if len(by_hand) != 1:
        return None
    (operation_key, before), now_ms = by_hand[0], session.now_ms()
    declared = session.job(operation_key.job)
    stored = _result(session, operation_key.job, key, result, needed=True, has_queue=False)
    keep_ms = declared.policy.keep_ms if declared is not None else _KEEP_MS

    def write() -> None:
        decision = ManualDecision(done=True, result=stored, expires_at_ms=now_ms + keep_ms, corrects=before)
        if not session.engine.records.settle(operation_key, decision, now_ms):
            raise errors.ConflictError(
                f"{operation(operation_key)} has another result by now.",
                meaning="Somebody else changed it just now. Nothing was changed here.",
                todo=f"See `{redact.command('onefold why', key)}`.",
            )

    row = session.row("settled", key=operation_key, done=True, corrected=True, reason_text=reason_text)
    _with_row(session, operation_key, write, row, lambda record: record.result == stored)
    return SettledOperation(
        job=operation_key.job, tenant=operation_key.scope, key=key, done=True, sent_back=(), deleted=0, group_restarted=0,
        left=0, replaced=before.decode(),
    )  # fmt: skip


def _was_settled(session: AdminSession, key: RecordKey) -> bool:
    """Whether the last event of the operation's history is a person's decision."""
    words = [row for row in session.engine.ledger.of_key(key) if row.event in ("settled", "completed", "redrive")]
    return bool(words) and words[-1].event == "settled" and words[-1].detail.get("done") is True


def check_decision(
    session: AdminSession, one: HeldOperation, *, done: bool, result: str | None, reason_text: str | None
) -> bytes:
    """The result with which an operation would be settled, as JSON.

    Raises:
        PayloadError: it is not of the job's result type. UsageError: it is not JSON, or is missing; or the run took effect,
            and no reason says who undid it.
    """
    if one.took_effect and not done and not reason_text:
        ways = [redact.command("onefold held settle", one.key, way) for way in ("--done --result JSON", _UNDONE)]
        raise errors.UsageError(
            f"{operation(RecordKey(one.tenant, one.job, one.key))} took effect: it ended, and only its result"
            " could not be recorded.",
            meaning="Settled as not done it would run again, and take effect a second time. Nothing was changed.",
            todo=f"Give its result: `{ways[0]}`. If the effect was undone manually, add that: `{ways[1]}`.",
        )
    needed = done and one.state == "held"
    return _result(session, one.job, one.key, result, needed=needed, has_queue=one.queue is not None)


def _result(session: AdminSession, name: str, key: str, result: str | None, *, needed: bool, has_queue: bool) -> bytes:
    job = session.job(name)
    if result is None:
        if needed and job is None and not has_queue:
            way = "--done --result '\"...\"'"
            raise errors.UsageError(
                f"{name} {key!r} is a call of a function: what it returned is missing.",
                meaning="Later calls with this key return it, and null only fits a function that returns None."
                " Nothing was changed.",
                todo=f"Give it as JSON: `{redact.command('onefold held settle', key, way)}`, or --result null for None.",
            )
        return b"null"
    try:
        stored = canonical(result)
    except errors.PayloadError as error:
        reason = error.what.removeprefix("The payload is not JSON: ")
        raise errors.UsageError(
            f"The result is not JSON: {reason}",
            meaning=f"It is {result!r:.60}. Nothing was changed.",
            todo='Text needs quotes of its own, "label-17", and in a shell others around them: --result \'"label-17"\'. '
            "Numbers, null, {...} and [...] need none.",
        ) from None
    if job is not None:
        try:
            job.rules.payload.decode_result(stored)
        except errors.PayloadError as error:
            raise errors.PayloadError(
                f"The result is not what {name} returns: {error.what}",
                meaning=f"{error.meaning} Nothing was changed.".strip(),
                todo="Give the JSON that the job's return type says.",
            ) from None
    return stored


def lacks_result(session: AdminSession, name: str) -> bool:
    """Whether the job is declared and null is not of the type that it returns."""
    job = session.job(name)
    try:
        if job is not None:
            job.rules.payload.decode_result(b"null")
    except errors.PayloadError:
        return True
    return False


def _settle_record(
    session: AdminSession, held: Record, *, done: bool, result: bytes, run: str | None, reason_text: str | None
) -> None:
    key, judged = held.key, (held.fence, held.updated_at_ms)
    job, now_ms = session.job(key.job), session.now_ms()
    keep_ms = job.policy.keep_ms if job is not None else _KEEP_MS

    def write() -> None:
        decision = ManualDecision(done=done, result=result, expires_at_ms=now_ms + keep_ms, judged=judged)
        if not session.engine.records.settle(key, decision, now_ms):
            raise _judged_another(key, hold_of(held), session.engine.store.read([key], now_ms)[0])

    row = session.row("settled", key=key, run=run, done=done, reason_text=reason_text)
    after = "completed" if done else "released"
    _with_row(session, key, write, row, lambda record: record.status == after)


def _with_row(
    session: AdminSession, key: RecordKey, write: Callable[[], None], row: Row, is_written: Callable[[Record], bool]
) -> None:
    """Change a record and write its row, in one transaction if possible; report if the change happened without its row.

    Raises:
        StorageError: the record was changed, and its row is missing. If nothing was changed, the error that was raised.
    """
    changed = False

    def both() -> None:
        nonlocal changed
        write()
        changed = True
        session.engine.ledger.append([row])

    try:
        session.together(both)
    except errors.OnefoldError as error:
        record = session.engine.store.read([key], session.now_ms())[0] if changed else None
        if record is None or not is_written(record):
            raise
        raise errors.StorageError(
            f"{operation(key)} was settled, but the row that says so could not be written: {error.what}",
            meaning=f"Its record is {record.status}. Its history does not show who settled it, and why.",
            todo="Note that elsewhere, and fix the cause named above. If it was the job of a queue, run the command"
            " again: its message is still in the held queue.",
        ) from error


def _is_of(known: reading.Reading, fingerprint: str | None) -> bool:
    return known.fingerprint is None or (fingerprint is not None and known.is_of(fingerprint))


def _settle_messages(
    session: AdminSession,
    key: RecordKey,
    messages: Sequence[Peeked],
    stopped: Sequence[tuple[str, str]],
    fingerprint: str | None,
    *,
    done: bool,
    reason_text: str | None,
    idle: bool,
) -> SettledOperation:
    same = [one for one in messages if _is_of(reading.read(session, one), fingerprint)]
    back = [one for one in messages if one not in same]
    if not done:
        back, same = [*same[:1], *back], same[1:]
    stray = [one for one in back if one.source is None]
    back = [one for one in back if one.source is not None]

    def write() -> tuple[dict[str, Moved], list[bool]]:
        singles = [one for one in back if (one.source, one.group) not in stopped]
        sent = _send_back(session, singles)
        removed = reading.remove_unchanged(session, same)
        session.engine.ledger.append(
            [
                session.row(
                    "redrive",
                    key=key,
                    message=one,
                    to=went.queue,
                    new_message_id=went.new_message_id,
                    reason_text=reason_text,
                )
                for one in singles
                if (went := sent.get(one.message_id)) is not None
            ]
        )
        return sent, removed

    restarted, started = 0, dict[str, Moved]()
    for source, group in stopped:  # first: while its message is held, settling again finds and starts the group
        first = [one.message_id for one in back if (one.source, one.group) == (source, group)]
        went = groups.start_again(session, source, group, first, idle=idle, reason_text=reason_text)
        started |= {message_id: went[message_id] for message_id in first if message_id in went}
        restarted += len(went) - len(first)
    sent, removed = session.together(write)
    sent |= started
    session.engine.notify()
    return SettledOperation(
        job=key.job,
        tenant=key.scope,
        key=key.key,
        done=done,
        sent_back=tuple(moved.new_message_id for moved in sent.values()),
        deleted=sum(removed),
        group_restarted=restarted,
        left=len(stray),
    )


def _stopped_groups(session: AdminSession, messages: Sequence[Peeked]) -> list[tuple[str, str]]:
    """The groups that one of these messages stopped."""
    ids = {one.message_id for one in messages}
    return [(one.queue, one.group) for one in groups.stopped(session) if one.by in ids]


def _send_back(session: AdminSession, messages: Sequence[Peeked]) -> dict[str, Moved]:
    moved = session.engine.queues.move([(one.message_id, one.source, None) for one in messages]) if messages else []
    return {one.message_id: went for one, went in zip(messages, moved, strict=True) if went is not None}
