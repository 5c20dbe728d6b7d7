"""Chosen messages of SQS queues: found, sent on, edited, deleted, one by one.

Searched are the dead-letter and held queues of the prefix, and the queue where this process last saw a message; never a
queue that workers receive from, unless a person named it in a `peek`. A letter is also found by the id it had before it was
buried, and copies of one burial are dealt with as one.

Never here: move tasks, settings. Invariant: a message that no call named is not touched, beyond the receive that a look
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import structs

from onefold import errors
from onefold.backends.aws import messages
from onefold.backends.aws.catalogue import Catalogue
from onefold.backends.aws.entries import burial_token
from onefold.backends.aws.looking import FRESH_MS, Looker, Seen
from onefold.backends.aws.moving import Mover
from onefold.backends.aws.payloads import Payloads
from onefold.contracts.admin import Edit, Moved, Peeked, Transferred
from onefold.contracts.queue import Depth
from onefold.contracts.settings import QueueSettings

if TYPE_CHECKING:
    from onefold.outside import Clock

_FOLLOWED_MAX: Final = 10_000  # messages sent on by this process that `find` still knows
_TOLD_MAX: Final = 1_000  # transfers remembered for a process that never asks


class Finder:
    """Chosen messages of one catalogue's queues.

    Args:
        every: settings of all queues of the prefix. depth: numbers of one queue.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        looker: Looker,
        mover: Mover,
        *,
        every: Callable[[], Sequence[QueueSettings]],
        depth: Callable[[str], Depth],
        clock: Clock,
        payloads: Payloads | None,
    ) -> None:
        self._catalogue = catalogue
        self._looker = looker
        self._mover = mover
        self._every = every
        self._depth = depth
        self._clock = clock
        self._payloads = payloads
        self._transfers: list[Transferred] = []
        self._sent_on: dict[str, tuple[Seen, str]] = {}
        self._shown: dict[str, set[str]] = {}
        self._graves_kept: tuple[int, Mapping[str, Sequence[str]]] | None = None

    def forget(self) -> None:
        """Queues were made, changed or dropped."""
        self._graves_kept = None

    def take_transfers(self) -> list[Transferred]:
        """What was moved since the last call."""
        found, self._transfers = self._transfers, []
        return found

    # -- looking -------------------------------------------------------------------------------------------------------

    def peek(self, queue: str, limit: int, after: str | None) -> list[Peeked]:
        """Messages from the oldest on, by receiving them for a moment: each look counts a receive (see `looking.py`).

        Args:
            after: the last message id of the page before; what was not on a page yet comes next.

        Raises:
            NotFoundError: no such queue. UsageError: `after` was on no page of this process.
        """
        if after is None:
            shown: set[str] = set()
            look = self._looker.look(queue, limit, fresh=True)
        else:
            shown = self._shown.get(queue, set())
            if after not in shown:
                raise errors.UsageError(
                    f"{after!r} was not shown of {queue!r} by this process.", todo="Begin again with the first page."
                )
            kept = self._looker.kept(queue)
            look = kept if kept is not None and kept.ended else self._looker.look(queue, fresh=True)
        page = [one for one in look.seen if one.first.message_id not in shown][:limit]
        self._shown[queue] = shown | {one.first.message_id for one in page}
        return [self._looker.peeked(one) for one in page]

    def of_group(self, queue: str, group: str) -> list[Peeked]:
        """What a look sees of a FIFO group: its first ten messages, none while a consumer holds one of them."""
        found = [self._looker.peeked(one) for one in self._looker.look(queue, fresh=True).seen]
        return sorted((one for one in found if one.group == group), key=lambda one: one.sequence or "")

    def find(self, message_ids: Sequence[str]) -> list[Peeked | None]:
        """Each message in the dead-letter and held queues, also when it was buried there under a new id.

        One that waits in a working queue is not found: nobody can look there without taking it from the workers. But one
        that this process sent there counts as being there, received or not, until that queue is empty.
        """
        found = self._look_for(set(message_ids), fresh=False)
        followed = {one for one in message_ids if one not in found and one in self._sent_on}
        depths = {queue: self._depth(queue) for queue in {self._sent_on[one][1] for one in followed}}
        empty = {queue for queue, depth in depths.items() if not depth.visible + depth.in_flight + depth.delayed}
        over = {one for one in followed if self._sent_on[one][1] in empty}
        if over:  # they are done, or buried since the last look
            found |= self._look_for(over, fresh=True)
        for one in followed - over:
            found[one] = self._follow(one, depths[self._sent_on[one][1]])
        for one in over:
            self._sent_on.pop(one, None)
        return [found.get(one) for one in message_ids]

    def _look_for(self, wanted: set[str], *, fresh: bool) -> dict[str, Peeked]:
        searched = self._searched(wanted)
        found: dict[str, Peeked] = {}
        for sources, look in zip(searched.values(), self._looker.look_into(list(searched), fresh=fresh), strict=True):
            tokens = {burial_token(self._catalogue.on_aws(source), one): one for source in sources for one in wanted}
            for seen in look.seen:
                named = _named(seen, wanted, tokens)
                if named is not None and named not in found:
                    found[named] = self._looker.peeked(seen)
        return found

    def _follow(self, message_id: str, depth: Depth) -> Peeked:
        """A message that was sent on to a working queue, as far as the queue's numbers tell."""
        seen, queue = self._sent_on[message_id]
        received = depth.in_flight > 0 or not depth.visible
        return structs.replace(
            self._looker.peeked(seen),
            queue=queue,
            message_id=message_id,
            state="in_flight" if received else "visible",
            receive_count=int(received),
            source=None,
            reason=None,
        )

    def find_key(self, key: str, limit: int) -> list[Peeked]:
        """Messages with this business key in the dead-letter and held queues; others cannot be searched."""
        looks = self._looker.look_into(list(self._searched(())))
        fitting = [one for look in looks for one in look.seen if one.first.form.key == key]
        return [self._looker.peeked(one) for one in fitting[:limit]]

    def _searched(self, message_ids: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Queues to search, each with the queues whose messages are buried there."""
        found: dict[str, list[str]] = {}
        for message_id in message_ids:
            place = self._looker.place_of(message_id)
            if place is not None:
                found.setdefault(place, [])
        for queue, sources in self._graves().items():
            found.setdefault(queue, []).extend(sources)
        return found

    def _graves(self) -> Mapping[str, Sequence[str]]:
        """Dead-letter and held queues that exist, with the queues that name them; asked again after a few seconds."""
        now_ms = self._clock.monotonic_ms()
        if self._graves_kept is None or now_ms - self._graves_kept[0] >= FRESH_MS:
            found: dict[str, list[str]] = {}
            every = self._every()
            names = {one.name for one in every}
            for one in every:
                for target in (one.dead_letter, one.held):
                    if target is not None and (target in names or self._catalogue.is_there(target)):
                        found.setdefault(target, []).append(one.name)
            self._graves_kept = (now_ms, found)
        return self._graves_kept[1]

    # -- moving --------------------------------------------------------------------------------------------------------

    def move(self, moves: Sequence[tuple[str, str | None, Edit | None]]) -> list[Moved | None]:
        """Send messages on by copy (id, target or None for where each came from, edit or None); None: not found.

        A message that is not found is gone, in flight, or beyond the first ten of its FIFO group. Waits nowhere: the caller
        keeps the rate.

        Raises:
            UsageError: no source to go back to, or a target of the other type. Nothing was moved.
            NotFoundError: no such target. TransientError: not all were sent; what was not stays.
        """
        asked = {message_id: (target, edit) for message_id, target, edit in moves}
        found: dict[str, Moved] = {}
        for queue, taken in self._taken(list(asked)).items():
            try:
                ready = [(seen, asked[one][0] or self._way_back(seen), asked[one][1]) for one, seen in taken.items()]
                new_ids = self._mover.send_on(queue, ready)
            except errors.UsageError:
                self._looker.release(queue, [copy for seen in taken.values() for copy in seen.copies])
                raise
            for (message_id, seen), (_, to, _), new_id in zip(taken.items(), ready, new_ids, strict=True):
                if new_id is not None:
                    found[message_id] = Moved(message_id, new_id, to)
                    self.tell(seen, to, new_id)
                else:
                    self._looker.release(queue, seen.copies)
        return [found.get(message_id) for message_id, _, _ in moves]

    def _way_back(self, seen: Seen) -> str:
        target = self._mover.way_back(seen)
        if target is None:
            raise errors.UsageError(
                f"Nobody knows which queue message {seen.first.message_id} of {seen.queue!r} came from.",
                meaning="Nothing was moved.",
                todo="Name the queue it is to go to.",
            )
        return target

    def tell(self, seen: Seen, target: str, new_id: str) -> None:
        """Note a message that was sent on."""
        got = seen.first
        self._sent_on[new_id] = (seen, target)
        while len(self._sent_on) > _FOLLOWED_MAX:
            del self._sent_on[next(iter(self._sent_on))]
        self._transfers.append(Transferred(got.message_id, seen.queue, target, got.receive_count, new_id))
        del self._transfers[:-_TOLD_MAX]

    def _taken(self, message_ids: Sequence[str]) -> dict[str, dict[str, Seen]]:
        """Messages held for us, by queue and the id they were asked by."""
        missing = set(message_ids)
        found: dict[str, dict[str, Seen]] = {}
        for queue in self._places(message_ids):
            if not missing:
                break
            wanted = self._with_copies(queue, missing)
            taken = self._looker.take(queue, lambda one, ids=wanted: one.message_id in ids, len(wanted))  # type: ignore[misc]
            named = {one: seen for seen in taken for one in (_named(seen, missing, {}),) if one is not None}
            found[queue] = named
            missing -= set(named)
        return found

    def _places(self, message_ids: Sequence[str]) -> list[str]:
        """Where to take them from: where they were seen; the rest of the queues only for what was seen nowhere."""
        known = {one: self._looker.place_of(one) for one in message_ids}
        places = list(dict.fromkeys(place for place in known.values() if place is not None))
        if None in known.values():
            places += [queue for queue in self._searched(()) if queue not in places]
        return places

    def _with_copies(self, queue: str, wanted: set[str]) -> set[str]:
        """The ids that are wanted, and those of all other copies of their burials that were seen."""
        kept = self._looker.kept(queue)
        found = set(wanted)
        for one in () if kept is None else kept.seen:
            copies = {copy.message_id for copy in one.copies}
            if wanted & copies:
                found |= copies
        return found

    def edit(self, message_id: str, edit: Edit) -> bool:
        """Replace a waiting message's body by sending an edited copy to the same queue, with a new id; False: not found.

        Raises:
            UsageError: the queue would not accept it. TransientError: nothing was changed.
        """
        for queue, taken in self._taken([message_id]).items():
            for seen in taken.values():
                (new_id,) = self._mover.send_on(queue, [(seen, queue, edit)], keep_reason=True)
                if new_id is None:
                    self._looker.release(queue, seen.copies)
                else:
                    self._looker.is_at(new_id, queue)
                return new_id is not None
        return False

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """Delete messages by id, with their payloads; False: not found."""
        removed: set[str] = set()
        for queue, taken in self._taken(message_ids).items():
            copies = [copy for seen in taken.values() for copy in seen.copies]
            deleted = self._looker.delete(queue, copies)
            stored = [place for copy in copies if (place := messages.read_pointer(copy.form)) is not None]
            if self._payloads is not None:
                keys = [place[1] for place in set(stored) if self._payloads.is_ours(*place)]
                self._payloads.delete_of(queue, keys, self._catalogue.buries_in)
            removed |= {one for one, seen in taken.items() if seen.first.message_id in deleted}
        return [one in removed for one in message_ids]


def _named(seen: Seen, wanted: set[str], tokens: Mapping[str, str]) -> str | None:
    """By which of the wanted ids a message goes: its own, one of its copies', or the one it was buried under."""
    for copy in seen.copies:
        if copy.message_id in wanted:
            return copy.message_id
    return tokens.get(seen.first.form.token or "")
