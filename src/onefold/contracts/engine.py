"""The Engine contract: one opened backend, with all its contracts and what a worker process needs of it.

`engines/urls.py` opens one by URL, `runtime/runtime.py` is the only caller. Never here: settings, declared queues.
Invariant: `appear` comes before this process's owner id is used in a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from onefold.contracts.admin import QueueAdmin, RecordAdmin
from onefold.contracts.archive import Archive

if TYPE_CHECKING:
    from onefold.contracts.verbs import Commit, EffectTransaction, Ledger, Queue, State, Store


class WakeableWaiter(Protocol):
    """A waiter that threads of this process can wake too."""

    def wait(self, timeout_s: float) -> bool:
        """Block for at most `timeout_s` seconds; True when woken."""
        ...

    def wake(self) -> None:
        """Wake whoever waits, or the next one to wait."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Keeper(Protocol):
    """What keeps records, in whole engines and in record backends alone."""

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
        """Look whether the place is as it must be; sentences about what makes it less durable or private than it should be.

        Asks servers; a worker does it once at its start.

        Raises:
            StorageError: table, schema or server is missing or another one. UsageError: a permission is missing.
        """
        ...


class RecordBackend(Keeper, Protocol):
    """One opened record backend: everything of an engine but its queues, which are somewhere else."""

    def effects(self, limit_ms: int) -> EffectTransaction | None:
        """A transaction for handlers' own rows and their record, open for at most `limit_ms`; None when it cannot.

        Of a settlement it writes record, rows and changes; the message, and messages that are sent, are the caller's.
        """
        ...

    def appear(self) -> None:
        """A process begins to work: make what its first claim needs, without asking the server."""
        ...

    def close(self) -> None:
        """Close everything; harmless twice."""
        ...


class Engine(Keeper, Protocol):
    """One opened backend: its contracts, and what a worker process needs of it."""

    url: str
    shared: bool
    provisioned: bool
    """Its queues are made by a deployment: nothing is created or compared when an app opens it."""

    @property
    def queues(self) -> QueueAdmin:
        """Its queues."""
        ...

    @property
    def known_queue(self) -> Callable[[str], Queue] | None:
        """Opens a queue that is known to be there, as `QueueAdmin.open`, but without asking; None when that costs no call.

        Where there is no such queue, its verbs raise NotFoundError.
        """
        ...

    @property
    def archive(self) -> Archive | None:
        """Events kept for replay; None where the engine has no event bus of its own."""
        ...

    @property
    def commit(self) -> Commit | None:
        """Settlements in one transaction; None where it cannot."""
        ...

    @property
    def effects(self) -> Callable[[int], EffectTransaction | None] | None:
        """Transactions for handlers' own rows where `commit` is None; None where there are none.

        They write record, rows and changes of a settlement; its message is settled after them (`runner/settlement.py`).
        """
        ...

    @property
    def join(self) -> str | None:
        """`module:function` that a child process calls with the lock file, so that it keeps its parent's owner alive."""
        ...

    def appear(self) -> str | None:
        """A process begins to work: take its presence lock, and make what its first claim needs, without asking a server.

        Returns:
            The lock file's path for child processes; None where there is none.
        """
        ...

    def waiter(self, *, foreign: bool = False) -> WakeableWaiter:
        """What an idle worker waits on: woken by senders in any process; `foreign`: in any other process only."""
        ...

    def notify(self) -> None:
        """Wake idle workers of all processes; called after messages were sent."""
        ...

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        """Make calls of this engine one after another in one transaction with one sync; inside a call, part of it.

        Returns:
            What each call returned, or the exception it raised; one call's exception undoes only what that call wrote.

        Raises:
            StorageBusy, StorageError: nothing of any call was written.
        """
        ...

    def hurry(self, left_ms: int | None) -> None:
        """This process is to end: no call waits for others for longer than `left_ms` from now, afterwards only a moment.

        Calls that wait already notice it. From any thread, and from the handler of a signal. None: as it was before.
        """
        ...

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """Say which flag of State stops a FIFO group whose message the queue itself dead-letters, for its receives.

        The flag is written, with the message's id and unless it is set already, in the transaction that moves the message,
        so that nothing of the group is received before. A queue that moves messages by itself (SQS) does without.

        Args:
            flag_of: from queue, group, and the job that the message names (None: none), to the flag's name; None: the group
                goes on. Called inside a transaction.
        """
        ...

    def changed_elsewhere(self) -> bool:
        """Whether another process has written since this was last asked; wake-ups are for sends only."""
        ...

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        """Those of these owners whose processes are known to have ended; asking changes nothing.

        An owner that is not among them may have ended on another host: there its lease decides.
        """
        ...

    def maintain(self, told: Callable[[str], None]) -> int:
        """Free dead owners' work (reported by owner id), sweep what expired, carry moves forward; how much was done."""
        ...

    def close(self, *, unfinished: bool = False) -> None:
        """Close everything; harmless twice.

        Args:
            unfinished: handlers still run here: this process keeps its sign of life until it ends, so that others then
                see it dead and free its work at once.
        """
        ...
