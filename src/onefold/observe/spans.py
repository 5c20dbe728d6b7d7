"""Spans of OpenTelemetry: send, receive, process and settle, as the semantic conventions for messaging name them (v1.44).

    send     PRODUCER  one for each queue of a call; each message carries its context in the attribute `onefold.trace`
    receive  CLIENT    one for each receive that brings messages, linked to the sends
    process  CONSUMER  one for each message, in the receive (or in Lambda's own span), linked to its send
    settle   CLIENT    one for messages settled together: in the process span of a single one, or linked to several
    sends

The context stays with a message through dead-letter and held queues and redrives. For messages without it, X-Ray's
header `AWSTraceHeader` is used.
Never here: metrics (`otel.py`), what an outcome means. Invariants: no body is in a span, and no key unless keys were
requested; the text of an exception is limited by `kept_text`; a context from a message is not trusted, only linked to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec.structs import replace
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from onefold.contracts.queue import TRACE_ATTRIBUTE, Attribute
from onefold.observe.log_fields import failure_class
from onefold.observe.metrics import OUTCOMES
from onefold.record import attempt as script
from onefold.runtime.events import EVENTS, Event

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import QueueReceiver
    from onefold.outside import Clock
    from onefold.runner.execution import Execution
    from onefold.runtime.outgoing import Outgoing
    from onefold.runtime.tracing import Ids

    Operated = Callable[[str, str, int, int | None, str | None], None]
    """Counts an operation: name, queue, number of messages, duration in ms (None: made by Lambda), error class."""

T = TypeVar("T")

LINKS_MAX: Final = 128  # OpenTelemetry's bound on the links of a span
_CARRIED_CHARS_MAX: Final = 1_024
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_XRAY = re.compile(r"Root=1-([0-9a-f]{8})-([0-9a-f]{24})")
_XRAY_PARENT = re.compile(r"Parent=([0-9a-f]{16})")
_TEXT_CHARS_MAX: Final = 4_000
_NOWHERE: Final = contexts.Context()


class Spans:
    """`Tracing` with OpenTelemetry.

    Args:
        tracer: makes the spans. operated: counts operations.
        with_key: process spans have the operation's key. follows: a process span is a child of its message's send.
    """

    def __init__(
        self, tracer: Tracer, clock: Clock, operated: Operated, *, with_key: bool = False, follows: bool = False
    ) -> None:
        self._tracer = tracer
        self._clock = clock
        self._operated = operated
        self._with_key = with_key
        self._follows = follows
        self._is_lambda = False
        self._fixed: dict[tuple[str, str, str], dict[str, Any]] = {}  # attributes by operation, queue and job
        self.system = "onefold"

    def opened(self, system: str) -> None:
        """Note the name of the messaging system."""
        self.system = system
        self._fixed = {}

    def _of(self, operation: str, queue: str, job: str = "") -> dict[str, Any]:
        """The attributes shared by all spans of an operation on a queue (and, for process spans, a job); read-only."""
        found = self._fixed.get((operation, queue, job))
        if found is None:
            found = {
                "messaging.system": self.system,
                "messaging.operation.name": operation,
                "messaging.operation.type": operation,
            }
            if queue:
                found["messaging.destination.name"] = queue
            if job:
                found["onefold.job"] = job
            if job and self._is_lambda:
                found["faas.trigger"] = "pubsub"
            self._fixed[operation, queue, job] = found
        return found

    # -- send --------------------------------------------------------------------------------------------------------

    @contextmanager
    def sending(self, outgoing: Sequence[Outgoing], *, outbox: bool = False) -> Iterator[Sequence[Outgoing]]:
        """See `Tracing.sending`."""
        by_queue: dict[str, int] = {}
        for one in outgoing:
            by_queue[one.queue] = by_queue.get(one.queue, 0) + 1
        since_ms = self._clock.monotonic_ms()
        spans: dict[str, Span] = {}
        carried: dict[str, Attribute] = {}
        for queue, count in by_queue.items():
            attributes = {**self._of("send", queue), "onefold.job": outgoing[0].record.job}
            if count > 1:
                attributes["messaging.batch.message_count"] = count
            if outbox:
                attributes["onefold.outbox"] = True
            spans[queue] = span = self._tracer.start_span(
                f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            text = _text_of(span.get_span_context())
            if text is not None:
                carried[queue] = Attribute(text)
        failed: str | None = None
        try:
            yield [_carrying(one, carried[one.queue]) if one.queue in carried else one for one in outgoing]
        except BaseException as error:
            failed = type(error).__qualname__
            raise
        finally:
            took_ms = self._clock.monotonic_ms() - since_ms
            for queue, span in spans.items():
                if failed is not None:
                    _fail(span, failed)
                span.end()
                if not outbox:
                    self._operated("send", queue, by_queue[queue], took_ms, failed)

    # -- receive -----------------------------------------------------------------------------------------------------

    def receiver(self, queue: QueueReceiver) -> QueueReceiver:
        """See `Tracing.receiver`."""
        return cast("QueueReceiver", _Receiver(queue, self))

    def received(self, queue: str, receive: Callable[[], list[Delivery]]) -> list[Delivery]:
        """Receive, with a span if messages arrive; the deliveries carry its context."""
        since_ms, at_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        try:
            deliveries = receive()
        except Exception as error:
            self._operated("receive", queue, 0, self._clock.monotonic_ms() - since_ms, type(error).__qualname__)
            raise
        if not deliveries:
            return deliveries
        attributes = {**self._of("receive", queue), "messaging.batch.message_count": len(deliveries)}
        links = _links(sent_in(one) for one in deliveries)
        span = self._tracer.start_span(
            f"receive {queue}", _NOWHERE, SpanKind.CLIENT, attributes, links, start_time=at_ms * 1_000_000
        )
        text = _text_of(span.get_span_context())
        span.end()
        self._operated("receive", queue, len(deliveries), self._clock.monotonic_ms() - since_ms, None)
        return deliveries if text is None else [replace(one, received_in=text) for one in deliveries]

    def invoked(self, delivery: Delivery) -> Delivery:
        """See `Tracing.invoked`."""
        if not self._is_lambda:
            self._is_lambda, self._fixed = True, {}
        self._operated("receive", delivery.queue, 1, None, None)
        text = self.carried()
        return delivery if text is None else replace(delivery, received_in=text)

    # -- process -----------------------------------------------------------------------------------------------------

    @contextmanager
    def processing(self, run: Execution) -> Iterator[None]:
        """See `Tracing.processing`."""
        if run.job.policy.is_call:
            yield
            return
        span = self._begin(run)
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield
        finally:
            contexts.detach(token)
            self._end(span, run)

    def _begin(self, run: Execution) -> Span:
        delivery = run.delivery
        sent, parent = sent_in(delivery), _context_of(delivery.received_in)
        within, links = _carried_within(delivery.received_in), []
        if sent is not None:
            is_again = run.claimed is not None and run.claimed.found == "failed" and run.claimed.attempts <= 1
            links.append(Link(sent, {"onefold.redrive": True} if is_again else None))
        if self._follows and sent is not None:
            links = [] if parent is None else [Link(parent)]
            parent, within = sent, _within(sent)
        # A span with an unsampled parent is hardly ever recorded: its own attributes are computed only if it is.
        is_likely = parent is None or parent.trace_flags.sampled
        attributes = self._of("process", delivery.queue, run.job.name)
        if is_likely:
            attributes = {**attributes, **self._own(run)}
        run.span = span = self._tracer.start_span(
            f"process {delivery.queue}", within, SpanKind.CONSUMER, attributes, links
        )
        if not is_likely and span.is_recording():
            span.set_attributes(self._own(run))
        return span

    def _own(self, run: Execution) -> dict[str, Any]:
        """The attributes of one process span besides those of its queue and job."""
        attributes: dict[str, Any] = {
            "messaging.message.id": run.delivery.message_id,
            "onefold.attempt": run.attempt,
        }
        if run.claimed is not None:
            attributes["onefold.fence"] = run.claimed.hold.fence
        if run.facts.run is not None:
            attributes["onefold.run"] = run.facts.run
        if self._with_key and run.facts.key is not None:
            attributes["onefold.key"] = run.facts.key.key
        return attributes

    def _end(self, span: Span, run: Execution) -> None:
        if span.is_recording():
            name, detail = _last_note(run)
            outcome = OUTCOMES.get(name, name)
            span.set_attribute("onefold.outcome", outcome)
            event = Event(at_ms=0, name=name, detail=detail).carrying(run.raised) if outcome != "completed" else None
            if event is not None and (failure := failure_class(event)) is not None:
                span.set_attribute("onefold.failure_class", failure)
                said = event.detail.get("error")
                _fail(span, str(said) if said else outcome)
                if event.exception is not None:
                    _add_exception(span, event)
        span.end()

    # -- settle ------------------------------------------------------------------------------------------------------

    def settled(self, runs: Sequence[Execution], settle: Callable[[], T]) -> T:
        """See `Tracing.settled`."""
        runs = [run for run in runs if not run.job.policy.is_call]
        for run in runs:
            if run.span is None and OUTCOMES.get(_last_note(run)[0], "released") != "released":
                self._end(self._begin(run), run)
        if not runs:
            return settle()
        queues = {run.delivery.queue for run in runs}
        queue = queues.pop() if len(queues) == 1 else ""
        alone = runs[0].span.get_span_context() if len(runs) == 1 and runs[0].span is not None else None
        attributes = {**self._of("settle", queue), "messaging.batch.message_count": len(runs)}
        since_ms = self._clock.monotonic_ms()
        span = self._tracer.start_span(
            f"settle {queue}".rstrip(),
            _NOWHERE if alone is None else _within(alone),
            SpanKind.CLIENT,
            attributes,
            [] if alone is not None else _links(sent_in(run.delivery) for run in runs),
        )
        failed: str | None = None
        try:
            done = settle()
            unwritten = next((run for run, verdict in cast("Any", done) if verdict is None), None)
            if unwritten is not None:
                failed = "unsettled"
        except BaseException as error:
            failed = type(error).__qualname__
            raise
        finally:
            if failed is not None:
                _fail(span, failed)
            span.end()
            self._operated("settle", queue, len(runs), self._clock.monotonic_ms() - since_ms, failed)
        return done

    # -- contexts ----------------------------------------------------------------------------------------------------

    def carried(self) -> str | None:
        """See `Tracing.carried`."""
        return _text_of(trace.get_current_span().get_span_context())

    @contextmanager
    def within(self, carried: str | None) -> Iterator[None]:
        """See `Tracing.within`."""
        found = _context_of(carried)
        if found is None:
            yield
            return
        token = contexts.attach(trace.set_span_in_context(trace.NonRecordingSpan(found)))
        try:
            yield
        finally:
            contexts.detach(token)

    def ids(self, run: Execution | None, delivery: Delivery) -> Ids:
        """See `Tracing.ids`."""
        if run is not None and run.span is not None:
            return _ids_of(run.span.get_span_context())
        found = sent_in(delivery)
        return _ids_of(trace.get_current_span().get_span_context() if found is None else found)

    def stamped(self, event: Event) -> Event:
        """See `Tracing.stamped`."""
        trace_id, span_id = _ids_of(trace.get_current_span().get_span_context())
        if trace_id is None:
            return event
        stamped = replace(event, trace_id=trace_id, span_id=span_id).carrying(event.exception)
        return stamped.quietly() if event.severity != EVENTS[event.name].severity else stamped


class _Receiver:
    """A queue whose receives have spans; everything else is passed to the queue."""

    def __init__(self, queue: QueueReceiver, spans: Spans) -> None:
        self._queue: Any = queue
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """See `QueueReceiver.receive`."""
        return self._spans.received(self._queue.name, lambda: self._queue.receive(count_max, visible_ms))

    def receive_within(self, count_max: int, visible_ms: int | None, wait_ms: int) -> list[Delivery]:
        """See `WaitingQueue.receive_within`."""
        return self._spans.received(
            self._queue.name, lambda: self._queue.receive_within(count_max, visible_ms, wait_ms)
        )


def sent_in(delivery: Delivery) -> SpanContext | None:
    """The span in which a message was sent, according to its attribute `onefold.trace` or X-Ray's header."""
    carried = delivery.attributes.get(TRACE_ATTRIBUTE)
    if carried is not None and isinstance(carried.value, str):
        found = _context_of(carried.value)
        if found is not None:
            return found
    return of_xray(delivery.trace) if delivery.trace is not None else None


