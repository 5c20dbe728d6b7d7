"""Receiving from an SQS queue: calls of ten messages each, until enough came or there are no more.

Never here: what a received message becomes (`SqsQueue` makes deliveries and remembers them). Invariant: what SQS gave is
answered, or comes back after its visibility; an error never hides messages that other calls brought.

Sources: SQS API reference, ReceiveMessage; developer guide, "Amazon SQS visibility timeout" and "Amazon SQS long polling".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onefold import errors, limits
from onefold.backends.aws import batches, messages

if TYPE_CHECKING:
    from onefold.backends.aws.catalogue import Catalogue
    from onefold.backends.aws.messages import Received
    from onefold.contracts.queue import Delivery
    from onefold.outside import Clock, Entropy

Take = Callable[["Received", int, int], "Delivery"]
"""The delivery of a message, with when it was asked for and how long it is hidden (ms)."""


class Receiver:
    """Receives from one queue. Safe to call from any thread.

    Args:
        catalogue: URLs and settings. name: the queue.
        clock: of this host, for when messages were received. entropy: makes receive attempt ids (FIFO).
        take: makes the deliveries.
    """

    def __init__(self, catalogue: Catalogue, name: str, *, clock: Clock, entropy: Entropy, take: Take) -> None:
        self._catalogue = catalogue
        self._name = name
        self._clock = clock
        self._entropy = entropy
        self._take = take

    def receive(self, count_max: int, visible_ms: int | None, wait_s: int) -> list[Delivery]:
        """Receive up to `count_max` messages, waiting up to `wait_s` for the first; errors as `SqsQueue.receive`."""
        if count_max < 1 or not (visible_ms is None or 0 <= visible_ms <= limits.VISIBILITY_MS_MAX):
            raise errors.UsageError(
                f"receive(count_max={count_max}, visible_ms={visible_ms}) is out of range.",
                todo=f"count_max is at least 1, visible_ms 0 to {limits.VISIBILITY_MS_MAX:,}.",
            )
        found: list[Delivery] = []
        while len(found) < count_max:
            asked = min(count_max - len(found), limits.BATCH_ENTRIES_MAX)
            try:
                got = self._receive(asked, visible_ms, wait_s=0 if found else wait_s)
            except errors.OnefoldError:
                if found:
                    return found
                raise
            found += got
            if len(got) < asked:
                break
        return found

    def _receive(self, count_max: int, visible_ms: int | None, *, wait_s: int) -> list[Delivery]:
        url = self._catalogue.url(self._name)
        ask: dict[str, Any] = {} if visible_ms is None else {"VisibilityTimeout": batches.seconds(visible_ms)}
        if self._name.endswith(".fifo"):  # botocore's own second try of this call then gets the same messages
            ask["ReceiveRequestAttemptId"] = self._entropy.token()
        asked_at_ms = self._clock.now_ms()
        try:
            with self._catalogue.calling("ReceiveMessage", self._name) as client:
                answer = client.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=count_max,
                    WaitTimeSeconds=wait_s,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=["All"],
                    **ask,
                )
        except errors.TransientError as error:
            if batches.cause_of(error) == "OverLimit":
                raise errors.OverLimitError(error.what, meaning=error.meaning, todo=error.todo) from error
            raise
        got = [messages.received(one) for one in answer.get("Messages", ())]
        if not got:
            return []
        if visible_ms is None:
            visible_ms = self._catalogue.settings(self._name).visibility_ms
        return self._deliveries(got, asked_at_ms, batches.seconds(visible_ms) * limits.SECOND_MS)

    def _deliveries(self, got: Sequence[Received], asked_at_ms: int, visible_ms: int) -> list[Delivery]:
        """What was received; a message whose payload S3 does not give now comes back after its visibility."""
        found: list[Delivery] = []
        failed: errors.TransientError | None = None
        for one in got:
            try:
                found.append(self._take(one, asked_at_ms, visible_ms))
            except errors.TransientError as error:
                failed = error
        if failed is not None and not found:
            raise failed
        return found
