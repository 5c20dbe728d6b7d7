"""The State contract: small named values with versions, changed by compare-and-set.

For what processes share and is neither message nor record: token buckets, concurrency slots, circuit breakers, later
schedules and runs. A value is JSON of at most 64 KiB.

Never here: business data, anything that grows with the number of messages. Invariant: a write names the version it read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Versioned(Struct, frozen=True, gc=False):
    """A value as it stands.

    Args:
        version: 1 or more; grows by one at every change.
        value: JSON.
    """

    version: int
    value: bytes


class Change(Struct, frozen=True, gc=False):
    """One compare-and-set.

    Args:
        name: 1 to 300 characters, for example `breaker/shop/book_courier`.
        value: the new JSON; None deletes.
        expected: the version that was read; 0 when the name was absent.
    """

    name: str
    value: bytes | None
    expected: int


class State(Protocol):
    """Named, versioned values. Plain blocking calls, safe from any thread."""

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The values as they stand, in order; None where absent."""
        ...

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version still stands; False: someone was faster, nothing changed."""
        ...

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted."""
        ...
