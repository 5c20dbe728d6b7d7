"""Pipes from one queue to another, with a filter, an enrichment and a transformation, as in EventBridge Pipes.

    app.pipe(orders, billing, filter={"body": {"kind": ["order"]}}, enrich=with_customer, transform='{"id": <$.id>}')

A pipe is a job on its source queue whose key is the message's own id. What it forwards is sent with the job's record
(outbox), so a message that is delivered twice is forwarded once; retries, dead letters and `onefold why` work as for any
job, and any worker of the app runs it. A message that no filter matches is deleted, as EventBridge Pipes deletes it.

`transform` and `group` are applied to the message (`messageId`, `body`, `attributes`, `messageAttributes`; a JSON body is
parsed) or, where there is an enrichment, to what it returned.
Never here: matching (`patterns.py`), filling in templates (`transform.py`), storage. Invariant: a message leaves its source
queue forwarded, filtered out, or dead-lettered with the reason.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from onefold import codec, errors
from onefold.codec import payload_type
from onefold.contracts.entries import Entry, check_entry
from onefold.contracts.queue import Delivery
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import OutboxItem, RecordKey
from onefold.duration import Duration
from onefold.events.patterns import BodyFilters, compile_filters, refuse_operators
from onefold.events.transform import (
    Path,
    Rendering,
    Transformation,
    compile_path,
    compile_pipe_template,
    text_at,
    transformed,
)
from onefold.options import Queue, Retry
from onefold.record.attempt import Facts
from onefold.record.delivery import AfterFailure
from onefold.record.envelopes import Envelope
from onefold.record.failures import Lists
from onefold.record.keys import key_rule
from onefold.registry import Registry
from onefold.runner.context import Context
from onefold.runner.declaring import policy_of, types_of
from onefold.runner.handlers import Job, Rules, positional, run_of
from onefold.runtime.runtime import Runtime

_NAME: Final = r"[.\-_A-Za-z0-9]{1,64}"  # API reference, CreatePipe
_WHOLE_BODY: Final = "<$.body>"
# EventBridge user guide, "Event filtering in EventBridge Pipes": what patterns of pipes do not support
_UNKNOWN: Final = ("wildcard",)

Pattern = Mapping[str, Any] | str


class Pipe(Struct, frozen=True, kw_only=True, eq=False):
    """A declared pipe. Made by `App.pipe`.

    Attributes:
        name: the name of the pipe and of its job.
        source, target: names of queues; fifo: of the target.
        filters: JSON of patterns, at most 5; a message must match one of them; none: every message is forwarded.
        transform: the template of what the target gets; None: the unchanged body, or what `enrich` returned.
        group: the group of a FIFO target: a text, or a JSON path.
        enrich: the function between filter and transformation; None for none.
        owner: the team that is responsible for fixes.
    """

    name: str
    source: str
    target: str
    fifo: bool
    filters: tuple[str, ...]
    transform: str | None
    group: str | None
    enrich: Callable[..., Any] | None
    owner: str | None

    @property
    def input_template(self) -> str | None:
        """The template for EventBridge Pipes; if the pipe has none, it forwards the body, not the whole record."""
        return _WHOLE_BODY if self.transform is None and self.enrich is None else self.transform


class _CompiledPipe(Struct, frozen=True, eq=False):
    """A pipe as its job needs it."""

    pipe: Pipe
    target: QueueSettings
    filters: BodyFilters
    transformation: Transformation
    group_path: Path | None
    takes: codec.PayloadCodec[Any] | None  # None: any JSON, or text


class PipeJob(Job[str, Any]):
    """The job of a pipe: whatever the message says, its key is its id and its payload its body."""

    def __init__(self, handler: Callable[..., Any], filters: BodyFilters, **options: Any) -> None:
        super().__init__(handler, **options)
        self._filters = filters

    def read(self, delivery: Delivery) -> tuple[Facts, Any]:
        """What is known of a message, and its payload; a message that is filtered out is discarded."""
        body = delivery.body
        if not self._filters.keep(body):
            return self._without_key(delivery, discard="no filter of the pipe matches it"), None
        facts = Facts(
            key=RecordKey("", self.name, delivery.message_id),
            fingerprint=self.rules.payload.fingerprint(codec.encode(body)),
            message_id=delivery.message_id,
            sent_at_ms=delivery.sent_at_ms,
            receive_count=delivery.receive_count,
            run=run_of(delivery),
        )
        return facts, body


def declare_pipe(
    runtime: Runtime,
    source: Queue,
    target: Queue,
    *,
    name: str | None,
    filter: Pattern | Sequence[Pattern],  # noqa: A002 - the option's name
    enrich: Callable[..., Any] | None,
    transform: str | None,
    group: str | None,
    timeout: Duration,
    retry: Retry | None,
    after_failure: AfterFailure,
    keep: Duration,
    owner: str | None,
) -> Pipe:
    """What `App.pipe` does; arguments and errors as there."""
    registry = runtime.registry
    _check_queues(registry, source, target)
    title = f"{source.name}-to-{target.name}".replace(".fifo", "") if name is None else name
    if not re.fullmatch(_NAME, str(title)):
        raise errors.UsageError(
            f"{title!r:.80} is not a valid name for a pipe.",
            todo="Give it a name= of 1 to 64 of A-Z a-z 0-9 . - and _.",
        )
    if title in registry.jobs:
        raise errors.ConflictError(f"A job or pipe {title} is declared already.", todo="Give this one another name=.")
    if target.settings.fifo and group is None:
        raise errors.UsageError(
            f"Pipe {title} forwards to the FIFO queue {target.name} and has no group.",
            todo='Say what is kept in order, for example group="$.body.customer" or group="$.attributes.MessageGroupId".',
        )
    pipe = Pipe(
        name=title, source=source.name, target=target.name, fifo=target.settings.fifo, filters=_filter_texts(filter),
        transform=transform, group=group, enrich=enrich, owner=owner,
    )  # fmt: skip
    way = _CompiledPipe(
        pipe=pipe,
        target=target.settings,
        filters=compile_filters(pipe.filters),
        transformation=compile_pipe_template(transform) if transform is not None else Transformation(),
        group_path=compile_path(group) if group is not None and group.startswith("$") else None,
        takes=_taken_by(enrich),
    )
    policy = policy_of(
        source, "repeatable", "rerun", timeout, Retry() if retry is None else retry, after_failure, keep, owner
    )
    registry.jobs[title] = PipeJob(
        _handler(way),
        way.filters,
        name=title,
        policy=policy(title),
        rules=Rules(
            payload=payload_type(str, Any),
            key=key_rule(_never, str, what=f"key of {title}"),
            tenant=None,
            group=None,
            source="text",
        ),
        runtime=runtime,
        probe=None,
        classes=dict(Lists().pairs()),
        limit=None,
        unique=False,
    )
    registry.pipes[title] = pipe
    return pipe


def _never(_body: object) -> str:
    raise errors.UsageError(
        "A pipe takes messages from its source queue only.", todo="Send the message to that queue, not to the pipe."
    )


def _check_queues(registry: Registry, source: Queue, target: Queue) -> None:
    for queue in (source, target):
        if registry.queues.get(getattr(queue, "name", "")) is not queue:
            raise errors.UsageError(
                f"{getattr(queue, 'name', queue)!r:.80} is not a queue of this app.",
                todo="Pass what app.queue(...) returned.",
            )
    if source is target:
        raise errors.UsageError(f"A pipe from {source.name} to itself loops forever.", todo="Give it a target.")
    other = next((job.name for job in registry.jobs.values() if job.policy.queue == source.name), None)
    if other is not None:
        raise errors.ConflictError(
            f"Queue {source.name} has {other} already, and each message goes to only one of them.",
            todo="Give the pipe a source queue of its own; a rule of a bus can send to both.",
        )


def _filter_texts(given: Pattern | Sequence[Pattern]) -> tuple[str, ...]:
    patterns: Sequence[Pattern] = (given,) if isinstance(given, str | Mapping) else tuple(given)
    texts = tuple(one if isinstance(one, str) else codec.encode(one).decode() for one in patterns)
    for text in texts:
        refuse_operators(text, _UNKNOWN, "EventBridge Pipes")
    return texts


def _taken_by(enrich: Callable[..., Any] | None) -> codec.PayloadCodec[Any] | None:
    if enrich is None:
        return None
    annotation, returned = types_of(enrich)
    return None if annotation in (Any, object) else payload_type(annotation, returned)


# -- forwarding ------------------------------------------------------------------------------------------------------


def _handler(way: _CompiledPipe) -> Callable[..., Any]:
    enrich = way.pipe.enrich
    with_context = enrich is not None and positional(enrich) >= 2

    def asked(body: str, ctx: Context) -> Any:
        assert enrich is not None
        value = _opened(body) if way.takes is None else way.takes.decode(body)
        return enrich(value, ctx) if with_context else enrich(value)

    async def forward_in_task(body: str, ctx: Context) -> dict[str, Any]:
        return _forward(way, ctx, await asked(body, ctx))

    def forward(body: str, ctx: Context) -> dict[str, Any]:
        return _forward(way, ctx, asked(body, ctx) if enrich is not None else _opened(body))

    return forward_in_task if inspect.iscoroutinefunction(enrich) else forward


def _forward(way: _CompiledPipe, ctx: Context, value: Any) -> dict[str, Any]:
    """Put what goes to the target into the outbox; returns the job's result.

    Raises:
        PayloadError: the target would not take it. The message becomes a dead letter of the source.
    """
    pipe, message = way.pipe, ctx.message
    assert message is not None
    if value is None and pipe.enrich is not None:
        return {"forwarded": 0}
    about = Rendering(pipe.name, pipe.name, message.received_at_ms)
    if pipe.enrich is None:
        text, seen = message.body, _record_of(message, value)
    else:
        text = value if isinstance(value, str) else codec.encode(value).decode()
        seen = codec.encode(value) if isinstance(value, str) else text.encode()
    event = Envelope(message.message_id, message.sent_at_ms, seen.decode(), msgspec.json.decode(seen))
    if pipe.transform is not None:
        text = transformed(way.transformation, event, about)
    group = pipe.group if way.group_path is None else text_at(way.group_path, event)
    if pipe.fifo and group is None:
        raise errors.PayloadError(
            f"The group {pipe.group} of pipe {pipe.name} leads to nothing in this message.",
            todo="Fix the message and redrive it, or the pipe's group.",
        )
    key = message.key or message.message_id
    dedup_id = message.message_id if pipe.fifo else None
    refused = check_entry(Entry(body=text, group=group, dedup_id=dedup_id, key=key), way.target)
    if refused is not None:
        raise errors.PayloadError(
            f"Queue {pipe.target} does not take what pipe {pipe.name} forwards: {refused.message}",
            todo="Fix the message or the pipe's transform, then redrive it.",
        )
    ctx.keep([OutboxItem(queue=pipe.target, body=text, group=group, dedup_id=dedup_id, key=key)])
    return {"forwarded": 1}


def _opened(body: str) -> Any:
    """A body as filters see it: a JSON object or array as its value, any other body as its text."""
    if body.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return body
    return body


def _record_of(message: Delivery, body: Any) -> bytes:
    """A message as pipes and Lambda see it, as JSON; without receipt handle and digests, which differ on each receive.

    Args:
        body: from `_opened`: a text stays text, other JSON is inserted as written.
    """
    attributes = {
        "ApproximateReceiveCount": str(message.receive_count),
        "SentTimestamp": str(message.sent_at_ms),
        "ApproximateFirstReceiveTimestamp": str(message.first_received_at_ms),
    }
    beside = {
        "MessageGroupId": message.group,
        "MessageDeduplicationId": message.dedup_id,
        "SequenceNumber": message.sequence,
    }
    attributes.update({name: value for name, value in beside.items() if value is not None})
    own = {
        name: {"stringValue": one.value, "dataType": one.type}
        for name, one in message.attributes.items()
        if isinstance(one.value, str)
    }
    record = {
        "messageId": message.message_id,
        "body": body if isinstance(body, str) else Raw(message.body.encode()),
        "attributes": attributes,
        "messageAttributes": own,
        "eventSource": "aws:sqs",
    }
    return msgspec.json.encode(record)
