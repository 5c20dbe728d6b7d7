"""Burying on SQS, which moves no message in one step: a copy to the dead-letter or held queue, then a deletion.

A crash between the two leaves both; the message is buried again later, and both copies carry one `onefold-id`, by which
readers know them as one. On a FIFO queue a receipt that has expired buries nothing: the message is first held for a while.

Never here: which message is buried and why. Invariant: nothing is deleted whose copy was not accepted.

Sources: SQS API reference, SendMessageBatch, DeleteMessageBatch, ChangeMessageVisibilityBatch; developer guide, "Amazon SQS
visibility timeout".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from onefold import errors
from onefold.backends.aws import sending
from onefold.backends.aws.catalogue import Catalogue
from onefold.backends.aws.holding import Held, Holding
from onefold.backends.aws.messages import Form, Received, parse_receipt
from onefold.backends.aws.settling import in_batches
from onefold.contracts.entries import Refused
from onefold.contracts.queue import Bury

_HELD_FOR_S: Final = 60  # ours: longer than copy and deletion with all their tries


def bury(
    catalogue: Catalogue,
    name: str,
    holding: Holding,
    burials: Sequence[tuple[str, Bury]],
    *,
    signed: Callable[[Received], Form],
) -> list[bool]:
    """Copy each receipt's message to its dead-letter or held queue with the reason, then delete it.

    The payload in S3 stays: the copy names it. False where a FIFO queue's receipt has expired; also for a message that this
    process did not receive, or forgot long after its visibility was over.

    Args:
        name: of the queue it was received from. holding: its messages that this process holds.
        signed: a message as its copy is sent, signed if its claims are onefold's own.

    Raises:
        UsageError: the queue has no dead-letter queue, or no held queue: nothing was changed. Or not allowed.
        TransientError: not all were copied and deleted; the same call again does no harm in this process.
    """
    handles = {receipt: parse_receipt(receipt).handle for receipt, _ in burials}
    asked = dict(burials)  # a receipt that is named twice is buried once
    targets = {to: _target(catalogue, name, to) for to in {burial.to for _, burial in burials}}
    texts = list(asked)
    held = {text: one for text, one in zip(texts, holding.get(texts), strict=True) if one is not None}
    buried = {text for text, done in zip(texts, holding.were_buried(texts), strict=True) if done}
    waiting = [text for text in held if text not in buried]
    fifo = name.endswith(".fifo")
    if fifo and waiting:  # what has expired is not ours any more
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
    now_buried = _done(copied, in_batches(catalogue, name, "DeleteMessage", entries))
    holding.drop(now_buried, buried=True)
    if failed is not None:
        raise failed
    return [receipt in buried or receipt in now_buried for receipt, _ in burials]


def _done(texts: Sequence[str], answers: Sequence[bool]) -> list[str]:
    return [text for text, done in zip(texts, answers, strict=True) if done]


def _target(catalogue: Catalogue, name: str, to: str) -> str:
    """The name of the queue to bury in; it exists."""
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
            meaning="The message stays where it is.",
            todo=f"Make a {to} queue and name it in the queue's settings (onefold deploy does).",
        )
    return target


def _named(catalogue: Catalogue, name: str, to: str, *, fresh: bool) -> str | None:
    if to == "held":
        return catalogue.held(name, fresh=fresh)
    return catalogue.settings(name, fresh=fresh).dead_letter


def _copy(
    catalogue: Catalogue,
    name: str,
    target: str,
    burials: Sequence[tuple[Held, Bury]],
    signed: Callable[[Received], Form],
) -> None:
    source, fifo = catalogue.on_aws(name), name.endswith(".fifo")
    waiting = [(held, burial) for held, burial in burials if not held.copied]
    forms = [
        sending.burial(structs.replace(held.message, form=signed(held.message)), burial.reason, source, fifo=fifo)
        for held, burial in waiting
    ]
    note = partial(_note_copied, [held for held, _ in waiting])
    answers = sending.deliver(catalogue, target, forms, accepted=note)
    refused = [place for place, one in enumerate(answers) if isinstance(one, Refused)]
    stages = [sending.without_trace, sending.without_reason, None]  # None: as it came, without a new signature
    if not any(burial.reason.trace is not None for _, burial in waiting):
        del stages[0]
    left: list[tuple[int, Refused]] = []
    for less in stages:
        if not refused:  # with what was added it may be larger than the queue takes: rather without than not at all
            return
        bare = [
            less(forms[place])
            if less is not None
            else structs.replace(
                sending.without_reason(forms[place]), signature=waiting[place][0].message.form.signature
            )
            for place in refused
        ]
        note = partial(_note_copied, [waiting[place][0] for place in refused])
        answers = sending.deliver(catalogue, target, bare, accepted=note)
        left = [(place, one) for place, one in zip(refused, answers, strict=True) if isinstance(one, Refused)]
        refused = [place for place, _ in left]
    for _, answer in left:
        raise errors.UsageError(
            f"Queue {target!r} refused a message of {name!r}: {answer.code}: {answer.message}",
            meaning="The message stays where it is.",
            todo=f"Give {target!r} the size limit and type of {name!r}.",
        )


def _note_copied(held: Sequence[Held], place: int) -> None:
    held[place].copied = True
