"""Messages from an app into its queues: all of one call are accepted, or none.

Never here: how a payload becomes a message (runtime/outgoing.py). Invariant: when `send_all` returns, each receipt that is
not a duplicate names a message that survives a crash of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from onefold import errors, payload_defaults
from onefold.contracts.entries import Refused
from onefold.contracts.ledger import History
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE
from onefold.contracts.rules import check_entry
from onefold.contracts.store import Answer, Ask, Claimed, Hold, Outcome, Record, RecordKey, Release
from onefold.limits import DAY_MS
from onefold.runtime.events import Event, kept
from onefold.runtime.outgoing import Outgoing, Receipt
from onefold.runtime.transactions import transaction, wake_workers

if TYPE_CHECKING:
    from onefold.runtime.runtime import Runtime

_RESERVE_LEASE_MS = 5_000  # keeps two senders of one key apart, until the record is there
_SENDING_MS = (
    60_000  # how long a sender that dies leaves it open whether a key was sent, where no transaction decides it
)
_KNOWN_MS = 90 * DAY_MS
_LOOKED_AT_MAX = 1_000  # messages with one business key; where there are so many, one is taken to be this job's

Known = Literal["waiting", "running", "done", "failed", "held"]


def send_all(runtime: Runtime, outgoing: Sequence[Outgoing], history: History) -> list[Receipt]:
    """Send messages to their queues, in order.

    Raises:
        PayloadError: a queue would not take one of them (size, characters, group); none was sent.
        TransientError: the `unique` key of one is being sent by another process; none was sent.
        ConflictError: the name of a `unique` job is another app's on this engine; none was sent.
    """
    for one in outgoing:
        refused = check_entry(one.entry, runtime.settings[one.queue])
        if refused is not None:
            raise _refused(one, refused)
    unique = [one for one in outgoing if one.unique]
    if unique:
        for app in {str(one.entry.attributes[APP_ATTRIBUTE].value) for one in unique}:
            runtime.take_names([one.record.job for one in unique], app)
        # A key is known together with its message, or not at all.
        receipts = transaction(runtime.engine, lambda: _send(runtime, outgoing))
    else:
        receipts = _send(runtime, outgoing)
    if any(receipt.message_id is not None for receipt in receipts):
        wake_workers(runtime.engine)
    if kept("sent", history):
        runtime.engine.ledger.append(
            [
                Event(
                    at_ms=runtime.clock.now_ms(), name="sent", key=one.record, queue=one.queue, actor=runtime.owner,
                    message_id=receipt.message_id, detail={"duplicate": True} if receipt.duplicate else {},
                ).row()
                for one, receipt in zip(outgoing, receipts, strict=True)
            ]
        )  # fmt: skip
    return receipts


def _send(runtime: Runtime, outgoing: Sequence[Outgoing]) -> list[Receipt]:
    """Reserve what is `unique`, then send; what was reserved and could not be sent is free again."""
    if runtime.engine.commit is not None:  # one transaction: what fails here takes everything back
        now_ms = runtime.steady.now_ms()  # of the record, too: no message is older than its reservation
        known, free = _look(runtime, outgoing, now_ms)
        receipts = _deliver(runtime, outgoing, known)
        _record_sent(runtime, outgoing, free, receipts, now_ms)
        return receipts
    mine, known = _reserve(runtime, outgoing)
    try:
        receipts = _deliver(runtime, outgoing, known)
    except BaseException:
        with suppress(errors.OnefoldError):  # then they are free in a minute
            _keep(runtime, mine, None)
        raise
    with suppress(errors.OnefoldError):  # they are sent; a worker that claims one keeps it as long as any
        places = {one.record: place for place, one in reversed([*enumerate(outgoing)]) if one.unique}
        _keep(runtime, mine, {one.record: receipts[places[one.record]].message_id for one in mine})
    return receipts


def _deliver(runtime: Runtime, outgoing: Sequence[Outgoing], known: Mapping[int, Known]) -> list[Receipt]:
    """Put into their queues all but those whose keys are known; the receipts of all, in order."""
    receipts: dict[int, Receipt] = {}
    by_queue: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(outgoing):
        if place in known:
            receipts[place] = Receipt(
                job=one.record.job, key=one.record.key, message_id=None, duplicate=True, found=known[place]
            )
        else:
            by_queue[one.queue].append(place)
    for name, places in by_queue.items():
        answers = runtime.engine.queues.open(name).send([outgoing[place].entry for place in places])
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, Refused):  # the engine's queue has other settings than the app declares
                raise _refused(outgoing[place], answer)
            record = outgoing[place].record
            receipts[place] = Receipt(
                job=record.job,
                key=record.key,
                message_id=answer.message_id,
                duplicate=answer.duplicate,
                found="deduplicated" if answer.duplicate else "new",
            )
    return [receipts[place] for place in range(len(outgoing))]


def _refused(one: Outgoing, refused: Refused) -> errors.PayloadError:
    return errors.PayloadError(
        f"Queue {one.queue} does not take the message of {one.record.job} {one.record.key!r}: {refused.message}",
        meaning=f"Code {refused.code}. Nothing was sent.",
        todo="Correct the payload and send it again.",
    )


def _firsts(outgoing: Sequence[Outgoing]) -> tuple[dict[RecordKey, int], dict[int, Known]]:
    """Where in `outgoing` each `unique` key comes first, and the places of its repetitions.

    Raises:
        ConflictError: a key comes with two payloads.
    """
    first: dict[RecordKey, int] = {}
    known: dict[int, Known] = {}
    for place, one in enumerate(outgoing):
        if one.unique and first.setdefault(one.record, place) != place:
            _refuse_other_payload(one, outgoing[first[one.record]].fingerprint, "sent in the same call")
            known[place] = "waiting"
    return first, known


def _look(
    runtime: Runtime, outgoing: Sequence[Outgoing], now_ms: int
) -> tuple[dict[int, Known], dict[int, Record | None]]:
    """What is known of `unique` keys where records and messages are in one file, in the transaction of the send.

    A key is known while its record is done, held or running, or while a message of it is somewhere in the file. Where its
    message was purged, or its retention has ended, it is free to be sent.

    Returns:
        Index in `outgoing` -> what is known of it, and of the others -> the record that is there, if any.

    Raises:
        ConflictError: a key has a record of another payload.
    """
    first, known = _firsts(outgoing)
    free: dict[int, Record | None] = {}
    if not first:
        return known, free
    for place, record in zip(first.values(), runtime.engine.store.read(list(first), now_ms), strict=True):
        if record is None:
            free[place] = None
            continue
        found = _known(record)
        is_settled = found in ("done", "held") or (record.status == "in_progress" and now_ms < record.lease_until_ms)
        if is_settled or _has_message(runtime, record):
            known[place] = found
            _refuse_other_payload(outgoing[place], record.fingerprint, found)
        else:
            _refuse_other_payload(outgoing[place], record.fingerprint, "its message is gone")
            free[place] = record
    return known, free


def _has_message(runtime: Runtime, record: Record) -> bool:
    """Whether a message of an operation is in some queue of the file, a dead-letter queue included."""
    queues = runtime.engine.queues
    if record.message_id is not None and queues.find([record.message_id])[0] is not None:
        return True
    # Sent on under another id, or recorded by a version that did not note the id: a look through the whole file.
    messages = queues.find_key(record.key.key, _LOOKED_AT_MAX)
    jobs = {one.attributes[JOB_ATTRIBUTE].value if JOB_ATTRIBUTE in one.attributes else None for one in messages}
    return None in jobs or record.key.job in jobs or len(messages) == _LOOKED_AT_MAX


def _record_sent(
    runtime: Runtime,
    outgoing: Sequence[Outgoing],
    free: Mapping[int, Record | None],
    receipts: Sequence[Receipt],
    now_ms: int,
) -> None:
    """Make the records of `unique` keys that were sent just now, for the worker to claim."""
    store, asks = runtime.engine.store, []
    for place, record in free.items():
        if record is None or record.status in ("released", "failed"):  # a run without an outcome is its next worker's
            ask = _ask(runtime, outgoing[place], now_ms, _RESERVE_LEASE_MS, _KNOWN_MS)
            fingerprint = ask.fingerprint if record is None else record.fingerprint
            asks.append(replace(ask, fingerprint=fingerprint, message_id=receipts[place].message_id))
    if not asks:  # most sends; each verb of a store is a transaction, also with an empty list
        return
    answers = store.claim(asks, now_ms)
    holds = [one.hold for one in answers if isinstance(one, Claimed)]
    store.write([(hold, Release(expires_at_ms=now_ms + _KNOWN_MS)) for hold in holds], now_ms)


def _reserve(runtime: Runtime, outgoing: Sequence[Outgoing]) -> tuple[list[Outgoing], dict[int, Known]]:
    """Make the records of `unique` keys that were never sent, known for as long as a send may take.

    Returns:
        What was reserved, and what is known already: index in `outgoing` -> what is known of it.

    Raises:
        ConflictError: a key is known with another payload; nothing stays reserved.
        TransientError: one is being sent by another process; nothing stays reserved.
    """
    first, known = _firsts(outgoing)
    if not first:
        return [], known
    store, now_ms = runtime.engine.store, runtime.steady.now_ms()
    mine: list[Outgoing] = []
    for place, record in zip(first.values(), store.read(list(first), now_ms), strict=True):
        if record is None:
            mine.append(outgoing[place])
        elif _being_sent(record, now_ms):
            raise _busy(outgoing[place])
        else:
            known[place] = _known(record)
            _refuse_other_payload(outgoing[place], record.fingerprint, known[place])
    answers = store.claim([_ask(runtime, one, now_ms, _RESERVE_LEASE_MS, _SENDING_MS) for one in mine], now_ms)
    writes: list[tuple[Hold, Outcome]] = []
    quicker = [one for one, answer in zip(mine, answers, strict=True) if not _is_new(answer)]
    for answer in answers:
        if isinstance(answer, Claimed):  # what another sender reserved between the two calls stays its own
            lasts_ms = 0 if quicker and _is_new(answer) else _SENDING_MS
            writes.append((answer.hold, Release(expires_at_ms=now_ms + lasts_ms)))
    store.write(writes, now_ms)
    if quicker:
        raise _busy(quicker[0])
    return mine, known


def _known(record: Record) -> Known:
    """What a record says of its operation, in a sender's words."""
    match record.status:
        case "completed":
            return "done"
        case "failed":
            return "failed"
        case "in_progress" if record.started_fence == record.fence:
            return "running"
        case "unknown" if record.parked:
            return "held"
        case _:
            return "waiting"


