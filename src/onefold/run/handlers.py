"""A declared job: its name, handler, payload type, key rule and policy; sending to it, and reading a delivery as it.

`Job` is made by `App.job`. It knows how to turn a payload into a message and a message into `Facts`; it performs neither
the sending (a `Sender` comes in) nor the run (the driver does). Never here: storage, threads, policy decisions.
Invariant: a message that this job sent reads back as an equal payload with the same key and fingerprint.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from onefold import duration, errors, limits
from onefold.codec import PayloadCodec
from onefold.contracts.queue import JOB_ATTRIBUTE, RUN_ATTRIBUTE, Attribute, Delivery, Entry
from onefold.contracts.store import OutboxItem, RecordKey
from onefold.decide.attempt import Facts, ProbeAnswer
from onefold.decide.delivery import Policy
from onefold.decide.keys import KeyRule
from onefold.run import context
from onefold.run.context import Context

if TYPE_CHECKING:
    from onefold.contracts.admin import Peeked
    from onefold.decide.rate import Rate
    from onefold.run.item_failures import ItemFailures

P = TypeVar("P")
R = TypeVar("R")

KEY_ATTRIBUTE = "onefold.key"  # only where the sender gave the key itself
AMENDS_ATTRIBUTE = "onefold.amends"  # fingerprint of the payload that an operator replaced


class Done(Struct, frozen=True):
    """A probe's answer: the effect happened.

    Args:
        result: what the handler would have returned; it answers duplicates from now on.
    """

    result: Any = None


class NotDone(Struct, frozen=True):
    """A probe's answer: the effect did not happen and will not happen any more from the earlier run."""


class StillUnknown(Struct, frozen=True):
    """A probe's answer: it cannot tell; a person must.

    Args:
        why: one line for that person.
    """

    why: str = ""


Found = Done | NotDone | StillUnknown


class Receipt(Struct, frozen=True, kw_only=True):
    """What `send` answers.

    Args:
        job, key: the operation.
        message_id: the queue's id; None while the message waits in a handler's outbox.
        duplicate: nothing was added: the queue's deduplication, or `unique=True`, knew it already.
    """

    job: str
    key: str
    message_id: str | None
    duplicate: bool = False


class Outgoing(Struct, frozen=True, kw_only=True):
    """A message on its way to a queue, with the operation it is for."""

    record: RecordKey
    fingerprint: str
    entry: Entry
    queue: str
    unique: bool


