"""The values of sending, the Queue contract's other half: a message to be sent, and what the queue answers.

Apart from `queue.py` because a function that only works off messages sends none: it receives and settles.

Never here: what was received, when and where to send, the rules that a message must keep (`rules.py`).
An outbox item for an event bus of a server has `bus_place(name)` where others have a queue's name. On AWS a bus is
EventBridge's, and a put is a send to its place: each entry's body is one entry of PutEvents, as JSON. The embedded engine
has no such places: its buses are rules of the app (`events/bus.py`). No queue's name is a place.
Invariant: a message that was `Sent` is durable; of one that was `Refused` nothing was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from onefold.contracts.queue import Attribute

if TYPE_CHECKING:
    from onefold.contracts.store import OutboxItem


DERIVED_DEDUP: Final = "onefold."
"""Begins the deduplication ids that onefold derives from an operation; a stranger's id never counts as one of them."""


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """A message to be sent.

    Args:
        body: the text, 1 byte to the queue's maximum in UTF-8, of the characters SQS allows.
        attributes: at most 10, by name.
        delay_ms: hidden for so long after sending, 0 to 900,000; None takes the queue's delay. Not on FIFO queues.
        run_at_ms: wall-clock instant before which the message does not enter the queue; any time ahead. Its retention
            and its FIFO position count from that instant, as if it were sent then.
        group: message group id. Required on FIFO; on a standard queue the tenant (fair queues).
        dedup_id: deduplication id, FIFO only; None derives it from the body where the queue allows that.
        key: the business key, kept beside the message so that people and tools find it; no semantics.
        trace: the system attribute AWSTraceHeader; not counted in the message size.
        trusted: False where a stranger sends through us (`onefold serve`): its attributes are that stranger's word.
    """

    body: str
    attributes: Mapping[str, Attribute] = {}
    delay_ms: int | None = None
    run_at_ms: int | None = None
    group: str | None = None
    dedup_id: str | None = None
    key: str | None = None
    trace: str | None = None
    trusted: bool = True


class Sent(Struct, frozen=True, gc=False):
    """A message was accepted: it is durable.

    Args:
        message_id: stable for the life of the message, also across the automatic move to a dead-letter queue.
        sequence: FIFO only: decimal number, larger for each later message of a group.
        duplicate: FIFO only: accepted but not delivered, because the same deduplication id was seen within 5 minutes;
            message_id and sequence are the first one's.
    """

    message_id: str
    sequence: str | None = None
    duplicate: bool = False


class Refused(Struct, frozen=True, gc=False):
    """A message was not accepted; nothing of it was stored.

    Args:
        code: SQS's error code, for example `InvalidParameterValue`.
        message: what is wrong with which value, and the rule.
    """

    code: str
    message: str


def from_outbox(item: OutboxItem) -> Entry:
    """An item of a run's outbox as a message to be sent."""
    return Entry(
        body=item.body,
        attributes={name: Attribute(value) for name, value in item.attributes.items()},
        delay_ms=item.delay_ms,
        run_at_ms=item.run_at_ms,
        group=item.group,
        dedup_id=item.dedup_id,
        key=item.key,
    )


_PLACE: Final = "bus:"  # no queue's name has a colon


def bus_place(name: str) -> str:
    """Where an outbox item goes that is to be put on this bus."""
    return f"{_PLACE}{name}"


def bus_of(place: str) -> str | None:
    """The bus that a place names; None for a queue's name."""
    return place.removeprefix(_PLACE) if place.startswith(_PLACE) else None
