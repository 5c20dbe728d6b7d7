"""What a record says of a child of a map run: whether it is over, and which payload a redrive replaces.

A record outlives the rounds of a run: what failed under the fence that it had before a redrive is not over in it, and the
same key may stand in a repaired file with other contents.
Never here: reading records, sending, counting. Invariant: a child that is done stays done, whatever the file says now.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from onefold.contracts.queue import AMENDS_ATTRIBUTE, Attribute
from onefold.contracts.store import Record
from onefold.maps.children import Child
from onefold.maps.span import Waiting
from onefold.run.outgoing import Outgoing

Fate = Literal["done", "failed"] | None  # None: not over


def has_failed(record: Record) -> bool:
    """Whether it failed for good; a redrive opens it again."""
    return record.status == "failed" and record.budget_closed


def fate_of(record: Record | None, waiting: Waiting) -> Fate:
    """What a record says of a child that was sent: done, failed for good, or not over."""
    if record is None:
        return None
    if record.fingerprint != waiting.fingerprint:
        # Another payload under the same key: another row of the file was first, or this one replaces it now.
        return None if record.fingerprint == waiting.amends and record.status != "completed" else "failed"
    if record.status == "completed":
        return "done"
    if record.status == "unknown" and record.parked:
        return "failed"
    return "failed" if has_failed(record) and record.fence > waiting.fence else None


def is_over(child: Child, record: Record) -> bool:
    """Whether a redrive has nothing to send for a child: it is done, or nothing can be done for it."""
    assert child.outgoing is not None
    amends = amended(child.outgoing, record)
    waiting = Waiting(child.record, child.outgoing.fingerprint, amends, child.items, record.fence)
    return fate_of(record, waiting) is not None


def amended(outgoing: Outgoing, record: Record | None) -> str | None:
    """The payload that a message replaces: its item failed before, and stands otherwise in the file now."""
    if record is None or record.fingerprint == outgoing.fingerprint or record.status != "failed":
        return None
    return record.fingerprint


def amending(outgoing: Outgoing, record: Record | None) -> Outgoing:
    """The message, saying which payload it replaces."""
    amends = amended(outgoing, record)
    if amends is None:
        return outgoing
    attributes = {**outgoing.entry.attributes, AMENDS_ATTRIBUTE: Attribute(amends)}
    return replace(outgoing, entry=replace(outgoing.entry, attributes=attributes))
