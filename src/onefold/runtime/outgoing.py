"""Messages from an app to its queues: building them, and sending all messages of one call or none.

A job (`handlers.py`) decides the operation and content of a message; here it becomes an entry of a queue. Inside a
handler it waits in the outbox of its run. Elsewhere it is sent at once (`send_all`), in one transaction where the
engine has transactions, and idle workers are woken after the commit, not before. Only the queue checks an entry, except
for messages to several queues of an engine without transactions, which are checked first.
Never here: storage, rules, payload types.
Invariants: one operation with one payload has one deduplication id, whichever process sends it; when `send_all` returns,
each receipt that is not a duplicate names a message that survives a crash of the machine.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from onefold import codec, duration, errors
from onefold.contracts.entries import DERIVED_DEDUP, NOT_SENT, Entry, Refused, Sent, check_entry
from onefold.contracts.ledger import History
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE, Attribute
from onefold.contracts.store import Answer, Ask, Claimed, Hold, OutboxItem, Outcome, Record, RecordKey, Release
from onefold.limits import DAY_MS
from onefold.record.aliases import chosen, other_names
from onefold.record.delivery import Policy
from onefold.runtime.events import Event, kept

if TYPE_CHECKING:
    from datetime import datetime

    from onefold.contracts.engine import Engine
    from onefold.contracts.verbs import Store
    from onefold.runtime.runtime import Runtime


class Receipt(Struct, frozen=True, kw_only=True):
    """The result of `send`.

    Args:
        job, key: the operation.
        message_id: the queue's id; None while the message waits in a handler's outbox, and where `unique=True` added none.
        duplicate: nothing was added: the queue's deduplication, or `unique=True`, knew the message already.
        found: what was known about the operation before: `new` (nothing, or it was not checked because the job is not
            `unique`), `deduplicated` (a FIFO queue took the same message less than five minutes ago; SQS does not
            report this), or with `unique=True` `waiting`, `running`, `done`, `failed` (to be run again, or in the
            dead-letter queue) or `held` (for a person).

    After a send with `connection=`, all of this is true once that transaction has committed. `str` of it is a sentence.
    """

    job: str
    key: str
    message_id: str | None
    duplicate: bool = False
    found: Literal["new", "deduplicated", "waiting", "running", "done", "failed", "held"] = "new"

    def __str__(self) -> str:
        if self.found == "new":
            what = "sent" if self.message_id is None else f"sent as message {self.message_id}"
        elif self.found == "held":
            what = "held already, for a person; nothing was added"
        elif self.found == "failed":
            what = "failed before: it runs again or is a dead letter; nothing was added"
        else:
            what = f"{self.found} already; nothing was added"
        return f"{self.job} {self.key!r}: {what}"


class Outgoing(Struct, frozen=True, kw_only=True):
    """A message on its way to a queue, with the operation it is for.

    Args:
        payload: for a `unique` job, to be compared with what was sent before.
        aliases: for a `unique` job, the names that it had before.
        is_other: returns whether two fingerprints are of different versions of its payload; None if it has only one.
    """

    record: RecordKey
    fingerprint: str
    entry: Entry
    queue: str
    unique: bool
    payload: object = None
    aliases: tuple[str, ...] = ()
    is_other: Callable[[str, str], bool] | None = None
    compared: codec.Compared | None = None


def message(
    policy: Policy,
    record: RecordKey,
    body: bytes,
    fingerprint: str,
    *,
    attributes: Mapping[str, Attribute],
    group: str | None,
    times: tuple[int | None, int | None],
    dedup_id: str | None,
    unique: bool,
    payload: object = None,
    aliases: tuple[str, ...] = (),
    is_other: Callable[[str, str], bool] | None = None,
    compared: codec.Compared | None = None,
) -> Outgoing:
    """The message for an operation.

    Args:
        policy: the job's. times: as `times` returns them. dedup_id: None: on a FIFO queue it is derived from
            operation and payload.
    """
    if policy.fifo and dedup_id is None:
        dedup_id = derived_dedup_id(record, fingerprint, attributes)
    entry = Entry(
        body=body.decode(),
        attributes=attributes,
        delay_ms=None,
        run_at_ms=times[0],
        wait_ms=times[1],
        group=group,
        dedup_id=dedup_id,
        key=record.key,
    )
    if unique:
        return Outgoing(
            record=record, fingerprint=fingerprint, entry=entry, queue=policy.queue, unique=True, payload=payload,
            aliases=aliases, is_other=is_other, compared=compared,
        )  # fmt: skip
    return Outgoing(record=record, fingerprint=fingerprint, entry=entry, queue=policy.queue, unique=False)


def times(job: str, delay: duration.Duration | None, run_at: datetime | None) -> tuple[int | None, int | None]:
    """A message's `run_at_ms` and `wait_ms`, for an entry.

    Args:
        job: its name, for errors. delay, run_at: as passed to `Job.send`.

    Raises:
        UsageError: both are given, or one is not a duration, not a datetime, or has no time zone.
    """
    if delay is None and run_at is None:
        return None, None
    if delay is not None and run_at is not None:
        raise errors.UsageError(f"{job}.send got delay and run_at.", todo="Give one of them.")
    if delay is not None:
        return None, duration.to_ms(delay, "delay") or None
    return duration.instant_ms(run_at, "run_at"), None


def keep(outgoing: Sequence[Outgoing], kept: Callable[[list[OutboxItem]], None], runtime: Runtime) -> list[Receipt]:
    """Put messages into the outbox of a run, to be sent when it completes; `kept` is the run's `Context.keep`."""
    kept([_outbox_item(one, runtime) for one in outgoing])
    return [Receipt(job=one.record.job, key=one.record.key, message_id=None) for one in outgoing]


