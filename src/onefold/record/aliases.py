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
from typing import Any, Final

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.store import Record, RecordKey, Status

_ALIASES_MAX: Final = 10  # ours: each is looked up at every claim
_SAYS_LESS: Final[tuple[Status, ...]] = ("completed", "in_progress", "unknown", "failed", "released")


def earlier_names(aliases: Any, name: str, chars_max: int, of: str) -> tuple[str, ...]:
    """The names that a job or a guarded function had before, after checking what was given as `aliases=`.

    Args:
        name: its present name. chars_max: how long a name may be. of: what has the names, for an error: "a job".

    Raises:
        UsageError: not a list of names, more than ten, or a name twice.
    """
    if isinstance(aliases, str | bytes) or not hasattr(aliases, "__iter__"):
        raise errors.UsageError(f"aliases={aliases!r:.80} is not a list of names.", todo="Write aliases=['old_name'].")
    found: tuple[Any, ...] = tuple(aliases)
    if len(found) > _ALIASES_MAX:
        raise errors.UsageError(
            f"{name} has {len(found)} aliases.", todo=f"Keep at most {_ALIASES_MAX}: each is looked up at every claim."
        )
    for alias in found:
        if not isinstance(alias, str) or not alias or not alias.isprintable() or len(alias) > chars_max:
            raise errors.UsageError(
                f"{alias!r:.80} is not a name that {of} can have had.",
                todo=f"Use 1 to {chars_max} printable characters.",
            )
        if alias == name or found.count(alias) > 1:
            raise errors.UsageError(f"{name} has the alias {alias!r:.140} twice.", todo="Name each earlier name once.")
    return found


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
