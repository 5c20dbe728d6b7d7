"""What becomes of messages that this process holds: hidden for longer, sent again, or deleted, in batches.

A message whose payload lies in S3 takes it along when it is deleted. Every receive counts on SQS; a message that only waits
and would be given up by its next receive is therefore replaced by a delayed copy with the same key.

Never here: burials (`burying.py`), policy. Invariant: nothing is deleted whose copy was not accepted, and what is answered
for a receipt is what SQS said about it.

Sources: SQS API reference, ChangeMessageVisibilityBatch and DeleteMessageBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from onefold import errors, limits
from onefold.backends.aws import batches
from onefold.backends.aws.messages import parse_receipt
from onefold.contracts.entries import Entry, Sent

if TYPE_CHECKING:
    from onefold.backends.aws.catalogue import Catalogue
    from onefold.backends.aws.holding import Holding
    from onefold.backends.aws.messages import Form
    from onefold.backends.aws.payloads import Payloads
    from onefold.contracts.entries import Refused
    from onefold.contracts.queue import RetryIn

_METHODS: Final = {
    "DeleteMessage": "delete_message_batch",
    "ChangeMessageVisibility": "change_message_visibility_batch",
}  # action as IAM names it: boto3's method


def set_visible_in(
    catalogue: Catalogue,
    name: str,
    holding: Holding,
    changes: Sequence[tuple[str, RetryIn]],
    *,
    send: Callable[[Sequence[Entry]], Sequence[Sent | Refused]],
    delete: Callable[[Sequence[str]], object],
    trusts: Callable[[Form, str, int], bool],
) -> list[bool]:
    """Hide each receipt's message, or replace it; answers and errors as `SqsQueue.set_visible_in`.

    Args:
        name: of the queue. holding: its messages that this process holds. send, delete: the queue's own.
        trusts: whether a message's claims are onefold's own; the copy of any other is not signed.
    """
    parsed = {
        receipt: parse_receipt(receipt) for receipt, _ in changes
    }  # a malformed one is refused before anything else
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
        delete(again)  # a crash before it leaves two messages with one key
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
    catalogue: Catalogue,
    name: str,
    holding: Holding,
    changes: Sequence[tuple[str, RetryIn]],
    trusts: Callable[[Form, str, int], bool],
) -> list[tuple[str, Entry]]:
    """Messages that only wait and have one more receive left: their receipts, and the delayed copies to replace them."""
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
    catalogue: Catalogue, name: str, holding: Holding, receipts: Sequence[str], payloads: Payloads | None
) -> list[bool]:
    """Delete each receipt's message, then its payload in S3; answers and errors as `SqsQueue.delete`."""
    parsed = [parse_receipt(receipt) for receipt in receipts]
    answers = in_batches(catalogue, name, "DeleteMessage", [{"ReceiptHandle": one.handle} for one in parsed])
    stored = [one.stored for one, gone in zip(parsed, answers, strict=True) if gone and one.stored is not None]
    if stored and payloads is not None:
        payloads.delete_of(name, stored, catalogue.buries_in)
    holding.drop([receipt for receipt, gone in zip(receipts, answers, strict=True) if gone])
    return answers


def in_batches(catalogue: Catalogue, name: str, action: str, entries: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Which entries of a batch operation SQS carried out; those that failed for now are an error when all are done.

    Args:
        name: of the queue. action: as IAM names it.

    Raises:
        TransientError: SQS did not carry out all of them. NotFoundError, UsageError: as `aws_errors`.
    """
    url = catalogue.url(name)

    def call(some: list[dict[str, Any]]) -> Mapping[str, Any]:
        with catalogue.calling(action, name) as client:
            found: Mapping[str, Any] = getattr(client, _METHODS[action])(QueueUrl=url, Entries=some)
        return found

    answers: list[Mapping[str, Any] | batches.Failure] = []
    for places in batches.cut([0] * len(entries)):
        answers += batches.carry_out(call, [entries[place] for place in places])
    failed = [one for one in answers if isinstance(one, batches.Failure) and one.passing]
    if failed:
        raise errors.TransientError(
            f"SQS did not carry out {action} for {len(failed)} of {len(answers)} messages of queue {name} "
            f"({failed[0].code}, {batches.TRIES} tries).",
            meaning="The others are done.",
            todo="Do it again; what was done stays done.",
        )
    return [not isinstance(one, batches.Failure) for one in answers]