def _outbox_item(one: Outgoing, runtime: Runtime) -> OutboxItem:
    entry = one.entry
    return OutboxItem(
        queue=one.queue,
        body=entry.body,
        attributes={name: str(attribute.value) for name, attribute in entry.attributes.items()},
        group=entry.group,
        dedup_id=entry.dedup_id,
        run_at_ms=entry.run_at_ms if entry.wait_ms is None else runtime.steady.now_ms() + entry.wait_ms,
        wait_ms=entry.wait_ms,
        key=entry.key,
    )


def derived_dedup_id(record: RecordKey, fingerprint: str, attributes: Mapping[str, Attribute]) -> str:
    """The FIFO deduplication id of an operation: no two operations share one, whatever characters their keys have.

    Before the id is sent to SQS it is made unpredictable (`engines/aws/signing.py`). Otherwise anyone who sent another
    message with the same id first could make SQS drop the real one as a duplicate.
    """
    app = attributes.get(APP_ATTRIBUTE)
    text = codec.encode([app and app.value, record.scope, record.job, record.key, fingerprint])
    return f"{DERIVED_DEDUP}{codec.digest(text)}"


_RESERVE_LEASE_MS = 5_000  # separates two senders of one key until the record exists
_SENDING_MS = (
    60_000  # how long it stays unknown whether a sender that died had sent a key, on engines without transactions
)
_KNOWN_MS = 90 * DAY_MS
_LOOKED_AT_MAX = 1_000  # messages read per business key; if there are this many, one is assumed to be this job's

T = TypeVar("T")
Known = Literal["waiting", "running", "done", "failed", "held"]


