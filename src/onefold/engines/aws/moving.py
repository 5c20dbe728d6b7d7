"""Messages on their way back from dead-letter queues: by SQS's own move task, or by copy in this process.

SQS's task moves everything, unchanged, and sends a message back only to a queue from which SQS itself took it. A copy
(receive, send, delete) does the rest: chosen messages; edited messages; messages that were sent to the dead-letter
queue directly, as is everything that onefold dead-letters; and servers without move tasks. A crash during a copy leaves
the message in both queues; the job's key makes the second run harmless.

`start` chooses: with one source, or a named target, SQS's task with that target (which then does not need the origin);
with several sources a copy task, which continues only while `step` is called. A message whose origin is not known
stays.

Never here: reading messages for operators (`inspecting.py`). Invariant: a message is deleted only after SQS has accepted
its copy.

Sources: SQS API reference, StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask; answers recorded from AWS.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import structs

from onefold import errors, limits
from onefold.contracts.admin import Edit, MoveTask
from onefold.contracts.entries import Sent
from onefold.engines.aws import messages, sending
from onefold.engines.aws.batches import cause_of
from onefold.engines.aws.catalogue import UNKNOWN_ACTION, QueueCatalogue
from onefold.engines.aws.inspecting import QueueInspector, SeenMessage
from onefold.engines.aws.messages import Form, Received, bytes_of
from onefold.engines.aws.payloads import Payloads
from onefold.engines.aws.session import aws_errors

if TYPE_CHECKING:
    from onefold.engines.aws.signing import Signer
    from onefold.outside import Clock, Entropy

LISTED_MAX: Final = 10  # SQS ListMessageMoveTasks, MaxResults: 1 to 10
_STEP_MAX: Final = 100  # messages in one step, so that a step ends soon
_ARN: Final = re.compile(r"arn:[a-z-]+:sqs:[a-z0-9-]+:\d{12}:[A-Za-z0-9_.-]+")


class _CopyTask:
    """A task that this process carries out."""

    def __init__(self, task: MoveTask, started_ms: int) -> None:
        self.task = task
        self.started_ms = started_ms
        self.left_ids: set[str] = set()

    def room(self, now_ms: int) -> int:
        rate = self.task.per_second_max
        if rate is None:
            return _STEP_MAX
        return min(rate * (now_ms - self.started_ms) // 1_000 + rate - self.task.moved, _STEP_MAX)


class Mover:
    """Move tasks of one catalogue's queues."""

    def __init__(
        self,
        catalogue: QueueCatalogue,
        inspector: QueueInspector,
        *,
        clock: Clock,
        entropy: Entropy,
        payloads: Payloads | None,
        signer: Callable[[], Signer],
        signed: Callable[[Received], Form],
    ) -> None:
        self._signer = signer
        self._signed = signed
        self._catalogue = catalogue
        self._inspector = inspector
        self._clock = clock
        self._entropy = entropy
        self._payloads = payloads
        self._copies: dict[str, _CopyTask] = {}
        self._handles: dict[tuple[str, int], str] = {}

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def start(self, source: str, to: str | None, per_second_max: int | None) -> MoveTask:
        """Begin a move task.

        Raises:
            UsageError: the source is not a dead-letter queue or has a task running, or the rate is out of range.
            NotFoundError: the queue does not exist.
        """
        if per_second_max is not None and not 1 <= per_second_max <= limits.MOVE_PER_SECOND_MAX:
            raise errors.UsageError(
                f"per_second_max={per_second_max} is out of range.", todo=f"Choose 1 to {limits.MOVE_PER_SECOND_MAX}."
            )
        sources = self._catalogue.sources(source)
        if any(one.status == "RUNNING" for one in self._of_copies(source)):
            raise errors.UsageError(
                "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
                meaning=f"Queue {source!r} is being moved by this process.",
                todo="Wait for it, or cancel it.",
            )
        if to is not None:
            self._catalogue.settings(to)
        elif not sources:
            raise errors.UsageError(
                "Source queue must be configured as a Dead Letter Queue.",
                meaning=f"No queue names {source!r} as its dead-letter queue.",
                todo="Name the target.",
            )
        target = to or (sources[0] if len(sources) == 1 else None)
        if target is not None and sources:
            found = self._start_on_sqs(source, target, per_second_max)
            if found is not None:
                return structs.replace(found, to=to)
        return self._start_copy(source, to, per_second_max)

    def _start_on_sqs(self, source: str, target: str, per_second_max: int | None) -> MoveTask | None:
        ask: dict[str, Any] = {"SourceArn": self._catalogue.arn(source), "DestinationArn": self._catalogue.arn(target)}
        if per_second_max is not None:
            ask["MaxNumberOfMessagesPerSecond"] = per_second_max
        try:
            with self._catalogue.calling("StartMessageMoveTask", source) as client:
                handle: str = client.start_message_move_task(**ask)["TaskHandle"]
        except errors.OnefoldError as error:
            if cause_of(error) in UNKNOWN_ACTION:
                return None
            raise
        self._inspector.forget(source)
        listed = self._listed(source)
        newest = next((one for one in listed if one.get("TaskHandle") == handle), listed[0] if listed else None)
        if newest is None:
            return MoveTask(
                handle=handle,
                source=source,
                to=target,
                per_second_max=per_second_max,
                status="RUNNING",
                to_move=0,
                moved=0,
                started_at_ms=self._clock.now_ms(),
            )
        self._handles[source, int(newest["StartedTimestamp"])] = handle
        return self._task(source, newest)

    def _start_copy(self, source: str, to: str | None, per_second_max: int | None) -> MoveTask:
        waiting = int(self._catalogue.attributes(source, "ApproximateNumberOfMessages")["ApproximateNumberOfMessages"])
        task = MoveTask(
            handle=f"copy-{self._entropy.token()}",
            source=source,
            to=to,
            per_second_max=per_second_max,
            status="RUNNING",
            to_move=waiting,
            moved=0,
            started_at_ms=self._clock.now_ms(),
        )
        self._copies[task.handle] = _CopyTask(task, self._clock.monotonic_ms())
        return task

    def tasks(self, source: str) -> list[MoveTask]:
        """The tasks of a source queue, newest first: SQS's last ten, and this process's copies."""
        found = [self._task(source, one) for one in self._listed(source)] + self._of_copies(source)
        return sorted(found, key=lambda task: -task.started_at_ms)

    def _of_copies(self, source: str) -> list[MoveTask]:
        return [one.task for one in self._copies.values() if one.task.source == source]

    def _listed(self, source: str) -> Sequence[Mapping[str, Any]]:
        arn = self._catalogue.arn(source)
        try:
            with self._catalogue.calling("ListMessageMoveTasks", source) as client:
                found: Sequence[Mapping[str, Any]] = client.list_message_move_tasks(
                    SourceArn=arn, MaxResults=LISTED_MAX
                ).get("Results", ())
        except errors.OnefoldError as error:
            if cause_of(error) in UNKNOWN_ACTION:
                return ()
            raise
        return found

    def _task(self, source: str, listed: Mapping[str, Any]) -> MoveTask:
        started_at_ms = int(listed["StartedTimestamp"])
        if listed.get("TaskHandle"):  # SQS shows it only while the task runs
            self._handles[source, started_at_ms] = listed["TaskHandle"]
        to = listed.get("DestinationArn")
        status: Any = listed["Status"]
        return MoveTask(
            handle=self._handles.get((source, started_at_ms), f"{source}@{started_at_ms}"),
            source=source,
            to=None if to is None else self._catalogue.name_of_arn(to),
            per_second_max=listed.get("MaxNumberOfMessagesPerSecond"),
            status=status,
            to_move=int(listed.get("ApproximateNumberOfMessagesToMove") or 0),
            moved=int(listed.get("ApproximateNumberOfMessagesMoved") or 0),
            started_at_ms=started_at_ms,
            failure=listed.get("FailureReason"),
        )

    def cancel(self, handle: str) -> MoveTask:
        """Stop a running task.

        Raises:
            NotFoundError: the task does not exist. UsageError: it is not running.
        """
        copy = self._copies.get(handle)
        if copy is not None:
            if copy.task.status != "RUNNING":
                raise errors.UsageError(
                    f"Task {handle} is {copy.task.status}.", todo="Only a running one can be cancelled."
                )
            return self._end(copy, "CANCELLED")
        source = self._source_of(handle)
        with aws_errors(
            "sqs:CancelMessageMoveTask", "the move task" if source is None else self._catalogue.resource(source)
        ):
            self._catalogue.client.cancel_message_move_task(TaskHandle=handle)
        found = self.tasks(source) if source is not None else []
        stopped = MoveTask(
            handle=handle,
            source=source or "",
            to=None,
            per_second_max=None,
            status="CANCELLING",
            to_move=0,
            moved=0,
            started_at_ms=0,
        )
        return next((task for task in found if task.handle == handle), stopped)

    def _source_of(self, handle: str) -> str | None:
        """The queue from which a task moves: remembered, or read from its handle (base64 with the source's ARN)."""
        for (queue, _), one in self._handles.items():
            if one == handle:
                return queue
        try:
            arn = _ARN.search(b64decode(handle, validate=True).decode())
        except ValueError:
            return None
        return None if arn is None else self._catalogue.name_of_arn(arn.group())

    def running(self, queues: Sequence[str]) -> bool:
        """Whether one of these queues is being moved, or this process has a copy task running."""
        return any(one.task.status == "RUNNING" for one in self._copies.values()) or any(
            one["Status"] == "RUNNING" for queue in queues for one in self._listed(queue)[:1]
        )

    @staticmethod
    def _end(
        copy: _CopyTask, status: Literal["COMPLETED", "CANCELLED", "FAILED"], failure: str | None = None
    ) -> MoveTask:
        copy.task = structs.replace(copy.task, status=status, failure=failure)
        return copy.task

    # -- copying -------------------------------------------------------------------------------------------------------

    def step(self) -> list[tuple[SeenMessage, str, str]]:
        """Continue this process's copy tasks; returns each message that moved, with its target and new id."""
        done: list[tuple[SeenMessage, str, str]] = []
        for copy in self._copies.values():
            if copy.task.status == "RUNNING":
                done += self._step(copy)
        return done

    def _step(self, copy: _CopyTask) -> list[tuple[SeenMessage, str, str]]:
        done: list[tuple[SeenMessage, str, str]] = []
        source, room = copy.task.source, copy.room(self._clock.monotonic_ms())
        while room > 0:
            asked = min(room, limits.BATCH_ENTRIES_MAX)
            got = [SeenMessage(source, one, (one,)) for one in self._inspector.receive(source, count_max=asked)]
            if not [one for one in got if one.first.message_id not in copy.left_ids]:
                self._end(copy, "COMPLETED", self._left(copy))
                break
            ready = []
            for one in got:
                target = copy.task.to or self.way_back(one)
                if target is None:
                    copy.left_ids.add(one.first.message_id)
                else:
                    ready.append((one, target, None))
            try:
                moved = self.send_on(source, ready)
            except errors.UsageError as error:
                self._end(copy, "FAILED", str(error))
                break
            went = [(one, target, new) for (one, target, _), new in zip(ready, moved, strict=True) if new is not None]
            copy.left_ids |= {
                one.first.message_id for (one, _, _), new in zip(ready, moved, strict=True) if new is None
            }
            done += went
            room -= max(len(went), 1)
            copy.task = structs.replace(copy.task, moved=copy.task.moved + len(went))
        return done

    @staticmethod
    def _left(copy: _CopyTask) -> str | None:
        if not copy.left_ids:
            return None
        return f"{len(copy.left_ids)} messages stay: their origin is not known, or their target refused them. Name a target."

    def way_back(self, one: SeenMessage) -> str | None:
        """The queue from which a dead letter came; None if that is not known."""
        source, _ = self._inspector.origin(one)
        if source is not None:
            return source
        sources = self._catalogue.sources(one.queue)
        return sources[0] if len(sources) == 1 else None

    def send_on(
        self, source: str, moves: Sequence[tuple[SeenMessage, str, Edit | None]], *, keep_reason: bool = False
    ) -> list[str | None]:
        """Send held messages to their targets and delete the originals; returns new ids, None if a target refused.

        Refused messages stay held: the caller releases them.

        Args:
            keep_reason: they remain dead letters.

        Raises:
            NotFoundError: the target does not exist; nothing was moved. TransientError: some were not sent; those stay.
            UsageError: the secret that signs claims cannot be read; nothing was moved.
        """
        by_target: dict[str, list[int]] = {}
        for index, (_, target, _) in enumerate(moves):
            by_target.setdefault(target, []).append(index)
        for target in by_target:
            if self._catalogue.settings(target).fifo is not source.endswith(".fifo"):
                raise errors.UsageError(
                    f"Messages of {source!r} cannot go to {target!r}: one is a FIFO queue, the other is not.",
                    meaning="Nothing was moved.",
                    todo="Name a queue of the same type.",
                )
        found: list[str | None] = [None] * len(moves)
        copies = [  # a message that an operator edited is signed afterwards
            structs.replace(one.first, form=self._signed(one.first)) if edit is None else one.first
            for one, _, edit in moves
        ]
        for target, indexes in by_target.items():
            forms = [
                self._edited(_sent_on(copies[index], source, keep_reason=keep_reason), target, moves[index][2])
                for index in indexes
            ]
            accepted: list[int] = []
            try:
                answers = sending.deliver(self._catalogue, target, forms, accepted=accepted.append)
                for index, answer in zip(indexes, answers, strict=True):
                    found[index] = answer.message_id if isinstance(answer, Sent) else None
            finally:
                self._inspector.delete(source, [copy for at in accepted for copy in moves[indexes[at]][0].copies])
        self._drop_replaced([one for (one, _, edit), new in zip(moves, found, strict=True) if edit is not None and new])
        return found

    def _drop_replaced(self, edited: Sequence[SeenMessage]) -> None:
        """Delete the payloads of messages whose bodies were replaced."""
        if self._payloads is not None:
            for one in edited:
                pointer = messages.read_pointer(one.first.form)
                if pointer is not None and self._payloads.is_ours(*pointer):
                    self._payloads.delete_of(one.queue, [pointer[1]], self._catalogue.dead_letters_to)

    def _edited(self, form: Form, target: str, edit: Edit | None) -> Form:
        if edit is None:
            return form
        signature = self._signer().sign(edit.attributes, edit.body) if sending.claims(edit.attributes) else None
        form = structs.replace(form, body=edit.body, attributes=edit.attributes, stored_bytes=None, signature=signature)
        if edit.key is not None:
            reason = structs.replace(form.reason, key=edit.key) if form.reason is not None else None
            form = structs.replace(form, key=edit.key, reason=reason)
        if self._payloads is not None and bytes_of(form) > self._catalogue.settings(target).message_bytes_max:
            form, _ = sending.store(self._payloads, target, form)
        return form


def _sent_on(message: Received, source: str, *, keep_reason: bool) -> Form:
    """The copy of a dead letter for a move: without the reason, and with its own deduplication id."""
    dedup_id = None
    if source.endswith(".fifo"):
        dedup_id = hashlib.sha256(f"{source}{message.message_id}{message.sent_at_ms}".encode()).hexdigest()
    form = structs.replace(message.form, delay_s=None, dedup_id=dedup_id)
    return form if keep_reason else structs.replace(form, reason=None, source=None, token=None)
