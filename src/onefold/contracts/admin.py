"""Operator verbs beside the Queue and Store contracts: create, look, move, purge, scan. Nothing a worker needs per message.

A peek is not a receive: it changes no count and hides nothing. A move gives messages a new id and a new receive count, as
SQS's message move task does. Invariant: what an operator's verb did not name, it does not touch.
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
    trusted: bool = True  # as of a `Delivery`


class MoveTask(Struct, frozen=True, kw_only=True, gc=False):
    """One message move (redrive), as SQS reports it.

    Args:
        handle: names the task.
        source, to: queue names; `to` None sends each message back to the queue it came from.
        per_second_max: 1 to 500; None: as fast as it goes.
        status: SQS's word.
        to_move: messages counted at the start; moved: so far.
        failure: why it FAILED.
        started_at_ms: when.
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
    """One message that an operator moved: its old and new id and where it went."""

    message_id: str
    new_message_id: str
    queue: str


class Edit(Struct, frozen=True, kw_only=True, gc=False):
    """A replacement of a message's body and attributes, on the way of a move or in place.

    The message is trusted from then on: who edits a stranger's message leaves its claims out (`contracts/queue.CLAIMS`).
    """

    body: str
    attributes: Mapping[str, Attribute]


class Transferred(Struct, frozen=True, gc=False):
    """A message went from one queue to another without being sent and deleted by somebody.

    Args:
        message_id: the one it had. source, target: queue names.
        receive_count: how often it had been received.
        new_message_id: the one it has since, moved by a task or an operator; None: a receive dead-lettered it, and it
            keeps its own.
    """

    message_id: str
    source: str
    target: str
    receive_count: int
    new_message_id: str | None = None


class Remembered(Struct, frozen=True, gc=False):
    """A deduplication id that a FIFO queue remembers.

    Args:
        message_id: the first message's; it may be gone.
        sequence: the first message's.
        accepted_at_ms: when it was sent; until_ms: until when a duplicate is not delivered.
        dedup_id, group: as sent; None when the message is gone (only a digest is kept).
    """

    message_id: str
    sequence: str
    accepted_at_ms: int
    until_ms: int
    dedup_id: str | None = None
    group: str | None = None


class QueueAdmin(Protocol):
    """Operator verbs of a whole backend's queues."""

    def create(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Create a queue; again with equal settings does nothing.

        Args:
            advised: refuse too what SQS only advises against (a dead-letter queue with short retention).

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
            NotFoundError: no such queue.
        """
        ...

    def drop(self, queue: str, *, referenced: bool = False) -> None:
        """Delete a queue with everything in it; `referenced`: also when other queues name it, as SQS does."""
        ...

    def open(self, queue: str) -> Queue:
        """The hot-path object of one queue.

        Raises:
            NotFoundError: no such queue.
        """
        ...

    def depth(self, queue: str) -> Depth:
        """As Queue.depth."""
        ...

    def next_ready_ms(self, queue: str) -> int | None:
        """The next instant, later than now, at which a receive may find what it does not find now; None: none known."""
        ...

    def moving(self) -> bool:
        """Whether a move task is running."""
        ...

    def take_transfers(self) -> list[Transferred]:
        """What receives of this process dead-lettered, and what it moved, since the last call, in order.

        At most 1,000 are remembered for a process that never asks.
        """
        ...

    def message_ids(self, receipts: Sequence[str]) -> list[str]:
        """Which message each receipt names.

        Raises:
            UsageError: a malformed receipt.
        """
        ...

    def dedup_memory(self, queue: str, *, limit: int = 100) -> list[Remembered]:
        """What a FIFO queue remembers to deduplicate by, the newest first; nothing for a standard queue."""
        ...

    def peek(self, queue: str, *, limit: int = 100, after: str | None = None) -> list[Peeked]:
        """Messages from the oldest on, `after` a message id; no receive is counted."""
        ...

    def of_group(self, queue: str, group: str, *, limit: int | None = None) -> list[Peeked]:
        """The messages of one FIFO group in a queue, from its head on; those that are not due yet are not in it.

        SQS shows the first ten of a group.

        Raises:
            NotFoundError: no such queue.
        """
        ...

    def find(self, message_ids: Sequence[str]) -> list[Peeked | None]:
        """Each message wherever it is now."""
        ...

    def find_key(self, key: str, limit: int = 20) -> list[Peeked]:
        """Messages sent with this business key, in any queue."""
        ...

    def move(self, moves: Sequence[tuple[str, str | None, Edit | None]]) -> list[Moved | None]:
        """Move messages (id, target queue or None for where each came from, edit or None); None: no longer there."""
        ...

    def edit(self, message_id: str, edit: Edit) -> bool:
        """Replace a waiting message's body in place; False when it is gone or in flight."""
        ...

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """Delete messages by id, whatever their state."""
        ...

    def wake(self, message_ids: Sequence[str]) -> list[bool]:
        """Make messages visible now that were received, given back and hidden until later; False for all others.

        One that some process has in hand stays hidden, and so does one that was sent to be delivered later. Where a queue
        cannot do this without a receipt (SQS), the answer is False.
        """
        ...

    def purge(self, queue: str, *, only_ask: bool = False) -> int:
        """Delete every message and, on FIFO, the deduplication memory; how many there were.

        Args:
            only_ask: change nothing and answer 0, or raise what a purge would; SQS cannot be asked.

        Raises:
            UsageError: purged less than 60 s ago (SQS: PurgeQueueInProgress).
        """
        ...

    def start_move(self, source: str, to: str | None = None, per_second_max: int | None = None) -> MoveTask:
        """Begin a move task; errors as SQS gives them (not a dead-letter queue; one task at a time)."""
        ...

    def step_moves(self) -> int:
        """Carry running move tasks forward as far as their rate allows now; how many messages moved."""
        ...

    def moves(self, source: str) -> list[MoveTask]:
        """The tasks of a source queue, newest first."""
        ...

    def cancel_move(self, handle: str) -> MoveTask:
        """Stop a running task; what moved stays moved."""
        ...


class RecordAdmin(Protocol):
    """Operator verbs of a store."""

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first."""
        ...

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, whatever job and scope."""
        ...

    def settle(self, key: RecordKey, decision: ManualDecision, now_ms: int) -> bool:
        """End a parked unknown record by a person's word, or correct a result; False if neither is possible (any more).

        Done completes it with the decision's result; not done releases it, ends the doubt and closes the budget, as for a
        redrive. With `corrects` a completed record gets another result; False when it has another one than that.
        """
        ...

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """How many runs completed in [since_ms, now_ms), per job; counted by whole seconds, kept for a day."""
        ...
