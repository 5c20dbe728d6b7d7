"""A declared job: its name, handler, payload type, key rule and policy; sending to it, and reading a delivery as it.

`Job` is made by `App.job`. It turns a payload into a message (`outgoing.py`) and a message into `Facts`; it performs neither
the sending (a `Sender` comes in) nor the run (the runner does). Never here: storage, threads, policy decisions.
Invariant: a message that this job sent reads back as an equal payload with the same key and fingerprint.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from onefold import duration, errors, redact
from onefold.codec import PayloadCodec
from onefold.contracts.ledger import Row
from onefold.contracts.queue import (
    AMENDS_ATTRIBUTE,
    APP_ATTRIBUTE,
    CLAIMS,
    JOB_ATTRIBUTE,
    KEY_ATTRIBUTE,
    RUN_ATTRIBUTE,
    Attribute,
    Delivery,
)
from onefold.contracts.store import RecordKey
from onefold.record.attempt import Facts, MalformedKind
from onefold.record.delivery import Failed, Outcome, Policy
from onefold.record.fates import ProbeAnswer
from onefold.record.keys import KeyRule
from onefold.record.rate import Limit
from onefold.runner import context
from onefold.runtime import outgoing
from onefold.runtime.events import kept_text
from onefold.runtime.outgoing import Outgoing, Receipt, keep
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.contracts.admin import Peeked

JudgeFailure = Callable[[Failed, Delivery, Callable[[], Sequence[Row]], float], Outcome]
"""The outcome of a failed run, its delivery, the operation's history (read only when called), and chance in [0, 1)."""

P = TypeVar("P")
R = TypeVar("R")


class Done(Struct, frozen=True):
    """A probe's answer: the effect happened.

    Args:
        result: what the handler would have returned; it answers duplicates from now on.
    """

    result: Any = None


class NotDone(Struct, frozen=True):
    """A probe's answer: the effect did not happen and will not happen any more from the earlier run."""


class StillUnknown(Struct, frozen=True):
    """A probe's answer: it does not know; a person must decide.

    Args:
        why: one line for that person.
    """

    why: str = ""


Found = Done | NotDone | StillUnknown


