"""Outbox tables: messages that are rows of the program's own database until a relay has passed them to their queues.

A program writes the row in its own transaction, so that the message is sent if, and only if, that commits. The engine
decides which database that is, and with which statements (`engines/postgres/outbox.py`, `engines/sqlite/outbox.py`).
Never here: queues, SQL. Invariants: an id is given out only once, and of two transactions that follow one another the
later one has the higher ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

VERSION: Final = 1
"""The version of the tables."""


class OutboxMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as a row holds it, as JSON.

    Args:
        scope, job, key, fingerprint: the operation. unique: as declared for its job.
        body, attributes, group, dedup_id, run_at_ms, wait_ms: as in `contracts.entries.Entry`; but with `wait_ms`,
            `run_at_ms` is when the wait ends by the sender's wall clock.
    """

    scope: str = ""
    job: str
    key: str
    fingerprint: str
    body: str
    attributes: dict[str, str] = {}
    group: str | None = None
    dedup_id: str | None = None
    run_at_ms: int | None = None
    wait_ms: int | None = None
    unique: bool = False


class RowId(NamedTuple):
    """Identifies a row: a database restored from a backup gives out the same numbers again, but not the same token."""

    number: int
    token: str


class OutboxRow(NamedTuple):
    """A message that waits in an outbox table."""

    id: RowId
    queue: str
    message: str


class Backlog(Struct, frozen=True, kw_only=True):
    """The content of an outbox table, in numbers.

    Args:
        waiting: messages to be sent. oldest_age_ms: time since the oldest of them was written; None if there is none.
        refused: messages that their queues refused; they stay until a person decides.
    """

    waiting: int
    oldest_age_ms: int | None
    refused: int


class OutboxTable(Protocol):
    """The outbox tables of one database, as a relay uses them; for one thread only.

    Every call raises TransientError where the database cannot be reached now, StorageError where the tables are not there.
    """

    @property
    def token(self) -> str:
        """Identifies these tables; no other tables have the same token."""
        ...

    def create(self) -> None:
        """Make the tables that do not exist."""
        ...

    def waiting(self, app: str, queues: Collection[str], limit: int) -> list[OutboxRow]:
        """An app's committed messages for these queues, by id."""
        ...

    def remove(self, ids: Sequence[RowId]) -> None:
        """Remove rows durably; missing ones are skipped."""
        ...

    def refuse(self, row: RowId, why: str) -> None:
        """Mark a row as refused by its queue, with the reason; it is not returned by `waiting` any more."""
        ...

    def backlog(self, app: str) -> Backlog:
        """How many messages of an app are in the tables."""
        ...

    def wait(self, rest: Callable[[int], bool], at_most_ms: int) -> None:
        """Wait until something was committed, for at most `at_most_ms`.

        Args:
            rest: waits for this many milliseconds if the database cannot notify; returns True to stop.
        """
        ...

    def close(self) -> None:
        """Close the connection; harmless twice."""
        ...
