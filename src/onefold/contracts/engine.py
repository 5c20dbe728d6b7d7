"""The Engine contract: one opened backend, with all its contracts and what a worker process needs from it.

`engines/urls.py` opens one by URL, `runtime/runtime.py` is the only caller. Never here: settings, declared queues.
Invariant: `appear` comes before this process's owner id is used in a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from onefold.contracts.admin import QueueAdmin, RecordAdmin
from onefold.contracts.archive import Archive

if TYPE_CHECKING:
    from onefold.contracts.store import Record
    from onefold.contracts.verbs import Commit, EffectTransaction, Ledger, Queue, State, Store


class WakeableWaiter(Protocol):
    """A waiter that threads of this process can wake too."""

    def wait(self, timeout_s: float) -> bool:
        """Block for at most `timeout_s` seconds; True when woken."""
        ...

    def wake(self) -> None:
        """Wake the waiting thread, or the next one that waits."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class RenewalMark(Protocol):
    """Records how far a thread of this process has extended its leases, so that others see if this process is stopped.

    Attributes:
        is_busy: returns whether the thread has leases to extend; always True unless the thread sets another function.
    """

    is_busy: Callable[[], bool]

    def renewed(self, at_ms: int) -> None:
        """Note that leases ending at `at_ms` or earlier are no longer needed: all others were extended beyond that."""
        ...

    def close(self) -> None:
        """Note that the thread needs no lease any more."""
        ...


class Keeper(Protocol):
    """A keeper of records: a complete engine, or a record backend alone."""

    @property
    def store(self) -> Store:
        """Its records."""
        ...

    @property
    def records(self) -> RecordAdmin:
        """The same records, for operators."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Its history."""
        ...

    @property
    def state(self) -> State:
        """Its shared values."""
        ...

    def check(self) -> list[str]:
        """Check that the storage is usable; returns sentences about what makes it less durable or private than it should be.

        Calls servers; a worker does it once at its start.

        Raises:
            StorageError: table, schema or server is missing or not the right one. UsageError: a permission is missing.
        """
        ...


class RecordBackend(Keeper, Protocol):
    """One opened record backend: an engine without queues, which are in another system."""

    def effects(self, limit_ms: int) -> EffectTransaction | None:
        """A transaction for handlers' own rows and their record, open for at most `limit_ms`; None if it has none.

        Of a settlement it writes record, rows and changes; the caller settles the message and sends others.
        """
        ...

    def appear(self) -> None:
        """Called when a process begins to work: prepare what its first claim needs, without calling the server."""
        ...

    def close(self) -> None:
        """Close everything. Idempotent."""
        ...


class Engine(Keeper, Protocol):
    """One opened backend: its contracts, and what a worker process needs from it."""

    url: str
    shared: bool
    provisioned: bool
    """Whether a deployment makes its queues, so that nothing is created or compared when an app opens it."""

    @property
    def queues(self) -> QueueAdmin:
        """Its queues."""
        ...

    @property
    def known_queue(self) -> Callable[[str], Queue] | None:
        """Opens a queue that is known to exist, like `QueueAdmin.open` but without a call to a server.

        None if `open` makes no such call anyway.

        If the queue does not exist, its methods raise NotFoundError.
        """
        ...

    @property
    def archive(self) -> Archive | None:
        """Events kept for replay; None if the engine has no event bus of its own."""
        ...

    @property
    def commit(self) -> Commit | None:
        """Settlements in one transaction; None if it is not supported."""
        ...

    @property
    def effects(self) -> Callable[[int], EffectTransaction | None] | None:
        """Transactions for handlers' own rows where `commit` is None; None if there are none.

        They write record, rows and changes of a settlement; its message is settled after them (`runner/settlement.py`).
        """
        ...

    @property
    def joined(self) -> Callable[[Any], AbstractContextManager[None]] | None:
        """Makes this thread's calls part of the transaction that is open on a connection to the engine's database.

        The callable takes the connection; the calls join inside the context manager that it returns. No worker is woken
        when that transaction commits. None if messages are not in a database. The callable raises UsageError for a
        connection that cannot be joined.
        """
        ...

    @property
    def join(self) -> str | None:
        """`module:function` that a child process calls with the lock file, so that its owner does not count as dead."""
        ...

    def appear(self) -> str | None:
        """Called when a process begins to work: take its presence lock and prepare its first claim; calls no server.

        Returns:
            The lock file's path, for child processes; None if there is none.
        """
        ...

    def renewal_mark(self) -> RenewalMark | None:
        """A mark for a thread that extends leases of this process; it is made before the first lease is taken.

        None if other processes cannot see that this one is stopped.
        """
        ...

    def stopped_process(self, record: Record) -> int | None:
        """The id of the process that a run belongs to, if its lease has ended and that process is stopped.

        Nobody takes over the run of a stopped process for up to 12 hours from its start. None: not stopped, or not
        known.
        """
        ...

    def waiter(self, *, foreign: bool = False) -> WakeableWaiter:
        """The waiter of an idle worker: woken by senders in any process; `foreign`: only in other processes."""
        ...

    def notify(self) -> None:
        """Wake idle workers of all processes; called after messages were sent."""
        ...

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        """Make calls of this engine one after another in one transaction with one fsync; inside such a call, join it.

        Returns:
            What each call returned, or the exception it raised; one call's exception undoes only what that call wrote.

        Raises:
            StorageBusy, StorageError: no part of any call was written.
        """
        ...

    def hurry(self, left_ms: int | None) -> None:
        """Limit how long calls wait for others, because this process is about to end.

        No call waits beyond `left_ms` from now; a call that begins later waits only briefly. This also applies to calls
        that are waiting already. It may be called from any thread and from signal handlers. None: wait as before.
        """
        ...

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """Set a flag of State that stops a FIFO group when a receive by itself dead-letters one of its messages.

        The flag is written, with the message's id and unless it is set already, in the transaction that moves the message,
        so that no message of the group is received before that. A queue that moves messages itself (SQS) does not do this.

        Args:
            flag_of: takes the queue, the group and the job that the message names (None: none); returns the flag's
                name, or None if the group goes on. Called inside a transaction.
        """
        ...

    def changed_elsewhere(self) -> bool:
        """Whether another process has written since the last call; wake-ups do not show this: only sends cause them."""
        ...

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        """The owners whose processes are known to have ended; it changes nothing.

        An owner that is not among them may have ended on another host, where only the end of its lease shows it.
        """
        ...

    def maintain(self, on_dead_owner: Callable[[str], None]) -> int:
        """Free dead owners' work (reported by owner id), remove what expired, continue move tasks; returns a count."""
        ...

    def close(self, *, unfinished: bool = False) -> None:
        """Close everything. Idempotent.

        Args:
            unfinished: handlers are still running: this process keeps its presence lock until it ends; then others see
                that it is dead and free its work at once.
        """
        ...
