"""The rows of the Ledger contract (`verbs.py`): what happened to an operation, appended once and never changed.

Rows are for people (`why`, audit) and for counting (runs, reconciliation). They hold no payload. The record itself shows a
clean first run (sent, received, started, completed); at level `brief`, the default, rows are written only for what the
record cannot show; `full` writes every step; `off` writes only operators' actions.

Never here: metrics, logs, decisions based on rows. Invariant: rows of a settlement are written with it or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Final, Literal

from msgspec import Struct

from onefold.contracts.store import RecordKey, ident_of

_FAMILY_BYTES: Final = 16  # long enough that different operations of a run are never mixed up
History = Literal["off", "brief", "full"]

OUTCOME_EVENTS: Final = frozenset(
    {
        "completed", "duplicate", "retry", "dependency-down", "held", "settled", "dead-letter", "quarantine", "conflict",
        "malformed", "group-stopped", "discarded", "redrive", "tick-dropped",
    }
)  # fmt: skip
"""Events that determine an operation's state. All others are intermediate steps; see `Ledger.tally`."""

DONE: Final = frozenset({"completed", "duplicate"})
"""The final ones of `OUTCOME_EVENTS`: another message with the same key changes nothing for the operation."""


COUNT_PREFIX: Final = "count."
"""Prefix of outcome counters (`Context.count`) among the names in the detail of a `completed` row."""


def counts_of(detail: Mapping[str, str | int | bool | None]) -> dict[str, int]:
    """The outcome counters in the detail of a row or an event, by their own names."""
    return {
        name.removeprefix(COUNT_PREFIX): value
        for name, value in detail.items()
        if name.startswith(COUNT_PREFIX) and isinstance(value, int)
    }


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
        actor: a process's owner id, or `person:<login>` for an operator.
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


def replaces(event: str, before: str | None) -> bool:
    """Whether a later row of an operation replaces the row that determined its state so far; see `Ledger.tally`."""
    return before is None or _weight(event) >= _weight(before)


def _weight(event: str) -> int:
    return (event in OUTCOME_EVENTS) + (event in DONE)


def tally_of(rows: Iterable[Row]) -> dict[str, int]:
    """Like `Ledger.tally`, from all rows of a run, oldest first; keeps some 140 bytes for each operation in memory."""
    states: dict[bytes, str] = {}
    for row in rows:
        if row.key is not None:
            operation = ident_of(row.key, _FAMILY_BYTES)
            if replaces(row.event, states.get(operation)):
                states[operation] = intern(row.event)  # each row has a text of its own, and few of them differ
    return dict(Counter(states.values()))
