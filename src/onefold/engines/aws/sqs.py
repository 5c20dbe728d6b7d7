"""SQS in one region, and one queue of it behind the Queue contract.

`Sqs` has what all queues of a prefix share, and each queue once; `SqsQueue` has the verbs. Messages are sent by
`sending.py`, and hidden, deleted and dead-lettered by `settling.py`; operators' verbs are in `sqs_admin.py`. For a
function whose messages Lambda received (`adopt`), no client of SQS is made and nothing is looked up as long as all goes
well.

What SQS cannot do is declared in `CAPABILITIES`: a wait always counts as a receive, there is no late `run_at` without
EventBridge Scheduler, dead-lettering takes two steps, and a queue cannot be read without receiving. A process can
dead-letter only messages that it received itself or adopted.

Never here: policy, queues' settings, reading queues for people. Invariant: the answer for a receipt is SQS's own; a
message that SQS returned is passed on, or becomes visible again after its visibility timeout; an error never hides
messages that other calls returned.

`EventBusQueue` is EventBridge's PutEvents as a queue that can only be sent to: each body is one entry of the request,
as JSON. Entries are sent ten at a time, below the size limit of a request; temporary failures are tried again without
the others. EventBridge delivers each event at least once and has no deduplication: an event that is put twice is two
events.

Sources: SQS API reference, the operation in each method; developer guide, "Amazon SQS visibility timeout" and "Amazon SQS
long polling". EventBridge API reference, PutEvents; user guide, "Sending events with PutEvents" (which errors to try again).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from msgspec import structs

from onefold import errors, limits
from onefold.clock import wall_ms
from onefold.contracts.entries import Entry, Refused, Sent, bus_of
from onefold.contracts.queue import CLAIMS, Delivery, Depth, MoveTo, QueueCapabilities, RetryIn
from onefold.engines.aws import batches, messages, sending, settling
from onefold.engines.aws.catalogue import QueueCatalogue
from onefold.engines.aws.messages import SqsReceipt, parse_receipt
from onefold.engines.aws.session import Session, aws_errors
from onefold.engines.aws.settling import Holding
from onefold.engines.aws.signing import Signer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onefold.contracts.verbs import Queue, ReceiptState, State
    from onefold.engines.aws.messages import Form, Received
    from onefold.engines.aws.payloads import Payloads
    from onefold.engines.aws.sending import Later
    from onefold.engines.aws.sqs_admin import SqsQueues
    from onefold.outside import Clock, Entropy


CAPABILITIES: Final = QueueCapabilities(
    fifo=True,
    uncounted=False,
    run_at=False,
    atomic_move=False,
    waits=True,
    inspectable=False,
    in_flight_max=False,
    finest_ms=limits.SECOND_MS,
)
WAIT_S_MAX: Final = 20  # SQS ReceiveMessage, WaitTimeSeconds: 0 to 20


class Sqs:
    """The queues of one region that share a prefix. Safe to call from any thread.

    Args:
        session: gives the clients.
        clock: this host's, for when messages were received and how long they are remembered.
        entropy: makes receive attempt ids (FIFO).
        prefix: put before every queue's name on AWS.
        payloads: where bodies over the limit are stored; None to refuse them.
        later: makes schedules for messages that are due later than SQS can delay them; None to refuse them.
        wait_s: long polling, 0 to 20 seconds: the longest time for which one `receive` waits for a first message. 0
            asks only a sample of SQS's servers and may miss messages. A reading for people waits at most one second.
        state: the record backend's, where the secret of signatures is kept; None if only the environment can have one.
    """

    def __init__(
        self,
        session: Session,
        *,
        clock: Clock,
        entropy: Entropy,
        prefix: str = "",
        payloads: Payloads | None = None,
        later: Later | None = None,
        wait_s: int = 1,
        state: Callable[[], State] | None = None,
    ) -> None:
        if not 0 <= wait_s <= WAIT_S_MAX:
            raise errors.UsageError(f"wait_s={wait_s} is out of range.", todo=f"It may be 0 to {WAIT_S_MAX} seconds.")
        self.session = session
        self.clock = clock
        self.entropy = entropy
        self.prefix = prefix
        self.payloads = payloads
        self.later = later
        self.wait_s = wait_s
        self._state = state
        self._open: dict[str, SqsQueue] = {}
        self._catalogue: QueueCatalogue | None = None
        self._admin: SqsQueues | None = None
        self._lock = threading.Lock()

    @property
    def catalogue(self) -> QueueCatalogue:
        """Names, URLs and settings of the queues."""
        with self._lock:
            if self._catalogue is None:
                self._catalogue = QueueCatalogue(self.session, self.prefix, wait_s=WAIT_S_MAX)
            return self._catalogue

    @functools.cached_property
    def signer(self) -> Signer:
        """Signs and verifies the attributes of messages that override their bodies."""
        return Signer(self._state or _no_state, clock=self.clock, entropy=self.entropy)

    def trusts(self, form: Form, body: str, sent_at_ms: int) -> bool:
        """Whether a message claims something, and onefold of the same app wrote it; errors as for `Signer.trusts`."""
        claims = any(name in form.attributes for name in CLAIMS)
        return claims and self.signer.trusts(form.attributes, body, form.signature, sent_at_ms)

    def signed(self, got: Received) -> Form:
        """A message as its copy is sent: signed again if onefold in the same app wrote its claims.

        So a message that is trusted by ONEFOLD_UNSIGNED_BEFORE, or by a secret that is being replaced, stays trusted as
        a copy, although the copy is younger.

        Raises:
            as `Signer.sign`, and as `Payloads.get`.
        """
        form = got.form
        if not any(name in form.attributes for name in CLAIMS):
            return form
        body, _ = messages.body_of(form, self.payloads)
        if not self.trusts(form, body, got.sent_at_ms):
            return form
        return structs.replace(form, signature=self.signer.sign(form.attributes, body))

    @property
    def admin(self) -> SqsQueues:
        """The operator's verbs, which also report whether a queue exists."""
        catalogue = self.catalogue
        with self._lock:
            if self._admin is None:
                from onefold.engines.aws.sqs_admin import SqsQueues  # a Lambda function does not need them

                self._admin = SqsQueues(
                    catalogue,
                    self.open,
                    clock=self.clock,
                    entropy=self.entropy,
                    payloads=self.payloads,
                    wait_s=self.wait_s,
                    signer=lambda: self.signer,
                    trusts=self.trusts,
                    signed=self.signed,
                )
            return self._admin

    def open(self, name: str) -> Queue:
        """Like `queue`; the location of a bus opens EventBridge's PutEvents."""
        if ":" in name:  # no queue's name has a colon
            return open_bus(self.session, name, self.prefix)
        return self.queue(name)

    def queue(self, name: str) -> SqsQueue:
        """One queue, the same object at every call. SQS is not asked: if it does not exist, its methods raise."""
        found = self._open.get(name)
        if found is None:
            found = self._open.setdefault(name, SqsQueue(self, name))  # one object: only the receiver can dead-letter
        return found


