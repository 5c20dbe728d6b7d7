"""A declared job: its name, handler, payload type, key rule and policy; sending to it, and reading its deliveries.

`App.job` makes a `Job`. It turns a payload into a message (`outgoing.py`) and a message into `Facts`; the sending is
done by the `Runtime` that it is given, and the run by the runner. Never here: storage, threads, policy decisions.
Invariant: a message that this job sent reads back as an equal payload with the same key and fingerprint.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from onefold import duration, errors
from onefold.codec import Compared, PayloadCodec
from onefold.contracts.ledger import Row
from onefold.contracts.queue import (
    AMENDS_ATTRIBUTE,
    APP_ATTRIBUTE,
    CLAIMS,
    JOB_ATTRIBUTE,
    KEY_ATTRIBUTE,
    RUN_ATTRIBUTE,
    VERSION_ATTRIBUTE,
    Attribute,
    Delivery,
)
from onefold.contracts.store import RecordKey
from onefold.interrupts import ENDING, let_through_of_types
from onefold.record.attempt import Facts, MalformedKind
from onefold.record.decisions import ProbeAnswer
from onefold.record.delivery import Executor, Failed, Outcome, Policy
from onefold.record.keys import KeyRule
from onefold.record.rate import Limit
from onefold.runner import context, lookup
from onefold.runner.hooks import HookSet
from onefold.runner.lookup import Known
from onefold.runtime import outgoing
from onefold.runtime.events import kept_text, masked_line
from onefold.runtime.outgoing import Outgoing, Receipt, keep
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.contracts.admin import Peeked
    from onefold.runner.versions import Versions

JudgeFailure = Callable[[Failed, Delivery, Callable[[], Sequence[Row]], float], Outcome]
"""From a failure, its delivery, a function that reads the operation's history, and a random number: the outcome."""

P = TypeVar("P")
R = TypeVar("R")


class Done(Struct, frozen=True):
    """A probe's answer: the effect happened.

    Args:
        result: what the handler would have returned; duplicates get it from now on.
    """

    result: Any = None


class NotDone(Struct, frozen=True):
    """A probe's answer: the effect did not happen, and the earlier run cannot cause it any more."""


class StillUnknown(Struct, frozen=True):
    """A probe's answer: the probe does not know, and a person must decide.

    Args:
        why: one line for that person.
    """

    why: str = ""


Found = Done | NotDone | StillUnknown


class Rules(Struct, frozen=True, kw_only=True):
    """How a job reads its messages. Made once, when the job is declared.

    Args:
        payload: codec of the payload's type.
        key: the rule for the business key; tenant, group: those for scope and message group, or None.
        compared: the fields from which its fingerprint is made; None: all of them.
        source: the envelope of messages that onefold did not send (see `runner/sources.py`).
    """

    payload: PayloadCodec[Any]
    key: KeyRule
    tenant: KeyRule | None
    group: KeyRule | None
    source: str
    compared: Compared | None = None

    def fingerprint(self, text: bytes | str) -> str:
        """The fingerprint of a payload's JSON text. Errors as for `PayloadCodec.fingerprint`."""
        return self.payload.fingerprint(text) if self.compared is None else self.compared.of(text)


