"""Messages that this process received: remembering them, and hiding, resending, deleting or dead-lettering them in batches.

SQS does not return a body again outside a receive, so the messages that this process holds are remembered (`Holding`),
to be copied when they are dead-lettered. A message is remembered by its receipt until it is deleted or dead-lettered,
or until `REMEMBERED_MS` after the end of its visibility. A visibility counts for no longer than the receive's own:
a heartbeat comes within that time, and a message that is hidden for longer is waiting for a later receive, not for this
process. Receipts of dead-lettered messages are remembered for `REMEMBERED_MS`, so that doing it twice makes one copy.

When a message whose payload is in S3 is deleted, so is the payload. On SQS every receive counts; so a message that only
waits, and that the next receive would move to the dead-letter queue, is replaced by a delayed copy with the same key.

SQS cannot move a message in one step, so dead-lettering (`move_aside`) is a copy to the dead-letter or held queue, then
a deletion. A crash between the two leaves both; the message is dead-lettered again later, and both copies have the same
`onefold-id`, by which readers recognise them as one message. On a FIFO queue the message is first hidden for a while,
so that an expired receipt does not dead-letter anything.

Never here: deciding which message, and why. Invariant: a message is deleted only after its copy was accepted; the answer for
a receipt is what SQS said about it; the number of remembered messages is bounded by what this process received within a
receive's visibility and `REMEMBERED_MS`, however long messages wait for their next try.

Sources: SQS API reference, SendMessageBatch, DeleteMessageBatch, ChangeMessageVisibilityBatch; developer guide, "Amazon SQS
visibility timeout".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from onefold import errors, limits
from onefold.contracts.entries import Entry, Refused, Sent
from onefold.contracts.queue import MoveTo
from onefold.engines.aws import batches, sending
from onefold.engines.aws.catalogue import QueueCatalogue
from onefold.engines.aws.messages import Form, Received, parse_receipt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onefold.contracts.queue import RetryIn
    from onefold.engines.aws.payloads import Payloads
    from onefold.outside import Clock


REMEMBERED_MS: Final = 15 * limits.MINUTE_MS
_SWEPT_EVERY_MS: Final = 30 * limits.SECOND_MS


class HeldMessage:
    """A message that this process holds; `copied` is True once its copy is in the dead-letter or held queue."""

    __slots__ = ("copied", "forgotten_at_ms", "message", "visible_ms")

    def __init__(self, message: Received, visible_ms: int, now_ms: int) -> None:
        self.message = message
        self.visible_ms = visible_ms
        self.copied = False
        self.extend(visible_ms, now_ms)

    def extend(self, visible_ms: int, now_ms: int) -> None:
        """Note that it is hidden for `visible_ms` from now."""
        self.forgotten_at_ms = now_ms + min(visible_ms, self.visible_ms) + REMEMBERED_MS


class Holding:
    """Held messages by receipt. Safe to call from any thread.

    Args:
        clock: monotonic time, for when messages are forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, HeldMessage] = {}
        self._moved: dict[str, int] = {}
        self._swept_at_ms = clock.monotonic_ms()
        self._lock = threading.Lock()

    def remember(self, receipt: str, message: Received, visible_ms: int) -> None:
        """Remember a message that was received and is hidden for `visible_ms`."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if now_ms - self._swept_at_ms >= _SWEPT_EVERY_MS:
                self._swept_at_ms = now_ms
                self._held = {one: held for one, held in self._held.items() if held.forgotten_at_ms > now_ms}
                self._moved = {one: until_ms for one, until_ms in self._moved.items() if until_ms > now_ms}
            self._held[receipt] = HeldMessage(message, visible_ms, now_ms)

    def extend(self, receipt: str, visible_ms: int) -> None:
        """Note that a message's visibility lasts `visible_ms` from now."""
        with self._lock:
            held = self._held.get(receipt)
            if held is not None:
                held.extend(visible_ms, self._clock.monotonic_ms())

    def get(self, receipts: Sequence[str]) -> list[HeldMessage | None]:
        """The message held under each receipt; None if there is none."""
        with self._lock:
            return [self._held.get(receipt) for receipt in receipts]

    def were_moved(self, receipts: Sequence[str]) -> list[bool]:
        """Whether each receipt's message was dead-lettered."""
        with self._lock:
            return [receipt in self._moved for receipt in receipts]

    def drop(self, receipts: Iterable[str], *, moved: bool = False) -> None:
        """Forget messages that were deleted, or dead-lettered."""
        until_ms = self._clock.monotonic_ms() + REMEMBERED_MS
        with self._lock:
            for receipt in receipts:
                self._held.pop(receipt, None)
                if moved:
                    self._moved[receipt] = until_ms