class Rules(Struct, frozen=True, kw_only=True):
    """How a job reads its messages. Made once at declaration.

    Args:
        payload: codec of the payload's type.
        key: the business key; tenant, group: scope and message group, or None.
        source: which envelope foreign messages come in (see `runner/sources.py`).
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
        judge_failure: the outcome of a map run's item that failed; None for a job that is not a map's.
        dispatches: its handler dispatches the run that its key names.
        ticks: each of its messages is a tick, whose run is its key.
        normal: the one form of a payload that several could be written in, before its key is read; None: as it came. Raises
            PayloadError for one that is not this job's.
        app: name of the app that declares it; travels with its messages.
        internal: only onefold of the app can send to its queue, so that what its messages claim counts unsigned.
    """

    starts_after: str | None = None
    judge_failure: JudgeFailure | None = None
    dispatches: bool = False
    ticks: bool = False
    normal: Callable[[Any], Any] | None = None

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        name: str,
        policy: Policy,
        rules: Rules,
        runtime: Runtime,
        probe: Callable[..., Any] | None,
        classes: Mapping[str, tuple[type[BaseException] | str, ...]],
        limit: Limit | None,
        unique: bool,
        internal: bool = False,
    ) -> None:
        self.name = name
        self.app: str = runtime.registry.name
        self.internal = internal
        self.policy = policy
        self.handler = handler
        self.rules = rules
        self.probe = probe
        self.classes = classes
        self.limit = limit
        self.unique = unique
        self.is_async: bool = inspect.iscoroutinefunction(handler)
        self.takes_context: bool = positional(handler) >= 2
        self.probe_takes_context: bool = probe is not None and positional(probe) >= 2
        self._runtime = runtime
        self._attributes = {JOB_ATTRIBUTE: Attribute(name), APP_ATTRIBUTE: Attribute(self.app)}
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    def __repr__(self) -> str:
        return f"<onefold job {self.name} on {self.policy.queue}>"

    def __call__(self, payload: P, ctx: context.Context | None = None) -> R:
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
            UsageError: delay and run_at together, a run_at that is not a datetime or has no zone.
            StorageBusy: the engine could not write; nothing was sent.
            TransientError: the job is `unique`, and another process is sending this key; ask again.
        """
        return self._send([self.outgoing(payload, delay=delay, run_at=run_at, key=key, dedup_id=dedup_id)])[0]

    def send_many(self, payloads: Iterable[P]) -> list[Receipt]:
        """As `send` for each payload, in order, in one transaction: all are accepted or none.

        Raises:
            UsageError: one payload, and no list of them; others as `send`.
        """
        kind = type(payloads)
        if (
            not hasattr(kind, "__iter__")
            or isinstance(payloads, str | bytes | Mapping)
            or hasattr(kind, "model_fields")
        ):
            raise errors.UsageError(
                f"send_many of {self.name} was given one {kind.__name__}, not a list of payloads.",
                meaning="Nothing was sent.",
                todo=f"Write {self.name}.send(...) for one payload, {self.name}.send_many([...]) for several.",
            )
        return self._send([self.outgoing(payload) for payload in payloads])

    def _send(self, outgoing: list[Outgoing]) -> list[Receipt]:
        inside = context.of_this_thread()
        if inside is None:
            return self._runtime.send(outgoing)
        return keep(outgoing, inside.keep)

    def message(
        self, payload: P, *, delay: duration.Duration | None = None, run_at: datetime | None = None
    ) -> Outgoing:
        """The message for a payload, for a dispatcher to `yield`; nothing is sent here. Arguments and errors as `send`."""
        return self.outgoing(payload, delay=delay, run_at=run_at)

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Send messages now, past the outbox of a handler that may be running. Errors as `send`."""
        return self._runtime.send(outgoing)

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
        rules = self.rules
        body = rules.payload.encode(payload)
        fingerprint = rules.payload.fingerprint(body)
        attributes = self._attributes
        if key is None:
            key = rules.key.of(payload)
        else:
            attributes = {**attributes, KEY_ATTRIBUTE: Attribute(rules.key.given(key))}
        record = RecordKey(rules.tenant.of(payload) if rules.tenant else "", self.name, key)
        group = rules.group.of(payload) if rules.group else None
        return outgoing.message(
            self.policy,
            record,
            body,
            fingerprint,
            attributes=attributes,
            group=group,
            run_at_ms=outgoing.due_ms(self.name, delay, run_at, self._runtime.now_ms),
            dedup_id=dedup_id,
            unique=self.unique,
            payload=payload,
        )

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, delivery: Delivery) -> tuple[Facts, Any]:
        """What is known of a delivery to this job, and its payload (None when it is malformed)."""
        try:
            body = delivery.body
            attributes = delivery.attributes
            sent_by_us = JOB_ATTRIBUTE in attributes
            if not sent_by_us and self.rules.source != "json":
                from onefold.runner import (
                    sources,  # a body that is the payload has no envelope; the cold start is measured
                )

                found = sources.unwrap(self.rules.source, body, attributes)
                if isinstance(found, sources.NotAJob):
                    return self._without_key(delivery, discard=found.why), None
                body = found.payload
            codec = self.rules.payload
            payload = codec.decode(body)
            if self.normal is not None:
                payload = self.normal(payload)
            given = attributes.get(KEY_ATTRIBUTE)
            if delivery.trusted or self.internal or not any(name in attributes for name in CLAIMS):
                key = self.rules.key.given(given.value) if given else self.rules.key.of(payload)
            else:
                key = self.rules.key.of(payload)
                claimed = self._claimed_wrongly(attributes, key)
                if claimed is not None:
                    return self._without_key(delivery, malformed=claimed, kind="untrusted"), None
            scope = self.rules.tenant.of(payload) if self.rules.tenant else ""
            if self.limit is not None and self.limit.key is not None:
                self.limit.key.of(payload)  # asked for again by the gates, which cannot refuse a message
            amends = attributes.get(AMENDS_ATTRIBUTE)
            facts = Facts(
                key=RecordKey(scope, self.name, key),
                fingerprint=codec.fingerprint(_unmarked(body)),
                amends=str(amends.value) if amends else None,
                run=str(attributes[RUN_ATTRIBUTE].value) if RUN_ATTRIBUTE in attributes else None,
                message_id=delivery.message_id,
                sent_at_ms=delivery.sent_at_ms,
                receive_count=delivery.receive_count,
            )
        except errors.PayloadError as error:
            return self._without_key(delivery, malformed=kept_text(error)), None
        return facts, payload

    def _claimed_wrongly(self, attributes: Mapping[str, Attribute], key: str) -> str | None:
        """What an untrusted message claims that its body does not say; None where all of it does.

        Args:
            key: as its body gives it.
        """
        says = {KEY_ATTRIBUTE: key, RUN_ATTRIBUTE: key if self.ticks else None, AMENDS_ATTRIBUTE: None}
        for name, derived in says.items():
            if name in attributes and attributes[name].value != derived:
                claim = f"{name}={str(attributes[name].value)!r:.120}"
                return f"Its attribute {claim} is not signed by app {self.app}, and its body does not say the same."
        return None

    def _without_key(
        self,
        delivery: Delivery,
        *,
        malformed: str | None = None,
        discard: str | None = None,
        kind: MalformedKind = "malformed",
    ) -> Facts:
        return Facts(
            key=None,
            malformed=malformed,
            kind=kind,
            discard=discard,
            run=run_of(delivery) if kind == "malformed" else None,
            message_id=delivery.message_id,
            sent_at_ms=delivery.sent_at_ms,
            receive_count=delivery.receive_count,
        )

    def invoke(self, payload: Any, ctx: context.Context) -> R | Awaitable[R]:
        """Call the handler as the runner does."""
        answer: R | Awaitable[R] = self.handler(payload, ctx) if self.takes_context else self.handler(payload)
        return answer

    def ask(self, payload: Any, ctx: context.Context) -> Any:
        """Call the probe as the runner does; the answer may have to be awaited."""
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
                return ProbeAnswer(verdict="unknown", summary=redact.printable(redact.masked(found.why[:8_192]))[:500])
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
    from onefold.record.envelopes import unmarked  # of replayed events only; the cold start is measured

    return unmarked(body)


def run_of(delivery: Delivery | Peeked) -> str | None:
    """The run that a message belongs to; None where it belongs to none, or only a stranger says so."""
    named = delivery.attributes.get(RUN_ATTRIBUTE) if delivery.attributes and delivery.trusted else None
    return str(named.value) if named is not None else None


def positional(function: Callable[..., Any]) -> int:
    """How many positional parameters a handler takes: the payload, and perhaps the context."""
    return len(positional_names(function))


def positional_names(function: Callable[..., Any]) -> Sequence[str]:
    """The names of these parameters, in order."""
    if type(function) is FunctionType and not vars(function):  # it is called as it is, wrapped by nothing
        code = function.__code__  # inspect.signature would take 0.1 ms of every cold start
        return code.co_varnames[: code.co_argcount]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in inspect.signature(function).parameters.values() if one.kind in kinds]
