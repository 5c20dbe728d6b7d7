"""The values of the optional Commit contract: all parts of a settlement in one transaction. Its methods are in `verbs.py`.

A backend offers it where records and messages (or records and the handler's own rows) share a database. Without it the
runner carries out the parts in the order that loses nothing: record with its outbox, outbox sends, outbox cleared, then the
message.

`EffectTransaction` gives level 4: the handler's own rows commit with its record or not at all.
Never here: how a backend does it.
Invariant: if a write is refused (lease lost), no other part of its settlement is written; other settlements are not
affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from onefold import errors

if TYPE_CHECKING:
    from onefold.contracts.ledger import Row
    from onefold.contracts.queue import Settle
    from onefold.contracts.state import Change
    from onefold.contracts.store import Hold, OutboxItem, Outcome


class Settlement(Struct, frozen=True, kw_only=True, gc=False):
    """Everything to be written for one delivery.

    Args:
        write: the record's transition; None when the record does not change (a duplicate, a conflict).
        queue: name of the queue that the message came from; None without a message (the guard alone).
        receipt: the receive to settle.
        settle: what is done with the message.
        rows: history rows to append.
        clear: hold of a run that completed earlier and whose `outbox` is sent with this settlement (a duplicate).
        changes: changes of State; a change whose expected version is no longer current is skipped.
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
    """The outcome of a settlement.

    Args:
        written: the outcome was recorded (True also when there was nothing to write). False: lease lost, nothing done.
        settled: the message was settled. False: the receipt had expired; the message will be delivered again and answered
            from the record.
    """

    written: bool
    settled: bool


# -- errors about `ctx.connection` for handlers ----------------------------------------------------------------------------


def lent_too_long(used_ms: int, limit_ms: int, meaning: str) -> errors.TransientError:
    """The error for a handler that used the connection beyond its time limit; its rows were rolled back.

    Args:
        meaning: what the wait means for the caller.
    """
    return errors.TransientError(
        f"A handler had ctx.connection for {used_ms} ms; the limit is {limit_ms} ms.",
        meaning=f"{meaning} Its rows were taken back.",
        todo="Do slow work (requests to others, large computations) before the first use of ctx.connection.",
    )


def rolled_back(lost: int, why: str) -> errors.StorageBusy:
    """The error for a commit that comes too late: the work of `lost` handlers was rolled back with the transaction.

    Args:
        why: what can have caused it.
    """
    return errors.StorageBusy(
        f"The transaction with the work of {lost} handlers that had finished was rolled back.",
        meaning="Nothing that was kept since the last commit is stored.",
        todo=f"Let them run again; {why}.",
    )


def ends_transaction(call: str, instead: str = "") -> errors.UsageError:
    """The error for a call on the connection that would end the transaction, which the handler shares with its record.

    Args:
        instead: what to use for a part that may fail.
    """
    return errors.UsageError(
        f"A handler called {call} on ctx.connection.",
        meaning="Its rows are committed together with the record of its run; nothing was changed by this call.",
        todo=f"Leave it out: return from the handler to keep the rows, raise an exception to take them back.{instead}",
    )
