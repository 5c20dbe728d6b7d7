"""The values of the State contract (`verbs.py`): small, named, versioned, changed by compare-and-set.

For shared data that is neither message nor record: token buckets, concurrency slots, circuit breakers, schedules and runs. A
value is JSON of at most 64 KiB.

Never here: business data, anything that grows with the number of messages. Invariant: a write names the version it read.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from msgspec import Struct

from onefold import errors

NAME_CHARS_MAX: Final = 300  # for every backend: it fits even where keys are shortest (DynamoDB, 1,024 bytes)
_NAME_BYTES_MAX: Final = 1_000
_DIGEST_CHARS: Final = 32
STOPPED_PREFIX: Final = "stopped/"  # prefix of the flags of stopped FIFO groups
REPAIRED_GROUPS: Final = "repaired-groups"  # findings of a file's repair: `{"at_ms": ..., "messages": [ids]}`
VALUE_BYTES_MAX: Final = 64 * 1024  # ours: a value is read and written whole


class Versioned(Struct, frozen=True, gc=False):
    """A stored value.

    Args:
        version: 1 or more; grows by one at every change.
        value: JSON.
    """

    version: int
    value: bytes


class Change(Struct, frozen=True, gc=False):
    """One compare-and-set.

    Args:
        name: 1 to `NAME_CHARS_MAX` characters, for example `breaker/shop/book_courier`.
        value: the new JSON; None deletes.
        expected: the version that was read; 0 when the name was absent.
    """

    name: str
    value: bytes | None
    expected: int


def group_flag(queue: str, group: str) -> str:
    """The name of the flag that stops a FIFO group; its value is the id of the message that stopped it."""
    return f"{STOPPED_PREFIX}{queue}/{group}"


def bounded_name(prefix: str, rest: str) -> str:
    """A valid name from a prefix and a text of any length: the end of a long text is replaced by a digest."""
    name = prefix + rest
    if len(name) <= NAME_CHARS_MAX and len(name.encode("utf-8", "replace")) <= _NAME_BYTES_MAX:
        return name
    digest = blake2b(rest.encode("utf-8", "replace"), digest_size=_DIGEST_CHARS // 2).hexdigest()
    head = name[: NAME_CHARS_MAX - _DIGEST_CHARS - 1].encode("utf-8", "replace")[: _NAME_BYTES_MAX - _DIGEST_CHARS - 1]
    return f"{head.decode('utf-8', 'ignore')}~{digest}"


def check(change: Change) -> None:
    """Refuse a change that no State accepts.

    Raises:
        UsageError: its name or its value is too long.
    """
    if not 1 <= len(change.name) <= NAME_CHARS_MAX:
        raise errors.UsageError(
            f"The state name {change.name[:40]!r} has {len(change.name)} characters.",
            meaning=f"A name has 1 to {NAME_CHARS_MAX}. Nothing was changed.",
            todo="Use a shorter name; a digest of the long part will do.",
        )
    if change.value is not None and len(change.value) > VALUE_BYTES_MAX:
        raise errors.UsageError(
            f"The state value of {change.name!r} has {len(change.value)} bytes.",
            meaning=f"A value has at most {VALUE_BYTES_MAX}. Nothing was changed.",
            todo="Keep data that grows in records, messages or tables of your own.",
        )