class Job(Generic[P, R]):
    """A declared job. Use `send` to have its handler run once; a direct call runs it without guard or queue, in tests.

    Attributes:
        name: as stored in records and messages.
        policy: its retry, timeout and unknown-outcome settings.
        starts_after: the schedule or map job whose complete runs start it; None for a job that is only sent.
        judge_failure: decides the outcome of a failed item of a map run; None for a job that does not belong to a map.
        dispatches: whether its handler dispatches the run that its key names.
        ticks: whether each of its messages is a tick; the key is then the name of its run.
        normal: turns a payload that can be written in several ways into one form, before its key is read; None if it is
            used unchanged. Raises PayloadError if the payload belongs to another job.
        aliases: names that it had before; names: its present name and those. versions: its payload's; None: only one.
        executor: where its handler runs, whatever the worker's settings are; None: as these say.
        app: name of the app that declares it; sent with its messages.
        hooks: run around its handler, and when the handler raises.
        internal: only onefold itself sends to its queue, so the attributes of its messages count without a signature.
    """

    starts_after: str | None = None
    judge_failure: JudgeFailure | None = None
    dispatches: bool = False
    ticks: bool = False
    normal: Callable[[Any], Any] | None = None
    hooks: HookSet = HookSet()

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
        self.aliases: tuple[str, ...] = ()
        self.versions: Versions | None = None
        self.executor: Executor | None = None
        self.is_async: bool = inspect.iscoroutinefunction(handler)
        self.takes_context: bool = positional(handler) >= 2
        self.probe_takes_context: bool = probe is not None and positional(probe) >= 2
        self._runtime = runtime
        self.hooks = runtime.hooks or self.hooks
        self._attributes = {JOB_ATTRIBUTE: Attribute(name), APP_ATTRIBUTE: Attribute(self.app)}
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    @property
    def names(self) -> tuple[str, ...]:
        """Its current name, then its earlier names."""
        return (self.name, *self.aliases)

    def upgrade(self, from_version: int) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Declare a function that turns a payload of an earlier version into one of the next version.

            @book_courier.upgrade(from_version=1)
            def with_currency(order: dict) -> dict:
                return {**order, "currency": "EUR"}

        It is applied before the payload is validated, to plain JSON values, and again at every delivery; it must depend on
        nothing else. If there are several versions in between, one function after the other is applied.

        Args:
            from_version: 1 up to the job's `version=` - 1.

        Raises:
            UsageError: not an earlier version of this job. ConflictError: that version has a function already.
        """
        if self.versions is None:
            raise errors.UsageError(
                f"{self.name} has one payload version.", todo="Declare the present one: app.job(..., version=2)."
            )
        versions = self.versions

        def declare(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            versions.add(from_version, function)
            return function

        return declare

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
        connection: object = None,
    ) -> Receipt:
        """Send one message. On return it is durable; inside a handler it is sent when the run completes (outbox).

        Args:
            payload: a value of the type that the handler takes.
            delay: the least time until it runs. run_at: the instant, with a zone, before which it does not run by the
                machine's clock. Neither has a limit. On a FIFO queue the message gets its place in its group when due,
                behind all sent before; with SQS it needs `--later`, as SQS delays no single messages of a FIFO queue.
            key: used instead of the declared key rule.
            dedup_id: FIFO queues: used instead of one derived from job, key and payload.
            connection: your connection to the engine's own file, or to a database with the app's outbox: the message is part
                of the transaction that is open on it, and is sent if, and only if, you commit. A `sqlite3.Connection`, a
                `psycopg.Connection`, Django's `connection`, a SQLAlchemy Session or Connection.

        Raises:
            PayloadError: the payload does not fit the type, or gives no key; nothing was sent.
            UsageError: delay and run_at together, a run_at that is not a datetime or has no zone; a connection that is
                closed, to another database, or in autocommit mode without a transaction.
            StorageBusy: the engine could not write; nothing was sent.
            TransientError: the job is `unique`, and another process is sending this key; send again later.
        """
        outgoing = self.outgoing(payload, delay=delay, run_at=run_at, key=key, dedup_id=dedup_id)
        return self._send([outgoing], connection)[0]

    async def asend(
        self,
        payload: P,
        *,
        delay: duration.Duration | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        connection: object = None,
    ) -> Receipt:
        """Like `send`, for coroutines: it does not block the loop. A task that is cancelled meanwhile may have sent.

        Args:
            delay, run_at, key, dedup_id: as for `send`.
            connection: a connection of asyncpg, a `psycopg.AsyncConnection`, or SQLAlchemy's AsyncSession or AsyncConnection
                on one of them, to the database with the app's outbox: sent if, and only if, its transaction commits.

        Raises:
            as for `send`; UsageError: a connection that is not asynchronous.
        """
        outgoing = self.outgoing(payload, delay=delay, run_at=run_at, key=key, dedup_id=dedup_id)
        return (await self._asend([outgoing], connection))[0]

    def send_many(self, payloads: Iterable[P], *, connection: object = None) -> list[Receipt]:
        """Like `send` for each payload, in order, in one transaction: all are accepted or none.

        Args:
            connection: as for `send`; the transaction is then yours.

        Raises:
            UsageError: a single payload instead of a list; others as for `send`.
        """
        return self._send(self._outgoing_of(payloads), connection)

    async def asend_many(self, payloads: Iterable[P], *, connection: object = None) -> list[Receipt]:
        """Like `send_many`, for coroutines: it does not block the loop. `connection` and errors as for `asend`."""
        return await self._asend(self._outgoing_of(payloads), connection)

    def _outgoing_of(self, payloads: Iterable[P]) -> list[Outgoing]:
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
        return [self.outgoing(payload) for payload in payloads]

    def _send(self, outgoing: list[Outgoing], connection: object) -> list[Receipt]:
        inside = _run_that_keeps(connection)
        return self._runtime.send(outgoing, connection) if inside is None else self.kept(outgoing, inside)

    async def _asend(self, outgoing: list[Outgoing], connection: object) -> list[Receipt]:
        inside = _run_that_keeps(connection)
        return await self._runtime.asend(outgoing, connection) if inside is None else self.kept(outgoing, inside)

    def kept(self, outgoing: Sequence[Outgoing], run: context.Context) -> list[Receipt]:
        """Put messages into the outbox of a run. Errors as for `Context.keep`."""
        if self._runtime.tracing is None:
            return keep(outgoing, run.keep, self._runtime)
        with self._runtime.tracing.sending(outgoing, outbox=True) as carrying:
            return keep(carrying, run.keep, self._runtime)

    def outbox_item(
        self,
        payload: P,
        *,
        delay: duration.Duration | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """An action for your own call of DynamoDB's TransactWriteItems: the message is sent if, and only if, that succeeds.

        The action contains the message's id: when you repeat a call whose answer was lost, pass the same action.

        Args:
            delay, run_at, key, dedup_id: as for `send`.

        Returns:
            `{"Put": {"TableName": ..., "Item": ...}}`, in the form of boto3's client. DynamoDB is not called.

        Raises:
            PayloadError: as for `send`; a message over 390,000 bytes. UsageError: `outbox=` is not in DynamoDB.
        """
        return self._runtime.outbox_item(self.outgoing(payload, delay=delay, run_at=run_at, key=key, dedup_id=dedup_id))

    # -- asking ------------------------------------------------------------------------------------------------------

    def look(self, key: str, *, tenant: str = "") -> Known[R]:
        """What is known of an operation now: its state, its result, its attempts, and why it failed last.

        Args:
            key: the operation's key, as in the receipt of its send. tenant: its scope, where the job has tenants.

        Raises:
            PayloadError: the stored result is not of the type that the handler returns.
            TransientError: the engine cannot be read now.
        """
        return lookup.look(self._runtime, self._looked_at(), key, tenant)

    async def alook(self, key: str, *, tenant: str = "") -> Known[R]:
        """Like `look`, for coroutines: it does not block the loop."""
        return await self._runtime.in_thread(lambda: self.look(key, tenant=tenant))

    def cancel(self, key: str, *, tenant: str = "") -> bool:
        """Remove the waiting messages of an operation that has not started; False if none wait or a worker has it.

        Only on an engine in a file. The record does not change, and the operation can be sent again.

        Raises:
            UsageError: the engine cannot find a message by its key (SQS).
        """
        return lookup.cancel(self._runtime, self._looked_at(), key, tenant)

    async def acancel(self, key: str, *, tenant: str = "") -> bool:
        """Like `cancel`, for coroutines: it does not block the loop."""
        return await self._runtime.in_thread(lambda: self.cancel(key, tenant=tenant))

    def wait(self, key: str, timeout: duration.Duration = "30s", *, tenant: str = "") -> Known[R]:
        """Wait until an operation is done, dead or held, and return what is known then; for tests and scripts.

        Args:
            timeout: how long to wait at most.

        Raises:
            TransientError: the operation has not ended by then. Others as for `look`.
        """
        return lookup.wait(self._runtime, self._looked_at(), key, tenant, timeout)

    async def await_end(
        self,
        key: str,
        timeout: duration.Duration = "30s",  # noqa: ASYNC109 - as `wait`; the app's clock measures it
        *,
        tenant: str = "",
    ) -> Known[R]:
        """Like `wait`, for coroutines: it does not block the loop. Cancelling the task changes nothing."""
        return await lookup.await_end(self._runtime, self._looked_at(), key, tenant, timeout)

    def _looked_at(self) -> lookup.JobView[R]:
        return lookup.JobView(
            name=self.name,
            aliases=self.aliases,
            queue=self.policy.queue,
            payload=self.rules.payload,
            tenant=self.rules.tenant,
        )

    def message(
        self, payload: P, *, delay: duration.Duration | None = None, run_at: datetime | None = None
    ) -> Outgoing:
        """The message for a payload, for a dispatcher to `yield`; nothing is sent. Arguments, errors: as for `send`."""
        context.count_message()
        return self.outgoing(payload, delay=delay, run_at=run_at)

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Send messages at once, not through the outbox of a handler that may be running. Errors as for `send`."""
        return self._runtime.send(context.delivered(outgoing))

    async def adeliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Like `deliver`, for coroutines: it does not block the loop."""
        return await self._runtime.asend(context.delivered(outgoing))

    def outgoing(
        self,
        payload: P,
        *,
        delay: duration.Duration | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
    ) -> Outgoing:
        """The message that `send` would send. Arguments and errors as for `send`."""
        rules = self.rules
        body = rules.payload.encode(payload)
        fingerprint = rules.fingerprint(body)
        attributes = self._attributes
        if self.versions is not None:
            fingerprint = self.versions.marked(fingerprint, self.versions.present)
            attributes = {**attributes, VERSION_ATTRIBUTE: Attribute(str(self.versions.present))}
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
            times=outgoing.times(self.name, delay, run_at),
            dedup_id=dedup_id,
            unique=self.unique,
            payload=payload,
            aliases=self.aliases,
            is_other=None if self.versions is None else self.versions.is_other,
            compared=rules.compared,
        )

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, delivery: Delivery) -> tuple[Facts, Any]:
        """The facts of a delivery to this job and its payload, or the error if it is malformed."""
        try:
            body, attributes = delivery.body, delivery.attributes
            sent_by_us = JOB_ATTRIBUTE in attributes
            if not sent_by_us and self.rules.source != "json":
                from onefold.runner import sources  # imported here for faster cold starts: few jobs have envelopes

                found = sources.unwrap(self.rules.source, body, attributes)
                if isinstance(found, sources.NotAJob):
                    return self._without_key(delivery, discard=found.why), None
                body = found.payload
            codec = self.rules.payload
            fingerprint = self.rules.fingerprint(_unmarked(body))
            if self.versions is not None:
                version = self.versions.version_of(attributes)
                fingerprint = self.versions.marked(fingerprint, version)
                payload = codec.decode(self.versions.upgraded(body, version))
            else:
                payload = codec.decode(body)
            payload = payload if self.normal is None else self.normal(payload)
            given = attributes.get(KEY_ATTRIBUTE)
            if delivery.trusted or self.internal or not any(name in attributes for name in CLAIMS):
                key = self.rules.key.given(given.value) if given else self.rules.key.of(payload)
            else:
                key = self.rules.key.of(payload)
                if (claimed := self._claimed_wrongly(attributes, key)) is not None:
                    return self._without_key(delivery, malformed=claimed, kind="untrusted"), None
            scope = self.rules.tenant.of(payload) if self.rules.tenant else ""
            if self.limit is not None and self.limit.key is not None:
                self.limit.key.of(payload)  # checked here, because admission, which computes it again, cannot refuse
            amends = attributes.get(AMENDS_ATTRIBUTE)
            facts = Facts(
                key=RecordKey(scope, self._name_in(attributes), key),
                fingerprint=fingerprint,
                amends=str(amends.value) if amends else None,
                run=str(attributes[RUN_ATTRIBUTE].value) if RUN_ATTRIBUTE in attributes else None,
                message_id=delivery.message_id,
                sent_at_ms=delivery.accepted_at_ms or delivery.sent_at_ms,
                receive_count=delivery.receive_count,
            )
        except (errors.PayloadError, *ENDING) as error:  # the app's own types and keys may raise any
            let_through_of_types(error)
            said = kept_text(error) if isinstance(error, Exception) else f"Reading it raised {type(error).__name__}."
            return self._without_key(delivery, malformed=said), error
        return facts, payload

    def _name_in(self, attributes: Mapping[str, Attribute]) -> str:
        """The job's name in a message: an earlier name, if it was sent before the job was renamed."""
        named = attributes.get(JOB_ATTRIBUTE) if self.aliases else None
        return str(named.value) if named is not None and named.value in self.aliases else self.name

    def _claimed_wrongly(self, attributes: Mapping[str, Attribute], key: str) -> str | None:
        """A sentence about an attribute of an untrusted message that its body does not confirm; None if there is none.

        Args:
            key: the key that its body gives.
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
        """Call the handler, as the runner does; the result may have to be awaited."""
        answer: R | Awaitable[R] = self.handler(payload, ctx) if self.takes_context else self.handler(payload)
        return answer

    def ask(self, payload: Any, ctx: context.Context) -> Any:
        """Call the probe, as the runner does; the answer may have to be awaited."""
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
                return ProbeAnswer(verdict="unknown", summary=masked_line(found.why))
            case _:
                raise errors.UsageError(
                    f"The probe of {self.name} returned {type(found).__name__}.",
                    meaning="Whether the effect happened stays unknown.",
                    todo="Return onefold.Done(result), onefold.NotDone() or onefold.StillUnknown(why).",
                )


def _run_that_keeps(connection: object) -> context.Context | None:
    """The run whose outbox takes a message that is sent now with this connection; None if it is sent at once."""
    inside = context.of_this_thread()
    return inside if inside is not None and (connection is None or inside.lends(connection)) else None


def _unmarked(body: bytes | str) -> bytes | str:
    """A payload without what a replay has added to it, because a replayed event has the same payload."""
    if isinstance(body, bytes) or '"replay-name"' not in body:
        return body
    from onefold.record.envelopes import unmarked  # imported here for faster cold starts: only replayed events need it

    return unmarked(body)


def run_of(delivery: Delivery | Peeked) -> str | None:
    """The run that a message belongs to; None if it belongs to none, or its attribute is not trusted."""
    named = delivery.attributes.get(RUN_ATTRIBUTE) if delivery.attributes and delivery.trusted else None
    return str(named.value) if named is not None else None


def positional(function: Callable[..., Any]) -> int:
    """How many positional parameters a handler has: the payload, and perhaps the context."""
    return len(positional_names(function))


def positional_names(function: Callable[..., Any]) -> Sequence[str]:
    """The names of a handler's positional parameters, in order."""
    if type(function) is FunctionType and not vars(function):  # a plain function, not a wrapper
        return function.__code__.co_varnames[: function.__code__.co_argcount]  # signature() costs a cold start 0.1 ms
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.kind <= one.POSITIONAL_OR_KEYWORD]