class Sender(Protocol):
    """Where a job's messages go; the app is one."""

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably, all or none."""
        ...

    def now_ms(self) -> int:
        """Wall time of the engine."""
        ...


class Limit(Struct, frozen=True, kw_only=True):
    """How much of a job may run at once, over all processes.

    Args:
        rate: starts per time; None for no limit.
        concurrency: runs at one time; None for no limit.
        key: rule that divides the limit, for example one bucket per customer; None for one bucket for the job.
    """

    rate: Rate | None = None
    concurrency: int | None = None
    key: KeyRule | None = None


class Rules(Struct, frozen=True, kw_only=True):
    """How a job reads its messages. Made once at declaration.

    Args:
        payload: codec of the payload's type.
        key: the business key; tenant, group: scope and message group, or None.
        source: which envelope foreign messages come in (see `run/sources.py`).
    """

    payload: PayloadCodec[Any]
    key: KeyRule
    tenant: KeyRule | None
    group: KeyRule | None
    source: str


class Job(Generic[P, R]):
    """A declared job. Call it to run the handler directly (no guard, no queue: for tests); `send` to have it done once.

    Attributes:
        name: as stored in records and messages.
        policy: how its deliveries are treated.
        starts_after: the schedule or map job whose complete runs start it; None for a job that is only sent.
        failures: what becomes of a map run's item that failed; None for a job that no map has.
        dispatches: its handler dispatches the run that its key names.
    """

    starts_after: str | None = None
    failures: ItemFailures | None = None
    dispatches: bool = False

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        name: str,
        policy: Policy,
        rules: Rules,
        sender: Sender,
        probe: Callable[..., Any] | None,
        classes: Mapping[str, tuple[type[BaseException] | str, ...]],
        limit: Limit | None,
        unique: bool,
    ) -> None:
        self.name = name
        self.policy = policy
        self.handler = handler
        self.rules = rules
        self.probe = probe
        self.classes = classes
        self.limit = limit
        self.unique = unique
        self.is_async = inspect.iscoroutinefunction(handler)
        self.takes_context = positional(handler) >= 2
        self.probe_takes_context = probe is not None and positional(probe) >= 2
        self._sender = sender
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    def __repr__(self) -> str:
        return f"<onefold job {self.name} on {self.policy.queue}>"

    def __call__(self, payload: P, ctx: Context | None = None) -> R:
        """Run the handler now, in this thread, without guard or queue; for unit tests of the handler itself."""
        answer: R = self.handler(payload, ctx) if self.takes_context else self.handler(payload)
        return answer

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(
        self,
        payload: P,
        *,
        delay: duration.Duration | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
    ) -> Receipt:
        """Have the job done once. On return the message is durable; inside a handler it leaves when the run completes.

        Args:
            payload: of the type the handler takes.
            delay: not before so long from now. `run_at`: not before that instant (with a time zone). Any time ahead.
            key: instead of the declared key rule.
            dedup_id: FIFO queues: instead of one derived from job, key and payload.

        Raises:
            PayloadError: the payload does not fit the type, or gives no key; nothing was sent.
            UsageError: delay and run_at together, a run_at that is no datetime or has no zone.
            StorageBusy: the engine could not write; nothing was sent.
            TransientError: the job is `unique`, and another process is sending this key; ask again.
        """
        return self._send([self.outgoing(payload, delay=delay, run_at=run_at, key=key, dedup_id=dedup_id)])[0]

    def send_many(self, payloads: Iterable[P]) -> list[Receipt]:
        """As `send` for each payload, in order, in one transaction: all are accepted or none."""
        return self._send([self.outgoing(payload) for payload in payloads])

    def _send(self, outgoing: list[Outgoing]) -> list[Receipt]:
        inside = context.current.get()
        if inside is None:
            return self._sender.deliver(outgoing)
        inside.outbox.extend(_outbox_item(one) for one in outgoing)
        return [Receipt(job=one.record.job, key=one.record.key, message_id=None) for one in outgoing]

    def message(
        self, payload: P, *, delay: duration.Duration | None = None, run_at: datetime | None = None
    ) -> Outgoing:
        """The message for a payload, for a dispatcher to `yield`; nothing is sent here. Arguments and errors as `send`."""
        return self.outgoing(payload, delay=delay, run_at=run_at)

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Send messages now, past the outbox of a handler that may be running. Errors as `send`."""
        return self._sender.deliver(outgoing)

    def outgoing(
        self,
        payload: P,
        *,
        delay: duration.Duration | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
    ) -> Outgoing:
        """The message that `send` would send. Arguments and errors as there."""
        codec = self.rules.payload
        body = codec.encode(payload)
        fingerprint = codec.fingerprint(body)
        attributes = {JOB_ATTRIBUTE: Attribute(self.name)}
        if key is None:
            key = self.rules.key.of(payload)
        else:
            attributes[KEY_ATTRIBUTE] = Attribute(self.rules.key.given(key))
        scope = self.rules.tenant.of(payload) if self.rules.tenant else ""
        group = self.rules.group.of(payload) if self.rules.group else None
        if self.policy.fifo and dedup_id is None:
            dedup_id = f"{fingerprint}.{idempotent_part(self.name, key)}"
        entry = Entry(
            body=body.decode(),
            attributes=attributes,
            delay_ms=None,
            run_at_ms=self._run_at_ms(delay, run_at),
            group=group,
            dedup_id=dedup_id,
            key=key,
        )
        record = RecordKey(scope, self.name, key)
        return Outgoing(
            record=record, fingerprint=fingerprint, entry=entry, queue=self.policy.queue, unique=self.unique
        )

    def _run_at_ms(self, delay: duration.Duration | None, run_at: datetime | None) -> int | None:
        if delay is not None and run_at is not None:
            raise errors.UsageError(f"{self.name}.send got delay and run_at.", todo="Give one of them.")
        if delay is not None:
            wait_ms = duration.to_ms(delay, "delay")
            return self._sender.now_ms() + wait_ms if wait_ms else None
        if run_at is None:
            return None
        if not isinstance(run_at, datetime):
            raise errors.UsageError(
                f"{self.name}.send got run_at={run_at!r}, which is no datetime.",
                todo="Use an aware datetime, or delay= for a time from now.",
            )
        if run_at.tzinfo is None:
            raise errors.UsageError(
                f"{self.name}.send got run_at={run_at.isoformat()} without a time zone.",
                todo="Use an aware datetime, for example datetime(..., tzinfo=ZoneInfo('Europe/London')).",
            )
        return round(run_at.timestamp() * 1000)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, delivery: Delivery) -> tuple[Facts, Any]:
        """What is known of a delivery to this job, and its payload (None when it is malformed)."""
        try:
            body = delivery.body
            attributes = delivery.attributes
            sent_by_us = JOB_ATTRIBUTE in attributes
            if not sent_by_us and self.rules.source != "json":
                from onefold.run import sources  # a body that is the payload has no envelope

                found = sources.unwrap(self.rules.source, body, attributes)
                if isinstance(found, sources.NotAJob):
                    return self._without_key(delivery, discard=found.why), None
                body = found.payload
            codec = self.rules.payload
            payload = codec.decode(body)
            given = attributes.get(KEY_ATTRIBUTE)
            key = self.rules.key.given(given.value) if given else self.rules.key.of(payload)
            scope = self.rules.tenant.of(payload) if self.rules.tenant else ""
            if self.limit is not None and self.limit.key is not None:
                self.limit.key.of(payload)  # asked for again by the gates, which cannot refuse a message
            amends = attributes.get(AMENDS_ATTRIBUTE)
            facts = Facts(
                key=RecordKey(scope, self.name, key),
                fingerprint=codec.fingerprint(_unmarked(body)),
                amends=str(amends.value) if amends else None,
                message_id=delivery.message_id,
                sent_at_ms=delivery.sent_at_ms,
                receive_count=delivery.receive_count,
            )
        except errors.PayloadError as error:
            from onefold.decide.failures import summary_of  # only what is malformed pays for the tables

            return self._without_key(delivery, malformed=summary_of(error)), None
        return facts, payload

    def _without_key(self, delivery: Delivery, *, malformed: str | None = None, discard: str | None = None) -> Facts:
        return Facts(
            key=None,
            malformed=malformed,
            discard=discard,
            message_id=delivery.message_id,
            sent_at_ms=delivery.sent_at_ms,
            receive_count=delivery.receive_count,
        )

    def invoke(self, payload: Any, ctx: Context) -> R | Awaitable[R]:
        """Call the handler as the driver does."""
        answer: R | Awaitable[R] = self.handler(payload, ctx) if self.takes_context else self.handler(payload)
        return answer

    def ask(self, payload: Any, ctx: Context) -> Any:
        """Call the probe as the driver does; the answer may have to be awaited."""
        assert self.probe is not None
        return self.probe(payload, ctx) if self.probe_takes_context else self.probe(payload)

    def probe_answer(self, found: object) -> ProbeAnswer:
        """The probe's answer as a value of the script.

        Raises:
            UsageError: the probe returned something else.
        """
        match found:
            case Done():
                return ProbeAnswer(verdict="done", result=self.rules.payload.encode_result(found.result))
            case NotDone():
                return ProbeAnswer(verdict="not-done")
            case StillUnknown():
                return ProbeAnswer(verdict="unknown", summary=found.why[:500])
            case _:
                raise errors.UsageError(
                    f"The probe of {self.name} returned {type(found).__name__}.",
                    meaning="Whether the effect happened stays unknown.",
                    todo="Return onefold.Done(result), onefold.NotDone() or onefold.StillUnknown(why).",
                )