_METHODS: Final = {
    "DeleteMessage": "delete_message_batch",
    "ChangeMessageVisibility": "change_message_visibility_batch",
}  # from the action as IAM names it to boto3's method


def set_visible_in(
    catalogue: QueueCatalogue,
    name: str,
    holding: Holding,
    changes: Sequence[tuple[str, RetryIn]],
    *,
    send: Callable[[Sequence[Entry]], Sequence[Sent | Refused]],
    delete: Callable[[Sequence[str]], object],
    trusts: Callable[[Form, str, int], bool],
) -> list[bool]:
    """Hide each receipt's message, or replace it; answers and errors as for `SqsQueue.set_visible_in`.

    Args:
        name: the queue. holding: its messages that this process holds. send, delete: the queue's own.
        trusts: returns whether a message's claims are onefold's own; copies of other messages are not signed.
    """
    parsed = {
        receipt: parse_receipt(receipt) for receipt, _ in changes
    }  # a malformed receipt is refused before anything else
    for _, change in changes:
        if not 0 <= change.delay_ms <= limits.VISIBILITY_MS_MAX:
            raise errors.UsageError(
                f"A message cannot be hidden for {change.delay_ms} ms.",
                meaning="Nothing was changed.",
                todo=f"Choose 0 to {limits.VISIBILITY_MS_MAX:,} ms (12 hours).",
            )
    waiting = _waiting(catalogue, name, holding, changes, trusts)
    sent = send([entry for _, entry in waiting]) if waiting else []
    again = [receipt for (receipt, _), one in zip(waiting, sent, strict=True) if isinstance(one, Sent)]
    if again:
        delete(again)  # a crash before this leaves two messages with one key
    rest = [one for one in changes if one[0] not in again]
    entries = [
        {
            "ReceiptHandle": parsed[receipt].handle,
            "VisibilityTimeout": batches.seconds(change.delay_ms),
        }
        for receipt, change in rest
    ]
    answers = in_batches(catalogue, name, "ChangeMessageVisibility", entries)
    for changed, (receipt, change) in zip(answers, rest, strict=True):
        if changed:
            holding.extend(receipt, change.delay_ms)
    left = iter(answers)
    return [True if receipt in again else next(left) for receipt, _ in changes]


def _waiting(
    catalogue: QueueCatalogue,
    name: str,
    holding: Holding,
    changes: Sequence[tuple[str, RetryIn]],
    trusts: Callable[[Form, str, int], bool],
) -> list[tuple[str, Entry]]:
    """For messages that only wait and have one receive left: their receipts, and the delayed copies to replace them."""
    if name.endswith(".fifo") or not any(change.uncounted for _, change in changes):
        return []
    receives_max = catalogue.settings(name).receives_max
    if receives_max is None:
        return []
    held = holding.get([receipt for receipt, _ in changes])
    found: dict[str, Entry] = {}  # a receipt that is named twice is replaced once
    for (receipt, change), one in zip(changes, held, strict=True):
        if not change.uncounted or one is None or one.message.receive_count < receives_max - 1:
            continue
        if parse_receipt(receipt).stored is None:
            form = one.message.form
            found[receipt] = Entry(
                body=form.body,
                attributes=form.attributes,
                delay_ms=min(change.delay_ms, limits.DELAY_MS_MAX),
                group=form.group,
                key=form.key,
                trace=form.trace,
                trusted=trusts(form, form.body, one.message.sent_at_ms),
            )
    return list(found.items())