def of_xray(header: str) -> SpanContext | None:
    """The context of an `AWSTraceHeader`: `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1`."""
    header = header[:_CARRIED_CHARS_MAX]
    root, parent = _XRAY.search(header), _XRAY_PARENT.search(header)
    if root is None or parent is None:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED if "Sampled=1" in header else TraceFlags.DEFAULT)
    return _valid(SpanContext(int(root[1] + root[2], 16), int(parent[1], 16), is_remote=True, trace_flags=flags))


def _links(contexts_: Iterable[SpanContext | None]) -> list[Link]:
    """One link to each span, because messages that were sent together share a span."""
    found = {one.span_id: one for one in contexts_ if one is not None}
    return [Link(one) for one in islice(found.values(), LINKS_MAX)]


@lru_cache(1_024)  # the messages of one receive, and often of one send, carry the same context
def _context_of(carried: str | None) -> SpanContext | None:
    """A context as `_text_of` writes it: W3C's traceparent, then a space and its tracestate."""
    if carried is None or len(carried) > _CARRIED_CHARS_MAX:
        return None
    parent, _, state = carried.partition(" ")
    found = _PARENT.fullmatch(parent)
    if found is None:
        return None
    states = TraceState.from_header([state]) if state else None
    flags = TraceFlags(int(found[3], 16))
    return _valid(
        SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags, trace_state=states)
    )