def send_all(runtime: Runtime, outgoing: Sequence[Outgoing], history: History) -> list[Receipt]:
    """Send messages to their queues, in order.

    Raises:
        PayloadError: a queue would not take one of them (size, characters, group); none was sent.
        TransientError: the `unique` key of one is being sent by another process; none was sent.
        ConflictError: another app has the name of a `unique` job on this engine; none was sent.
    """
    engine = runtime.engine
    unique = [one for one in outgoing if one.unique]
    several = len(outgoing) > 1 and len({one.queue for one in outgoing}) > 1
    if several and engine.commit is None:  # what one queue has accepted cannot be undone if another one refuses
        for one in outgoing:
            wrong = check_entry(one.entry, runtime.settings[one.queue])
            if wrong is not None:
                raise refused(one, wrong)
    if unique:
        for app in {str(one.entry.attributes[APP_ATTRIBUTE].value) for one in unique}:
            runtime.take_names([one.record.job for one in unique], app)
        # A key is recorded together with its message, or not at all.
        receipts = transaction(engine, lambda: _send_unique(runtime, outgoing))
    elif several:
        receipts = transaction(engine, lambda: _deliver(engine, outgoing, {}))
    else:
        receipts = _put(engine, outgoing)
    if receipts and (not unique or any(receipt.message_id is not None for receipt in receipts)):
        wake_workers(engine)
    if kept("sent", history):
        engine.ledger.append(
            [
                Event(
                    at_ms=runtime.steady.now_ms(), name="sent", key=one.record, queue=one.queue, actor=runtime.owner,
                    message_id=receipt.message_id, detail={"duplicate": True} if receipt.duplicate else {},
                ).row()
                for one, receipt in zip(outgoing, receipts, strict=True)
            ]
        )  # fmt: skip
    return receipts


def _send_unique(runtime: Runtime, outgoing: Sequence[Outgoing]) -> list[Receipt]:
    """Reserve the `unique` keys, then send; keys that were reserved and could not be sent are released."""
    if runtime.engine.commit is not None:  # one transaction: a failure here undoes everything
        now_ms = runtime.steady.now_ms()  # also the record's time: no message is older than its reservation
        known, free = _read_known(runtime, outgoing, now_ms)
        receipts = _deliver(runtime.engine, outgoing, known)
        _record_sent(runtime, outgoing, free, receipts, now_ms)
        return receipts
    mine, known = _reserve(runtime, outgoing)
    try:
        receipts = _deliver(runtime.engine, outgoing, known)
    except BaseException:
        with suppress(errors.OnefoldError):  # if this fails, they are free in a minute
            _keep(runtime, mine, None)
        raise
    with suppress(errors.OnefoldError):  # the messages are sent; a worker's claim gives a record its usual lifetime
        indexes = {one.record: index for index, one in reversed([*enumerate(outgoing)]) if one.unique}
        _keep(runtime, mine, {one.record: receipts[indexes[one.record]].message_id for one in mine})
    return receipts


def _deliver(engine: Engine, outgoing: Sequence[Outgoing], known: Mapping[int, Known]) -> list[Receipt]:
    """Enqueue all messages except those whose keys are known; returns the receipts of all, in order."""
    receipts = {
        index: Receipt(
            job=outgoing[index].record.job, key=outgoing[index].record.key, message_id=None, duplicate=True, found=found
        )
        for index, found in known.items()
    }
    by_queue: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(outgoing):
        if index not in known:
            by_queue[one.queue].append(index)
    for indexes in by_queue.values():
        receipts.update(zip(indexes, _put(engine, [outgoing[index] for index in indexes]), strict=True))
    return [receipts[index] for index in range(len(outgoing))]


def _put(engine: Engine, outgoing: Sequence[Outgoing]) -> list[Receipt]:
    """Enqueue the messages of one queue, all or none."""
    if not outgoing:
        return []
    answers = engine.queues.open(outgoing[0].queue).send([one.entry for one in outgoing], whole=True)
    receipts = []
    for one, answer in zip(outgoing, answers, strict=True):
        if isinstance(answer, Sent):
            found: Literal["deduplicated", "new"] = "deduplicated" if answer.duplicate else "new"
            receipts.append(
                Receipt(
                    job=one.record.job,
                    key=one.record.key,
                    message_id=answer.message_id,
                    duplicate=answer.duplicate,
                    found=found,
                )
            )
        elif answer is not NOT_SENT:
            raise refused(one, answer)
    return receipts


