"""OpenTelemetry: spans and metrics with the SDK's in-memory exporters and over OTLP/HTTP; nothing while it is off."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import onefold
from onefold.admin.dead_letters import Select, find
from onefold.admin.redrive import Redrive
from onefold.admin.session import AdminSession, SessionJobs
from onefold.contracts.entries import Entry
from onefold.contracts.queue import TRACE_ATTRIBUTE, Attribute
from onefold.observe.metrics import METRICS
from onefold.observe.spans import of_xray, sent_in
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker
from onefold.runtime.events import ERROR_TEXT
from onefold.testing import inline
from tests.run.mapped import REGION, mapped

XRAY = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
MARKER = "marker-4f1d"


@dataclass
class Order:
    id: str
    note: str = ""


class Telemetry:
    """An SDK that keeps what it is given, and the sink that gives it."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.tracer = tracers.get_tracer("test")
        self.sink = onefold.observe.OpenTelemetry(
            tracer_provider=tracers, meter_provider=MeterProvider([self.reader]), **options
        )

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        found = self.exporter.get_finished_spans()
        return [one for one in found if name is None or one.name == name]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found

    def points(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        found = self.reader.get_metrics_data()
        metrics = [] if found is None else found.resource_metrics[0].scope_metrics[0].metrics
        return {one.name: list(one.data.data_points) for one in metrics}


class Shop:
    """An app whose job does what it is asked for, and its telemetry."""

    def __init__(self, *, is_async: bool = False, **options: Any) -> None:
        self.telemetry = Telemetry(**options)
        self.app = onefold.App("shop", sinks=[self.telemetry.sink])
        self.does: Callable[[Order], object] = lambda _: None
        self.within: list[trace.SpanContext] = []

        def book(order: Order) -> None:
            self.within.append(trace.get_current_span().get_span_context())
            self.does(order)

        async def book_async(order: Order) -> None:
            await asyncio.to_thread(lambda: None)
            book(order)

        orders, letters = self.app.queue("orders"), self.app.queue("letters")
        retry = onefold.Retry(attempts=1)
        options = {"key": "{id}", "name": "book", "retry": retry, "on_unknown": "hold"}
        self.book: Any = self.app.job(orders, **options)(book_async if is_async else book)

        def write(order: Order) -> None: ...

        self.letter: Any = self.app.job(letters, key="{id}", name="letter")(write)

    def work(self, tmp_path: Path, **settings: Any) -> None:
        """Have a real worker do what there is."""
        app = self.app
        worker = make_worker(
            app.runtime(), app.jobs, app.registry.job_of, sinks=app.sinks,
            settings=WorkerSettings(until_empty=True, **settings),
        )  # fmt: skip
        worker.run()


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# -- spans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
def test_one_message_has_four_spans(is_async: bool, at: Path) -> None:
    shop = Shop(is_async=is_async)
    shop.book.send(Order("o-1"))
    shop.work(at)
    shop.app.close()
    telemetry = shop.telemetry
    sent, received = telemetry.span("send orders"), telemetry.span("receive orders")
    processed, settled = telemetry.span("process orders"), telemetry.span("settle orders")
    assert [one.kind for one in (sent, received, processed, settled)] == [
        SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER, SpanKind.CLIENT,
    ]  # fmt: skip
    assert [one.context.span_id for one in received.links] == [sent.context.span_id]
    assert [one.context.span_id for one in processed.links] == [sent.context.span_id]
    assert processed.parent is not None
    assert processed.parent.span_id == received.context.span_id
    assert settled.parent is not None
    assert settled.parent.span_id == processed.context.span_id
    assert [one.span_id for one in shop.within] == [processed.context.span_id]
    found = attributes(processed)
    assert found.pop("messaging.message.id")
    assert found == {
        "messaging.system": "onefold",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "onefold.job": "book",
        "onefold.attempt": 1,
        "onefold.fence": 1,
        "onefold.outcome": "completed",
    }
    assert attributes(received)["messaging.batch.message_count"] == 1
    assert sent.instrumentation_scope is not None
    assert sent.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


def test_a_batch_is_one_send_and_one_receive_linked_to_it(at: Path) -> None:
    shop = Shop()
    shop.book.send_many(Order(f"o-{number}") for number in range(5))
    shop.work(at)
    shop.app.close()
    sent, received = shop.telemetry.span("send orders"), shop.telemetry.span("receive orders")
    assert attributes(sent)["messaging.batch.message_count"] == 5
    assert attributes(received)["messaging.batch.message_count"] == 5
    assert {one.context.span_id for one in received.links} == {sent.context.span_id}
    processed = shop.telemetry.spans("process orders")
    assert {one.parent.span_id for one in processed if one.parent} == {received.context.span_id}
    for settled in shop.telemetry.spans("settle orders"):
        if settled.parent is None:
            assert [one.context.span_id for one in settled.links] == [sent.context.span_id]
        else:
            assert settled.parent.span_id in {one.context.span_id for one in processed}


def test_a_process_span_follows_its_sender_where_that_is_asked_for(at: Path) -> None:
    shop = Shop(follow_sender=True)
    with shop.telemetry.tracer.start_as_current_span("request"):
        shop.book.send(Order("o-1"))
    shop.work(at)
    shop.app.close()
    request, processed = shop.telemetry.span("request"), shop.telemetry.span("process orders")
    assert processed.context.trace_id == request.context.trace_id
    assert [one.context.span_id for one in processed.links] == [shop.telemetry.span("receive orders").context.span_id]


def test_a_message_of_an_outbox_is_sent_in_its_handler() -> None:
    shop = Shop()
    shop.does = shop.letter.send
    with inline(shop.app) as world:
        shop.book.send(Order("o-1"))
        world.run()
    sent, processed = shop.telemetry.span("send letters"), shop.telemetry.span("process orders")
    assert sent.parent is not None
    assert sent.parent.span_id == processed.context.span_id
    assert attributes(sent)["onefold.outbox"] is True
    assert [one.context.span_id for one in shop.telemetry.span("process letters").links] == [sent.context.span_id]


def test_ticks_have_senders_too() -> None:
    telemetry = Telemetry()
    app = onefold.App("shop", sinks=[telemetry.sink])

    @app.schedule("rate(1 minute)", queue=app.queue("nightly"))
    def night(tick: onefold.Tick) -> None: ...

    with inline(app) as world:
        world.clock.advance(600_000)
        assert world.tick() > 0
        world.run()
    (sent, *_), (processed, *_) = telemetry.spans("send nightly"), telemetry.spans("process nightly")
    assert processed.links[0].context.trace_id == sent.context.trace_id
    assert attributes(processed)["onefold.run"].startswith("night/")


# -- what a message carries ------------------------------------------------------------------------------------------


@contextmanager
def there(shop: Shop) -> Iterator[tuple[Any, AdminSession]]:
    with inline(shop.app) as world:
        jobs = SessionJobs(named=shop.app.jobs, of=shop.app.registry.job_of, history="full")
        yield world, AdminSession(shop.app.runtime(), actor="person:ada", jobs=jobs)


def test_a_dead_letter_that_is_redriven_is_linked_to_its_first_send() -> None:
    shop = Shop()

    def refuse(_: Order) -> None:
        raise onefold.PermanentError("no")

    shop.does = refuse
    with there(shop) as (world, session):
        shop.book.send(Order("o-1"))
        world.run()
        shop.does = lambda _: None
        work = Redrive(session, list(find(session, Select())))
        while not work.tally.end:
            work.step()
            world.run()
            world.clock.advance(250)
    sent = shop.telemetry.span("send orders")
    first, again = shop.telemetry.spans("process orders")
    assert [one.links[0].context.span_id for one in (first, again)] == [sent.context.span_id] * 2
    assert [dict(one.links[0].attributes or {}) for one in (first, again)] == [{}, {"onefold.redrive": True}]
    assert [attributes(one)["onefold.outcome"] for one in (first, again)] == ["dead", "completed"]


def test_a_held_message_keeps_what_it_carries() -> None:
    shop = Shop()

    def unknown(_: Order) -> None:
        raise onefold.OutcomeUnknown("no answer")

    shop.does = unknown
    with there(shop) as (world, session):
        shop.book.send(Order("o-1"))
        world.run()
        (held,) = session.engine.queues.peek("orders-held")
        assert f"{shop.telemetry.span('send orders').context.span_id:016x}" in str(
            held.attributes[TRACE_ATTRIBUTE].value
        )
    processed = shop.telemetry.span("process orders")
    assert attributes(processed)["onefold.outcome"] == "held" or attributes(processed)["onefold.outcome"] == "unknown"
    assert processed.status.status_code is StatusCode.ERROR


def test_the_context_of_x_ray_is_taken_where_there_is_no_other() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        queue = world.app.runtime().engine.queues.open("orders")
        own = {TRACE_ATTRIBUTE: Attribute(f"00-{'a' * 32}-{'b' * 16}-01 vendor=x")}
        queue.send([Entry(body='{"id": "a"}', trace=XRAY), Entry(body='{"id": "b"}', trace=XRAY, attributes=own)])
        world.run()
    links = [one.links[0].context for one in shop.telemetry.spans("process orders")]
    assert sorted(f"{one.trace_id:032x}-{one.span_id:016x}" for one in links) == [
        "5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8",
        f"{'a' * 32}-{'b' * 16}",
    ]
    assert [one.trace_state.get("vendor") for one in links if one.trace_state] == ["x"]


@pytest.mark.parametrize(
    "carried",
    ["", "x", "00-0-0-00", f"00-{'0' * 32}-{'b' * 16}-01", "00" + "a" * 5_000, f"01-{'a' * 32}-{'b' * 16}-01"],
)
def test_what_cannot_be_read_is_no_link(carried: str) -> None:
    shop = Shop()
    with inline(shop.app) as world:
        queue = world.app.runtime().engine.queues.open("orders")
        attribute = {TRACE_ATTRIBUTE: Attribute(carried)} if carried else {}
        queue.send([Entry(body='{"id": "a"}', attributes=attribute, trace="Root=1-5;Parent=x")])
        (delivery,) = queue.receive(1, 0)
        assert sent_in(delivery) is None
        world.run()
    assert shop.telemetry.span("process orders").links == ()
    assert of_xray("") is None


# -- events, outcomes ------------------------------------------------------------------------------------------------


def test_each_event_names_the_span_it_happened_in() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.book.send(Order("o-1"))
        shop.book.send(Order("o-1"))
        world.run()
        found = {one.name: (one.trace_id, one.span_id) for one in world.events}
    assert None not in {one for pair in found.values() for one in pair}
    done, again = shop.telemetry.spans("process orders")
    assert sorted([found["completed"], found["duplicate"]]) == sorted(
        (f"{one.context.trace_id:032x}", f"{one.context.span_id:016x}") for one in (done, again)
    )


def test_events_of_guarded_calls_have_the_ids_of_the_program() -> None:
    telemetry = Telemetry()

    class Kept:
        is_quick = True
        events: list[onefold.observe.Event] = []  # noqa: RUF012 - of this test

        def emit(self, event: onefold.observe.Event) -> None:
            self.events.append(event)

    @onefold.once(key="{order}", name="pay", store=onefold.memory_store(), sinks=[telemetry.sink, Kept()])
    def pay(order: str) -> None: ...

    with telemetry.tracer.start_as_current_span("request") as span:
        pay("o-1")
    assert [one.span_id for one in Kept.events] == [f"{span.get_span_context().span_id:016x}"]
    assert [one.name for one in telemetry.spans()] == ["request"]


def test_a_failure_says_its_class_and_its_bounded_text(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()

    def refuse(_: Order) -> None:
        raise onefold.PermanentError("no such city " * 1_000)

    shop.does = refuse
    with inline(shop.app) as world:
        shop.book.send(Order("o-1"))
        world.run()
        monkeypatch.setenv(ERROR_TEXT, "off")
        shop.book.send(Order("o-2"))
        world.run()
    loud, quiet = shop.telemetry.spans("process orders")
    for one in (loud, quiet):
        assert attributes(one)["error.type"] == "PermanentError"
        assert attributes(one)["onefold.failure_class"] == "permanent"
        assert one.status.status_code is StatusCode.ERROR
        (event,) = one.events
        assert event.name == "exception"
        assert event.attributes is not None
        assert len(str(event.attributes["exception.message"])) <= 500
        assert len(str(event.attributes["exception.stacktrace"])) <= 4_000
    assert "no such city" in str(dict(loud.events[0].attributes or {}))
    assert "no such city" not in str(dict(quiet.events[0].attributes or {}))


def everything(telemetry: Telemetry) -> str:
    """All that was exported, as text."""
    return "\n".join([*(one.to_json() for one in telemetry.spans()), str(telemetry.points())])


WAYS: list[BaseException | None] = [
    None, ValueError(MARKER), onefold.PermanentError(MARKER), onefold.OutcomeUnknown(MARKER), onefold.DependencyDown(MARKER),
]  # fmt: skip


@pytest.mark.parametrize("raised", WAYS, ids=[type(one).__name__ for one in WAYS])
def test_no_body_key_or_text_of_an_exception_is_in_spans_or_metrics(
    raised: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ERROR_TEXT, "off")
    shop = Shop()

    def work(_: Order) -> None:
        if raised is not None:
            raise raised

    shop.does = work
    with inline(shop.app) as world:
        shop.book.send(Order(f"{MARKER}-key", note=MARKER))
        shop.book.send(Order(f"{MARKER}-key", note="other"))
        world.app.runtime().engine.queues.open("orders").send([Entry(body=f'{{"no": "{MARKER}"}}'), Entry(body=MARKER)])
        world.run()
    assert len(shop.telemetry.spans()) > 4
    assert MARKER not in everything(shop.telemetry)


def test_keys_are_on_spans_where_they_are_asked_for() -> None:
    shop = Shop(with_key=True)
    with inline(shop.app) as world:
        shop.book.send(Order("o-1"))
        world.run()
    assert attributes(shop.telemetry.span("process orders"))["onefold.key"] == "o-1"


def test_a_send_that_is_refused_has_an_error() -> None:
    shop = Shop()
    with inline(shop.app), pytest.raises(onefold.errors.PayloadError):
        shop.book.send(Order("o-1", note="x" * 2_000_000))
    sent = shop.telemetry.span("send orders")
    assert (attributes(sent)["error.type"], sent.status.status_code) == ("PayloadError", StatusCode.ERROR)


# -- Lambda ----------------------------------------------------------------------------------------------------------


def test_in_lambda_a_process_span_is_in_the_span_of_the_invocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    shop = Shop()
    with mapped(shop.app) as world:
        shop.book.send(Order("o-1"))
        with shop.telemetry.tracer.start_as_current_span("invocation") as invocation:
            assert world.poll("orders") == []
    processed = shop.telemetry.span("process orders")
    assert processed.parent is not None
    assert processed.parent.span_id == invocation.get_span_context().span_id
    assert [one.context.span_id for one in processed.links] == [shop.telemetry.span("send orders").context.span_id]
    assert attributes(processed)["faas.trigger"] == "pubsub"


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_are_those_of_the_table() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.book.send_many([Order("a"), Order("a")])
        world.run()
    points = shop.telemetry.points()
    assert set(points) <= set(METRICS)
    settled = {one.attributes["onefold.outcome"]: one for one in points["onefold.messages.settled"]}
    assert {name: one.value for name, one in settled.items()} == {"completed": 1, "duplicate": 1}
    assert dict(settled["completed"].attributes) == {
        "onefold.job": "book", "messaging.destination.name": "orders", "onefold.outcome": "completed",
    }  # fmt: skip
    (process,) = points["messaging.process.duration"]
    assert process.explicit_bounds == METRICS["messaging.process.duration"].bounds
    assert process.attributes["messaging.operation.name"] == "process"
    assert process.attributes["messaging.system"] == "onefold"
    (sent,) = points["messaging.client.sent.messages"]
    assert (sent.value, sent.attributes["messaging.operation.type"]) == (2, "send")
    operations = {one.attributes["messaging.operation.name"] for one in points["messaging.client.operation.duration"]}
    assert operations == {"send", "settle"}


def test_a_worker_counts_what_it_receives(at: Path) -> None:
    shop = Shop(spans=True)
    shop.book.send_many(Order(f"o-{number}") for number in range(5))
    shop.work(at)
    shop.app.close()
    points = shop.telemetry.points()
    assert sum(one.value for one in points["messaging.client.consumed.messages"]) == 5


def test_without_spans_there_are_metrics_and_the_other_way_round() -> None:
    for options, spans in (({"spans": False}, False), ({"metrics": False}, True)):
        shop = Shop(**options)
        with inline(shop.app) as world:
            shop.book.send(Order("a"))
            world.run()
        assert (bool(shop.telemetry.spans()), bool(shop.telemetry.points())) == (spans, not spans)


# -- processes -------------------------------------------------------------------------------------------------------

APP = """
import json, os
import onefold
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Lines(SpanExporter):
    def export(self, spans):
        with open("spans", "a") as file:
            for one in spans:
                parent = one.parent and format(one.parent.span_id, "016x")
                print(json.dumps([one.name, format(one.context.span_id, "016x"), parent, os.getpid()]), file=file)
        return SpanExportResult.SUCCESS

tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(Lines()))
trace.set_tracer_provider(tracers)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))

class Gauges(onefold.Hooks):
    def stop(self, place):
        if place == "worker":
            with open("metrics", "w") as file:
                for one in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
                    print(one.name, file=file)

app = onefold.App("shop", sinks=[onefold.observe.OpenTelemetry()], hooks=[Gauges()])

@app.job(app.queue("orders"), key="{id}")
def book(order: dict) -> None:
    with trace.get_tracer("shop").start_as_current_span("inner"):
        letter.send(order)

@app.job(app.queue("letters"), key="{id}")
def letter(order: dict) -> None: ...

if __name__ == "__main__":
    book.send({"id": "a"})
"""


def test_a_child_process_goes_on_in_its_parents_span_and_a_worker_reports_gauges(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    for words in (["shop.py"], ["-m", "onefold", "worker", "shop:app", "--until-empty", "--processes", "1"]):
        ended = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, ended.stderr
    spans = {name: rest for name, *rest in map(json.loads, (tmp_path / "spans").read_text().splitlines())}
    inner, processed, sent = spans["inner"], spans["process orders"], spans["send letters"]
    assert inner[1] == processed[0]
    assert inner[2] != processed[2]
    assert (sent[1], sent[2]) == (inner[0], inner[2])
    found = set((tmp_path / "metrics").read_text().split())
    assert {
        "onefold.queue.depth",
        "onefold.worker.progress.age",
        "onefold.events.lost",
        "onefold.breaker.open",
    } <= found
    assert found <= set(METRICS)


# -- OTLP ------------------------------------------------------------------------------------------------------------


class Receiver(ThreadingHTTPServer):
    """A receiver of OTLP over HTTP, as a collector is one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.got: dict[str, bytes] = {}
        self.all: list[tuple[str, bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Request(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got[self.path] = body  # type: ignore[attr-defined]
        self.server.all.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", self.headers["Content-Type"])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_receiver_of_otlp_gets_spans_and_metrics() -> None:
    receiver = Receiver()
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    exporter = OTLPMetricExporter(f"{receiver.url}/v1/metrics")
    meters = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
    app = onefold.App("shop", sinks=[onefold.observe.OpenTelemetry(tracer_provider=tracers, meter_provider=meters)])

    @app.job(app.queue("orders"), key="{id}")
    def book(order: Order) -> None: ...

    with inline(app) as world:
        book.send(Order("o-1"))
        world.run()
    tracers.shutdown()
    meters.shutdown()
    receiver.shutdown()
    receiver.server_close()
    traces = ExportTraceServiceRequest.FromString(receiver.got["/v1/traces"])
    (scope,) = traces.resource_spans[0].scope_spans
    assert (scope.scope.name, [one.name for one in scope.spans]) == (
        "onefold",
        ["send orders", "process orders", "settle orders"],
    )
    sent = {one.key: one.value.string_value for one in scope.spans[1].attributes}
    assert sent["messaging.destination.name"] == "orders"
    got = ExportMetricsServiceRequest.FromString(receiver.got["/v1/metrics"])
    names = {one.name for scope in got.resource_metrics[0].scope_metrics for one in scope.metrics}
    assert (
        {"onefold.messages.settled", "messaging.process.duration", "messaging.client.sent.messages"}
        <= names
        <= set(METRICS)
    )


# -- off, and without the package ------------------------------------------------------------------------------------


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_nothing_is_imported_while_it_is_off() -> None:
    script = (
        "import sys, onefold\n"
        "app = onefold.App('shop')\n"
        "book = app.job(app.queue('orders'), key='{id}', name='book')(lambda order: None)\n"
        "with onefold.testing.inline(app) as world:\n"
        "    book.send({'id': 'a'})\n"
        "    world.run()\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or name.endswith(('observe.otel', 'spans'))])\n"
    )
    ran = python(script)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_without_the_package_it_says_what_to_install() -> None:
    script = (
        "import sys, onefold\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n"
        "    onefold.observe.OpenTelemetry()\n"
        "except onefold.errors.UsageError as error:\n"
        "    print(error)\n"
    )
    ran = python(script)
    assert "pip install 'onefold[otel]'" in ran.stdout, ran.stderr