def _refuse_other_payload(one: Outgoing, fingerprint: str, known: str) -> None:
    if fingerprint != one.fingerprint and not payload_defaults.is_alike(one.payload, one.fingerprint, fingerprint):
        raise errors.ConflictError(
            f"Key {one.record.key!r} of the unique job {one.record.job} is known with another payload.",
            meaning=f"Fingerprint {one.fingerprint[:12]}, first {fingerprint[:12]} ({known}). Of the first payload only the"
            " fingerprint is kept, which does not show the field that differs. This call has sent nothing.",
            todo="If this is a different operation, give it a different key; `onefold why` shows what"
            f" {one.record.key!r} was.",
        )


def _is_new(answer: Answer) -> bool:
    return isinstance(answer, Claimed) and answer.found == "absent"


def _lasts_ms(runtime: Runtime, one: Outgoing) -> int:
    """How long a message may wait, where nobody can look whether it still does: then its key is free."""
    queue = runtime.settings[one.queue]
    dead = runtime.settings.get(queue.dead_letter) if queue.dead_letter is not None else None
    wait_ms = max(one.entry.delay_ms or 0, (one.entry.run_at_ms or 0) - runtime.clock.now_ms(), 0)
    return min(queue.retention_ms + (dead.retention_ms if dead is not None else 0) + wait_ms + DAY_MS, _KNOWN_MS)


