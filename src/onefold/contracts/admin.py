"""Operations for operators, besides the Queue and Store contracts: create, peek, move, purge, scan. No worker needs them.

A peek is not a receive: it changes no count and hides nothing. A move gives messages a new id and a new receive count, as
SQS's message move task does. Invariant: an operation changes only what its caller named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from onefold.contracts.queue import Attribute, Depth, Reason
from onefold.contracts.store import ManualDecision, Record, RecordKey, Status

if TYPE_CHECKING:
    from onefold.contracts.settings import QueueSettings
    from onefold.contracts.verbs import Queue


class Peeked(Struct, frozen=True, kw_only=True, gc=False):
    """A message seen without receiving it. Times by the queue's own clock."""

    queue: str
    message_id: str
    state: Literal["visible", "in_flight", "delayed"]
    body: str
    attributes: Mapping[str, Attribute]
    receive_count: int
    sent_at_ms: int
    visible_at_ms: int
    expires_at_ms: int
    first_received_at_ms: int | None = None
    group: str | None = None
    dedup_id: str | None = None
    sequence: str | None = None
    key: str | None = None
    source: str | None = None
    reason: Reason | None = None
    owner: str | None = None
    trusted: bool = True  # as in `Delivery`


class MoveTask(Struct, frozen=True, kw_only=True, gc=False):
    """One message move (redrive), as SQS reports it.

    Args:
        handle: names the task.
        source, to: queue names; `to` None sends each message back to the queue it came from.
        per_second_max: 1 to 500; None: as fast as possible.
        status: as SQS names it.
        to_move: messages counted at the start; moved: so far.
        failure: the reason, when its status is FAILED.
        started_at_ms: when it started.
    """

    handle: str
    source: str
    to: str | None
    per_second_max: int | None
    status: Literal["RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"]
    to_move: int
    moved: int
    started_at_ms: int
    failure: str | None = None


class Moved(Struct, frozen=True, gc=False):
    """One message that an operator moved: its old id, its new id and its new queue."""

    message_id: str
    new_message_id: str
    queue: str


class Edit(Struct, frozen=True, kw_only=True, gc=False):
    """A replacement of a message's body and attributes, during a move or in place.

    The message is trusted from then on, so an edit of an untrusted message must leave out its claims
    (`contracts/queue.CLAIMS`).

    Args:
        key: the business key that the message, and the reason that it carries, have from now on; None: as before.
    """

    body: str
    attributes: Mapping[str, Attribute]
    key: str | None = None


class Transferred(Struct, frozen=True, gc=False):
    """A message that moved from one queue to another without a send and a delete by a client.

    Args:
        message_id: its id before the move. source, target: queue names.
        receive_count: how often it had been received.
        new_message_id: its id after the move, if a task or an operator moved it; None: a receive dead-lettered it, so
            it kept its id.
    """

    message_id: str
    source: str
    target: str
    receive_count: int
    new_message_id: str | None = None


class Remembered(Struct, frozen=True, gc=False):
    """A deduplication id that a FIFO queue remembers.

    Args:
        message_id: the id of the first message that was sent with it; that message may be gone.
        sequence: that message's sequence number.
        accepted_at_ms: when that message was sent; until_ms: until when a duplicate is not delivered.
        dedup_id, group: as sent; None when the message is gone (only a digest is kept).
    """

    message_id: str
    sequence: str
    accepted_at_ms: int
    until_ms: int
    dedup_id: str | None = None
    group: str | None = None


class Roles(Struct, frozen=True, kw_only=True):
    """The role of each queue.

    Args:
        sources: queues that are neither the dead-letter queue nor the held queue of another one, by name.
        dead: dead-letter queue -> the queues it serves.
        held: held queue -> the queues it serves.
    """

    sources: Mapping[str, QueueSettings]
    dead: Mapping[str, tuple[str, ...]]
    held: Mapping[str, tuple[str, ...]]


def roles(settings: Mapping[str, QueueSettings]) -> Roles:
    """Group queues by their roles."""
    dead: dict[str, tuple[str, ...]] = {}
    held: dict[str, tuple[str, ...]] = {}
    for name, one in settings.items():
        if one.dead_letter not in (None, name):  # SQS allows a queue to be its own dead-letter queue
            dead[str(one.dead_letter)] = (*dead.get(str(one.dead_letter), ()), name)
        if one.held is not None:
            held[one.held] = (*held.get(one.held, ()), name)
    sources = {name: one for name, one in settings.items() if name not in dead and name not in held}
    return Roles(sources=sources, dead=dead, held=held)