def _no_state() -> State:
    raise errors.UsageError("These queues have no record backend.")


class SqsQueue:
    """The Queue contract on one SQS queue. Safe to call from any thread.

    Args:
        sqs: what it shares with other queues.
        name: the queue's name, without the prefix.
    """

    capabilities = CAPABILITIES

    def __init__(self, sqs: Sqs, name: str) -> None:
        self.name = name
        self._sqs = sqs
        if sqs.later is not None:
            self.capabilities = structs.replace(CAPABILITIES, run_at=True)
        self._holding = Holding(sqs.clock)

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Sent | Refused]:
        """Accept messages; with `whole`, none of them if one is refused before it is sent.

        A `run_at_ms` up to 15 minutes ahead becomes a delay, a later one a schedule (`later`). Bodies over the queue's
        limit are first stored in S3. `Sent.duplicate` is never set, because SQS does not report it (on FIFO queues a
        duplicate has the message id of the first message).

        Raises:
            TransientError: SQS did not accept all of them for now, or did not answer; some may have been accepted.
            NotFoundError: the queue does not exist. UsageError: not allowed, no credentials.
        """
        sqs = self._sqs
        now_ms = wall_ms(sqs.clock)  # `run_at_ms` means wall time
        return sending.send(
            sqs.catalogue, self.name, entries, now_ms=now_ms, payloads=sqs.payloads, later=sqs.later,
            signer=lambda: sqs.signer, whole=whole,
        )  # fmt: skip

    # -- receiving -----------------------------------------------------------------------------------------------------

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """Receive up to `count_max` messages, ten in one call.

        Args:
            visible_ms: 0 to 43,200,000, rounded up to whole seconds; None: the queue's setting.

        Raises:
            OverLimitError: a standard queue has reached its limit of messages in flight.
            NotFoundError, UsageError, TransientError: as for `send`; never after some messages were received.
        """
        return self._receive(count_max, visible_ms, self._sqs.wait_s)

    def receive_within(self, count_max: int, visible_ms: int | None, wait_ms: int) -> list[Delivery]:
        """Like `receive`; the server waits for a first message, for the whole seconds of `wait_ms` (0 to 20,000).

        Raises:
            as `receive`.
        """
        wait_s = min(max(wait_ms // limits.SECOND_MS, 0), WAIT_S_MAX)
        return self._receive(count_max, visible_ms, wait_s)

    def _receive(self, count_max: int, visible_ms: int | None, wait_s: int) -> list[Delivery]:
        """Receive ten messages per call until there are enough or no more come; an error does not hide any message."""
        if count_max < 1 or not (visible_ms is None or 0 <= visible_ms <= limits.VISIBILITY_MS_MAX):
            raise errors.UsageError(
                f"receive(count_max={count_max}, visible_ms={visible_ms}) is out of range.",
                todo=f"count_max is at least 1, visible_ms 0 to {limits.VISIBILITY_MS_MAX:,}.",
            )
        found: list[Delivery] = []
        while len(found) < count_max:
            asked = min(count_max - len(found), limits.BATCH_ENTRIES_MAX)
            try:
                got = self._receive_once(asked, visible_ms, wait_s=0 if found else wait_s)
            except errors.OnefoldError:
                if found:
                    return found
                raise
            found += got
            if len(got) < asked:
                break
        return found

    def _receive_once(self, count_max: int, visible_ms: int | None, *, wait_s: int) -> list[Delivery]:
        url = self._sqs.catalogue.url(self.name)
        ask: dict[str, Any] = {} if visible_ms is None else {"VisibilityTimeout": batches.seconds(visible_ms)}
        if self.name.endswith(".fifo"):  # botocore's own second try of this call then gets the same messages
            ask["ReceiveRequestAttemptId"] = self._sqs.entropy.token()
        asked_at_ms = self._sqs.clock.now_ms()
        try:
            with self._sqs.catalogue.calling("ReceiveMessage", self.name) as client:
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
            visible_ms = self._sqs.catalogue.settings(self.name).visibility_ms
        return self._deliveries(got, asked_at_ms, batches.seconds(visible_ms) * limits.SECOND_MS)

    def _deliveries(self, got: Sequence[Received], asked_at_ms: int, visible_ms: int) -> list[Delivery]:
        """The deliveries of received messages; those whose payload S3 does not return now will be received again."""
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
            records: the event's records, unchanged, all from this queue.
            visible_ms: how long the mapping's receive hides them: the queue's visibility.

        Raises:
            PayloadError: a record does not come from SQS. UsageError, TransientError: a payload in S3 could not be
                read.
        """
        asked_at_ms = self._sqs.clock.now_ms()
        return [self._delivery(messages.of_lambda(one), asked_at_ms, visible_ms) for one in records]

    def disown(self, receipts: Sequence[str]) -> None:
        """Forget adopted messages, which Lambda deletes. Those with a payload in S3 are deleted here, with the payload.

        Raises:
            UsageError, TransientError: as for `delete`.
        """
        stored = [receipt for receipt in receipts if parse_receipt(receipt).stored is not None]
        if stored:
            self.delete(stored)
        self._holding.drop(receipts)

    def _delivery(self, got: Received, asked_at_ms: int, visible_ms: int) -> Delivery:
        form = got.form
        body, stored = messages.body_of(form, self._sqs.payloads)
        receipt = SqsReceipt(got.message_id, got.handle, stored).text()
        source = None if got.moved_from_arn is None else self._sqs.catalogue.name_of_arn(got.moved_from_arn)
        reason = None
        if form.source is not None:
            catalogue = self._sqs.catalogue
            if form.source != catalogue.on_aws(self.name):  # otherwise a move task sent it back with its reason
                source, reason = catalogue.local(form.source), form.reason
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
            trusted=self._sqs.trusts(form, body, got.sent_at_ms),
        )

    # -- settling ------------------------------------------------------------------------------------------------------

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Hide each receipt's message, rounded up to whole seconds; False where SQS refuses the receipt or the time.

        On SQS every receive counts (capability). A message that only waits (`uncounted`), and that the next receive
        would dead-letter, is sent again with a delay and the same key, and then deleted; not on FIFO, where it would
        lose its place.

        Raises:
            UsageError: a receipt is malformed, or a delay out of range; nothing was changed.
            TransientError: SQS did not change all of them; repeating the call does no harm.
        """
        return settling.set_visible_in(
            self._sqs.catalogue, self.name, self._holding, changes, send=self.send, delete=self.delete,
            trusts=self._sqs.trusts,
        )  # fmt: skip

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Delete each receipt's message, then its payload in S3; False where SQS refuses the receipt.

        Raises:
            UsageError: a receipt is malformed; nothing was deleted.
            TransientError: SQS did not delete all of them; repeating the call does no harm.
        """
        return settling.delete(self._sqs.catalogue, self.name, self._holding, receipts, self._sqs.payloads)

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:
        """Like `settling.move_aside`: a copy in the dead-letter or held queue, then a deletion.

        Raises:
            UsageError: the queue has no dead-letter or held queue, and nothing was changed; or not allowed.
            TransientError: not all were copied and deleted; repeating the call in this process does no harm.
        """
        return settling.move_aside(self._sqs.catalogue, self.name, self._holding, moves, signed=self._sqs.signed)

    # -- looking -------------------------------------------------------------------------------------------------------

    def receipt_states(self, receipts: Sequence[str]) -> list[ReceiptState]:
        """Refused: SQS does not report it (capability `inspectable`).

        Raises:
            UsageError: always.
        """
        for receipt in receipts:
            parse_receipt(receipt)
        raise errors.UsageError(
            "SQS does not report the state of a receipt.", todo="Use the answer of delete or set_visible_in directly."
        )

    def depth(self) -> Depth:
        """Approximate numbers, up to a minute old; SQS reports the oldest age only to CloudWatch: None here."""
        names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        found = self._sqs.catalogue.attributes(self.name, *names)
        visible, in_flight, delayed = (int(found.get(name, 0)) for name in names)
        return Depth(visible=visible, in_flight=in_flight, delayed=delayed)


PUT_BYTES_MAX: Final = 1_000_000  # user guide: a request is below 1 MB; ours leaves room for what is not counted
PUT_TRIES: Final = 3  # for one entry, including the first; if a whole call failed, botocore has waited
_PASSING: Final = frozenset({"InternalFailure", "InternalException", "ThrottlingException"})
DEFAULT_BUS: Final = "default"


class EventBusQueue:
    """One bus, which can only be sent to. Safe to call from any thread.

    Args:
        session: gives the clients. opened_as: the name with which it was opened. bus: the bus's name on AWS.
    """

    capabilities = QueueCapabilities(fifo=False, uncounted=False, run_at=False, atomic_move=False, inspectable=False)

    def __init__(self, session: Session, opened_as: str, bus: str) -> None:
        self.name = opened_as
        self._session = session
        self._bus = bus

    def send(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Sent | Refused]:  # noqa: ARG002 - the contract's
        """Put events; a `Sent` names the event's id. EventBridge checks each one separately.

        Raises:
            TransientError: some were not accepted for now; others may have been. UsageError: not allowed, no
                credentials.
        """
        answers: dict[int, Sent | Refused] = {}
        waiting = list(range(len(entries)))
        requests = [self._request(entry) for entry in entries]
        sizes = [len(entry.body.encode()) for entry in entries]
        code = ""
        for _ in range(PUT_TRIES):
            passing: list[int] = []
            for indexes in batches.cut(sizes, waiting, bytes_max=PUT_BYTES_MAX):
                for index, one in zip(indexes, self._put([requests[index] for index in indexes]), strict=True):
                    code = one.get("ErrorCode", "")
                    if code in _PASSING:
                        passing.append(index)
                    elif code:
                        answers[index] = Refused(code, one.get("ErrorMessage", ""))
                    else:
                        answers[index] = Sent(one["EventId"])
            waiting = passing
            if not waiting:
                return [answers[index] for index in range(len(entries))]
        raise errors.TransientError(
            f"EventBridge did not take {len(waiting)} of {len(entries)} events on bus {self._bus} for now ({code}).",
            meaning="The others were taken.",
            todo="Put those again later; jobs answer a second event of one operation from its record.",
        )

    def _request(self, entry: Entry) -> dict[str, Any]:
        request: dict[str, Any] = msgspec.json.decode(entry.body)
        return {**request, "Time": datetime.fromisoformat(request["Time"]), "EventBusName": self._bus}

    def _put(self, requests: list[dict[str, Any]]) -> list[dict[str, str]]:
        with aws_errors("events:PutEvents", f"bus {self._bus}"):
            answer: list[dict[str, str]] = self._session.client("events").put_events(Entries=requests)["Entries"]
        return answer

    # -- what a bus cannot do ----------------------------------------------------------------------------------------

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:  # noqa: ARG002 - a bus refuses it
        """Refused."""
        self._refuse()

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:  # noqa: ARG002 - a bus refuses it
        """Refused."""
        self._refuse()

    def delete(self, receipts: Sequence[str]) -> list[bool]:  # noqa: ARG002 - a bus refuses it
        """Refused."""
        self._refuse()

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:  # noqa: ARG002 - a bus refuses it
        """Refused."""
        self._refuse()

    def receipt_states(self, receipts: Sequence[str]) -> list[ReceiptState]:  # noqa: ARG002 - a bus refuses it
        """Refused."""
        self._refuse()

    def depth(self) -> Depth:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.UsageError(
            f"{self._bus} is an event bus; it can only be sent to.", todo="Receive from the queues of its rules."
        )


def open_bus(session: Session, opened_as: str, prefix: str) -> EventBusQueue:
    """The bus that a location names.

    Args:
        prefix: prefix of the app's own buses on AWS.

    Raises:
        NotFoundError: it does not name a bus.
    """
    bus = bus_of(opened_as)
    if bus is None:
        raise errors.NotFoundError(
            f"{opened_as!r} is neither the name of a queue nor of a bus.", todo="Names of queues have no colon."
        )
    return EventBusQueue(session, opened_as, bus if bus == DEFAULT_BUS else prefix + bus)
