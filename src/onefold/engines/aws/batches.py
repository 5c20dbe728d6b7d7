"""Batches of SQS: split into ten entries and 1 MiB, one answer per entry, failed entries tried again by themselves.

SQS answers a batch with 200 and two lists, so half of a batch can succeed. An entry that failed for a temporary reason
is tried again at once, without the others, at most `TRIES` times in all; if whole calls failed, botocore has already
waited. A request that is refused as a whole because of one entry (FIFO parameters, for example) is made again entry by
entry.

Never here: what an entry means. Invariant: every entry has exactly one answer, in the order asked, or an error is raised.

Sources: SQS API reference, SendMessageBatch, DeleteMessageBatch, ChangeMessageVisibilityBatch, BatchResultErrorEntry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from botocore.exceptions import ClientError
from msgspec import Struct

from onefold import errors, limits
from onefold.engines.aws.session import code_of

TRIES: Final = 3  # for one entry, including the first
BATCH_BYTES_MAX: Final = 1_048_576  # SQS SendMessageBatch: the sum of the entries
Call = Callable[[list[dict[str, Any]]], Mapping[str, Any]]

# Codes that mean that an entry is wrong, whatever SenderFault says; emulators set that flag at random.
_WRONG: Final = frozenset(
    {"InvalidMessageContents", "InvalidParameterValue", "InvalidParameterValueException", "MessageNotInflight",
     "AWS.SimpleQueueService.MessageNotInflight", "MissingParameter", "MissingRequiredParameterException",
     "ReceiptHandleIsInvalid", "InvalidParameterCombination"}
)  # fmt: skip
# Codes for a whole request that one of its entries may have caused.
_OF_ONE: Final = _WRONG | {
    "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", "InvalidAttributeValue",
    "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation",
}  # fmt: skip


class FailedEntry(Struct, frozen=True):
    """An entry that failed for good; or, if `passing`, one that failed at every try and may work later."""

    code: str
    message: str
    passing: bool


def seconds(duration_ms: int) -> int:
    """A duration in SQS's unit: whole seconds, rounded up."""
    return -(-duration_ms // limits.SECOND_MS)


def cut(
    sizes: Sequence[int], indexes: Iterable[int] | None = None, *, bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[list[int]]:
    """Indexes of entries, in order, in batches of at most ten and `bytes_max`; a larger entry gets its own batch.

    Args:
        indexes: indexes of the entries to use; all unless given.
    """
    batch: list[int] = []
    total = 0
    for index in range(len(sizes)) if indexes is None else indexes:
        if batch and (len(batch) == limits.BATCH_ENTRIES_MAX or total + sizes[index] > bytes_max):
            yield batch
            batch, total = [], 0
        batch.append(index)
        total += sizes[index]
    if batch:
        yield batch


def carry_out(call: Call, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | FailedEntry]:
    """Make one batch call; returns each entry's success or failure, in order.

    Args:
        call: makes the request with these entries, under `aws_errors`.
        entries: at most ten; their `Id` is set here.

    Raises:
        TransientError, UsageError: the whole call failed; entries of an earlier try may have been carried out.
    """
    answers: dict[int, Mapping[str, Any] | FailedEntry] = {}
    waiting = list(range(len(entries)))
    for _ in range(TRIES):
        answers |= _once(call, entries, waiting)
        waiting = [index for index in waiting if isinstance(one := answers[index], FailedEntry) and one.passing]
        if not waiting:
            break
    return [answers[index] for index in range(len(entries))]


def _once(
    call: Call, entries: Sequence[Mapping[str, Any]], indexes: Sequence[int]
) -> dict[int, Mapping[str, Any] | FailedEntry]:
    try:
        answer = call([{**entries[index], "Id": str(index)} for index in indexes])
    except errors.UsageError as error:
        code = cause_of(error)
        if code not in _OF_ONE:
            raise
        if len(indexes) == 1:
            return {indexes[0]: FailedEntry(code, said(error), passing=False)}
        return {index: answer for one in indexes for index, answer in _once(call, entries, [one]).items()}
    found: dict[int, Mapping[str, Any] | FailedEntry] = {int(one["Id"]): one for one in answer.get("Successful", ())}
    for one in answer.get("Failed", ()):
        wrong = one["Code"] in _WRONG or bool(one.get("SenderFault"))
        found[int(one["Id"])] = FailedEntry(one["Code"], one.get("Message", ""), passing=not wrong)
    for index in indexes:
        found.setdefault(index, FailedEntry("NoAnswer", "The answer does not name this entry.", passing=True))
    return found


def cause_of(error: BaseException) -> str:
    """SQS's code behind one of our errors; empty when there is none."""
    return code_of(error.__cause__) if isinstance(error.__cause__, ClientError) else ""


def said(error: BaseException) -> str:
    """The text from SQS behind one of our errors."""
    cause = error.__cause__
    if isinstance(cause, ClientError):
        return str(cause.response.get("Error", {}).get("Message", "")) or str(error)
    return str(error)
