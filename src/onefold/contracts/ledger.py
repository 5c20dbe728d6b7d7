"""The rows of the Ledger contract (`verbs.py`): what happened to an operation, appended once and never changed.

Rows are for people (`why`, audit) and for counting (runs, reconciliation). They hold no payload. The record itself says
the story of a clean first run (sent, received, started, completed); at level `brief`, the default, rows are written only
for what the record cannot say; `full` writes every step; `off` writes none but operators' actions.

Never here: metrics, logs, decisions taken from rows. Invariant: rows of a settlement are written with it or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Final, Literal

from msgspec import Struct

from onefold.contracts.store import RecordKey, ident_of

_FAMILY_BYTES: Final = 16  # no two operations of a run are taken for one
History = Literal["off", "brief", "full"]

FATES: Final = frozenset(
    {
        "completed", "duplicate", "retry", "dependency-down", "held", "settled", "dead-letter", "quarantine", "conflict",
        "malformed", "group-stopped", "discarded", "redrive", "tick-dropped",
    }
)  # fmt: skip
"""Events that say what state an operation is in. All others are only passed through on the way; see `Ledger.tally`."""

DONE: Final = frozenset({"completed", "duplicate"})
"""Those of `FATES` that nothing takes back: another message of the same key changes nothing for the operation."""


class Row(Struct, frozen=True, kw_only=True, gc=False):
    """One thing that happened.

    Args:
        at_ms: when, wall time.
        event: short name: `sent`, `received`, `started`, `completed`, `failed`, `retry`, `duplicate`, `running-elsewhere`,
            `takeover`, `unknown`, `probe`, `held`, `settled`, `dead-letter`, `quarantine`, `conflict`, `released`,
            `paused`, `lease-lost`, `redrive`, `edit`, `purge`, `owner-dead`, ...
        key: the operation; None for a row about a queue.
        queue, message_id: where and which message.
        run: name of the schedule tick or map run it belongs to.
        actor: who did it: a process's owner id, or `person:<login>` for an operator.
        detail: the numbers and rules that decided, for example {"attempt": 2, "of": 5, "delay_ms": 4000}.
    """

    at_ms: int
    event: str
    key: RecordKey | None = None
    queue: str | None = None
    message_id: str | None = None
    run: str | None = None
    actor: str | None = None
    detail: Mapping[str, str | int | bool | None] = {}


def tells(event: str, before: str | None) -> bool:
    """Whether a later row of an operation replaces the one that said its state before; see `Ledger.tally`."""
    return before is None or _weight(event) >= _weight(before)


def _weight(event: str) -> int:
    return (event in FATES) + (event in DONE)


def tally_of(rows: Iterable[Row]) -> dict[str, int]:
    """As `Ledger.tally`, from all rows of a run, oldest first; keeps some 140 bytes for each operation in memory."""
    stands: dict[bytes, str] = {}
    for row in rows:
        if row.key is not None:
            operation = ident_of(row.key, _FAMILY_BYTES)
            if tells(row.event, stands.get(operation)):
                stands[operation] = intern(row.event)  # each row was decoded by itself: so many words, so few different
    return dict(Counter(stands.values()))
