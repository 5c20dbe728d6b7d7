"""Messages from an app into its queues: all of one call are accepted, or none.

Never here: how a payload becomes a message (runtime/outgoing.py). Invariant: when `send_all` returns, each receipt that is
not a duplicate names a message that survives a crash of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from onefold import errors, payload_defaults
from onefold.contracts.entries import Refused
from onefold.contracts.ledger import History
from onefold.contracts.queue import APP_ATTRIBUTE
from onefold.contracts.rules import check_entry
from onefold.contracts.store import Answer, Ask, Claimed, Hold, Outcome, Record, RecordKey, Release
from onefold.runtime.events import Event, kept
from onefold.runtime.outgoing import Outgoing, Receipt
from onefold.runtime.transactions import transaction, wake_workers

if TYPE_CHECKING:
    from onefold.runtime.runtime import Runtime

_RESERVE_LEASE_MS = 5_000  # keeps two senders of one key apart, until the record is there
_SENDING_MS = (
    60_000  # how long a sender that dies leaves it open whether a key was sent, where no transaction decides it
)
_KNOWN_MS = 90 * 24 * 3_600_000

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
        return _deliver(runtime, outgoing, _reserve(runtime, outgoing, _KNOWN_MS)[1])
    mine, known = _reserve(runtime, outgoing, _SENDING_MS)
    try:
        receipts = _deliver(runtime, outgoing, known)
    except BaseException:
        with suppress(errors.OnefoldError):  # then they are free in a minute
            _keep(runtime, mine, 0)
        raise
    with suppress(errors.OnefoldError):  # they are sent; a worker that claims one keeps it as long as any
        _keep(runtime, mine, _KNOWN_MS)
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


def _reserve(runtime: Runtime, outgoing: Sequence[Outgoing], keep_ms: int) -> tuple[list[Outgoing], dict[int, Known]]:
    """Make the records of `unique` keys that were never sent, for the worker to claim.

    Args:
        keep_ms: how long they are known, unless somebody goes on with them.

    Returns:
        What was reserved, and what is known already: index in `outgoing` -> what is known of it.

    Raises:
        ConflictError: a key is known with another payload; nothing stays reserved.
        TransientError: one is being sent by another process; nothing stays reserved.
    """
    first: dict[RecordKey, int] = {}
    known: dict[int, Known] = {}
    for place, one in enumerate(outgoing):
        if one.unique and first.setdefault(one.record, place) != place:
            _refuse_other_payload(one, outgoing[first[one.record]].fingerprint, "sent in the same call")
            known[place] = "waiting"
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
    answers = store.claim([_ask(runtime, one, now_ms, _RESERVE_LEASE_MS, keep_ms) for one in mine], now_ms)
    writes: list[tuple[Hold, Outcome]] = []
    quicker = [one for one, answer in zip(mine, answers, strict=True) if not _is_new(answer)]
    for answer in answers:
        if isinstance(answer, Claimed):  # what another sender reserved between the two calls stays its own
            lasts_ms = keep_ms if not quicker else 0 if _is_new(answer) else _SENDING_MS
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


def _keep(runtime: Runtime, reserved: Sequence[Outgoing], keep_ms: int) -> None:
    """Know keys for so long from now that no worker has claimed yet; 0: they were never known."""
    store, now_ms = runtime.engine.store, runtime.steady.now_ms()
    records = store.read([one.record for one in reserved], now_ms)
    waiting = [
        one for one, record in zip(reserved, records, strict=True) if record is not None and _being_sent(record, now_ms)
    ]
    answers = store.claim(
        [_ask(runtime, one, now_ms, 0, _SENDING_MS) for one in waiting], now_ms
    )  # no worker waits for it
    holds = [one.hold for one in answers if isinstance(one, Claimed)]
    store.write([(hold, Release(expires_at_ms=now_ms + keep_ms)) for hold in holds], now_ms)


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
