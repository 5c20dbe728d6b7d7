"""The DynamoDB record backend as a whole: records, operators' view, history, shared values and level 4 on one table.

Never here: queues. Invariant: no call is made before one is asked for.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from onefold import errors
from onefold.engines.aws.dynamodb import schema
from onefold.engines.aws.dynamodb.ledger import DynamoLedger
from onefold.engines.aws.dynamodb.notes import RecordNotes
from onefold.engines.aws.dynamodb.records import DynamoRecords, DynamoStore
from onefold.engines.aws.dynamodb.state import DynamoState
from onefold.engines.aws.dynamodb.table import Table

if TYPE_CHECKING:
    from onefold.engines.aws.dynamodb.effects import DynamoEffects
    from onefold.engines.aws.dynamodb.items import Layout
    from onefold.engines.aws.session import Session
    from onefold.outside import Clock, Entropy


class DynamoBackend:
    """Everything that onefold keeps in a DynamoDB table.

    Args:
        session: whose DynamoDB client is used; it stays the caller's to close.
        table: its name.
        clock: for pauses between tries, and to decide when a deleted shared value may be forgotten.
        entropy: for the ids by which writes are recognised after a lost answer, and for jitter.
        batched: whether several records are written by one BatchExecuteStatement (URL option `batch=no` turns it off:
            for emulators that do not have it).
        layout: of the table's items (URL option `layout`).

    Attributes:
        store, records, ledger, state: the contracts of those names.
    """

    def __init__(
        self, session: Session, table: str, clock: Clock, entropy: Entropy, *, batched: bool = True, layout: Layout = 1
    ) -> None:
        self.table = Table(session, table, clock, entropy, batched=batched, layout=layout, first=schema.check_layout)
        self._notes = RecordNotes(self.table)
        self.store = DynamoStore(self.table, self._notes)
        self.ledger = DynamoLedger(self.table)
        self.store.ledger = self.ledger
        self.state = DynamoState(self.table)
        self.records = DynamoRecords(self.table, self._notes)
        self.store.state = self.state

    def create(self) -> None:
        """Make the table with time to live where there is none; errors as `schema.create`."""
        schema.create(self.table.bare())

    def check(self) -> list[str]:
        """Warnings about the table; raises where it cannot be used, as `schema.check` and `schema.check_layout`."""
        found = schema.check(self.table.bare())
        schema.check_layout(self.table.bare())  # a worker with the wrong layout ends here, before it takes a message
        return found

    def effects(self, limit_ms: int) -> DynamoEffects:
        """Level 4: handlers' own writes in one transaction with their record.

        Args:
            limit_ms: no bound here: nothing is locked while a handler runs.
        """
        del limit_ms
        from onefold.engines.aws.dynamodb.effects import (
            DynamoEffects,  # brings a part of boto3 that only level 4 needs
        )

        return DynamoEffects(self.table, self._notes, self.ledger, self.state)

    def appear(self) -> None:
        """Make the client, which takes longer than the first batch: in Lambda's init phase, before the event is there."""
        self.table.bare().client  # noqa: B018 - made when it is asked for

    def close(self) -> None:
        """Write the counts that are still due; the session stays open. Harmless twice."""
        with contextlib.suppress(errors.OnefoldError):  # missing counts are not worth an error at the end
            self._notes.flush()
