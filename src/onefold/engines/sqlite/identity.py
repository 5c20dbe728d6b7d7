"""An operation as one value: what records and ledger rows are found by; see `contracts/identity.py`.

Never here: SQL. Invariant: equal idents mean equal (scope, job, key), but for collisions of 64 bits among jobs that share
one key.
"""

from __future__ import annotations

from typing import Final

from onefold.contracts.identity import ident_of
from onefold.contracts.store import RecordKey

_FAMILY_BYTES: Final = 8  # in every file that there is


def ident(key: RecordKey) -> bytes:
    """The operation's value in the unique index, 9 to 57 bytes."""
    return ident_of(key, _FAMILY_BYTES)
