"""onefold on SQLite, as `benchmarks.probe` drives it: one job, everything at its defaults.

The payload is a typed struct with the order's id, which is the key, and a note; as JSON it is 200 bytes. Never here:
settings tuned for a benchmark. BENCH_EFFECT names another kind of effect than the default, BENCH_GROUPS a FIFO queue with
so many message groups, BENCH_SINK who hears of events; the row that uses one says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

import onefold
from benchmarks import probe
from onefold.observe.metrics import Meter


class Order(msgspec.Struct):
    order_id: str
    note: str


class Idle:
    """A sink that does nothing with events: what is left is that they are made, queued and handed over."""

    def emit(self, event: onefold.observe.Event) -> None: ...


def meter() -> Meter:
    """What `onefold worker --metrics` counts with."""
    return Meter()


def emf() -> onefold.observe.EmfSink:
    """What `onefold worker --emf` writes, into nothing."""
    return onefold.observe.EmfSink(open(os.devnull, "w", encoding="utf-8"))


def tracing(*, metrics: bool, share: float = 1.0) -> onefold.observe.OpenTelemetry:
    """OpenTelemetry's SDK, with an exporter that drops what it is given, or without spans and a reader that nobody reads.

    Args:
        share: of the traces that are sampled.
    """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    class Drop(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    tracers.add_span_processor(BatchSpanProcessor(Drop()))
    meters = MeterProvider([InMemoryMetricReader()])
    return onefold.observe.OpenTelemetry(
        tracer_provider=tracers, meter_provider=meters, spans=not metrics, metrics=metrics
    )


def errors() -> onefold.LogSink:
    """A log of what went wrong, with no line for a job that is done, as before workers wrote one."""
    return onefold.LogSink(form="plain", level="warning")


SINKS: Mapping[str, Callable[[], onefold.observe.Sink]] = {
    "errors": errors,
    "events": Idle,
    "metrics": meter,
    "emf": emf,
    "otel-metrics": partial(tracing, metrics=True),
    "tracing": partial(tracing, metrics=False),
    "tracing-hundredth": partial(tracing, metrics=False, share=0.01),
}
sink = SINKS.get(os.environ.get("BENCH_SINK", ""))
app = onefold.App("bench", url=f"sqlite:///{probe.place() / 'bench.db'}", sinks=[sink()] if sink is not None else [])
groups = int(os.environ.get("BENCH_GROUPS", "0"))
orders = app.queue("orders", fifo=groups > 0)
run = probe.handler()


def group(order: Order) -> str:
    return f"group-{int(order.order_id.rpartition('-')[2]) % groups}"


@app.job(
    orders,
    key="{order_id}",
    group=group if groups else None,
    effect=os.environ.get("BENCH_EFFECT", "external"),  # type: ignore[arg-type]
)
def job(order: Order) -> None:
    run(order.note)


def order(text: str) -> Order:
    return msgspec.json.decode(text, type=Order)


def connect() -> None:
    app.runtime()


def send(text: str) -> None:
    job.send(order(text))


def send_many(texts: Sequence[str]) -> None:
    for start in range(0, len(texts), 1_000):
        job.send_many([order(text) for text in texts[start : start + 1_000]])


def work() -> None:
    probe.become("onefold", "worker", "benchmarks.onefold_tool:app")
