"""Sending to an SQS queue: entries are checked, turned into messages, and sent in batches until each has its answer.

Entries are checked here against the queue's settings before anything is sent, so that one bad entry never fails a
batch; SQS's own refusal of an entry is passed on. On a FIFO queue, if an entry was not accepted, later ones of its
group are not sent either: their order would be lost.

A message that is due later than SQS can delay it becomes a one-time schedule of EventBridge Scheduler that sends it and
deletes itself (`Later`). The schedule's target is SQS's SendMessage (universal target) with the message as it would be
sent here. Its name is made from queue, message, and its instant or the end of its wait as it was first stored, so a send
that is tried again does not make a second schedule; two equal messages for one instant are one. Scheduler is precise to
a minute (user guide, "Schedule types"), tries for a day, and then puts the request into the queue's dead-letter queue.
Scheduler accepts only a standard queue for that, so messages of FIFO queues go to a separate one (`later_dead`). This
needs a group and a role that may send (`onefold synth --later` makes both and puts them into the engine's URL); without
them such a message is refused.

Never here: receiving. Invariant: an entry's answer is `Sent` only if SQS named it as accepted; the body arrives as it
was given, and nothing in it is interpreted as a context attribute.

Sources: SQS API reference, SendMessageBatch; developer guide, "Amazon SQS message quotas"; EventBridge Scheduler API
reference, CreateSchedule; user guide, "Using universal targets", "Deleting a schedule", "Adding context attributes";
quotas: an input has up to 256 KB.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import structs

from onefold import errors, limits
from onefold.contracts.entries import DERIVED_DEDUP, NOT_SENT, Entry, Refused, Sent, check_entry
from onefold.contracts.queue import CLAIMS, Attribute, Reason, text_at
from onefold.contracts.settings import QueueSettings
from onefold.engines.aws import batches, messages
from onefold.engines.aws.batches import FailedEntry
from onefold.engines.aws.catalogue import QueueCatalogue
from onefold.engines.aws.messages import Form, Received, bytes_of, dead_letter_token, entry_of, pointer
from onefold.engines.aws.payloads import Payloads
from onefold.engines.aws.session import Session, aws_errors

if TYPE_CHECKING:
    from onefold.engines.aws.signing import Signer


INPUT_BYTES_MAX: Final = 262_144
ATTEMPTS: Final = 185  # API reference, RetryPolicy: the maximum
AGE_S: Final = 86_400  # the same
_CONTEXT: Final = "<aws.scheduler."  # the beginning of text that Scheduler replaces
_LAST_AT_MS: Final = 253_402_300_799_000  # the last second of the year 9999


class _Due(NamedTuple):
    """When a message is to be sent, and what names its schedule.

    Args:
        at_ms: by the wall clock. until_ms: `Entry.wait_until_ms`.
        form: the message before its body was stored in S3, since each try stores it under another key.
    """

    at_ms: int
    until_ms: int | None
    form: Form


class Later:
    """Makes one-time schedules.

    Args:
        session: gives the clients.
        group: name of the schedule group. role: ARN of the role with which the schedules send.
        dead: full name of the standard queue for messages that could not be sent to a FIFO queue; None for none.
    """

    def __init__(self, session: Session, *, group: str, role: str, dead: str | None = None) -> None:
        self._session = session
        self._group = group
        self._role = role
        self.dead = dead

    def send(self, form: Form, due: _Due, *, url: str, arn: str, dead_letter: str | None) -> Sent | Refused:
        """Send a message at an instant, rounded up to a second.

        Args:
            form: the message. due: when. url, arn: the queue's. dead_letter: name on AWS of a standard queue of the same
                account; None for none.

        Returns:
            `Sent` with the schedule's name as the id, because the message has none yet.

        Raises:
            NotFoundError: the schedule group does not exist. UsageError: not allowed. TransientError: it failed for
                now.
        """
        text = _input(form, url)
        if len(text.encode()) > INPUT_BYTES_MAX:
            return Refused(
                "InvalidParameterValue",
                f"A message for later may have {INPUT_BYTES_MAX} bytes as a request; this one has {len(text.encode())}. "
                "Larger bodies need a bucket: add payloads=BUCKET/PREFIX to the engine's URL.",
            )
        if not 0 <= due.at_ms <= _LAST_AT_MS:
            return Refused(
                "InvalidParameterValue", f"run_at_ms={due.at_ms} is not an instant that a schedule can have."
            )
        at = datetime.fromtimestamp(-(-due.at_ms // limits.SECOND_MS), UTC).strftime("%Y-%m-%dT%H:%M:%S")
        named_by = (at if due.until_ms is None else str(due.until_ms)) + _input(due.form, url)
        name = f"later-{hashlib.sha256(named_by.encode()).hexdigest()[:40]}"
        partition, region, account = _parts(arn)
        target: dict[str, Any] = {
            "Arn": f"arn:{partition}:scheduler:::aws-sdk:sqs:sendMessage",
            "RoleArn": self._role,
            "Input": text,
            "RetryPolicy": {"MaximumRetryAttempts": ATTEMPTS, "MaximumEventAgeInSeconds": AGE_S},
        }
        if dead_letter is not None:
            target["DeadLetterConfig"] = {"Arn": f"arn:{partition}:sqs:{region}:{account}:{dead_letter}"}
        client = self._session.client("scheduler")
        made_before = client.exceptions.ConflictException  # an earlier try has made it
        with aws_errors("scheduler:CreateSchedule", f"schedule group {self._group}"), suppress(made_before):
            client.create_schedule(
                Name=name,
                GroupName=self._group,
                ScheduleExpression=f"at({at})",
                ScheduleExpressionTimezone="UTC",
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target=target,
            )
        return Sent(name, None)


def _input(form: Form, url: str) -> str:
    """SendMessage's parameters as the schedule's input."""
    request = entry_of(form, "")
    del request["Id"]
    text = json.dumps({"QueueUrl": url, **request}, separators=(",", ":"), ensure_ascii=False, default=_base64)
    return text.replace(_CONTEXT, "\\u003c" + _CONTEXT[1:])


def _base64(value: object) -> str:
    """A binary attribute in the form that it has in JSON."""
    assert isinstance(value, bytes)
    return b64encode(value).decode()


def _parts(arn: str) -> tuple[str, str, str]:
    """Partition, region and account of an ARN."""
    _, partition, _, region, account, *_ = arn.split(":")
    return partition, region, account


_INVALID: Final = "InvalidParameterValue"
_TRACE_CHARS_MAX: Final = 1_000  # in a reason, because attributes count towards the message's size
_BEYOND: Final = 1 << 40  # a size limit that no body reaches: the real limit is checked with our attributes added
LATE_BYTES_MAX: Final = 120_000  # of a message, which as JSON in JSON stays below the 256 KB of a schedule's input
_BEHIND: Final = "BehindRefused"


def send(
    catalogue: QueueCatalogue,
    name: str,
    entries: Sequence[Entry],
    *,
    now_ms: int,
    payloads: Payloads | None,
    later: Later | None = None,
    signer: Callable[[], Signer],
    whole: bool = False,
) -> list[Sent | Refused]:
    """Send entries to a queue; one answer each, in order.

    Args:
        whole: send nothing if one of them is refused here.
        later: for messages that are due later than SQS can delay them; None to refuse those.
        signer: used for entries with signed attributes, and for derived deduplication ids.

    Raises:
        TransientError: some were not accepted for now, or there was no answer; others may have been accepted.
        NotFoundError: the queue does not exist. UsageError: not allowed, no credentials.
    """
    answers: dict[int, Sent | Refused] = {}
    forms: dict[int, Form] = {}
    stored: dict[int, str] = {}
    late: dict[int, _Due] = {}
    settings, fresh = catalogue.settings(name), False
    for index, asked in enumerate(entries):
        entry = _dated(asked, now_ms)
        late_at_ms = _late_at_ms(entry, settings, now_ms, later)
        if late_at_ms is not None:
            entry = structs.replace(entry, run_at_ms=None)
        made = _form(settings, entry, now_ms, signer, offloads=payloads is not None)
        if isinstance(made, Refused) and not fresh:  # by cached settings: somebody may have changed the queue
            settings, fresh = catalogue.settings(name, fresh=True), True
            made = _form(settings, entry, now_ms, signer, offloads=payloads is not None)
        if isinstance(made, Refused):
            answers[index] = made
            continue
        limit = settings.message_bytes_max
        if late_at_ms is not None:
            made, limit = structs.replace(made, delay_s=None), min(limit, LATE_BYTES_MAX)
            late[index] = _Due(late_at_ms, asked.wait_until_ms, made)
        if bytes_of(made) > limit and payloads is not None:
            made, stored[index] = store(payloads, name, made)
            if bytes_of(made) > limit:
                payloads.delete([stored.pop(index)])
                answers[index] = _too_large(limit, offloads=True)
                continue
        forms[index] = made
    if whole and answers:
        if payloads is not None and stored:
            payloads.delete(list(stored.values()))
        return [answers.get(index, NOT_SENT) for index in range(len(entries))]
    now = {index: form for index, form in forms.items() if index not in late}
    sent = deliver(catalogue, name, list(now.values())) if now else []
    answers |= dict(zip(now, sent, strict=True))
    for index in late.keys() & forms.keys():
        answers[index] = _send_late(catalogue, name, settings, forms[index], late[index], later)
    orphans = [key for index, key in stored.items() if isinstance(answers[index], Refused)]
    if orphans and payloads is not None:
        payloads.delete(orphans)
    return [answers[index] for index in range(len(entries))]


def _dated(entry: Entry, now_ms: int) -> Entry:
    """The entry with the instant at which its wait ends: SQS and EventBridge count by their own clocks."""
    if entry.wait_ms is None or entry.wait_ms < 0 or entry.run_at_ms is not None:
        return entry
    return structs.replace(entry, run_at_ms=now_ms + entry.wait_ms, wait_ms=None)


def _send_late(
    catalogue: QueueCatalogue, name: str, settings: QueueSettings, form: Form, due: _Due, later: Later | None
) -> Sent | Refused:
    assert later is not None, "otherwise no message is late"
    own = None if settings.dead_letter is None else catalogue.on_aws(settings.dead_letter)
    dead_letter = later.dead if settings.fifo else own
    return later.send(form, due, url=catalogue.url(name), arn=catalogue.arn(name), dead_letter=dead_letter)


def _late_at_ms(entry: Entry, settings: QueueSettings, now_ms: int, later: Later | None) -> int | None:
    """When a message is due that becomes a schedule because SQS cannot delay it for that long; None for any other."""
    at_ms = entry.run_at_ms
    if later is None or at_ms is None:
        return None
    return at_ms if _is_late(at_ms - now_ms, settings) else None


def _is_late(ahead_ms: int, settings: QueueSettings) -> bool:
    """Whether SQS cannot delay a message for that long: over 15 minutes, or at all if it is in a FIFO queue."""
    return ahead_ms > limits.DELAY_MS_MAX or (settings.fifo and ahead_ms > 0)


def _form(
    settings: QueueSettings, entry: Entry, now_ms: int, signer: Callable[[], Signer], *, offloads: bool
) -> Form | Refused:
    """The message of an entry, or why a queue with these settings would not accept it."""
    wrong = check_entry(entry, structs.replace(settings, message_bytes_max=_BEYOND))
    if wrong is not None:
        return wrong
    reserved = [name for name in entry.attributes if name.startswith(messages.OURS) or name == messages.STORED_BYTES]
    if reserved:
        return Refused(_INVALID, f"The message attribute name '{reserved[0]}' is reserved for onefold.")
    delay_s = _delay_s(entry, settings, now_ms)
    if isinstance(delay_s, Refused):
        return delay_s
    dedup_id = entry.dedup_id
    if dedup_id is not None and entry.trusted and dedup_id.startswith(DERIVED_DEDUP):
        dedup_id = signer().disguised(dedup_id)  # anyone who could predict it could make SQS drop the message
    form = Form(
        body=entry.body,
        attributes=entry.attributes,
        key=entry.key,
        group=entry.group,
        dedup_id=dedup_id,
        trace=entry.trace,
        delay_s=delay_s,
        signature=signer().sign(entry.attributes, entry.body) if entry.trusted and claims(entry.attributes) else None,
    )
    if bytes_of(form) > settings.message_bytes_max:
        if not offloads:
            return _too_large(settings.message_bytes_max, offloads=False)
        if settings.fifo and dedup_id is None:  # SQS would derive it from the pointer, which is new every time
            form = structs.replace(form, dedup_id=hashlib.sha256(entry.body.encode()).hexdigest())
    return form


def claims(attributes: Mapping[str, Attribute]) -> bool:
    """Whether attributes claim something that only onefold of the same app may claim."""
    return any(name in attributes for name in CLAIMS)


def _delay_s(entry: Entry, settings: QueueSettings, now_ms: int) -> int | Refused | None:
    delay_ms = entry.delay_ms
    if entry.run_at_ms is not None:
        delay_ms = max(entry.run_at_ms - now_ms, 0)
        if _is_late(delay_ms, settings):
            kind = "a FIFO queue cannot delay one message" if settings.fifo else "SQS delays for at most 15 minutes"
            return Refused(
                "UnsupportedOperation",
                f"run_at_ms is {delay_ms:,} ms ahead, and {kind}. A later start needs a one-time schedule: deploy with "
                "--later, and use the engine's URL that it prints.",
            )
    if delay_ms is None or settings.fifo:  # a FIFO queue's own delay applies
        return None
    return batches.seconds(delay_ms)


def _too_large(limit: int, *, offloads: bool) -> Refused:
    text = f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."
    if offloads:
        text += " Its attributes alone are larger, and only a body can be stored in S3."
    elif limit == limits.MESSAGE_BYTES_MAX:
        text += " Larger bodies need a bucket: add payloads=BUCKET/PREFIX to the engine's URL."
    return Refused(_INVALID, text)


def store(payloads: Payloads, name: str, form: Form) -> tuple[Form, str]:
    """Put a message's body in S3; returns the message with a pointer, and the object's key."""
    key = payloads.put(name, form.body)
    size = len(form.body.encode())
    return structs.replace(form, body=pointer(payloads.bucket, key), stored_bytes=size), key


# -- batches -----------------------------------------------------------------------------------------------------------


def deliver(
    catalogue: QueueCatalogue, name: str, forms: Sequence[Form], *, accepted: Callable[[int], None] = lambda _: None
) -> list[Sent | Refused]:
    """Send messages that are ready, in batches; one answer each, in order.

    Args:
        accepted: called with each index as soon as SQS has accepted the message, even if an error follows.

    Raises:
        as for `send`.
    """
    url = catalogue.url(name)

    def call(some: list[dict[str, Any]]) -> Mapping[str, Any]:
        with catalogue.calling("SendMessage", name) as client:
            found: Mapping[str, Any] = client.send_message_batch(QueueUrl=url, Entries=some)
        return found

    fifo = name.endswith(".fifo")
    answers: dict[int, Sent | Refused] = {}
    stopped: dict[str | None, FailedEntry] = {}
    passing: list[FailedEntry] = []
    for batch in batches.cut([bytes_of(form) for form in forms]):
        indexes = [index for index in batch if forms[index].group not in stopped]
        for index in batch:
            if index not in indexes:
                answers[index] = _behind(stopped[forms[index].group])
        if not indexes:
            continue
        try:
            found = batches.carry_out(call, [entry_of(forms[index], "0") for index in indexes])
        except errors.TransientError as error:
            raise _not_all(error.what, accepted=_accepted(answers), count=len(forms)) from error
        for index, one in zip(indexes, found, strict=True):
            if isinstance(one, FailedEntry):
                passing += [one] if one.passing else []
                answers[index] = Refused(one.code, one.message)
                if fifo:
                    stopped[forms[index].group] = one
            else:
                answers[index] = Sent(one["MessageId"], one.get("SequenceNumber") if fifo else None)
                accepted(index)
    if passing:
        what = (
            f"SQS did not accept {len(passing)} messages for queue {name} ({passing[0].code}, {batches.TRIES} tries)."
        )
        raise _not_all(what, accepted=_accepted(answers), count=len(forms))
    return [answers[index] for index in range(len(forms))]


def _behind(failure: FailedEntry) -> Refused:
    return Refused(
        _BEHIND,
        f"An earlier message of its group was not accepted ({failure.code}), so it was not sent: the group keeps its order.",
    )


def _accepted(answers: Mapping[int, Sent | Refused]) -> int:
    return sum(isinstance(one, Sent) for one in answers.values())


def _not_all(what: str, *, accepted: int, count: int) -> errors.TransientError:
    return errors.TransientError(
        what,
        meaning=f"{accepted} of {count} messages were accepted for certain.",
        todo="Send all of them again: a job's key makes the second copy harmless, a FIFO queue drops it for 5 minutes.",
    )


# -- copies ------------------------------------------------------------------------------------------------------------


def dead_letter_copy(message: Received, reason: Reason, source: str, *, fifo: bool) -> Form:
    """The copy for the dead-letter or held queue: the message with the reason and the id of the move."""
    token = dead_letter_token(source, message.message_id)
    if reason.trace is not None and len(reason.trace) > _TRACE_CHARS_MAX:
        reason = structs.replace(reason, trace=_cut_trace(reason.trace))
    return structs.replace(
        message.form,
        reason=reason,
        source=source,
        token=token,
        dedup_id=token if fifo else None,
        delay_s=None,
        key=reason.key or message.form.key,  # the sender wrote the latter; only the former was read from the body
    )


def _cut_trace(trace: str) -> str:
    """The end of a trace, which says most: half of the space for the exception's text, half for the last frames."""
    at = text_at(trace)
    text = trace[at:]
    if at and len(text) > _TRACE_CHARS_MAX // 2:
        text = f"{text[: _TRACE_CHARS_MAX // 2 - 3]}..."
    return f"...{(trace[:at] + text)[3 - _TRACE_CHARS_MAX :]}"


def without_trace(form: Form) -> Form:
    """The same copy without the traceback's frames."""
    return structs.replace(form, reason=None if form.reason is None else structs.replace(form.reason, trace=None))


def without_reason(form: Form) -> Form:
    """The same copy without reason, source and id, for a message that is too large for the queue with them."""
    return structs.replace(form, reason=None, source=None, token=None)