def refused(one: Outgoing, why: Refused) -> errors.PayloadError:
    """The error for a message that its queue does not accept."""
    return errors.PayloadError(
        f"Queue {one.queue} does not take the message of {one.record.job} {one.record.key!r}: {why.message}",
        meaning=f"Code {why.code}. Nothing was sent.",
        todo="Correct the payload and send it again.",
    )


def _firsts(outgoing: Sequence[Outgoing]) -> tuple[dict[RecordKey, int], dict[int, Known]]:
    """The index in `outgoing` of each `unique` key's first message, and the indexes of its repetitions.

    Raises:
        ConflictError: one key with two payloads.
    """
    first: dict[RecordKey, int] = {}
    known: dict[int, Known] = {}
    for index, one in enumerate(outgoing):
        if one.unique and first.setdefault(one.record, index) != index:
            _refuse_other_payload(one, outgoing[first[one.record]].fingerprint, "sent in the same call")
            known[index] = "waiting"
    return first, known


def _read_known(
    runtime: Runtime, outgoing: Sequence[Outgoing], now_ms: int
) -> tuple[dict[int, Known], dict[int, Record | None]]:
    """What is known about `unique` keys where records and messages are in one file, in the transaction of the send.

    A key is known while its record is done, held or running, or while a message with it is anywhere in the file. A key
    whose message was purged, or whose message's retention has ended, is free to be sent.

    Returns:
        Index in `outgoing` -> what is known about it; and for the others, index -> the existing record, if any.

    Raises:
        ConflictError: a key has a record of another payload.
    """
    first, known = _firsts(outgoing)
    free: dict[int, Record | None] = {}
    if not first:
        return known, free
    for index, record in zip(first.values(), _records(runtime, outgoing, first, now_ms), strict=True):
        if record is None:
            free[index] = None
            continue
        found = known_of(record)
        is_settled = found in ("done", "held") or (record.status == "in_progress" and now_ms < record.lease_until_ms)
        if is_settled or _has_message(runtime, record, outgoing[index]):
            known[index] = found
            _refuse_other_payload(outgoing[index], record.fingerprint, found)
        else:
            if record.started_at_ms is not None:  # otherwise it is only of a message that was cancelled or has gone
                _refuse_other_payload(outgoing[index], record.fingerprint, "its message is gone")
            free[index] = record if record.key == outgoing[index].record else None
    return known, free


def _records(
    runtime: Runtime, outgoing: Sequence[Outgoing], first: Mapping[RecordKey, int], now_ms: int
) -> list[Record | None]:
    """The record of each operation, under whichever of its job's names it has one."""
    keys = {key: [key, *other_names(key, outgoing[index].aliases)] for key, index in first.items()}
    flat = [one for several in keys.values() for one in several]
    found = dict(zip(flat, runtime.engine.store.read(flat, now_ms), strict=True))
    return [found[chosen(key, [found[one] for one in several])] for key, several in keys.items()]


def _has_message(runtime: Runtime, record: Record, one: Outgoing) -> bool:
    """Whether a message of an operation is in some queue of the file, a dead-letter queue included."""
    queues = runtime.engine.queues
    if record.message_id is not None and queues.find([record.message_id])[0] is not None:
        return True
    # It was sent again under another id, or recorded by a version that did not note the id: search the whole file.
    messages = queues.find_key(record.key.key, _LOOKED_AT_MAX)
    jobs = {one.attributes[JOB_ATTRIBUTE].value if JOB_ATTRIBUTE in one.attributes else None for one in messages}
    return not jobs.isdisjoint((None, one.record.job, *one.aliases)) or len(messages) == _LOOKED_AT_MAX


