"""Any transition of records: read, decide in Python, write only where nothing has changed since.

The rules stay in one place, contracts/transitions.py, and are not said again in SQL. The other way of doing this, SELECT
... FOR UPDATE and a write in one transaction, takes as many round trips, and a process that vanishes between them leaves
rows locked that others wait for. Here no lock outlives a statement: the write names the version that was read (a
compare-and-set), and whoever comes too late reads again. Somebody has made progress each time that happens.

Never here: what a verb means. Invariant: a record is only replaced by what its own last version became.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from onefold import errors
from onefold.backends.postgres import statements
from onefold.backends.postgres.connection import Link, Server, ask
from onefold.backends.postgres.ledger import row_values
from onefold.backends.postgres.rows import CHANGING, arrays, record_of, values_of
from onefold.contracts.ledger import Row
from onefold.contracts.store import Record

A = TypeVar("A")
Step = Callable[[Record | None], tuple[A, Record | None]]
"""One verb on one record: its answer, and the record it leaves behind (None: unchanged)."""

ROUNDS: Final = 20  # of reading again; each one lost means that somebody else has changed the same record


class Standing(Struct, frozen=True, gc=False):
    """A record as it was read, and its version."""

    record: Record
    version: str


class Change(Struct, Generic[A], frozen=True, gc=False):
    """What a record is to become.

    Args:
        version: that it must still have.
        after: the record.
        completes: how many runs that completes, for the count.
        answers: of the steps, once it took.
        rows: of history, written in the same statement.
    """

    version: str
    after: Record
    completes: int
    answers: list[A]
    rows: Sequence[Row] = ()


def fold(record: Record | None, steps: Sequence[Step[A]]) -> tuple[list[A], Record | None, int]:
    """Take steps one after the other: their answers, the record after them (None: unchanged), and what completed."""
    answers: list[A] = []
    after: Record | None = None
    completes = 0
    for step in steps:
        answer, changed = step(record)
        answers.append(answer)
        if changed is not None:
            completes += changed.status == "completed" and record is not None and record.status != "completed"
            record = after = changed
    return answers, after, completes


class Amender:
    """Reads and changes records of one database.

    Args:
        server: the database.
    """

    def __init__(self, server: Server) -> None:
        self._read = server.sql(statements.READ)
        self._one = server.sql(statements.CHANGE_ONE)
        self._many = server.sql(statements.CHANGE_MANY)
        self._noted = server.sql(statements.CHANGE_NOTED)

    def read(self, link: Link, idents: Sequence[bytes]) -> dict[bytes, Standing]:
        """The records that stand, expired ones included."""
        found = ask(link, self._read, (list(idents),)) if idents else []
        return {row[0]: Standing(record_of(row[2:]), row[1]) for row in found}

    def amend(self, link: Link, steps: Mapping[bytes, Sequence[Step[A]]], now_ms: int) -> dict[bytes, list[A]]:
        """Take the steps of each operation, all or none of them.

        Raises:
            StorageBusy: others have changed the same record every time; the rest of the steps may have been taken.
        """
        answers: dict[bytes, list[A]] = {}
        waiting = dict(steps)
        for _ in range(ROUNDS):
            if not waiting:
                return answers
            standing = self.read(link, list(waiting))
            changes: dict[bytes, Change[A]] = {}
            for ident, mine in waiting.items():
                found = standing.get(ident)
                said, after, completes = fold(found.record if found else None, mine)
                if after is None or found is None:
                    answers[ident] = said
                else:
                    changes[ident] = Change(found.version, after, completes, said)
            for ident in self.change(link, changes, now_ms):
                answers[ident] = changes[ident].answers
            waiting = {ident: mine for ident, mine in waiting.items() if ident not in answers}
        raise crowded(len(waiting))

    def change(self, link: Link, changes: Mapping[bytes, Change[A]], now_ms: int) -> set[bytes]:
        """Replace records that still have their version; which were replaced."""
        if not changes:
            return set()
        plain = {ident: change for ident, change in changes.items() if not change.rows}
        done = self._replace(link, self._many, plain, now_ms) if len(plain) > 1 else set()
        for ident, change in changes.items():
            if ident not in done:  # changed meanwhile, or locked by somebody whose end must be waited for
                statement, noted = (
                    (self._noted, arrays(map(row_values, change.rows))) if change.rows else (self._one, ())
                )
                done |= self._replace(link, statement, {ident: change}, now_ms, noted)
        return done

    def _replace(
        self,
        link: Link,
        statement: bytes,
        changes: Mapping[bytes, Change[A]],
        now_ms: int,
        noted: tuple[object, ...] = (),
    ) -> set[bytes]:
        rows = (
            (ident, change.version, change.completes, *values_of(change.after)[: len(CHANGING)])
            for ident, change in changes.items()
        )
        return {ident for (ident,) in ask(link, statement, (*arrays(rows), now_ms // 1000, *noted))}


def crowded(count: int) -> errors.StorageBusy:
    """Others were faster every time."""
    return errors.StorageBusy(
        f"{count} records were changed by others each time they were about to be written ({ROUNDS} times).",
        meaning="Nothing was written to them by this call.",
        todo="Try again later; look for many workers on one key.",
    )
