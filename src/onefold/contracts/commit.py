"""The Commit contract, optional: all parts of a settlement in one transaction.

A backend offers it where records and messages (or records and the handler's own rows) share a database. Where it is
absent the driver walks the parts in the order that loses nothing: record with its outbox, outbox sends, outbox cleared,
then the message.

`EffectTransaction` is level 4: the handler's own rows commit with its record or not at all.
Invariant: a refused write (lease lost) takes every other part of its settlement with it, and no part of another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from onefold.contracts.ledger import Row
from onefold.contracts.queue import Settle
from onefold.contracts.state import Change
from onefold.contracts.store import Hold, OutboxItem, Outcome


class Settlement(Struct, frozen=True, kw_only=True, gc=False):
    """Everything that becomes of one delivery.

    Args:
        write: the record's transition; None when the record stays as it is (a duplicate, a conflict).
        queue: name of the queue the message came from; None when there is no message (the guard alone).
        receipt: the receive to settle.
        settle: what becomes of the message.
        rows: history to append.
        clear: hold of a run that completed earlier and whose `outbox` leaves with this settlement (a replay).
        changes: of State; one whose expected version stands no more is passed over.
    """

    write: tuple[Hold, Outcome] | None
    queue: str | None
    receipt: str | None
    settle: Settle
    rows: tuple[Row, ...] = ()
    clear: Hold | None = None
    outbox: tuple[OutboxItem, ...] = ()
    changes: tuple[Change, ...] = ()


class Verdict(Struct, frozen=True, gc=False):
    """What became of a settlement.

    Args:
        written: the record took the outcome (True also when there was nothing to write). False: lease lost, nothing done.
        settled: the queue took the message's fate. False: the receipt had expired; the message will be delivered again
            and answered from the record.
    """

    written: bool
    settled: bool


class EffectTransaction(Protocol):
    """One open transaction that handlers of a group share, one after the other, each in a savepoint of its own."""

    def open(self) -> object:
        """The engine's own connection, inside the transaction and a new savepoint.

        A second call of one handler answers the same connection. Work kept before is committed first when the
        transaction has been open for longer than its limit, so that this handler gets its full time.

        Raises:
            TransientError: this handler has had the connection for longer than the limit; its rows were taken back,
                those of earlier handlers stay.
            StorageBusy: another process holds the file.
        """
        ...

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        """Write this handler's settlement and keep its rows; undo both when its lease was lost.

        Also for a handler that never asked for the connection. A verdict counts only once `commit` has returned.

        Raises:
            TransientError: the handler was slower than the limit.
            UsageError: a message of its outbox cannot be sent.
                In both cases this handler's rows were taken back; those of earlier handlers stay, or `commit` raises.
        """
        ...

    def undo(self) -> None:
        """Take back the rows of the handler that runs now; earlier ones stay."""
        ...

    def commit(self) -> None:
        """Make all kept work durable at once. Without an open transaction it does nothing.

        Call it before anything slow that does not need the connection: until then no one else can write to the file.

        Raises:
            StorageBusy, StorageError: nothing that was kept since the last commit is stored.
        """
        ...

    def rollback(self) -> None:
        """Take everything back that was not committed."""
        ...


class Commit(Protocol):
    """All parts of settlements in one transaction."""

    def commit(self, settlements: Sequence[Settlement], now_ms: int) -> list[Verdict]:
        """Apply all settlements durably in one transaction; one answer each.

        Raises:
            StorageBusy: nothing was applied.
            UsageError: an outbox message's queue does not exist or refuses it, or a message cannot be buried where it
                should be. Nothing of any settlement was applied; made one by one, only that one is refused.
        """
        ...

    def effects(self, limit_ms: int) -> EffectTransaction:
        """A transaction for handlers' own rows, not begun until a handler first asks; open for at most `limit_ms`."""
        ...