def _record_sent(
    runtime: Runtime,
    outgoing: Sequence[Outgoing],
    free: Mapping[int, Record | None],
    receipts: Sequence[Receipt],
    now_ms: int,
) -> None:
    """Create the records of `unique` keys that were just sent, for the worker to claim."""
    asks, replaced = [], []
    for index, record in free.items():
        if record is None or record.status in ("released", "failed"):  # no outcome yet: the next worker claims it
            ask = _ask(runtime, outgoing[index], now_ms, _RESERVE_LEASE_MS, _KNOWN_MS)
            ask = replace(ask, message_id=receipts[index].message_id)
            first = ask if record is None else replace(ask, fingerprint=record.fingerprint)
            has_run = record is not None and record.started_at_ms is not None
            asks.append(first if has_run else ask)
            if not has_run and first != ask:
                replaced.append(first)
    _leave(runtime.engine.store, replaced, now_ms, now_ms)
    _leave(runtime.engine.store, asks, now_ms + _KNOWN_MS, now_ms)


def _leave(store: Store, asks: Sequence[Ask], expires_at_ms: int, now_ms: int) -> None:
    """Leave records that the next claim takes, until they expire; those that expire at `now_ms` are gone at once."""
    if asks:  # most sends have none; each store call is a transaction, even with an empty list
        holds = [one.hold for one in store.claim(asks, now_ms) if isinstance(one, Claimed)]
        store.write([(hold, Release(expires_at_ms=expires_at_ms)) for hold in holds], now_ms)


def _reserve(runtime: Runtime, outgoing: Sequence[Outgoing]) -> tuple[list[Outgoing], dict[int, Known]]:
    """Create the records of `unique` keys that were never sent; they expire after the time a send may take.

    Returns:
        What was reserved, and what is known already: index in `outgoing` -> what is known about it.

    Raises:
        ConflictError: a key is known with another payload; nothing stays reserved.
        TransientError: another process is sending one of them; nothing stays reserved.
    """
    first, known = _firsts(outgoing)
    if not first:
        return [], known
    store, now_ms = runtime.engine.store, runtime.steady.now_ms()
    mine: list[Outgoing] = []
    for index, record in zip(first.values(), _records(runtime, outgoing, first, now_ms), strict=True):
        if record is None:
            mine.append(outgoing[index])
        elif _being_sent(record, now_ms):
            raise _busy(outgoing[index])
        else:
            known[index] = known_of(record)
            _refuse_other_payload(outgoing[index], record.fingerprint, known[index])
    answers = store.claim([_ask(runtime, one, now_ms, _RESERVE_LEASE_MS, _SENDING_MS) for one in mine], now_ms)
    writes: list[tuple[Hold, Outcome]] = []
    quicker = [one for one, answer in zip(mine, answers, strict=True) if not _is_new(answer)]
    for answer in answers:
        if isinstance(answer, Claimed):  # keys that another sender reserved between the two calls are left to it
            lasts_ms = 0 if quicker and _is_new(answer) else _SENDING_MS
            writes.append((answer.hold, Release(expires_at_ms=now_ms + lasts_ms)))
    store.write(writes, now_ms)
    if quicker:
        raise _busy(quicker[0])
    return mine, known


def known_of(record: Record) -> Known:
    """The state of a record's operation, as in `Receipt.found`."""
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
    if fingerprint == one.fingerprint or (one.is_other is not None and one.is_other(one.fingerprint, fingerprint)):
        return
    from onefold import payload_defaults  # only conflicts need it; cold starts are measured

    if not payload_defaults.is_same(one.payload, one.fingerprint, fingerprint, one.compared):
        fields = ", ".join(codec.differing(one.fingerprint, fingerprint))
        said = f"They differ in: {fields}." if fields else (
            "Only the fingerprint of the first payload is kept, and it does not show which field differs; with"
            " fingerprint=[...] or ignore=[...] the job's next fingerprints do."
        )  # fmt: skip
        raise errors.ConflictError(
            f"Key {one.record.key!r} of the unique job {one.record.job} is known with another payload.",
            meaning=f"Fingerprint {one.fingerprint[:12]}, first {fingerprint[:12]} ({known}). {said}"
            " This call has sent nothing.",
            todo="If this is a different operation, give it a different key; `onefold why` shows what"
            f" {one.record.key!r} was.",
        )


