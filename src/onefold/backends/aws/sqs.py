"""One queue on Amazon SQS, behind the Queue contract.

Sends, deletes and changes of visibility go in batches of ten (`batches.py`); bodies that are too large lie in S3
(`payloads.py`). What SQS cannot do is declared in `CAPABILITIES`: no uncounted wait, no late `run_at` by itself, no
burial in one step, and nobody can look into a queue without receiving.

A burial is a copy and a deletion (`burying.py`). So that a copy can be made at all, the messages that this process holds are
remembered (`holding.py`): a process buries what it received itself, or took over from Lambda's event (`adopt`).

Never here: policy, queues' settings, looking. Invariant: what is answered for a receipt is what SQS said about it.

Sources: SQS API reference, the operation in each method; developer guide, "Amazon SQS visibility timeout".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from onefold import errors, limits
from onefold.backends.aws import messages
from onefold.backends.aws.catalogue import Catalogue
from onefold.backends.aws.holding import Holding
from onefold.backends.aws.messages import Receipt, Received, parse_receipt
from onefold.clock import Clock
from onefold.contracts.queue import (
    Bury,
    Delivery,
    Depth,
    Entry,
    QueueCapabilities,
    Refused,
    RetryIn,
    Sent,
    Standing,
)
from onefold.entropy import Entropy

if TYPE_CHECKING:
    from onefold.backends.aws.later import Later
    from onefold.backends.aws.payloads import Payloads

CAPABILITIES: Final = QueueCapabilities(
    fifo=True,
    uncounted=False,
    run_at=False,
    atomic_bury=False,
    waits=True,
    inspectable=False,
    in_flight_max=False,
    finest_ms=limits.SECOND_MS,
)
WAIT_S_MAX: Final = 20  # SQS ReceiveMessage, WaitTimeSeconds: 0 to 20


class SqsQueue:
    """The Queue contract on one SQS queue. Safe to call from any thread.

    Args:
        catalogue: names, URLs and settings.
        name: the queue, without the prefix.
        clock: of this host, for `received_at_ms` and for what is remembered.
        entropy: makes receive attempt ids (FIFO).
        payloads: where bodies over the limit go; None: they are refused.
        later: makes schedules of messages that are due later than SQS delays; None: they are refused.
        wait_s: long polling, 0 to 20 seconds: the longest time one `receive` waits for a first message. 0 asks a sample of
            SQS's servers only and may miss what is there.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        catalogue: Catalogue,
        name: str,
        *,
        clock: Clock,
        entropy: Entropy,
        payloads: Payloads | None = None,
        later: Later | None = None,
        wait_s: int = 1,
    ) -> None:
        if not 0 <= wait_s <= WAIT_S_MAX:
            raise errors.UsageError(f"wait_s={wait_s} is out of range.", todo=f"It may be 0 to {WAIT_S_MAX} seconds.")
        self.name = name
        self._catalogue = catalogue
        self._clock = clock
        self._entropy = entropy
        self._payloads = payloads
        self._later = later
        if later is not None:
            self.capabilities = structs.replace(CAPABILITIES, run_at=True)
        self._wait_s = wait_s
        self._fifo = name.endswith(".fifo")
        self._holding = Holding(clock)

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, entries: Sequence[Entry]) -> list[Sent | Refused]:
        """Accept messages; `run_at_ms` up to 15 minutes ahead becomes a delay, what is later a schedule (`later`).

        Bodies over the queue's limit go to S3 first. `Sent.duplicate` is never set: SQS does not tell (on FIFO queues a
        duplicate has the first one's message id).

        Raises:
            TransientError: SQS did not take all of them for now, or did not answer; some may have been accepted.
            NotFoundError: no such queue. UsageError: not allowed, no credentials.
        """
        from onefold.backends.aws import sending  # a function whose jobs send nothing starts without it

        now_ms = self._clock.now_ms()
        return sending.send(
            self._catalogue, self.name, entries, now_ms=now_ms, payloads=self._payloads, later=self._later
        )

    # -- receiving -----------------------------------------------------------------------------------------------------

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """Receive up to `count_max` messages, ten in one call.

        Args:
            visible_ms: 0 to 43,200,000, rounded up to whole seconds; None: the queue's setting.

        Raises:
            OverLimitError: standard queue at its in-flight cap.
            NotFoundError, UsageError, TransientError: as `send`; never when some were received already.
        """
        return self._receive_all(count_max, visible_ms, self._wait_s)

    def receive_within(self, count_max: int, visible_ms: int | None, wait_ms: int) -> list[Delivery]:
        """As `receive`; waits at the server for a first message, whole seconds of `wait_ms` (0 to 20,000).

        Raises:
            as `receive`.
        """
        return self._receive_all(count_max, visible_ms, min(max(wait_ms // limits.SECOND_MS, 0), WAIT_S_MAX))

    def _receive_all(self, count_max: int, visible_ms: int | None, wait_s: int) -> list[Delivery]:
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
        url = self._catalogue.url(self.name)
        ask: dict[str, Any] = {} if visible_ms is None else {"VisibilityTimeout": _seconds(visible_ms)}
        if self._fifo:  # botocore's own second try of this call then gets the same messages
            ask["ReceiveRequestAttemptId"] = self._entropy.token()
        asked_at_ms = self._clock.now_ms()
        try:
            with self._catalogue.calling("ReceiveMessage", self.name) as client:
                answer = client.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=count_max,
                    WaitTimeSeconds=wait_s,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=["All"],
                    **ask,
                )
        except errors.TransientError as error:
            from onefold.backends.aws import batches

            if batches.cause_of(error) == "OverLimit":
                raise errors.OverLimitError(error.what, meaning=error.meaning, todo=error.todo) from error
            raise
        got = [messages.received(one) for one in answer.get("Messages", ())]
        if not got:
            return []
        if visible_ms is None:
            visible_ms = self._catalogue.settings(self.name).visibility_ms
        visible_ms = _seconds(visible_ms) * limits.SECOND_MS
        return self._deliveries(got, asked_at_ms, visible_ms)

    def _deliveries(self, got: Sequence[Received], asked_at_ms: int, visible_ms: int) -> list[Delivery]:
        """What was received; a message whose payload S3 does not give now comes back after its visibility."""
        found: list[Delivery] = []
        failed: errors.TransientError | None = None
        for one in got:
            try:
                found.append(self._delivery(one, asked_at_ms, visible_ms))
            except errors.TransientError as error:
                failed = error
        if failed is not None and not found:
            raise failed
        return found

    def adopt(self, records: Sequence[Mapping[str, Any]], visible_ms: int) -> list[Delivery]:
        """Take over messages that Lambda's event source mapping received, from its event.

        Args:
            records: of the event, unchanged, all from this queue.
            visible_ms: how long the mapping's receive hides them: the queue's visibility.

        Raises:
            PayloadError: a record is none of SQS's. UsageError, TransientError: a payload in S3 could not be read.
        """
        asked_at_ms = self._clock.now_ms()
        return [self._delivery(messages.of_lambda(one), asked_at_ms, visible_ms) for one in records]

    def disown(self, receipts: Sequence[str]) -> None:
        """Lambda deletes these adopted messages: forget them. One whose payload lies in S3 is deleted here, payload and all.

        Raises:
            UsageError, TransientError: as `delete`.
        """
        stored = [receipt for receipt in receipts if parse_receipt(receipt).stored is not None]
        if stored:
            self.delete(stored)
        self._holding.drop(receipts)

    def _delivery(self, got: Received, asked_at_ms: int, visible_ms: int) -> Delivery:
        form, stored = got.form, None
        body = form.body
        place = messages.read_pointer(form)
        if place is not None and self._payloads is not None and self._payloads.is_ours(*place):
            stored = place[1]
            body = self._payloads.get(stored) or body
        receipt = Receipt(got.message_id, got.handle, stored).text()
        source = None if got.moved_from_arn is None else self._catalogue.name_of_arn(got.moved_from_arn)
        reason = None
        here = self._catalogue.on_aws(self.name)
        if form.source is not None and form.source != here:  # equal: a move task sent it back with its reason
            source, reason = self._catalogue.local(form.source), form.reason
        self._holding.remember(receipt, got, visible_ms)
        return Delivery(
            queue=self.name,
            message_id=got.message_id,
            receipt=receipt,
            body=body,
            attributes=form.attributes,
            receive_count=got.receive_count,
            sent_at_ms=got.sent_at_ms,
            first_received_at_ms=got.first_received_at_ms,
            received_at_ms=asked_at_ms,
            visible_ms=visible_ms,
            group=form.group,
            dedup_id=form.dedup_id,
            sequence=got.sequence,
            key=form.key,
            trace=form.trace,
            source=source,
            reason=reason,
        )

    # -- settling ------------------------------------------------------------------------------------------------------

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Hide each receipt's message, rounded up to whole seconds; False where SQS refuses the receipt or the time.

        On SQS every receive counts (capability). A message that only waits (`uncounted`), and that the next receive would
        give up, is sent again, delayed, with the same key, and then deleted; not on FIFO, where it would lose its place.

        Raises:
            UsageError: a malformed receipt, or a delay out of range; nothing was changed.
            TransientError: SQS did not change all of them; the same call again does no harm.
        """
        for _, change in changes:
            if not 0 <= change.delay_ms <= limits.VISIBILITY_MS_MAX:
                raise errors.UsageError(
                    f"A message cannot be hidden for {change.delay_ms} ms.",
                    meaning="Nothing was changed.",
                    todo=f"Choose 0 to {limits.VISIBILITY_MS_MAX:,} ms (12 hours).",
                )
        again = self._send_again(changes)
        if again:
            rest = iter(self.set_visible_in([one for one in changes if one[0] not in again]))
            return [True if receipt in again else next(rest) for receipt, _ in changes]
        receipts = [parse_receipt(receipt) for receipt, _ in changes]
        entries = [
            {"ReceiptHandle": receipt.handle, "VisibilityTimeout": _seconds(change.delay_ms)}
            for receipt, (_, change) in zip(receipts, changes, strict=True)
        ]
        answers = self._in_batches("ChangeMessageVisibility", entries)
        for changed, (receipt, change) in zip(answers, changes, strict=True):
            if changed:
                self._holding.extend(receipt, change.delay_ms)
        return answers

    def _send_again(self, changes: Sequence[tuple[str, RetryIn]]) -> set[str]:
        """Replace messages that only wait by delayed copies where one more receive is left; the receipts of those."""
        receives_max = None
        if not self._fifo and any(change.uncounted for _, change in changes):
            receives_max = self._catalogue.settings(self.name).receives_max
        if receives_max is None:
            return set()
        held = self._holding.get([receipt for receipt, _ in changes])
        waiting = [
            (receipt, one.message.form, change)
            for (receipt, change), one in zip(changes, held, strict=True)
            if change.uncounted
            and one is not None
            and one.message.receive_count >= receives_max - 1
            and parse_receipt(receipt).stored is None
        ]
        entries = [
            Entry(
                body=form.body,
                attributes=form.attributes,
                delay_ms=min(change.delay_ms, limits.DELAY_MS_MAX),
                group=form.group,
                key=form.key,
                trace=form.trace,
            )
            for _, form, change in waiting
        ]
        sent = self.send(entries) if entries else []
        copied = [receipt for (receipt, _, _), one in zip(waiting, sent, strict=True) if isinstance(one, Sent)]
        self.delete(copied)  # a crash before it leaves two messages with one key
        return set(copied)

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Delete each receipt's message, then its payload in S3; False where SQS refuses the receipt.

        Raises:
            UsageError: a malformed receipt; nothing was deleted.
            TransientError: SQS did not delete all of them; the same call again does no harm.
        """
        parsed = [parse_receipt(receipt) for receipt in receipts]
        answers = self._delete(parsed)
        stored = [one.stored for one, gone in zip(parsed, answers, strict=True) if gone and one.stored is not None]
        if stored and self._payloads is not None:
            self._payloads.delete(stored)
        self._holding.drop([receipt for receipt, gone in zip(receipts, answers, strict=True) if gone])
        return answers

    def _delete(self, receipts: Sequence[Receipt]) -> list[bool]:
        return self._in_batches("DeleteMessage", [{"ReceiptHandle": receipt.handle} for receipt in receipts])

    def _in_batches(self, action: str, entries: Sequence[dict[str, Any]]) -> list[bool]:
        """Which entries of a batch operation SQS carried out; those that failed for now are an error when all are done."""
        from onefold.backends.aws import batches  # in Lambda, which deletes what is done, only failures need it

        url = self._catalogue.url(self.name)
        method = {"DeleteMessage": "delete_message_batch", "ChangeMessageVisibility": "change_message_visibility_batch"}

        def call(some: list[dict[str, Any]]) -> Mapping[str, Any]:
            with self._catalogue.calling(action, self.name) as client:
                found: Mapping[str, Any] = getattr(client, method[action])(QueueUrl=url, Entries=some)
            return found

        answers: list[Mapping[str, Any] | batches.Failure] = []
        for places in batches.cut([0] * len(entries)):
            answers += batches.carry_out(call, [entries[place] for place in places])
        failed = [one for one in answers if isinstance(one, batches.Failure) and one.passing]
        if failed:
            raise errors.TransientError(
                f"SQS did not carry out {action} for {len(failed)} of {len(answers)} messages of queue {self.name} "
                f"({failed[0].code}, {batches.TRIES} tries).",
                meaning="The others are done.",
                todo="Do it again; what was done stays done.",
            )
        return [not isinstance(one, batches.Failure) for one in answers]

    # -- burying -------------------------------------------------------------------------------------------------------

    def bury(self, burials: Sequence[tuple[str, Bury]]) -> list[bool]:
        """As `burying.bury`: a copy in the dead-letter or held queue, then a deletion.

        Raises:
            UsageError: the queue has no dead-letter queue, or no held queue: nothing was changed. Or not allowed.
            TransientError: not all were copied and deleted; the same call again does no harm in this process.
        """
        from onefold.backends.aws import burying  # as in `send`

        return burying.bury(self._catalogue, self.name, self._holding, burials, self._in_batches)

    # -- looking -------------------------------------------------------------------------------------------------------

    def standing(self, receipts: Sequence[str]) -> list[Standing]:
        """SQS does not tell (capability `inspectable`).

        Raises:
            UsageError: always.
        """
        for receipt in receipts:
            parse_receipt(receipt)
        raise errors.UsageError(
            "SQS does not tell how a receipt stands.", todo="Take the answer of delete or set_visible_in as it is."
        )

    def depth(self) -> Depth:
        """Approximate numbers, up to a minute old; SQS tells the oldest age to CloudWatch only, so it is None here."""
        names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        found = self._catalogue.attributes(self.name, *names)
        visible, in_flight, delayed = (int(found.get(name, 0)) for name in names)
        return Depth(visible=visible, in_flight=in_flight, delayed=delayed)


def _seconds(duration_ms: int) -> int:
    """Whole seconds, never shorter than asked."""
    return -(-duration_ms // limits.SECOND_MS)