@lru_cache(1_024)  # as above
def _carried_within(carried: str | None) -> contexts.Context | None:
    found = _context_of(carried)
    return None if found is None else _within(found)


def _within(parent: SpanContext) -> contexts.Context:
    """The context in which a span has this parent."""
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), _NOWHERE)


def _valid(found: SpanContext) -> SpanContext | None:
    return found if found.is_valid else None


def _text_of(found: SpanContext) -> str | None:
    if not found.is_valid:
        return None
    parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    text = f"{parent} {found.trace_state.to_header()}" if found.trace_state else parent
    return text if len(text) <= _CARRIED_CHARS_MAX else parent


def _ids_of(found: SpanContext) -> Ids:
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else (None, None)


def _carrying(one: Outgoing, carried: Attribute) -> Outgoing:
    return replace(one, entry=replace(one.entry, attributes={**one.entry.attributes, TRACE_ATTRIBUTE: carried}))


def _last_note(run: Execution) -> tuple[str, Any]:
    """The event that reports a run's outcome; `released` if there is none yet."""
    if not isinstance(run.step, script.Commit) or not (notes := run.decided().notes):
        return "released", {}
    last = next((one for one in notes if one.event == "unknown"), notes[-1])
    return last.event, last.detail


def _fail(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def _add_exception(span: Span, event: Event) -> None:
    """Add to a span what a handler raised, with its text if that may be kept."""
    kept: dict[str, Any] = {"exception.type": str(event.detail.get("error") or type(event.exception).__qualname__)}
    if summary := event.detail.get("summary"):
        kept["exception.message"] = str(summary)
    if text := event.traceback:
        kept["exception.stacktrace"] = text[:_TEXT_CHARS_MAX]
    span.add_event("exception", kept)