def delete(
    catalogue: QueueCatalogue, name: str, holding: Holding, receipts: Sequence[str], payloads: Payloads | None
) -> list[bool]:
    """Delete each receipt's message, then its payload in S3; answers and errors as for `SqsQueue.delete`."""
    parsed = [parse_receipt(receipt) for receipt in receipts]
    answers = in_batches(catalogue, name, "DeleteMessage", [{"ReceiptHandle": one.handle} for one in parsed])
    stored = [one.stored for one, gone in zip(parsed, answers, strict=True) if gone and one.stored is not None]
    if stored and payloads is not None:
        payloads.delete_of(name, stored, catalogue.dead_letters_to)
    holding.drop([receipt for receipt, gone in zip(receipts, answers, strict=True) if gone])
    return answers


def in_batches(catalogue: QueueCatalogue, name: str, action: str, entries: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Make a batch operation; returns which entries SQS carried out. Temporary failures raise an error at the end.

    Args:
        name: the queue. action: as IAM names it.

    Raises:
        TransientError: SQS did not carry out all of them. NotFoundError, UsageError: as for `aws_errors`.
    """
    url = catalogue.url(name)

    def call(some: list[dict[str, Any]]) -> Mapping[str, Any]:
        with catalogue.calling(action, name) as client:
            found: Mapping[str, Any] = getattr(client, _METHODS[action])(QueueUrl=url, Entries=some)
        return found

    answers: list[Mapping[str, Any] | batches.FailedEntry] = []
    for indexes in batches.cut([0] * len(entries)):
        answers += batches.carry_out(call, [entries[index] for index in indexes])
    failed = [one for one in answers if isinstance(one, batches.FailedEntry) and one.passing]
    if failed:
        raise errors.TransientError(
            f"SQS did not carry out {action} for {len(failed)} of {len(answers)} messages of queue {name} "
            f"({failed[0].code}, {batches.TRIES} tries).",
            meaning="The others are done.",
            todo="Make the call again; what was done stays done.",
        )
    return [not isinstance(one, batches.FailedEntry) for one in answers]


_HELD_FOR_S: Final = 60  # ours: longer than copy and deletion with all their tries


def move_aside(
    catalogue: QueueCatalogue,
    name: str,
    holding: Holding,
    moves: Sequence[tuple[str, MoveTo]],
    *,
    signed: Callable[[Received], Form],
) -> list[bool]:
    """Copy each receipt's message to its dead-letter or held queue with the reason, then delete it.

    The payload in S3 stays, because the copy names it. False where a FIFO queue's receipt has expired; also for a
    message that this process did not receive, or forgot long after the end of its visibility.

    Args:
        name: the queue from which they were received. holding: its messages that this process holds.
        signed: returns a message as its copy is sent, signed if its claims are onefold's own.

    Raises:
        UsageError: the queue has no dead-letter or held queue, and nothing was changed; or not allowed.
        TransientError: not all were copied and deleted; the same call again does no harm in this process.
    """
    handles = {receipt: parse_receipt(receipt).handle for receipt, _ in moves}
    asked = dict(moves)  # a receipt that is named twice is dead-lettered once
    targets = {to: _target(catalogue, name, to) for to in {move.to for _, move in moves}}
    texts = list(asked)
    held = {text: one for text, one in zip(texts, holding.get(texts), strict=True) if one is not None}
    moved = {text for text, done in zip(texts, holding.were_moved(texts), strict=True) if done}
    waiting = [text for text in held if text not in moved]
    fifo = name.endswith(".fifo")
    if fifo and waiting:  # a message whose receipt has expired is no longer ours
        entries = [{"ReceiptHandle": handles[text], "VisibilityTimeout": _HELD_FOR_S} for text in waiting]
        waiting = _done(waiting, in_batches(catalogue, name, "ChangeMessageVisibility", entries))
    failed: errors.OnefoldError | None = None
    for to, target in targets.items():
        try:
            some = [(held[text], asked[text]) for text in waiting if asked[text].to == to]
            _copy(catalogue, name, target, some, signed)
        except errors.OnefoldError as error:
            failed = error
    copied = [text for text in waiting if held[text].copied]
    entries = [{"ReceiptHandle": handles[text]} for text in copied]
    now_moved = _done(copied, in_batches(catalogue, name, "DeleteMessage", entries))
    holding.drop(now_moved, moved=True)
    if failed is not None:
        raise failed
    return [receipt in moved or receipt in now_moved for receipt, _ in moves]


def _done(texts: Sequence[str], answers: Sequence[bool]) -> list[str]:
    return [text for text, done in zip(texts, answers, strict=True) if done]


def _target(catalogue: QueueCatalogue, name: str, to: str) -> str:
    """The name of the dead-letter or held queue, which exists."""
    target = _named(catalogue, name, to, fresh=False) or _named(catalogue, name, to, fresh=True)
    problem = ""
    if target is not None:
        try:
            catalogue.settings(target)
        except errors.NotFoundError:
            problem = f": {target!r} does not exist"
    if target is None or problem:
        raise errors.UsageError(
            f"Queue {name!r} has no {to} queue{problem}.",
            meaning="The message was not moved.",
            todo=f"Make a {to} queue and name it in the queue's settings (onefold deploy does).",
        )
    return target


def _named(catalogue: QueueCatalogue, name: str, to: str, *, fresh: bool) -> str | None:
    if to == "held":
        return catalogue.held(name, fresh=fresh)
    return catalogue.settings(name, fresh=fresh).dead_letter


def _copy(
    catalogue: QueueCatalogue,
    name: str,
    target: str,
    moves: Sequence[tuple[HeldMessage, MoveTo]],
    signed: Callable[[Received], Form],
) -> None:
    source, fifo = catalogue.on_aws(name), name.endswith(".fifo")
    waiting = [(held, move) for held, move in moves if not held.copied]
    forms = [
        sending.dead_letter_copy(
            structs.replace(held.message, form=signed(held.message)), move.reason, source, fifo=fifo
        )
        for held, move in waiting
    ]
    note = partial(_note_copied, [held for held, _ in waiting])
    answers = sending.deliver(catalogue, target, forms, accepted=note)
    refused = [index for index, one in enumerate(answers) if isinstance(one, Refused)]
    stages = [sending.without_trace, sending.without_reason, None]  # None: as it arrived, without a new signature
    if not any(move.reason.trace is not None for _, move in waiting):
        del stages[0]
    left: list[tuple[int, Refused]] = []
    for less in stages:
        if not refused:  # it may be too large with what was added: then send it without
            return
        bare = [
            less(forms[index])
            if less is not None
            else structs.replace(
                sending.without_reason(forms[index]), signature=waiting[index][0].message.form.signature
            )
            for index in refused
        ]
        note = partial(_note_copied, [waiting[index][0] for index in refused])
        answers = sending.deliver(catalogue, target, bare, accepted=note)
        left = [(index, one) for index, one in zip(refused, answers, strict=True) if isinstance(one, Refused)]
        refused = [index for index, _ in left]
    for _, answer in left:
        raise errors.UsageError(
            f"Queue {target!r} refused a message of {name!r}: {answer.code}: {answer.message}",
            meaning="The message was not moved.",
            todo=f"Give {target!r} the size limit and type of {name!r}.",
        )


def _note_copied(held: Sequence[HeldMessage], index: int) -> None:
    held[index].copied = True
