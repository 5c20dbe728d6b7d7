"""What happened in a run of the demo, counted from the engine's own history.

The demo keeps its history at level `full`: a row for each delivery stands in the very transaction that settled it, so a
worker that is killed can neither lose a count nor leave one for something that did not happen. Deliveries that were never
settled have no row of their own; the rows `owner-dead` (killed) and `worker-draining` (given back) say how many there were.
Here: pure functions from rows to numbers. Never here: whether the effects are right; what onefold believes is no evidence
for that (see `verdict`). Invariant: every delivery is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from onefold.contracts.ledger import Row

ENDS = frozenset(
    {
        "completed",
        "duplicate",
        "retry",
        "held",
        "dead-letter",
        "quarantine",
        "conflict",
        "malformed",
        "released",
        "running-elsewhere",
        "dependency-down",
        "lease-lost",
        "completion-failed",
    }
)
"""Events of which every settled delivery has exactly one."""


class Tally(Struct, frozen=True, kw_only=True):
    """The numbers of a run.

    Args:
        deliveries: receives by workers: settled ones, those of killed workers, and those given back by stopped ones.
        duplicates: answered from the record; the handler did not run.
        waited: deliveries that met a run of the same key under way, and came back later.
        takeovers: runs begun again after their worker was killed.
        retries: deliveries that failed for now.
        lost: runs whose lease was lost.
        taken_over: a key that was taken over and completed later, for those who want to look at one; None if none was.
    """

    deliveries: int
    duplicates: int
    waited: int
    takeovers: int
    retries: int
    lost: int
    taken_over: str | None


def count(rows: Iterable[Row]) -> Tally:
    """Count rows of a history at level `full`, oldest first."""
    events: Counter[str] = Counter()
    unsettled = 0
    taken_over: set[str] = set()
    example: str | None = None
    for row in rows:
        events[row.event] += 1
        key = row.key.key if row.key is not None else None
        if row.event == "owner-dead":
            unsettled += _number(row, "messages")
        elif row.event == "worker-draining":
            unsettled += _number(row, "given_back")
        elif row.event == "takeover" and key is not None:
            taken_over.add(key)
        elif row.event == "completed" and example is None and key in taken_over:
            example = key
    return Tally(
        deliveries=sum(events[name] for name in ENDS) + unsettled,
        duplicates=events["duplicate"],
        waited=events["running-elsewhere"],
        takeovers=events["takeover"],
        retries=events["retry"],
        lost=events["lease-lost"],
        taken_over=example,
    )


def _number(row: Row, name: str) -> int:
    value = row.detail.get(name)
    return value if isinstance(value, int) else 0
