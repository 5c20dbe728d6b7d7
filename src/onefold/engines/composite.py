"""Queues of one system and records of another as one engine: SQS with DynamoDB, Redis or PostgreSQL.

There is no transaction across the two: the runner carries out the parts of a settlement in the order that loses nothing
(`runner/settlement.py`). Processes cannot see whether another process is alive, so only the end of its lease shows that
it is dead; and an idle worker is woken by its own long poll or by senders in its own process.

A store for records alone (`redis://`, `postgresql://`, `dynamodb://`) has no queues (`NoQueues`): a call that only
searches for messages finds none; a call that needs a queue is refused, without asking a server.
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
    """The verbs of `QueueAdmin` that need no queue; all others raise UsageError.

    Args:
        url: the store's URL, for the error.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def refuse(self) -> NoReturn:
        """Raise the error for a call that needs a queue.

        Raises:
            UsageError: always.
        """
        raise errors.UsageError(
            f"{shown_url(self._url)} is a store for records; it has no queues.",
            meaning="The commands `why`, `held`, `status` and `stuck` work on it.",
            todo="For queues and messages, name the app or its own URL.",
        )

    def settings(self) -> list[Any]:
        """None."""
        return []

    def depths(self, queues: Sequence[str]) -> list[None]:
        """None for each: no queue is here."""
        return [None] * len(queues)

    def find(self, message_ids: Sequence[str]) -> list[None]:
        """None for each: no message is here."""
        return [None] * len(message_ids)

    def find_key(self, key: str, limit: int = 20) -> list[Any]:  # noqa: ARG002 - the contract's
        """None."""
        return []

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """False for each: no message is here."""
        return [False] * len(message_ids)

    def move(self, moves: Sequence[tuple[str, str | None, Mapping[str, Any] | None]]) -> list[None]:
        """None for each: no message is here."""
        return [None] * len(moves)

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        """Any other verb, which refuses when it is called."""
        if verb.startswith("_"):
            raise AttributeError(verb)
        return lambda *_, **__: self.refuse()


class Alarm:
    """A waiter that is woken by threads of this process.

    It uses a queue that is written in C, because an exception in a signal handler can leave the lock of an event taken.
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
        queues: returns the queues; called at every use.
        record_backend: has the records.
        known_queue: opens a queue that is known to exist, without asking the server.
        provisioned: whether a deployment makes the queues.
        sweep: removes some expired records and returns how many; None for servers that do this themselves.
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
        """The queues and their verbs for operators; a function that gets its messages from Lambda needs none."""
        return self._queues()

    @property
    def records(self) -> RecordAdmin:
        """The record backend's view for operators; a worker does not need it."""
        return self.record_backend.records

    @property
    def effects(self) -> Callable[[int], EffectTransaction | None]:
        """Transactions of the record backend."""
        return self.record_backend.effects

    def appear(self) -> str | None:
        """Prepare the record backend for the first claim. There is no presence lock: the lease decides."""
        self.record_backend.appear()
        return None

    def waiter(self, *, foreign: bool = False) -> WakeableWaiter:
        """A waiter that `notify` of this process wakes, unless `foreign`; nothing reports what other processes do."""
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
            except Exception as error:  # noqa: BLE001 - the contract: a call's exception is its answer
                answers.append(error)
        return answers

    def hurry(self, left_ms: int | None) -> None:
        """Nothing to do: calls wait for servers, each for as long as its client allows."""

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """Nothing to do: SQS moves messages without notice."""

    def changed_elsewhere(self) -> bool:
        """Always True: nothing gives notice of a change, so the caller has to look."""
        return True

    def check(self) -> list[str]:
        """See `RecordBackend.check`."""
        return self.record_backend.check()

    def renewal_mark(self) -> None:
        """None: on servers only the lease decides."""

    def stopped_process(self, record: Record) -> None:
        """Return None, because the processes of other hosts cannot be seen."""

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        """The owners whose ids name a process of this machine that has ended."""
        return owner_process.ended(owners)

    def maintain(self, on_dead_owner: Callable[[str], None]) -> int:  # noqa: ARG002 - the contract's
        """Continue moves of messages by copy, and sweep; the servers do the rest."""
        moved = self.queues.step_moves()  # costs nothing while this process copies nothing
        return moved + (self._sweep() if self._sweep is not None else 0)

    def close(self, *, unfinished: bool = False) -> None:  # noqa: ARG002 - the contract's
        """Close queues and records. Idempotent."""
        self._alarms.clear()
        self.record_backend.close()  # its last writes go through the session of both
        self._close_queues()
