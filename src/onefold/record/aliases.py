"""Which record counts for an operation of a job that has had several names.

A record's key contains the name that the job had at the time, and a message contains it too. So for a renamed job
(`aliases=`) an operation is looked up under each of its names. If one record exists, it counts; if there are several,
the most advanced one does. An operation without a record is recorded under the name in its message, as a worker of the
release with that name would do.

Two workers could both find no record at the same moment and record one operation under two names. Therefore, a process
that has claimed an operation under one name reads the records under the other names again before it starts the handler,
and releases its claim if one of them has changed. If two processes do this at once, at least one sees the other's
record, and at the next check both choose the same record.

Never here: storage. Invariant: given the same records, every process chooses the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from msgspec.structs import replace

from onefold.contracts.store import Record, RecordKey, Status

ALIASES_MAX: Final = 10  # ours: each is looked up at every claim
_SAYS_LESS: Final[tuple[Status, ...]] = ("completed", "in_progress", "unknown", "failed", "released")


def other_names(key: RecordKey, names: Collection[str]) -> list[RecordKey]:
    """The same operation under the job's other names."""
    return [replace(key, job=name) for name in names if name != key.job]


def chosen(key: RecordKey, found: Iterable[Record | None]) -> RecordKey:
    """The key under which an operation is to be claimed.

    Args:
        key: as its message names it. found: its records under all names; None for a name without one.
    """
    records = [one for one in found if one is not None]
    if not records:
        return key
    return min(records, key=_rank).key


def _rank(record: Record) -> tuple[int, int, str]:
    running = record.status == "in_progress"
    return _SAYS_LESS.index(record.status), -record.lease_until_ms if running else 0, record.key.job
