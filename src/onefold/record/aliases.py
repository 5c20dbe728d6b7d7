"""Which record counts for an operation of a job that has had several names.

A record's key contains the name that the job had, and a message names it too. A renamed job (`aliases=`) therefore finds an
operation under any of its names. The record that exists counts, and the one that says most where there are several. An
operation without any is recorded under the name that its message has, as a worker of the release with that name would.

Two workers could find nothing at the same moment and record one operation under two names. So a process that has claimed
one looks at the others again before the handler is started, and releases its claim where one of them has changed. Of two
that do so at once at least one sees the other, and the next check of both chooses the same record.

Never here: storage. Invariant: of the same records every process chooses the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from msgspec.structs import replace

from onefold.contracts.store import Record, RecordKey, Status

_SAYS_LESS: Final[tuple[Status, ...]] = ("completed", "in_progress", "unknown", "failed", "released")


def other_names(key: RecordKey, names: Collection[str]) -> list[RecordKey]:
    """The same operation under the job's other names."""
    return [replace(key, job=name) for name in names if name != key.job]


def chosen(key: RecordKey, found: Iterable[Record | None]) -> RecordKey:
    """The key under which an operation is to be claimed.

    Args:
        key: as its message names it. found: its records, under whatever names; None for a name that has none.
    """
    records = [one for one in found if one is not None]
    if not records:
        return key
    return min(records, key=_rank).key


def _rank(record: Record) -> tuple[int, int, str]:
    running = record.status == "in_progress"
    return _SAYS_LESS.index(record.status), -record.lease_until_ms if running else 0, record.key.job