def _unmarked(body: bytes | str) -> bytes | str:
    """A payload without what a replay added to it: a replayed event is the same payload."""
    if isinstance(body, bytes) or '"replay-name"' not in body:
        return body
    from onefold.decide.envelopes import unmarked  # only replays pay for it

    return unmarked(body)


def run_of(delivery: Delivery | Peeked) -> str | None:
    """The run that a message belongs to; None where it belongs to none."""
    named = delivery.attributes.get(RUN_ATTRIBUTE) if delivery.attributes else None
    return str(named.value) if named is not None else None


def idempotent_part(job: str, key: str) -> str:
    """The operation as part of a FIFO deduplication id (limits: 128 characters of a narrow alphabet)."""
    text = f"{job}.{key}"
    safe = "".join(char if 33 <= ord(char) <= 126 else "_" for char in text)
    return safe[: limits.ID_CHARS_MAX - 33]


def _outbox_item(one: Outgoing) -> OutboxItem:
    entry = one.entry
    return OutboxItem(
        queue=one.queue,
        body=entry.body,
        attributes={name: str(attribute.value) for name, attribute in entry.attributes.items()},
        group=entry.group,
        dedup_id=entry.dedup_id,
        run_at_ms=entry.run_at_ms,
        key=entry.key,
    )


def positional(function: Callable[..., Any]) -> int:
    """How many positional parameters a handler takes: the payload, and perhaps the context."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in inspect.signature(function).parameters.values())
