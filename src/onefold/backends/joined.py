"""Queues of one system and records of another as one engine: SQS with DynamoDB, Redis or PostgreSQL.

Nothing here is one transaction: the driver walks the parts of a settlement in the order that loses nothing
(`run/settlement.py`). Processes do not see each other's signs of life, so the lease alone decides who is dead, and an idle
worker is woken by its own long poll or by senders of its own process.
Never here: how either system says anything. Invariant: both are closed together.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onefold.contracts.admin import QueueAdmin, RecordAdmin
    from onefold.contracts.archive import Archive
    from onefold.contracts.engine import Books, WakeableWaiter
    from onefold.contracts.verbs import Commit, EffectTransaction, Ledger, Queue, State, Store


class Alarm:
    """A waiter that threads of this process wake.

    A queue in C: the lock of an event may be left taken by an exception out of a signal's handler.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def wait(self, timeout_s: float) -> bool:
        """Block for at most `timeout_s` seconds; True when woken."""
        try:
            self._rings.get(timeout=max(timeout_s, 0))
        except Empty:
            return False
        return True

    def wake(self) -> None:
        """Wake who waits, or who waits next."""
        if self._rings.empty():
            self._rings.put(None)

    def close(self) -> None:
        """Nothing to close."""


class JoinedEngine:
    """An engine made of two.

    Args:
        url: as the user wrote it.
        queues: the one, asked for at every use. books: the other.
        known_queue: opens a queue that is known to be there, without asking the server.
        provisioned: the queues are made by a deployment.
        sweep: removes some of what expired from the books, and says how much; servers that do it themselves need none.
        close_queues: called when the engine is closed.
    """

    def __init__(
        self,
        url: str,
        queues: Callable[[], QueueAdmin],
        books: Books,
        *,
        known_queue: Callable[[str], Queue],
        provisioned: bool,
        sweep: Callable[[], int] | None = None,
        close_queues: Callable[[], None],
    ) -> None:
        self.url = url
        self.shared = True
        self.provisioned = provisioned
        self.books = books
        self.store: Store = books.store
        self.ledger: Ledger = books.ledger
        self.state: State = books.state
        self.commit: Commit | None = None
        self.join: str | None = None
        self.archive: Archive | None = None  # on AWS, archives are EventBridge's
        self.known_queue: Callable[[str], Queue] | None = known_queue
        self._queues = queues
        self._sweep = sweep
        self._close_queues = close_queues
        self._alarms: list[Alarm] = []

    @property
    def queues(self) -> QueueAdmin:
        """Queues and their operator's verbs: a function that Lambda hands its messages needs none of them."""
        return self._queues()

    @property
    def records(self) -> RecordAdmin:
        """The books', asked for when an operator is there: a worker needs none."""
        return self.books.records

    @property
    def effects(self) -> Callable[[int], EffectTransaction | None]:
        """Transactions of the record backend."""
        return self.books.effects

    def appear(self) -> str | None:
        """Have the books ready for the first claim. No sign of life: elsewhere the lease decides."""
        self.books.appear()
        return None

    def waiter(self, *, foreign: bool = False) -> WakeableWaiter:
        """Woken by `notify` of this process, unless `foreign`: nothing tells of other processes."""
        alarm = Alarm()
        if not foreign:
            self._alarms.append(alarm)
        return alarm

    def notify(self) -> None:
        """Wake idle workers of this process."""
        for alarm in list(self._alarms):
            alarm.wake()

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:  # noqa: ARG002 - the contract's
        """Make the calls one after another; there is no transaction to share."""
        answers: list[object] = []
        for call in calls:
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001 - the contract: what a call raised is its answer
                answers.append(error)
        return answers

    def hurry(self, left_ms: int | None) -> None:
        """Nothing: calls wait for servers, each for as long as its client allows."""

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """Nothing: SQS moves messages by itself, and tells nobody."""

    def changed_elsewhere(self) -> bool:
        """Always: nobody tells, so whoever asks must look."""
        return True

    def check(self) -> list[str]:
        """As the books say."""
        return self.books.check()

    def dead(self, owners: Iterable[str]) -> frozenset[str]:  # noqa: ARG002 - the contract's
        """None is known: processes may be on any host."""
        return frozenset()

    def maintain(self, told: Callable[[str], None]) -> int:  # noqa: ARG002 - the contract's
        """Carry message moves by copy forward, and sweep; the servers do the rest."""
        moved = self.queues.step_moves()  # costs nothing while this process copies nothing
        return moved + (self._sweep() if self._sweep is not None else 0)

    def close(self, *, unfinished: bool = False) -> None:  # noqa: ARG002 - the contract's
        """Close queues and books; harmless twice."""
        self._alarms.clear()
        self.books.close()  # what it notes at last goes through the session of both
        self._close_queues()
