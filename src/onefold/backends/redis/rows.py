r"""A record as the bytes of one Redis string: a stamp, JSON, and the result as it is.

    5f0c9a...e1{"status":"completed","fence":1,"owner":"...","attempts":1,...}\n{"invoice":4711}

The stamp is drawn anew for every write. So two values are the same exactly when their first 16 bytes are, a script
compares stamps and never looks into a record, and a process that is not told whether its write took can look. Fields
that have their usual value are left out; JSON has no line break of its own, so the first one ends it.

Never here: rules, names. Invariant: what is decoded equals what was encoded; fields of later versions are passed over.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.store import Failure, OutboxItem, Record, RecordKey, Status

STAMP_BYTES: Final = 16  # Entropy.token()


class _Stored(Struct, omit_defaults=True, kw_only=True, gc=False):
    """All of a record but its key, which is its name, and its result, which follows."""

    status: Status
    fence: int
    owner: str
    lease_until_ms: int
    fingerprint: str
    created_at_ms: int
    updated_at_ms: int
    expires_at_ms: int | None = None
    parked: bool = False
    doubt: bool = False
    started_fence: int = 0
    started_at_ms: int | None = None
    attempts: int = 0
    attempts_total: int = 0
    crashes: int = 0
    crashes_total: int = 0
    budget_closed: bool = False
    failure: Failure | None = None
    outbox: list[OutboxItem] = []
    message_id: str | None = None
    sent_at_ms: int | None = None


class Standing(Struct, frozen=True, gc=False):
    """What stands under a name: the stamp (empty: nothing there) and the record."""

    stamp: bytes
    record: Record | None


ABSENT: Final = Standing(b"", None)
_FIELDS: Final = _Stored.__struct_fields__
_DECODER: Final = msgspec.json.Decoder(_Stored)


def encode(record: Record, stamp: bytes) -> bytes:
    """The value to store."""
    head = msgspec.json.encode(_Stored(**{name: getattr(record, name) for name in _FIELDS}))
    return stamp + head if record.result is None else b"%b%b\n%b" % (stamp, head, record.result)


def decode(key: RecordKey, value: bytes | None) -> Standing:
    """What a stored value says.

    Raises:
        StorageError: something else wrote under this name.
    """
    if value is None:
        return ABSENT
    head, line_break, result = value[STAMP_BYTES:].partition(b"\n")
    try:
        stored = _DECODER.decode(head)
    except msgspec.MsgspecError as error:
        raise errors.StorageError(
            f"The value under the record of {key.job} {key.key!r} is not a record ({error}).",
            meaning="Another program writes under the same prefix, or a newer onefold does.",
            todo="Give onefold a prefix of its own: redis://host:port/db?prefix=...",
        ) from error
    fields = {name: getattr(stored, name) for name in _FIELDS}
    return Standing(value[:STAMP_BYTES], Record(key=key, result=result if line_break else None, **fields))
