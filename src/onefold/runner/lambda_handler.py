"""A Lambda handler's interface: takes the mapping's event, returns the partial batch response.

    event -> the records of each queue -> deliveries -> one `Invocation` -> the ids of messages that are not done

A message that fails raises nothing: its id is named in the response, and the others of its batch are processed. The
handler raises for an event that is not a batch of this app's queues, for a defect, and for a backend that cannot be
used, if no message at all could be processed.
Never here: processing a delivery. Invariant: every message that is not known to be done is named in the response, or all
are; if an event is refused, none of its messages was begun, and Lambda keeps them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from onefold import errors
from onefold.runner.lambda_invocation import ExecutorPool, ExecutorPools, Invocation
from onefold.runner.lambda_mapping import IgnoredAnswers, answer, failures, records_by_queue, remaining_ms_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from onefold.contracts.queue import Delivery
    from onefold.options import LambdaSettings
    from onefold.outside import Clock
    from onefold.runner.lambda_mapping import Record

    Adopt = Callable[[str, Sequence[Record]], list[Delivery]]
    """The deliveries of a queue's records, in order; the queue treats them as its own receives."""

    Receives = Sequence[tuple[str, Delivery | None]]
    """The batch: message ids with their deliveries; None if a body could not be fetched."""


class LambdaAdapter:
    """Handles events of SQS mappings while its container lives; Lambda sends one at a time, tests may send more.

    Args:
        make_pool: makes the pool that runs handlers; called at the first invocation, with how long this may last (ms).
        adopt: returns the deliveries of records. disown: called with a queue and receipts whose messages Lambda
            deletes.
        queue_of: returns the app's queue for an ARN and a region; raises UsageError if there is none.
    """

    def __init__(
        self,
        make_pool: Callable[[int], ExecutorPool],
        *,
        adopt: Adopt,
        disown: Callable[[str, Sequence[str]], None],
        queue_of: Callable[[str, str], str],
        settings: LambdaSettings,
        clock: Clock,
    ) -> None:
        self._pools = ExecutorPools(make_pool, settings.margin_ms)
        self._adopt = adopt
        self._disown = disown
        self._queue_of = queue_of
        self._settings = settings
        self._clock = clock
        self._ignored: IgnoredAnswers | None = None  # as long as no message was kept, there is nothing to check

    def handle(self, event: object, context: object = None) -> dict[str, Any]:
        """Process the batch; returns the partial batch response.

        Args:
            context: Lambda's; without it, as in a test of the handler, the time limit is Lambda's maximum.

        Raises:
            UsageError: the event is not from SQS, or names a queue on which the app has no job; nothing was begun. Or
                the backend cannot be used, and no message of the batch was done.
            TransientError: no message of the batch was done, and `raise_for_batch` is set; or not all were done, and
                the mapping is known to ignore the response.
            InvariantBroken: a defect of onefold.
        """
        remaining_ms = remaining_ms_of(context)
        killed_at_ms = self._clock.monotonic_ms() + remaining_ms
        by_queue = records_by_queue(event, self._queue_of)
        with self._pools.take(remaining_ms) as pool:
            pool.runner.reports.request_id = getattr(context, "aws_request_id", None)
            if self._ignored is not None:
                self._ignored.look(pool.open_queue, pool.runner.reports, self._clock.monotonic_ms())
            receives = [one for queue, records in by_queue.items() for one in self._adopted(pool, queue, records)]
            tracing = pool.runner.tracing
            if tracing is not None:
                receives = [(name, one and tracing.invoked(one)) for name, one in receives]
            deliveries = [delivery for _, delivery in receives if delivery is not None]
            invocation = Invocation(pool, deliveries, killed_at_ms=killed_at_ms)
            invocation.run()
            self._close_runs(pool, killed_at_ms)
            answer = self._answer(pool, receives, invocation.trouble)
        if isinstance(answer, Exception):  # raised only here, so that it does not break the pool
            raise answer
        return answer

    def _close_runs(self, pool: ExecutorPool, killed_at_ms: int) -> None:
        """Close the runs that this batch completed, if there is time: perhaps no worker is running to do it."""
        closer = pool.runner.closer
        if closer.in_use and killed_at_ms - self._clock.monotonic_ms() > self._settings.margin_ms:
            with suppress(errors.OnefoldError):  # they stay open, and are checked again
                closer.check()

    # -- in ----------------------------------------------------------------------------------------------------------

    def _adopted(self, pool: ExecutorPool, queue: str, records: Sequence[Record]) -> list[tuple[str, Delivery | None]]:
        """Each record's message id and delivery; None if its body could not be fetched, so that its message is kept."""
        try:
            found: list[Delivery | None] = list(self._adopt(queue, records))
        except errors.PayloadError:
            raise
        except errors.OnefoldError:
            found = [self._adopted_alone(pool, queue, record) for record in records]
        return [(record["messageId"], delivery) for record, delivery in zip(records, found, strict=True)]

    def _adopted_alone(self, pool: ExecutorPool, queue: str, record: Record) -> Delivery | None:
        try:
            return self._adopt(queue, [record])[0]
        except errors.OnefoldError as error:
            pool.report_trouble(queue, 1, error)
            return None

    # -- out ---------------------------------------------------------------------------------------------------------

    def _answer(
        self, pool: ExecutorPool, receives: Receives, trouble: Exception | None
    ) -> dict[str, Any] | errors.OnefoldError:
        """The partial batch response, or what is raised instead of it."""
        answered = pool.answered
        staying = [one for _, one in receives if one is not None and not answered.is_done(one.receipt)]
        failed = failures(
            (message_id, one is not None and answered.is_done(one.receipt)) for message_id, one in receives
        )
        ignored = self._ignored.ignored([one.queue for one in staying]) if self._ignored is not None else []
        if failed and len(failed) == len({message_id for message_id, _ in receives}):
            if isinstance(trouble, errors.UsageError):
                return trouble
            if self._settings.raise_for_batch:
                return _not_done(failed, receives, "Not one of them is deleted.")
        if ignored:
            pool.delete_done()
            return _not_done(
                failed,
                receives,
                f"The mapping of {', '.join(ignored)} would delete the messages that are named, so none is.",
            )
        if staying:
            self._note_named(pool, staying)
        for queue, receipts in answered.to_delete().items():
            try:
                self._disown(queue, receipts)
            except errors.OnefoldError as error:
                pool.report_trouble(queue, len(receipts), error)
        return answer(failed)

    def _note_named(self, pool: ExecutorPool, staying: Sequence[Delivery]) -> None:
        """Note these messages, which the response names; the next invocation checks whether they are still there."""
        if self._ignored is None:
            self._ignored = IgnoredAnswers()
        self._ignored.remember(pool.answered, staying, self._clock.monotonic_ms())


def _not_done(failed: Sequence[str], receives: Receives, meaning: str) -> errors.TransientError:
    return errors.TransientError(
        f"{len(failed)} of {len({message_id for message_id, _ in receives})} messages of the batch are not done.",
        meaning=meaning,
        todo="They come back when their visibility ends; what was done is answered from its record.",
    )
