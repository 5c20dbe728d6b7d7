"""The operator's verbs over SQS: queues with their settings, looking, moving, purging.

What SQS cannot do is said in the method: a look is a receive (`looking.py`, `finding.py`), an edit or a chosen move is a
copy with a new message id (`moving.py`), settings are attributes and a tag (`making.py`), and nothing tells when the next
message comes or what is remembered for deduplication.

Never here: a worker's verbs (`sqs.py`). Invariant: a message that no call named is not touched, beyond the receive that a
look counts.

Sources: SQS API reference, the operation in each method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onefold import errors
from onefold.backends.aws.batches import cause_of, said
from onefold.backends.aws.messages import parse_receipt

if TYPE_CHECKING:
    from onefold.backends.aws.catalogue import Catalogue
    from onefold.backends.aws.finding import Finder
    from onefold.backends.aws.looking import Looker
    from onefold.backends.aws.making import Maker
    from onefold.backends.aws.messages import Form, Received
    from onefold.backends.aws.moving import Mover
    from onefold.backends.aws.payloads import Payloads
    from onefold.backends.aws.signing import Signer
    from onefold.contracts.admin import Edit, Moved, MoveTask, Peeked, Remembered, Transferred
    from onefold.contracts.queue import Depth
    from onefold.contracts.settings import QueueSettings
    from onefold.contracts.verbs import Queue
    from onefold.outside import Clock, Entropy


class SqsQueues:
    """QueueAdmin over the queues of one region and prefix; made by `Sqs.admin`. Safe to call from any thread.

    Args:
        catalogue: names, URLs and settings of the queues.
        opened: a queue's hot-path object, or a bus's, whether it is there or not.
        payloads: where bodies over the limit lie; None: nowhere.
        wait_s: long polling of receives, 0 to 20 seconds; looks wait at most one.
        signer: signs what an operator edits. trusts: whether a message's claims are onefold's own; signed: a message as a
            copy of it is sent, signed if they are.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        opened: Callable[[str], Queue],
        *,
        clock: Clock,
        entropy: Entropy,
        payloads: Payloads | None,
        wait_s: int,
        signer: Callable[[], Signer],
        trusts: Callable[[Form, str, int], bool],
        signed: Callable[[Received], Form],
    ) -> None:
        self._catalogue = catalogue
        self._opened = opened
        self._clock = clock
        self._entropy = entropy
        self._payloads = payloads
        self._wait_s = wait_s
        self._signer = signer
        self._trusts = trusts
        self._signed = signed
        self._lock = threading.Lock()
        self._rooms: tuple[Looker, Mover, Finder, Maker] | None = None

    def _operators(self) -> tuple[Looker, Mover, Finder, Maker]:
        """What looks, moves, finds and makes queues: first when asked for, as a worker needs none of it."""
        from onefold.backends.aws.finding import Finder
        from onefold.backends.aws.looking import Looker
        from onefold.backends.aws.making import Maker
        from onefold.backends.aws.moving import Mover

        with self._lock:
            if self._rooms is None:
                catalogue, clock, payloads = self._catalogue, self._clock, self._payloads
                looker = Looker(
                    catalogue, clock=clock, payloads=payloads, wait_s=min(self._wait_s, 1), trusts=self._trusts
                )
                mover = Mover(
                    catalogue,
                    looker,
                    clock=clock,
                    entropy=self._entropy,
                    payloads=payloads,
                    signer=self._signer,
                    signed=self._signed,
                )
                finder = Finder(
                    catalogue, looker, mover, every=self.settings, depth=self.depth, clock=clock, payloads=payloads
                )
                maker = Maker(catalogue, sources=mover.sources, forget=self._forget)
                self._rooms = looker, mover, finder, maker
            return self._rooms

    @property
    def _looker(self) -> Looker:
        return self._operators()[0]

    @property
    def _mover(self) -> Mover:
        return self._operators()[1]

    @property
    def _finder(self) -> Finder:
        return self._operators()[2]

    @property
    def _maker(self) -> Maker:
        return self._operators()[3]

    # -- queues --------------------------------------------------------------------------------------------------------

    def create(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """As `Maker.create`. SQS lets a name be used again 60 s after a drop."""
        self._maker.create(settings, advised=advised)

    def change(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """As `Maker.change`; SQS takes up to a minute, for retention up to 15."""
        self._maker.change(settings, advised=advised)

    def settings(self) -> list[QueueSettings]:
        """All queues with the prefix, by name; two calls for each."""
        return self._maker.settings()

    def setting(self, queue: str) -> QueueSettings:
        """As `Maker.setting`.

        Raises:
            NotFoundError: no such queue.
        """
        return self._maker.setting(queue)

    def drop(self, queue: str, *, referenced: bool = False) -> None:
        """Delete a queue with everything in it; payloads in S3 stay, for the bucket's lifecycle rule.

        Raises:
            UsageError: another queue of this prefix sends messages there, unless `referenced`.
            NotFoundError: no such queue.
        """
        url = self._catalogue.url(queue)
        if not referenced:
            users = [other.name for other in self.settings() if queue in (other.dead_letter, other.held)]
            if users:
                raise errors.UsageError(
                    f"Queue {queue!r} cannot be dropped: {', '.join(users)} would send messages there.",
                    meaning="Nothing was changed.",
                    todo="Change those queues first.",
                )
        with self._catalogue.calling("DeleteQueue", queue) as client:
            client.delete_queue(QueueUrl=url)
        self._forget(queue)

    def _forget(self, queue: str) -> None:
        self._catalogue.forget(queue)
        self._looker.forget(queue)
        self._finder.forget()

    def open(self, queue: str) -> Queue:
        """The hot-path object of one queue; the same one at every call. A bus's place opens EventBridge's PutEvents.

        Raises:
            NotFoundError: no such queue.
        """
        if ":" not in queue:  # as in every bus's place
            self._catalogue.url(queue)
        return self._opened(queue)

    def know(self, url: str) -> str:
        """Take in a queue by its URL, whoever made it, also outside the prefix; its name for all other verbs."""
        return self._catalogue.know(url)

    def depth(self, queue: str) -> Depth:
        """As Queue.depth."""
        return self.open(queue).depth()

    def purge(self, queue: str, *, only_ask: bool = False) -> int:
        """Delete every message; about how many there were. Payloads in S3 stay, for the bucket's lifecycle rule.

        Args:
            only_ask: change nothing and answer 0; whether SQS would refuse cannot be known.

        Raises:
            UsageError: purged less than 60 s ago (SQS: PurgeQueueInProgress).
        """
        url = self._catalogue.url(queue)
        if only_ask:
            return 0
        depth = self.depth(queue)
        with self._catalogue.calling("PurgeQueue", queue) as client:
            client.purge_queue(QueueUrl=url)
        self._looker.forget(queue)
        return depth.visible + depth.in_flight + depth.delayed

    # -- what SQS does not tell ----------------------------------------------------------------------------------------

    def next_ready_ms(self, queue: str) -> int | None:
        """Not known on SQS: None."""
        self._catalogue.url(queue)
        return None

    def dedup_memory(self, queue: str, *, limit: int = 100) -> list[Remembered]:  # noqa: ARG002 - the contract's
        """SQS does not tell: nothing."""
        self._catalogue.url(queue)
        return []

    def take_transfers(self) -> list[Transferred]:
        """What this process moved since the last call; SQS does not tell what receives dead-lettered."""
        return self._finder.take_transfers()

    def message_ids(self, receipts: Sequence[str]) -> list[str]:
        """Which message each receipt names.

        Raises:
            UsageError: a malformed receipt.
        """
        return [parse_receipt(receipt).message_id for receipt in receipts]

    # -- messages ------------------------------------------------------------------------------------------------------

    def peek(self, queue: str, *, limit: int = 100, after: str | None = None) -> list[Peeked]:
        """As `Finder.peek`: each look counts a receive."""
        return self._finder.peek(queue, limit, after)

    def of_group(self, queue: str, group: str, *, limit: int | None = None) -> list[Peeked]:
        """The first ten messages of a FIFO group, by a look that receives what it sees (`looking.py`)."""
        return self._finder.of_group(queue, group)[:limit]

    def find(self, message_ids: Sequence[str]) -> list[Peeked | None]:
        """As `Finder.find`: in dead-letter and held queues."""
        return self._finder.find(message_ids)

    def find_key(self, key: str, limit: int = 20) -> list[Peeked]:
        """As `Finder.find_key`: in dead-letter and held queues."""
        return self._finder.find_key(key, limit)

    def move(self, moves: Sequence[tuple[str, str | None, Edit | None]]) -> list[Moved | None]:
        """As `Finder.move`: by copy."""
        return self._finder.move(moves)

    def edit(self, message_id: str, edit: Edit) -> bool:
        """As `Finder.edit`: by copy, with a new id."""
        return self._finder.edit(message_id, edit)

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """As `Finder.remove`."""
        return self._finder.remove(message_ids)

    def wake(self, message_ids: Sequence[str]) -> list[bool]:
        """None of them: SQS changes a visibility by receipt only."""
        return [False] * len(message_ids)

    # -- move tasks ----------------------------------------------------------------------------------------------------

    def start_move(self, source: str, to: str | None = None, per_second_max: int | None = None) -> MoveTask:
        """Begin a move task: SQS's own where it can do it, else a copy that `step_moves` carries out.

        Raises:
            UsageError: as SQS: the source is no dead-letter queue, or has a task running.
            NotFoundError: no such queue.
        """
        try:
            return self._mover.start(source, to, per_second_max)
        except errors.UsageError as error:
            if cause_of(error) and not isinstance(error, errors.NotFoundError):
                raise errors.UsageError(said(error), meaning="Nothing was moved.", todo=error.todo) from error.__cause__
            raise

    def step_moves(self) -> int:
        """Carry this process's copies forward as far as their rate allows now; how many messages moved."""
        if self._rooms is None:
            return 0
        done = self._mover.step()
        for seen, target, new_id in done:
            self._finder.tell(seen, target, new_id)
        return len(done)

    def moving(self) -> bool:
        """Whether a move task is running from a dead-letter queue of this prefix."""
        return self._mover.running(sorted({one.dead_letter for one in self.settings() if one.dead_letter is not None}))

    def moves(self, source: str) -> list[MoveTask]:
        """The tasks of a source queue, newest first: SQS's last ten, and this process's copies."""
        return self._mover.tasks(source)

    def cancel_move(self, handle: str) -> MoveTask:
        """Stop a running task; what moved stays moved.

        Raises:
            NotFoundError: no such task. UsageError: it is not running.
        """
        return self._mover.cancel(handle)
