"""`OpenTelemetry`: a sink that gives an app's metrics and spans to OpenTelemetry.

Only the API is needed here (extra `otel`). SDK, exporter and sampler are the program's choice; without an SDK, every
call of the API does nothing. This module is imported when a program makes an `OpenTelemetry`.
Never here: which metrics there are (`metrics.py`), spans (`spans.py`). Invariant: every metric name here is in `METRICS`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final

from onefold import extras, limits
from onefold.clock import SystemClock
from onefold.observe.metrics import METRICS, Histogram, Labels, Meter, Metric, Sample
from onefold.runtime.events import Event
from onefold.runtime.tracing import Tracing

with extras.needed("OpenTelemetry", "otel", "; the SDK and an exporter are your choice"):
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

    from onefold.observe.spans import Spans

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_FRESH_MS: Final = 1_000  # gauges of one collection share one reading of the engine
_NAMES: Final = {
    "job": "onefold.job",
    "queue": "messaging.destination.name",
    "outcome": "onefold.outcome",
    "failure_class": "onefold.failure_class",
    "state": "onefold.state",
    "operation": "messaging.operation.name",
    "error": "error.type",
}
"""Labels -> attributes."""
_LOOKED_AT: Final = ("onefold.events.lost",)  # counters that a worker keeps itself, and that are only read here


class OpenTelemetry:
    """A sink that records an app's metrics and spans with OpenTelemetry: `App("shop", sinks=[OpenTelemetry()])`.

    Metrics are those on the page Metrics; gauges need a reading of the engine, and come from `onefold worker`. Spans
    are `send`, `receive`, `process` and `settle`; the events that sinks get have their ids.

    Args:
        spans, metrics: record them; both are on unless switched off.
        tracer_provider, meter_provider: instead of the program's global ones.
        with_key: process spans have the operation's key as `onefold.key`. It may be personal data.
        follow_sender: a process span is a child of the span that sent its message, in the same trace; unless set, it is
            in the trace of the receive (or of the Lambda invocation) and linked to the sender's span, as the
            conventions advise for batches. The context is what the message claims, so set it only if you trust the
            senders.

    Raises:
        UsageError: the API of OpenTelemetry is not installed.
    """

    is_quick: Final = True  # instruments only add up; exporters have their own threads

    def __init__(
        self,
        *,
        spans: bool = True,
        metrics: bool = True,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        with_key: bool = False,
        follow_sender: bool = False,
    ) -> None:
        self._counting = _Counting(meter_provider) if metrics else None
        self._spans: Spans | None = None
        if spans:
            tracer = trace.get_tracer("onefold", version("onefold"), tracer_provider, SCHEMA)
            operated = self._counting.operated if self._counting is not None else _not_counted
            self._spans = Spans(tracer, SystemClock(), operated, with_key=with_key, follows=follow_sender)

    @property
    def tracing(self) -> Tracing | None:
        """The object that makes the spans; None if they are switched off."""
        return self._spans

    def opened(self, url: str) -> None:
        """Note that the app's engine was opened: `messaging.system` is `aws_sqs` on SQS, otherwise `onefold`."""
        system = "aws_sqs" if url.startswith("aws:") else "onefold"
        if self._spans is not None:
            self._spans.opened(system)
        if self._counting is not None:
            self._counting.opened(system)

    def emit(self, event: Event) -> None:
        """Count one event."""
        if self._counting is not None:
            self._counting.emit(event)

    @contextmanager
    def watch(self, samples: Callable[[], Iterable[Sample]]) -> Iterator[None]:
        """Report gauges while the block runs: `samples` is called when metrics are collected, at most once a second."""
        if self._counting is None:
            yield
        else:
            with self._counting.watch(samples):
                yield


def _not_counted(_operation: str, _queue: str, _count: int, _took_ms: int | None, _failed: str | None) -> None:
    """Do nothing: metrics are switched off."""


