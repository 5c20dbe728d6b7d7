"""Queues of one system and records of another as one engine: SQS with DynamoDB, Redis or PostgreSQL.

There is no transaction across the two: the runner carries out the parts of a settlement in the order that loses nothing
(`runner/settlement.py`). Processes cannot see whether another one is alive, so only the end of its lease shows that it is
dead; and an idle worker is woken by its own long poll or by senders in its own process.

A store for records alone (`redis://`, `postgresql://`, `dynamodb://`) has no queues (`NoQueues`): a call that only looks for
messages finds none; a call that needs a queue is refused, without asking a server.
Never here: calls to either system. Invariant: both are closed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from onefold import errors, owner_process
from onefold.redact import shown_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onefold.contracts.admin import QueueAdmin, RecordAdmin
    from onefold.contracts.archive import Archive
    from onefold.contracts.engine import RecordBackend, WakeableWaiter
    from onefold.contracts.store import Record
    from onefold.contracts.verbs import Commit, EffectTransaction, Ledger, Queue, State, Store


class NoQueues:
    """The verbs of `QueueAdmin` that need no queue; the others raise UsageError.

    Args:
        url: of the store, for the error.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def refuse(self) -> NoReturn:
        """Raise the error for what needs a queue.

        Raises:
            UsageError: always.
        """
        raise errors.UsageError(
            f"{shown_url(self._url)} is a store for records; it has no queues.",
            meaning="It can be asked with `why`, `held`, `status` and `stuck`.",
            todo="Name the app, or its own URL, for what is about queues and messages.",
        )

    def settings(self) -> list[Any]:
        """None."""
        return []

    def depths(self, queues: Sequence[str]) -> list[None]:
        """None of them is here."""
        return [None] * len(queues)

    def find(self, message_ids: Sequence[str]) -> list[None]:
        """None of them is here."""
        return [None] * len(message_ids)

    def find_key(self, key: str, limit: int = 20) -> list[Any]:  # noqa: ARG002 - the contract's
        """None."""
        return []

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """None of them was here."""
        return [False] * len(message_ids)

    def move(self, moves: Sequence[tuple[str, str | None, Mapping[str, Any] | None]]) -> list[None]:
        """None of them was here."""
        return [None] * len(moves)

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        """Any other verb is refused when it is called."""
        if verb.startswith("_"):
            raise AttributeError(verb)
        return lambda *_, **__: self.refuse()


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
        """Wake the waiter, or the next one."""
        if self._rings.empty():
            self._rings.put(None)

    def close(self) -> None:
        """Nothing to close."""


class CompositeEngine:
    """An engine made of the queues of one system and the records of another.

    Args:
        url: as the user wrote it.
        queues: gives the queues, called at every use.
        record_backend: has the records.
        known_queue: opens a queue that is known to be there, without asking the server.
        provisioned: the queues are made by a deployment.
        sweep: removes some expired records and returns how many; not for servers that do it themselves.
        close_queues: called when the engine is closed.
    """

    def __init__(
        self,
        url: str,
        queues: Callable[[], QueueAdmin],
        record_backend: RecordBackend,
        *,
        known_queue: Callable[[str], Queue],
        provisioned: bool,
        sweep: Callable[[], int] | None = None,
        close_queues: Callable[[], None],
    ) -> None:
        self.url = url
        self.shared = True
        self.provisioned = provisioned
        self.record_backend = record_backend
        self.store: Store = record_backend.store
        self.ledger: Ledger = record_backend.ledger
        self.state: State = record_backend.state
        self.commit: Commit | None = None
        self.join: str | None = None
        self.archive: Archive | None = None  # on AWS, archives are EventBridge's
        self.known_queue: Callable[[str], Queue] | None = known_queue
        self.joined = None  # no caller's transaction reaches SQS
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
        """The record backend's, for operators: a worker needs none."""
        return self.record_backend.records

    @property
    def effects(self) -> Callable[[int], EffectTransaction | None]:
        """Transactions of the record backend."""
        return self.record_backend.effects

    def appear(self) -> str | None:
        """Prepare the record backend for the first claim. It has no sign of life: the lease decides."""
        self.record_backend.appear()
        return None

    def waiter(self, *, foreign: bool = False) -> WakeableWaiter:
        """Woken by `notify` of this process, unless `foreign`: nothing reports what other processes do."""
        alarm = Alarm()
        if not foreign:
            self._alarms.append(alarm)
        return alarm

    def notify(self) -> None:
        """Wake idle workers of this process."""
        for alarm in list(self._alarms):
            alarm.wake()

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:  # noqa: ARG002 - the contract's
        """Make the calls one after another; they share no transaction."""
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
        """Nothing: SQS moves messages without notice."""

    def changed_elsewhere(self) -> bool:
        """Always: it gives no notice of a change, so the caller has to look."""
        return True

    def check(self) -> list[str]:
        """See `RecordBackend.check`."""
        return self.record_backend.check()

    def renewal_mark(self) -> None:
        """None: on servers the lease alone decides."""

    def stopped_process(self, record: Record) -> None:
        """None: that cannot be seen from another host."""

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        """The owners on this machine whose ids contain their process."""
        return owner_process.ended(owners)

    def maintain(self, on_dead_owner: Callable[[str], None]) -> int:  # noqa: ARG002 - the contract's
        """Carry message moves by copy forward, and sweep; the servers do the rest."""
        moved = self.queues.step_moves()  # costs nothing while this process copies nothing
        return moved + (self._sweep() if self._sweep is not None else 0)

    def close(self, *, unfinished: bool = False) -> None:  # noqa: ARG002 - the contract's
        """Close queues and records; harmless twice."""
        self._alarms.clear()
        self.record_backend.close()  # its last writes go through the session of both
        self._close_queues()
