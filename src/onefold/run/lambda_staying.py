"""What becomes of messages that are not done in a queue whose messages Lambda holds: hidden, sent again, moved.

Lambda deletes what the answer does not name and hides nothing, so the visibility of what stays is changed here, and what is
buried is moved here; then it is done. What cannot be hidden or moved now stays, and comes back when its visibility ends.

Waiting costs receives here. A message that only waits and is about to be given up by its queue is therefore sent again,
delayed, as a new one with the same key, and then deleted: its attempts are in the record. Not on FIFO queues, where it
would lose its place.
Never here: what becomes of a message. Invariant: a message is noted as done only when it is in another place, durably.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from onefold import errors
from onefold.contracts.entries import Entry, Sent
from onefold.limits import DELAY_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onefold.contracts.queue import Bury, Delivery, RetryIn
    from onefold.contracts.verbs import Queue

    Told = Callable[[str, int, errors.OnefoldError], None]
    """Is told the queue, how many of its messages could not be hidden or moved, and why."""

    class Notes(Protocol):  # not `Answered` itself: its module imports this one
        """What is noted of an invocation's messages; `Answered` does."""

        def waiting(self, receipt: str, change: RetryIn, receives_max: int | None) -> Delivery | None:
            """The message, when it only waits and its queue would give it up soon; else None."""
            ...

        def note_hidden(self, receipt: str, delay_ms: int) -> None:
            """It stays, and was hidden."""
            ...

        def note_done(self, queue: str, receipts: Iterable[str], *, gone: bool = False) -> None:
            """These may be deleted. `gone`: they are in another queue now, and in this one no more."""
            ...


def hide(
    queue: Queue, notes: Notes, failed: Told, changes: Sequence[tuple[str, RetryIn]], receives_max: int | None
) -> list[bool]:
    """As the queue's own `set_visible_in`; what only waits and has no receives left is sent again instead.

    Args:
        receives_max: how many receives the queue's dead-letter policy allows; None: waiting is never the last of them.
    """
    found = [notes.waiting(receipt, change, receives_max) for receipt, change in changes]
    again = [(one, change) for one, (_, change) in zip(found, changes, strict=True) if one is not None]
    moved = _send_again(queue, notes, failed, again) if again else set()
    rest = [(receipt, change) for receipt, change in changes if receipt not in moved]
    if not rest:
        return [True] * len(changes)
    try:
        answers = dict(zip((receipt for receipt, _ in rest), queue.set_visible_in(rest), strict=True))
    except errors.OnefoldError as error:
        failed(queue.name, len(rest), error)
        return [True] * len(changes)
    for receipt, change in rest:
        if answers[receipt]:
            notes.note_hidden(receipt, change.delay_ms)
    return [answers.get(receipt, True) for receipt, _ in changes]


def _send_again(queue: Queue, notes: Notes, failed: Told, waiting: Sequence[tuple[Delivery, RetryIn]]) -> set[str]:
    """Replace messages by delayed copies; the receipts of those that were."""
    entries = [
        Entry(
            body=one.body,
            attributes=one.attributes,
            delay_ms=min(change.delay_ms, DELAY_MS_MAX),
            group=one.group,
            key=one.key,
            trace=one.trace,
            trusted=one.trusted,
        )
        for one, change in waiting
    ]
    try:
        sent = queue.send(entries)
        copied = [one.receipt for (one, _), ok in zip(waiting, sent, strict=True) if isinstance(ok, Sent)]
        queue.delete(copied)
    except errors.OnefoldError as error:  # there may be both now; they have one key
        failed(queue.name, len(waiting), error)
        return set()
    notes.note_done(queue.name, copied, gone=True)
    return set(copied)


def bury(queue: Queue, notes: Notes, failed: Told, burials: Sequence[tuple[str, Bury]]) -> list[bool]:
    """Move messages; what was moved is done. What cannot be moved stays."""
    try:
        moved = queue.bury(burials)
    except errors.OnefoldError as error:
        failed(queue.name, len(burials), error)
        return [False] * len(burials)
    buried = [receipt for (receipt, _), ok in zip(burials, moved, strict=True) if ok]
    notes.note_done(queue.name, buried, gone=True)
    return moved