class QueueAdmin(Protocol):
    """Operations for operators on all queues of a backend."""

    def create(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Create a queue; if it exists with equal settings, do nothing.

        Args:
            advised: also refuse what SQS only advises against (a dead-letter queue with short retention).

        Raises:
            ConflictError: it exists with other settings; names each difference.
            UsageError: a setting out of its range, a dead-letter queue of another type or with shorter retention.
            NotFoundError: its dead-letter queue does not exist.
        """
        ...

    def change(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Replace an existing queue's settings (its type never changes); `advised` as for `create`."""
        ...

    def settings(self) -> list[QueueSettings]:
        """All queues, by name."""
        ...

    def setting(self, queue: str) -> QueueSettings:
        """One queue's settings; costs the same with ten queues and with ten thousand.

        Raises:
            NotFoundError: the queue does not exist.
        """
        ...

    def drop(self, queue: str, *, referenced: bool = False) -> None:
        """Delete a queue with all its messages; `referenced`: even if other queues refer to it, which SQS allows."""
        ...

    def open(self, queue: str) -> Queue:
        """The object for sending to and receiving from one queue.

        Raises:
            NotFoundError: the queue does not exist.
        """
        ...

    def depth(self, queue: str) -> Depth:
        """See `Queue.depth`."""
        ...

    def depths(self, queues: Sequence[str]) -> list[Depth | None]:
        """The depth of each queue, in order, at one moment if the backend can; None if the queue does not exist."""
        ...

    def next_ready_ms(self, queue: str) -> int | None:
        """The next instant after now at which a receive may find more messages; None: no such instant is known."""
        ...

    def moving(self) -> bool:
        """Whether a move task is running."""
        ...

    def take_transfers(self) -> list[Transferred]:
        """The messages that this process's receives dead-lettered, and those it moved, since the last call, in order.

        At most 1,000 are remembered between two calls.
        """
        ...

    def message_ids(self, receipts: Sequence[str]) -> list[str]:
        """The message of each receipt.

        Raises:
            UsageError: a malformed receipt.
        """
        ...

    def dedup_memory(self, queue: str, *, limit: int = 100) -> list[Remembered]:
        """The deduplication ids that a FIFO queue remembers, the newest first; none for a standard queue."""
        ...

    def peek(self, queue: str, *, limit: int = 100, after: str | None = None) -> list[Peeked]:
        """Messages, oldest first; `after` a message id: only those that follow it. No receive is counted."""
        ...

    def of_group(self, queue: str, group: str, *, limit: int | None = None) -> list[Peeked]:
        """The messages of one FIFO group in a queue, in order, without messages that are not due yet.

        SQS shows the first ten of a group.

        Raises:
            NotFoundError: the queue does not exist.
        """
        ...

    def find(self, message_ids: Sequence[str]) -> list[Peeked | None]:
        """Each message, in whichever queue it is now."""
        ...

    def find_key(self, key: str, limit: int = 20) -> list[Peeked]:
        """Messages sent with this business key, in any queue."""
        ...

    def move(self, moves: Sequence[tuple[str, str | None, Edit | None]]) -> list[Moved | None]:
        """Move messages (id; target queue, or None for the queue it came from; edit or None); None for one that is gone."""
        ...

    def edit(self, message_id: str, edit: Edit) -> bool:
        """Replace a waiting message's body in place; False when it is gone or in flight."""
        ...

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """Delete messages by id, whatever their state."""
        ...

    def wake(self, message_ids: Sequence[str]) -> list[bool]:
        """Make messages visible now that were received and then hidden until later; False for all others.

        A message that a process is working on stays hidden, and so does a message that was sent for later delivery.
        Where a queue cannot do this without a receipt (SQS), the answer is False.
        """
        ...

    def purge(self, queue: str, *, only_ask: bool = False) -> int:
        """Delete every message and, on FIFO, the deduplication memory; returns how many messages there were.

        Args:
            only_ask: change nothing and return 0, or raise what a purge would raise; SQS does not support this.

        Raises:
            UsageError: purged less than 60 s ago (SQS: PurgeQueueInProgress).
        """
        ...

    def start_move(self, source: str, to: str | None = None, per_second_max: int | None = None) -> MoveTask:
        """Begin a move task; the errors are SQS's (not a dead-letter queue; one task at a time)."""
        ...

    def step_moves(self) -> int:
        """Continue running move tasks as far as their rate allows now; returns how many messages moved."""
        ...

    def moves(self, source: str) -> list[MoveTask]:
        """The tasks of a source queue, newest first."""
        ...

    def cancel_move(self, handle: str) -> MoveTask:
        """Stop a running task; messages that have moved are not moved back."""
        ...


class RecordAdmin(Protocol):
    """Operations for operators on a store."""

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first."""
        ...

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, whatever job and scope."""
        ...

    def settle(self, key: RecordKey, decision: ManualDecision, now_ms: int) -> bool:
        """Settle a parked unknown record as a person decided, or correct a result; False if neither is possible (any more).

        "Done" completes it with the decision's result; "not done" releases it, ends the doubt and resets the count of
        attempts, as for a redrive. With `corrects` a completed record gets another result; False when its result is not
        `corrects`. With `judged` only that hold is settled; False when another run is parked under the key by now.
        """
        ...

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """How many runs completed in [since_ms, now_ms), per job; counted by whole seconds, kept for a day."""
        ...