class _Counting(Meter):
    """Like `Meter`, but counts with OpenTelemetry's instruments."""

    def __init__(self, provider: MeterProvider | None) -> None:
        super().__init__()
        self._meter = metrics.get_meter("onefold", version("onefold"), provider, SCHEMA)
        self._instruments: dict[str, Any] = {}
        for one in METRICS.values():
            if one.instrument == "counter" and one.name not in _LOOKED_AT:
                self._instruments[one.name] = self._meter.create_counter(one.name, one.unit, one.text)
            elif one.instrument == "histogram":
                self._instruments[one.name] = self._meter.create_histogram(
                    one.name, one.unit, one.text, explicit_bucket_boundaries_advisory=one.bounds
                )
        self._attributes: dict[tuple[str, Labels], dict[str, str]] = {}
        self._system = "onefold"
        self._reading = threading.Lock()
        self._read_at: tuple[int, list[Sample]] | None = None
        self._samples: Callable[[], Iterable[Sample]] | None = None
        self._is_watched = False
        self._clock = SystemClock()

    def _count(self, name: str, labels: Labels, by: float = 1) -> None:
        self._instruments[name].add(by, self._of(name, labels))

    def _record(self, name: str, labels: Labels, value: float) -> None:
        self._instruments[name].record(value, self._of(name, labels))

    def _of(self, name: str, labels: Labels) -> dict[str, str]:
        """The attributes for labels, kept because there are few combinations."""
        found = self._attributes.get((name, labels))
        if found is None:
            found = {_NAMES[label]: value for label, value in labels if value}
            if name.startswith("messaging.process."):
                found |= {"messaging.operation.name": "process"}
            if name.startswith("messaging."):
                found |= {
                    "messaging.operation.type": found["messaging.operation.name"],
                    "messaging.system": self._system,
                }
            self._attributes[name, labels] = found
        return found

    def opened(self, system: str) -> None:
        """See `Spans.opened`."""
        self._system = system
        self._attributes = {}

    def operated(self, operation: str, queue: str, count: int, took_ms: int | None, failed: str | None) -> None:
        """Count one send, receive or settlement."""
        labels: Labels = (("operation", operation), ("queue", queue), ("error", failed or ""))
        if took_ms is not None:
            self._record("messaging.client.operation.duration", labels, took_ms / limits.SECOND_MS)
        if count and operation == "send":
            self._count("messaging.client.sent.messages", labels, count)
        elif count and operation == "receive":
            self._count("messaging.client.consumed.messages", labels, count)

    # -- gauges ------------------------------------------------------------------------------------------------------

    @contextmanager
    def watch(self, samples: Callable[[], Iterable[Sample]]) -> Iterator[None]:
        """See `OpenTelemetry.watch`."""
        self._samples, self._read_at = samples, None
        if not self._is_watched:
            self._is_watched = True
            for one in METRICS.values():
                if one.instrument == "gauge":
                    self._meter.create_observable_gauge(one.name, [self._observed(one)], one.unit, one.text)
                elif one.name in _LOOKED_AT:
                    self._meter.create_observable_counter(one.name, [self._observed(one)], one.unit, one.text)
        try:
            yield
        finally:
            with self._reading:  # a reading in progress needs the engine, which is about to be closed
                self._samples = self._read_at = None

    def _observed(self, metric: Metric) -> Callable[[CallbackOptions], Any]:
        def observe(_: CallbackOptions) -> list[Observation]:
            return [
                Observation(one.value, self._of(metric.name, one.labels))
                for one in self._read()
                if one.metric is metric and not isinstance(one.value, Histogram)
            ]

        return observe

    def _read(self) -> list[Sample]:
        with self._reading:
            if self._samples is None:
                return []
            now_ms = self._clock.monotonic_ms()
            if self._read_at is None or now_ms - self._read_at[0] >= _FRESH_MS:
                self._read_at = now_ms, list(self._samples())
            return self._read_at[1]
