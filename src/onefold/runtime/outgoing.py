"""A message on its way to a queue: what `Job.send` makes of a payload, who accepts it, and what is answered.

A job (`handlers.py`) says what the message is for and what it holds; here it becomes an entry of a queue. Inside a handler
it waits in the outbox of its run. Only who sends loads this.
Never here: storage, rules, payload types.
Invariant: one operation with one payload is one deduplication id, whoever sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from onefold import codec, duration, errors
from onefold.contracts.entries import DERIVED_DEDUP, Entry
from onefold.contracts.queue import APP_ATTRIBUTE, Attribute
from onefold.contracts.store import OutboxItem, RecordKey
from onefold.record.delivery import Policy

if TYPE_CHECKING:
    from datetime import datetime


class Receipt(Struct, frozen=True, kw_only=True):
    """What `send` answers.

    Args:
        job, key: the operation.
        message_id: the queue's id; None while the message waits in a handler's outbox, and where `unique=True` added none.
        duplicate: nothing was added: the queue's deduplication, or `unique=True`, knew it already.
        found: what was known of the operation before: `new` (nothing, or the job is not `unique` and nobody looked),
            `deduplicated` (a FIFO queue took the same message less than five minutes ago; SQS does not say so), or with
            `unique=True` `waiting`, `running`, `done`, `failed` (to be run again, or in the dead-letter queue) or `held`
            (for a person).
    """

    job: str
    key: str
    message_id: str | None
    duplicate: bool = False
    found: Literal["new", "deduplicated", "waiting", "running", "done", "failed", "held"] = "new"


class Outgoing(Struct, frozen=True, kw_only=True):
    """A message on its way to a queue, with the operation it is for.

    Args:
        payload: of a `unique` job, to be compared with what was sent before.
    """

    record: RecordKey
    fingerprint: str
    entry: Entry
    queue: str
    unique: bool
    payload: object = None


def message(
    policy: Policy,
    record: RecordKey,
    body: bytes,
    fingerprint: str,
    *,
    attributes: Mapping[str, Attribute],
    group: str | None,
    run_at_ms: int | None,
    dedup_id: str | None,
    unique: bool,
    payload: object = None,
) -> Outgoing:
    """The message for an operation.

    Args:
        policy: the job's. run_at_ms: as `due_ms`. dedup_id: None: on a FIFO queue, one of operation and payload.
    """
    if policy.fifo and dedup_id is None:
        dedup_id = derived_dedup_id(record, fingerprint, attributes)
    entry = Entry(
        body=body.decode(),
        attributes=attributes,
        delay_ms=None,
        run_at_ms=run_at_ms,
        group=group,
        dedup_id=dedup_id,
        key=record.key,
    )
    if unique:
        return Outgoing(
            record=record, fingerprint=fingerprint, entry=entry, queue=policy.queue, unique=True, payload=payload
        )
    return Outgoing(record=record, fingerprint=fingerprint, entry=entry, queue=policy.queue, unique=False)


def due_ms(job: str, delay: duration.Duration | None, run_at: datetime | None, now_ms: Callable[[], int]) -> int | None:
    """When a message is due, milliseconds since the epoch; None: at once.

    Args:
        job: its name, for errors. delay, run_at: as `Job.send` was given them. now_ms: asked where there is a delay.

    Raises:
        UsageError: both are given, or one is not a duration, no datetime or without a zone.
    """
    if delay is None and run_at is None:
        return None
    if delay is not None and run_at is not None:
        raise errors.UsageError(f"{job}.send got delay and run_at.", todo="Give one of them.")
    if delay is not None:
        wait_ms = duration.to_ms(delay, "delay")
        return now_ms() + wait_ms if wait_ms else None
    return duration.instant_ms(run_at, "run_at")


def keep(outgoing: Sequence[Outgoing], kept: Callable[[list[OutboxItem]], None]) -> list[Receipt]:
    """Put messages into the outbox of a run; they leave when it completes. `kept`: its `Context.keep`; errors as there."""
    kept([_outbox_item(one) for one in outgoing])
    return [Receipt(job=one.record.job, key=one.record.key, message_id=None) for one in outgoing]


def _outbox_item(one: Outgoing) -> OutboxItem:
    entry = one.entry
    return OutboxItem(
        queue=one.queue,
        body=entry.body,
        attributes={name: str(attribute.value) for name, attribute in entry.attributes.items()},
        group=entry.group,
        dedup_id=entry.dedup_id,
        run_at_ms=entry.run_at_ms,
        key=entry.key,
    )


def derived_dedup_id(record: RecordKey, fingerprint: str, attributes: Mapping[str, Attribute]) -> str:
    """The FIFO deduplication id of an operation: no two operations share one, whatever characters their keys have.

    Before it leaves for SQS it is made unforeseeable (`engines/aws/signing.py`): who sends another message with the id
    first has the operation swallowed.
    """
    app = attributes.get(APP_ATTRIBUTE)
    text = codec.encode([app and app.value, record.scope, record.job, record.key, fingerprint])
    return f"{DERIVED_DEDUP}{codec.digest(text)}"
