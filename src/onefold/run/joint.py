"""Level 4 where records join a handler's transaction and messages are somewhere else: PostgreSQL or DynamoDB beside SQS.

The record backend's transaction writes handlers' rows, records and history together; what is left of a settlement - outbox
and the message - follows once that transaction is durable, in the same order and for the same reasons as in `settling`.

Never here: how a database says it, decisions. Invariant: a message is never deleted before its record is durable.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.commit import Settlement, Verdict
from onefold.run import settling
from onefold.run.settling import Backend

if TYPE_CHECKING:
    from onefold.contracts.verbs import EffectTransaction


class JointTransaction:
    """Handlers' rows and records in one transaction, and then what is left of their settlements.

    Args:
        backend: for what is left. inner: the record backend's own transaction.
    """

    def __init__(self, backend: Backend, inner: EffectTransaction) -> None:
        self._backend = backend
        self._inner = inner
        self._kept: list[Settlement] = []

    def open(self) -> object:
        """What the record backend gives to handlers."""
        return self._inner.open()

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        """Write record and rows into the transaction; the message's fate is told by its own queue after `commit`."""
        verdict = self._inner.finish(settlement, now_ms)
        if verdict.written:
            self._kept.append(replace(settlement, rows=(), changes=()))
        return verdict

    def undo(self) -> None:
        """Take back the rows of the handler that runs now."""
        self._inner.undo()

    def commit(self) -> None:
        """Make kept work durable, then send its outboxes and settle its messages.

        What fails after the transaction is durable is not raised: records and outboxes stand, and the redelivery of the
        message finds them and does the rest.
        """
        kept, self._kept = self._kept, []  # first: what could not be committed is not to be settled by a later commit
        self._inner.commit()
        with suppress(errors.TransientError, errors.UsageError):
            settling.settle_the_rest(self._backend, kept)

    def rollback(self) -> None:
        """Take everything back that was not committed."""
        self._kept.clear()
        self._inner.rollback()