def _is_new(answer: Answer) -> bool:
    return isinstance(answer, Claimed) and answer.found == "absent"


def _lasts_ms(runtime: Runtime, one: Outgoing) -> int:
    """How long a message may wait on an engine whose queues cannot be searched; after this time its key is free."""
    queue = runtime.settings[one.queue]
    dead = runtime.settings.get(queue.dead_letter) if queue.dead_letter is not None else None
    wait_ms = max(
        one.entry.delay_ms or 0, one.entry.wait_ms or 0, (one.entry.run_at_ms or 0) - runtime.clock.now_ms(), 0
    )
    return min(queue.retention_ms + (dead.retention_ms if dead is not None else 0) + wait_ms + DAY_MS, _KNOWN_MS)


def _keep(runtime: Runtime, reserved: Sequence[Outgoing], sent: Mapping[RecordKey, str | None] | None) -> None:
    """Let the records of keys that no worker has claimed yet live for as long as their messages may wait.

    Args:
        sent: the ids of their messages; None: they were not sent, and the records expire at once.
    """
    store, now_ms = runtime.engine.store, runtime.steady.now_ms()
    records = store.read([one.record for one in reserved], now_ms)
    waiting = [
        one for one, record in zip(reserved, records, strict=True) if record is not None and _being_sent(record, now_ms)
    ]
    asks = [_ask(runtime, one, now_ms, 0, _SENDING_MS) for one in waiting]  # no lease: no worker has to wait for it
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
    """Whether a sender made this record, and neither that sender nor a worker has changed it since."""
    lasts = record.expires_at_ms is None or record.expires_at_ms > now_ms + _SENDING_MS
    return record.message_id is None and record.status in ("in_progress", "released") and not lasts


def _busy(one: Outgoing) -> errors.TransientError:
    return errors.TransientError(
        f"Key {one.record.key!r} of job {one.record.job} is being sent by another process, or by one that ended meanwhile.",
        meaning="Whether its message is in the queue is not known; this call has sent nothing.",
        todo="Send it again in a minute: then it is known, or free to be sent.",
    )


class _ThisThread(threading.local):
    """Whether this thread is inside a transaction now, and whether messages were sent in it.

    Attributes:
        of_caller: the transaction belongs to the caller, who may or may not commit it.
    """

    inside = False
    sent = False
    of_caller = False


_here = _ThisThread()


def transaction(engine: Engine, write: Callable[[], T]) -> T:
    """Make one call's changes in one transaction, if the engine supports that; returns the call's result.

    Idle workers are woken afterwards if `write` has sent messages.

    Raises:
        Exception: whatever the call raised, and what the engine raises when it cannot begin or commit.
    """
    sent = False

    def call() -> T:  # runs in the thread that writes for all waiting threads
        nonlocal sent
        outer, _here.inside, before, _here.sent = _here.inside, True, _here.sent, False
        try:
            return write()
        finally:
            sent = _here.sent
            _here.inside, _here.sent = outer, before or (outer and sent)

    (answer,) = engine.together([call])
    if isinstance(answer, BaseException):
        raise answer
    if sent and not _here.inside:
        engine.notify()
    return cast("T", answer)


@contextmanager
def of_caller() -> Iterator[None]:
    """For messages that are sent in the caller's transaction: it may never commit, so no worker is woken."""
    before, _here.inside, _here.of_caller = _here.inside, True, True
    try:
        yield
    finally:
        _here.inside, _here.of_caller, _here.sent = before, False, False


def is_of_caller() -> bool:
    """Whether this thread is sending in the caller's transaction."""
    return _here.of_caller


def wake_workers(engine: Engine) -> None:
    """Wake idle workers of all processes after messages were sent, once the present transaction has committed."""
    if _here.inside:
        _here.sent = True
    else:
        engine.notify()
