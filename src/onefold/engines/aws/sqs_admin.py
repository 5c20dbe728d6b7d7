"""The operator's verbs over SQS: queues with their settings, looking, moving, editing, deleting, purging.

What SQS cannot do is described in each method: reading a queue receives its messages (`inspecting.py`), an edit or a
move of chosen messages is a copy with a new message id (`moving.py`), settings are attributes and a tag
(`catalogue.py`), and SQS does not report when the next message comes or what it remembers for deduplication.

Messages are searched for in the dead-letter and held queues of the prefix, and in the queue where this process last saw
them; never in a queue from which workers receive, unless a person named it in a `peek`. A dead letter is also found by
the id that it had before it was moved there, and copies of one move are treated as one message.

Never here: a worker's verbs (`sqs.py`). Invariant: a message that no call named is not touched, except that reading counts
as a receive.

Sources: SQS API reference, the operation in each method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import structs

from onefold import errors
from onefold.contracts.admin import Edit, Moved, Peeked, Transferred
from onefold.contracts.queue import Depth
from onefold.contracts.settings import QueueSettings, refuse_targets
from onefold.engines.aws import messages
from onefold.engines.aws.batches import cause_of, said
from onefold.engines.aws.inspecting import FRESH_MS, QueueInspector, SeenMessage
from onefold.engines.aws.messages import dead_letter_token, parse_receipt
from onefold.engines.aws.moving import Mover

if TYPE_CHECKING:
    from onefold.contracts.admin import MoveTask, Remembered
    from onefold.contracts.verbs import Queue
    from onefold.engines.aws.catalogue import QueueCatalogue
    from onefold.engines.aws.messages import Form, Received
    from onefold.engines.aws.payloads import Payloads
    from onefold.engines.aws.signing import Signer
    from onefold.outside import Clock, Entropy

_FOLLOWED_MAX: Final = 10_000  # messages moved by this process that `find` remembers
_TRANSFERS_MAX: Final = 1_000  # transfers remembered if the process never asks for them


class SqsQueues:
    """QueueAdmin over the queues of one region and prefix; made by `Sqs.admin`. Safe to call from any thread.

    Args:
        catalogue: names, URLs and settings of the queues.
        opened: opens a queue, or a bus, without asking whether it exists.
        payloads: where bodies over the limit are; None if they are refused.
        wait_s: long polling of receives, 0 to 20 seconds; readings wait at most one second.
        signer: signs what an operator edits. trusts: returns whether a message's claims are onefold's own.
        signed: returns a message as its copy is sent, signed if its claims are onefold's own.
    """

    def __init__(
        self,
        catalogue: QueueCatalogue,
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
        self._payloads = payloads
        self._inspector = QueueInspector(
            catalogue, clock=clock, payloads=payloads, wait_s=min(wait_s, 1), trusts=trusts
        )
        self._mover = Mover(
            catalogue, self._inspector, clock=clock, entropy=entropy, payloads=payloads, signer=signer, signed=signed
        )
        self._transfers: list[Transferred] = []
        self._sent_on: dict[str, tuple[SeenMessage, str]] = {}  # messages that this process moved, by their new ids
        self._shown: dict[str, set[str]] = {}  # for each queue, the ids on the pages of `peek` so far
        self._targets_kept: tuple[int, Mapping[str, Sequence[str]]] | None = None

    # -- queues --------------------------------------------------------------------------------------------------------

    def create(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """See `QueueCatalogue.create`. SQS lets a name be used again 60 s after a drop."""
        self._catalogue.create(settings, advised=advised)
        self._forget(settings.name)

    def change(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Like `QueueCatalogue.change`; SQS applies it within a minute, a retention within 15 minutes."""
        try:
            self._catalogue.change(settings, advised=advised)
        finally:
            self._forget(settings.name)

    def settings(self) -> list[QueueSettings]:
        """All queues with the prefix, by name; two calls for each."""
        return self._catalogue.every()

    def setting(self, queue: str) -> QueueSettings:
        """One queue's settings as SQS has them now; without `held` if sqs:ListQueueTags is not allowed.

        Raises:
            NotFoundError: the queue does not exist.
        """
        return self._catalogue.current(queue)

    def drop(self, queue: str, *, referenced: bool = False) -> None:
        """Delete a queue with everything in it; payloads in S3 stay, for the bucket's lifecycle rule.

        Raises:
            UsageError: another queue of this prefix sends messages there, unless `referenced`.
            NotFoundError: the queue does not exist.
        """
        url = self._catalogue.url(queue)
        if not referenced:
            refuse_targets(queue, self.settings())
        with self._catalogue.calling("DeleteQueue", queue) as client:
            client.delete_queue(QueueUrl=url)
        self._forget(queue)

    def _forget(self, queue: str) -> None:
        self._catalogue.forget(queue)
        self._inspector.forget(queue)
        self._targets_kept = None

    def open(self, queue: str) -> Queue:
        """The object for sending to and receiving from one queue, the same at every call; or to a bus.

        Raises:
            NotFoundError: the queue does not exist.
        """
        if ":" not in queue:  # every bus's location has a colon
            self._catalogue.url(queue)
        return self._opened(queue)

    def know(self, url: str) -> str:
        """Add a queue by its URL, even one that onefold did not create or outside the prefix; returns its name here."""
        return self._catalogue.know(url)

    def depth(self, queue: str) -> Depth:
        """See `Queue.depth`."""
        return self.open(queue).depth()

    def depths(self, queues: Sequence[str]) -> list[Depth | None]:
        """The depth of each queue, with one call to SQS for each; None if the queue does not exist."""
        found: list[Depth | None] = []
        for name in queues:
            try:
                found.append(self.depth(name))
            except errors.NotFoundError:
                found.append(None)
        return found

    def purge(self, queue: str, *, only_ask: bool = False) -> int:
        """Delete every message; returns about how many there were. Payloads in S3 stay, for the bucket's lifecycle rule.

        Args:
            only_ask: change nothing and return 0; it cannot be known whether SQS would refuse.

        Raises:
            UsageError: purged less than 60 s ago (SQS: PurgeQueueInProgress).
        """
        url = self._catalogue.url(queue)
        if only_ask:
            return 0
        depth = self.depth(queue)
        with self._catalogue.calling("PurgeQueue", queue) as client:
            client.purge_queue(QueueUrl=url)
        self._inspector.forget(queue)
        return depth.visible + depth.in_flight + depth.delayed

    # -- what SQS does not report --------------------------------------------------------------------------------------

    def next_ready_ms(self, queue: str) -> int | None:
        """Not known on SQS: None."""
        self._catalogue.url(queue)
        return None

    def dedup_memory(self, queue: str, *, limit: int = 100) -> list[Remembered]:  # noqa: ARG002 - the contract's
        """Not known on SQS: empty."""
        self._catalogue.url(queue)
        return []

    def take_transfers(self) -> list[Transferred]:
        """Messages that this process moved since the last call; SQS does not report those that it dead-lettered."""
        found, self._transfers = self._transfers, []
        return found

    def message_ids(self, receipts: Sequence[str]) -> list[str]:
        """The message id in each receipt.

        Raises:
            UsageError: a receipt is malformed.
        """
        return [parse_receipt(receipt).message_id for receipt in receipts]

    # -- messages ------------------------------------------------------------------------------------------------------

    def peek(self, queue: str, *, limit: int = 100, after: str | None = None) -> list[Peeked]:
        """Messages, oldest first, by receiving them for a moment: each reading counts a receive (see `inspecting.py`).

        Args:
            after: the last message id of the previous page; messages that were not on any page yet come next.

        Raises:
            NotFoundError: the queue does not exist. UsageError: `after` was not on any page that this process has
                shown.
        """
        if after is None:
            shown: set[str] = set()
            inspect = self._inspector.inspect(queue, limit, fresh=True)
        else:
            shown = self._shown.get(queue, set())
            if after not in shown:
                raise errors.UsageError(
                    f"{after!r} is not on a page of {queue!r} that this process has shown.",
                    todo="Begin again with the first page.",
                )
            kept = self._inspector.kept(queue)
            inspect = kept if kept is not None and kept.ended else self._inspector.inspect(queue, fresh=True)
        page = [one for one in inspect.seen if one.first.message_id not in shown][:limit]
        self._shown[queue] = shown | {one.first.message_id for one in page}
        return [self._inspector.peeked(one) for one in page]

    def of_group(self, queue: str, group: str, *, limit: int | None = None) -> list[Peeked]:
        """What a reading can see of a FIFO group: its first ten messages, or none while a consumer holds one."""
        found = [self._inspector.peeked(one) for one in self._inspector.inspect(queue, fresh=True).seen]
        return sorted((one for one in found if one.group == group), key=lambda one: one.sequence or "")[:limit]

    def find(self, message_ids: Sequence[str]) -> list[Peeked | None]:
        """Each message if it is in a dead-letter or held queue, even if it was moved there under a new id.

        A message that waits in a queue of workers is not found, because reading it there would take it from them. But a
        message that this process sent there counts as being there, received or not, until that queue is empty.
        """
        found = self._look_for(set(message_ids), fresh=False)
        followed = {one for one in message_ids if one not in found and one in self._sent_on}
        depths = {queue: self.depth(queue) for queue in {self._sent_on[one][1] for one in followed}}
        empty = {queue for queue, depth in depths.items() if not depth.visible + depth.in_flight + depth.delayed}
        over = {one for one in followed if self._sent_on[one][1] in empty}
        if over:  # they were processed, or dead-lettered since the last reading
            found |= self._look_for(over, fresh=True)
        for one in followed - over:
            found[one] = self._follow(one, depths[self._sent_on[one][1]])
        for one in over:
            self._sent_on.pop(one, None)
        return [found.get(one) for one in message_ids]

    def _look_for(self, wanted: set[str], *, fresh: bool) -> dict[str, Peeked]:
        searched = self._searched(wanted)
        found: dict[str, Peeked] = {}
        for sources, inspect in zip(
            searched.values(), self._inspector.inspect_all(list(searched), fresh=fresh), strict=True
        ):
            tokens = {
                dead_letter_token(self._catalogue.on_aws(source), one): one for source in sources for one in wanted
            }
            for seen in inspect.seen:
                named = _named(seen, wanted, tokens)
                if named is not None and named not in found:
                    found[named] = self._inspector.peeked(seen)
        return found

    def _follow(self, message_id: str, depth: Depth) -> Peeked:
        """A message that was moved to a queue of workers, as far as the queue's numbers show."""
        seen, queue = self._sent_on[message_id]
        received = depth.in_flight > 0 or not depth.visible
        return structs.replace(
            self._inspector.peeked(seen),
            queue=queue,
            message_id=message_id,
            state="in_flight" if received else "visible",
            receive_count=int(received),
            source=None,
            reason=None,
        )

    def find_key(self, key: str, limit: int = 20) -> list[Peeked]:
        """Messages with this business key in the dead-letter and held queues; others cannot be searched."""
        snapshots = self._inspector.inspect_all(list(self._searched(())))
        fitting = [one for inspect in snapshots for one in inspect.seen if one.first.form.key == key]
        return [self._inspector.peeked(one) for one in fitting[:limit]]

    def _searched(self, message_ids: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """The queues to search, each with the queues whose messages are dead-lettered or held there."""
        found: dict[str, list[str]] = {}
        for message_id in message_ids:
            queue = self._inspector.queue_of(message_id)
            if queue is not None:
                found.setdefault(queue, [])
        for queue, sources in self._dead_letter_targets().items():
            found.setdefault(queue, []).extend(sources)
        return found

    def _dead_letter_targets(self) -> Mapping[str, Sequence[str]]:
        """The existing dead-letter and held queues, with the queues that name them; asked again after a few seconds."""
        now_ms = self._clock.monotonic_ms()
        if self._targets_kept is None or now_ms - self._targets_kept[0] >= FRESH_MS:
            found: dict[str, list[str]] = {}
            every = self.settings()
            names = {one.name for one in every}
            for one in every:
                for target in (one.dead_letter, one.held):
                    if target is not None and (target in names or self._catalogue.is_there(target)):
                        found.setdefault(target, []).append(one.name)
            self._targets_kept = (now_ms, found)
        return self._targets_kept[1]

    # -- moving chosen messages ----------------------------------------------------------------------------------------

    def move(self, moves: Sequence[tuple[str, str | None, Edit | None]]) -> list[Moved | None]:
        """Move messages by copy, each given as id, target (None: the queue it came from) and edit (None: none).

        Returns None for a message that was not found: it is gone, in flight, or beyond the first ten of its FIFO group.
        The call does not limit its rate; the caller does.

        Raises:
            UsageError: a message has no source to return to, or the target is of the other type. Nothing was moved.
            NotFoundError: the target does not exist. TransientError: not all were sent; the others stay.
        """
        asked = {message_id: (target, edit) for message_id, target, edit in moves}
        found: dict[str, Moved] = {}
        for queue, taken in self._taken(list(asked)).items():
            try:
                ready = [(seen, asked[one][0] or self._way_back(seen), asked[one][1]) for one, seen in taken.items()]
                new_ids = self._mover.send_on(queue, ready)
            except errors.UsageError:
                self._inspector.release(queue, [copy for seen in taken.values() for copy in seen.copies])
                raise
            for (message_id, seen), (_, to, _), new_id in zip(taken.items(), ready, new_ids, strict=True):
                if new_id is not None:
                    found[message_id] = Moved(message_id, new_id, to)
                    self._note_moved(seen, to, new_id)
                else:
                    self._inspector.release(queue, seen.copies)
        return [found.get(message_id) for message_id, _, _ in moves]

    def _way_back(self, seen: SeenMessage) -> str:
        target = self._mover.way_back(seen)
        if target is None:
            raise errors.UsageError(
                f"It is not known which queue message {seen.first.message_id} of {seen.queue!r} came from.",
                meaning="Nothing was moved.",
                todo="Name the queue it should go to.",
            )
        return target

    def _note_moved(self, seen: SeenMessage, target: str, new_id: str) -> None:
        """Remember a message that was moved."""
        got = seen.first
        self._sent_on[new_id] = (seen, target)
        while len(self._sent_on) > _FOLLOWED_MAX:
            del self._sent_on[next(iter(self._sent_on))]
        self._transfers.append(Transferred(got.message_id, seen.queue, target, got.receive_count, new_id))
        del self._transfers[:-_TRANSFERS_MAX]

    def _taken(self, message_ids: Sequence[str]) -> dict[str, dict[str, SeenMessage]]:
        """Messages received for this call, by queue and by the id with which they were asked for."""
        missing = set(message_ids)
        found: dict[str, dict[str, SeenMessage]] = {}
        for queue in self._queues_of(message_ids):
            if not missing:
                break
            wanted = self._with_copies(queue, missing)
            taken = self._inspector.take(queue, lambda one, ids=wanted: one.message_id in ids, len(wanted))  # type: ignore[misc]
            named = {one: seen for seen in taken for one in (_named(seen, missing, {}),) if one is not None}
            found[queue] = named
            missing -= set(named)
        return found

    def _queues_of(self, message_ids: Sequence[str]) -> list[str]:
        """Where to look for messages: in the queues where they were seen, and in all if one was not seen anywhere."""
        known = {one: self._inspector.queue_of(one) for one in message_ids}
        queues = list(dict.fromkeys(queue for queue in known.values() if queue is not None))
        if None in known.values():
            queues += [queue for queue in self._searched(()) if queue not in queues]
        return queues

    def _with_copies(self, queue: str, wanted: set[str]) -> set[str]:
        """The wanted ids, and the ids of all other copies of the same messages that a reading saw."""
        kept = self._inspector.kept(queue)
        found = set(wanted)
        for one in () if kept is None else kept.seen:
            copies = {copy.message_id for copy in one.copies}
            if wanted & copies:
                found |= copies
        return found

    def edit(self, message_id: str, edit: Edit) -> bool:
        """Replace a waiting message by an edited copy in the same queue, with a new id; False if it was not found.

        Raises:
            UsageError: the queue would not accept it. TransientError: nothing was changed.
        """
        for queue, taken in self._taken([message_id]).items():
            for seen in taken.values():
                (new_id,) = self._mover.send_on(queue, [(seen, queue, edit)], keep_reason=True)
                if new_id is None:
                    self._inspector.release(queue, seen.copies)
                else:
                    self._inspector.is_at(new_id, queue)
                return new_id is not None
        return False

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """Delete messages by id, with their payloads; False if not found."""
        removed: set[str] = set()
        for queue, taken in self._taken(message_ids).items():
            copies = [copy for seen in taken.values() for copy in seen.copies]
            deleted = self._inspector.delete(queue, copies)
            stored = [pointer for copy in copies if (pointer := messages.read_pointer(copy.form)) is not None]
            if self._payloads is not None:
                keys = [pointer[1] for pointer in set(stored) if self._payloads.is_ours(*pointer)]
                self._payloads.delete_of(queue, keys, self._catalogue.dead_letters_to)
            removed |= {one for one, seen in taken.items() if seen.first.message_id in deleted}
        return [one in removed for one in message_ids]

    def wake(self, message_ids: Sequence[str]) -> list[bool]:
        """False for all: SQS changes a visibility only by receipt."""
        return [False] * len(message_ids)

    # -- move tasks ----------------------------------------------------------------------------------------------------

    def start_move(self, source: str, to: str | None = None, per_second_max: int | None = None) -> MoveTask:
        """Begin a move task: SQS's own if SQS can do it, otherwise a copy that `step_moves` carries out.

        Raises:
            UsageError: as on SQS, the source is not a dead-letter queue, or has a task running.
            NotFoundError: the queue does not exist.
        """
        try:
            return self._mover.start(source, to, per_second_max)
        except errors.UsageError as error:
            if cause_of(error) and not isinstance(error, errors.NotFoundError):
                raise errors.UsageError(said(error), meaning="Nothing was moved.", todo=error.todo) from error.__cause__
            raise

    def step_moves(self) -> int:
        """Continue this process's copy tasks as far as their rate allows now; returns how many messages moved."""
        done = self._mover.step()
        for seen, target, new_id in done:
            self._note_moved(seen, target, new_id)
        return len(done)

    def moving(self) -> bool:
        """Whether a move task is running from a dead-letter queue of this prefix."""
        return self._mover.running(sorted({one.dead_letter for one in self.settings() if one.dead_letter is not None}))

    def moves(self, source: str) -> list[MoveTask]:
        """The tasks of a source queue, newest first: SQS's last ten, and this process's copies."""
        return self._mover.tasks(source)

    def cancel_move(self, handle: str) -> MoveTask:
        """Stop a running task; messages that have moved are not moved back.

        Raises:
            NotFoundError: the task does not exist. UsageError: it is not running.
        """
        return self._mover.cancel(handle)


def _named(seen: SeenMessage, wanted: set[str], tokens: Mapping[str, str]) -> str | None:
    """Which wanted id names this message: its own, one of its copies', or the one from before it was dead-lettered."""
    for copy in seen.copies:
        if copy.message_id in wanted:
            return copy.message_id
    return tokens.get(seen.first.form.token or "")