def _keep(runtime: Runtime, reserved: Sequence[Outgoing], sent: Mapping[RecordKey, str | None] | None) -> None:
    """Know keys that no worker has claimed yet for as long as their messages may wait.

    Args:
        sent: the ids of their messages; None: they were not sent, and were never known.
    """
    store, now_ms = runtime.engine.store, runtime.steady.now_ms()
    records = store.read([one.record for one in reserved], now_ms)
    waiting = [
        one for one, record in zip(reserved, records, strict=True) if record is not None and _being_sent(record, now_ms)
    ]
    asks = [_ask(runtime, one, now_ms, 0, _SENDING_MS) for one in waiting]  # no worker waits for it
    answers = store.claim([replace(ask, message_id=sent[ask.key] if sent else None) for ask in asks], now_ms)
    store.write(
        [
            (answer.hold, Release(expires_at_ms=now_ms + (_lasts_ms(runtime, one) if sent is not None else 0)))
            for one, answer in zip(waiting, answers, strict=True)
            if isinstance(answer, Claimed)
        ],
        now_ms,
    )


def _ask(runtime: Runtime, one: Outgoing, now_ms: int, lease_ms: int, keep_ms: int) -> Ask:
    return Ask(
        key=one.record,
        fingerprint=one.fingerprint,
        owner=runtime.owner,
        lease_until_ms=now_ms + lease_ms,
        start=False,
        expires_at_ms=now_ms + keep_ms,
    )


def _being_sent(record: Record, now_ms: int) -> bool:
    """Whether a sender made this record, and neither it nor a worker has gone on with it."""
    lasts = record.expires_at_ms is None or record.expires_at_ms > now_ms + _SENDING_MS
    return record.message_id is None and record.status in ("in_progress", "released") and not lasts


def _busy(one: Outgoing) -> errors.TransientError:
    return errors.TransientError(
        f"Key {one.record.key!r} of job {one.record.job} is being sent by another process, or by one that ended meanwhile.",
        meaning="Whether its message is in the queue is not known; this call has sent nothing.",
        todo="Send it again in a minute: then it is known, or free to be sent.",
    )
