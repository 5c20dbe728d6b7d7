"""The methods of the contracts Queue, Store, Ledger, State and Commit, as protocols that every backend implements.

The values they take and return are in the modules of those names. Methods take lists and return one answer per item, in the
same order. No method waits for work, except those of a `WaitingQueue`: waiting is done in `runner/poll.py`. Protocols are
only named in annotations, so this module is imported for type checking and never at run time.
Never here: values, policy, methods that only operators need (`admin.py`).
Invariant: the suites in `testing/` (`queue_contract.py`, ...) test every backend against what is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.entries import Entry, Refused, Sent
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Delivery, Depth, MoveTo, QueueCapabilities, RetryIn
from onefold.contracts.state import Change, Versioned
from onefold.contracts.store import Answer, Ask, Claimed, Hold, Outcome, Record, RecordKey, StoreCapabilities

ReceiptState = Literal["in-flight", "visible", "expired", "superseded", "gone"]
"""The state of a message for one receipt: hidden by it; visible again (standard) or expired (FIFO) and not received since;
received again since; deleted, or moved to another queue."""

RowsOf = Callable[[int, Claimed], Sequence[Row]]
"""Makes the history rows for a claim from its index among the asks and its answer. It changes nothing, and may be
called again for a claim that has to be made again."""


class QueueSender(Protocol):
    """The sending side of a queue. Every method of a queue is a plain blocking call, safe to call from any thread."""

    name: str

    def send(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Sent | Refused]:
        """Accept messages durably; on return the accepted ones survive a crash of this machine.

        Each entry is checked here, by the queue's settings (`check_entry`).

        Args:
            whole: all or none: if one is refused, none is sent, and the answer for the others is `NOT_SENT`. But if an
                entry passes the checks and then SQS itself refuses it, the others of its batch are sent.

        Raises:
            StorageBusy: nothing was accepted (disk full, file locked).
        """
        ...


class QueueReceiver(Protocol):
    """The receiving side of a queue: messages are received, and settled by their receipts."""

    name: str
    capabilities: QueueCapabilities

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """Receive up to `count_max` messages (1 or more) and hide each for `visible_ms` (None: the queue's setting).

        Raises:
            OverLimitError: a standard queue is at its in-flight cap; a FIFO queue at its cap returns nothing instead.
        """
        ...

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Hide each receipt's message for a new time counted from now; False where the receipt is no longer valid.

        Also used by the heartbeat. More than 12 hours after the receive it returns False and changes nothing.
        """
        ...

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Delete each receipt's message; False where a FIFO receipt has expired. Deleting again returns True again."""
        ...

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:
        """Move each receipt's message to its dead-letter or held queue with the reason; False as for `delete`.

        Raises:
            UsageError: the queue has no dead-letter queue.
        """
        ...


class InspectableQueue(Protocol):
    """The state of a queue; reading it receives nothing."""

    name: str

    def receipt_states(self, receipts: Sequence[str]) -> list[ReceiptState]:
        """The state of each receipt; used after a False. One still in flight was refused for the 12-hour limit."""
        ...

    def depth(self) -> Depth:
        """How many messages there are."""
        ...


class Queue(QueueSender, QueueReceiver, InspectableQueue, Protocol):
    """One queue of an engine, complete. Code that uses only a part names that part's protocol."""


class WaitingQueue(QueueReceiver, Protocol):
    """A queue whose server lets a receive wait for messages (SQS's long polling)."""

    def receive_within(self, count_max: int, visible_ms: int | None, wait_ms: int) -> list[Delivery]:
        """Like `receive`, but blocks until there is a message, for at most `wait_ms` (0 to 20,000)."""
        ...


class Store(Protocol):
    """Idempotency records. Plain blocking calls, safe from any thread; each list is answered item by item, in order.

    Two claims of one key in one call of `claim` are answered as if made one after the other.
    """

    capabilities: StoreCapabilities

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        """Claim each operation by one atomic conditional write.

        Args:
            rows_of: called for each Claimed that found a record; its rows are written in the transaction of the claim: with
                it, or not at all. Only a store whose `capabilities.notes_claims` is True calls it; elsewhere the caller
                appends the rows before a handler is called.

        Another fingerprint is a Conflict whatever the record's state, unless it is amended. An expired record (now_ms >=
        expires_at_ms) counts as absent; a lease has ended when now_ms >= lease_until_ms. A run that had started and is taken
        over counts one crash and no attempt, and is never started by the claim itself.
        """
        ...

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """Mark claimed runs as started, durably, before the handler is called: attempts + 1, doubt cleared.

        False: lease lost. A second start under the same hold returns True and is not counted.
        """
        ...

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """Move the end of each lease; False: lost."""
        ...

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """Write each outcome if owner and fence still hold and the record is in progress; False: lost, nothing changed.

        A repeated Complete with the same result under the same hold returns True (a retry after a lost reply). If a lease
        has ended but the operation was not taken over, the outcome is still accepted.
        """
        ...

    def restore(self, records: Sequence[Record]) -> list[bool]:
        """Put back records of claims that are gone from the store (flushed, evicted, deleted, restored from a backup).

        A record is inserted only where nothing is stored under its key, not even what has expired, by one atomic conditional
        write. False: something else is stored, and nothing changed; the lease is lost. True also when it is stored
        already, in progress under the same owner and fence (a retry after a lost reply).

        Args:
            records: in progress, as `transitions.claimed` makes them from a claim that the caller still holds.
        """
        ...

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """Forget the outbox of each completed run after its messages were sent; True also when it was empty already."""
        ...

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """The records; None if absent or expired."""
        ...


class Ledger(Protocol):
    """Append-only history. Plain blocking calls, safe from any thread."""

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows durably, in order."""
        ...

    def of_key(self, key: RecordKey, limit: int = 1000) -> list[Row]:
        """The rows of one operation, oldest first."""
        ...

    def of_run(self, run: str, limit: int = 1000, after: int = 0) -> list[Row]:
        """The rows of one run, oldest first; `after` skips that many."""
        ...

    def walk_run(self, run: str, page: int = 1000) -> Iterator[list[Row]]:
        """All rows of one run, each once, oldest first, at most `page` at a time; the cost of a page is constant.

        Where clocks differed or were set, rows may come in the order in which they were written. Rows that are written
        meanwhile may or may not be included.
        """
        ...

    def tally(self, run: str) -> Mapping[str, int]:
        """How many operations of a run are in which state: for each event, those whose deciding row it is.

        An operation's deciding row is its last one of the run with an event of `DONE`; while it has none, the last one of
        `OUTCOME_EVENTS`; while it has none of these either, its last row. So once an operation is done, its state is not
        changed by a late `lease-lost`, by a message that is dispatched a second time, or by the dead letter of another
        message with the same key. Rows without a key are not counted.
        """
        ...

    def between(self, from_ms: int, to_ms: int, limit: int = 1000) -> list[Row]:
        """Rows with from_ms <= at_ms < to_ms, oldest first."""
        ...

    def find_keys(self, text: str, limit: int = 20) -> list[RecordKey]:
        """Operations whose business key is exactly `text`, whatever their job and scope."""
        ...


class State(Protocol):
    """Named, versioned values. Plain blocking calls, safe from any thread."""

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The values, in order; None if absent."""
        ...

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version is still current; False: the value has changed since it was read."""
        ...

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted."""
        ...


class EffectTransaction(Protocol):
    """One open transaction that the handlers of a group share, one after the other, each in its own savepoint."""

    def open(self) -> object:
        """The engine's own connection, inside the transaction and a new savepoint.

        A second call in one handler returns the same connection. If the transaction has been open for longer than its limit,
        earlier handlers' work is committed first, so that this handler gets its full time.

        Raises:
            TransientError: this handler has had the connection for longer than the limit; its rows were rolled back, those
                of earlier handlers stay.
            StorageBusy: another process holds the file.
        """
        ...

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        """Write this handler's settlement and keep its rows; undo both when its lease was lost.

        Also for a handler that never used the connection. A result counts only once `commit` has returned.

        Raises:
            TransientError: the handler was slower than the limit.
            UsageError: a message of its outbox cannot be sent.
                In both cases this handler's rows were rolled back; rows of earlier handlers stay, or `commit` raises.
        """
        ...

    def undo(self) -> None:
        """Roll back the rows of the current handler; rows of earlier ones stay."""
        ...

    def commit(self) -> None:
        """Make all kept work durable at once. Without an open transaction it does nothing.

        Call it before anything slow that does not need the connection: until then no one else can write to the file.

        Raises:
            StorageBusy, StorageError: nothing that was kept since the last commit is stored.
        """
        ...

    def rollback(self) -> None:
        """Roll back everything that was not committed."""
        ...


class Commit(Protocol):
    """All parts of settlements in one transaction."""

    def commit(self, settlements: Sequence[Settlement], now_ms: int) -> list[Verdict]:
        """Apply all settlements durably in one transaction; one answer each.

        Raises:
            StorageBusy: nothing was applied.
            UsageError: an outbox message's queue does not exist or refuses it, or a message cannot be dead-lettered where it
                should be. Nothing was applied; when settlements are applied one by one, only that one is refused.
        """
        ...

    def effects(self, limit_ms: int) -> EffectTransaction:
        """A transaction for handlers' own rows, begun when a handler first uses it; open for at most `limit_ms`."""
        ...
