"""Sinks that cannot hurt, the table of metrics, what a meter counts, and its exposition by Prometheus's own parser."""

from __future__ import annotations

import itertools
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from onefold import errors
from onefold.contracts.store import RecordKey
from onefold.observe.metrics import LABELS, METRICS, OUTCOMES, Histogram, Meter, Sample, gauges
from onefold.observe.prometheus import MetricsServer, address_of, exposition
from onefold.observe.readings import Reader
from onefold.runner import sink_queues
from onefold.runner.sink_queues import QueuedSinks
from onefold.runtime.events import EVENTS, Event
from tests.faces.office import Office, Order

KEY = RecordKey("", "book", "secret-key")


def event(name: str, **more: object) -> Event:
    return Event(at_ms=1_000, name=name, key=KEY, queue="orders", receive_count=1, **more)  # type: ignore[arg-type]


class Stuck:
    """A sink that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.got: list[str] = []

    def emit(self, event: Event) -> None:
        self.go.wait(30)
        self.got.append(event.name)


# -- sinks -----------------------------------------------------------------------------------------------------------


def test_a_sink_that_ends_its_thread_loses_one_event() -> None:
    """As code that calls sys.exit() does: no later event would be delivered, and each flush would wait."""

    class Exits(Stuck):
        def emit(self, event: Event) -> None:
            self.got.append(event.name)
            if event.name == "failed":
                raise SystemExit

    exits = Exits()
    sinks = QueuedSinks([exits])
    for name in ("completed", "failed", "retry"):
        sinks.emit(event(name))
    assert sinks.flush(30)
    sinks.emit(event("held"))
    assert sinks.flush(30)
    assert exits.got == ["completed", "failed", "retry", "held"]


def test_what_was_queued_when_a_sink_ended_its_thread_does_not_wait_for_the_next_event() -> None:
    delivered = threading.Event()

    class Exits(Stuck):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if event.name == "failed":
                raise SystemExit
            delivered.set()

    exits = Exits()
    sinks = QueuedSinks([exits])
    sinks.emit(event("failed"))
    sinks.emit(event("retry"))
    exits.go.set()
    assert delivered.wait(60)
    assert exits.got == ["failed", "retry"]
    sinks.end()


def test_a_sink_that_stands_still_holds_up_nobody_and_loses_what_it_is_too_slow_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sink_queues, "WAITING_MAX", 3)
    stuck, meter = Stuck(), Meter()
    sinks = QueuedSinks([stuck, meter])
    for _ in range(10):
        sinks.emit(event("completed"))
    assert stuck.got == []
    waiting: Any = sinks._waiting[0]
    assert waiting._woken.qsize() <= 2, "a sink that never goes on takes no more memory with each event"
    assert {one.value for one in meter.samples() if one.metric.name == "onefold.messages.settled"} == {10}
    stuck.go.set()
    sinks.end()
    assert len(stuck.got) + sinks.failures == 10
    assert sinks.failures >= 6
    assert "events are waiting for it" in caplog.text


def test_queued_events_arrive_in_order_and_after_the_end_at_once() -> None:
    sink = Stuck()
    sink.go.set()
    sinks = QueuedSinks([sink])
    for name in ("received", "started", "completed"):
        sinks.emit(event(name))
    sinks.end()
    assert sink.got == ["received", "started", "completed"]
    sinks.emit(event("held"))
    assert sink.got[-1] == "held"


def test_the_end_does_not_wait_for_ever_for_a_sink() -> None:
    stuck = Stuck()
    sinks = QueuedSinks([stuck])
    sinks.emit(event("completed"))
    sinks.end(timeout_s=0.01)
    assert stuck.got == []
    stuck.go.set()


def test_a_sink_that_raises_in_its_thread_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def emit(self, event: Event) -> None:
            raise OSError("no route")

    sinks = QueuedSinks([Broken()])
    sinks.emit(event("completed"))
    sinks.emit(event("completed"))
    sinks.end()
    assert sinks.failures == 2
    assert caplog.text.count("no route") == 1


# -- table -----------------------------------------------------------------------------------------------------------


def test_the_table_names_each_metric_once_and_labels_nothing_unbounded() -> None:
    for column in ("prometheus", "emf"):
        names = [getattr(one, column) for one in METRICS.values()]
        assert len(set(names)) == len(names)
    for one in METRICS.values():
        assert set(one.labels) <= set(LABELS), one.name
        assert one.prometheus.endswith("_total") == (one.instrument == "counter"), one.name
        assert one.prometheus.endswith("_seconds") == (one.unit == "s"), one.name
        assert bool(one.bounds) == (one.instrument == "histogram"), one.name
        assert one.text.endswith("."), one.name
    assert set(OUTCOMES) <= set(EVENTS)


# -- counting --------------------------------------------------------------------------------------------------------


def values(meter: Meter, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(value for _, value in one.labels): one.value.sum if isinstance(one.value, Histogram) else one.value
        for one in meter.samples()
        if one.metric.name == name
    }


def test_a_delivery_is_counted_by_its_outcome_with_its_times() -> None:
    meter = Meter()
    meter.emit(event("completed", took_ms=250, wait_ms=2_000))
    meter.emit(event("retry", took_ms=50, wait_ms=-5))
    meter.emit(event("duplicate"))
    settled = values(meter, "onefold.messages.settled")
    assert settled == {
        ("book", "orders", "completed", ""): 1,
        ("book", "orders", "failed", "transient"): 1,
        ("book", "orders", "duplicate", ""): 1,
    }
    assert values(meter, "messaging.process.duration") == {
        ("book", "orders", "completed"): 0.25,
        ("book", "orders", "failed"): 0.05,
    }
    assert values(meter, "onefold.queue.wait") == {("book", "orders"): 2}
    assert values(meter, "onefold.clock.negative") == {(): 1}
    assert values(meter, "onefold.duplicates.answered") == {("book", "orders"): 1}


def test_loud_events_and_ticks_are_counted() -> None:
    meter = Meter()
    for name in ("takeover", "lease-lost", "completion-failed"):
        meter.emit(event(name))
    meter.emit(Event(at_ms=9, name="ticked", run="bill/1", detail={"schedule": "bill", "late_ms": 1_500}))
    meter.emit(Event(at_ms=9, name="ticks-missed", detail={"schedule": "bill", "count": 4}))
    for name in ("onefold.takeovers", "onefold.lease.lost", "onefold.completion.failed"):
        assert values(meter, name) == {("book", "orders"): 1}
    assert values(meter, "onefold.schedule.ticks") == {("bill", "sent"): 1, ("bill", "missed"): 4}
    assert values(meter, "onefold.schedule.lag") == {("bill",): 1.5}


def test_a_job_that_a_stranger_names_is_no_label() -> None:
    meter = Meter()
    detail = {"job": "made-up-by-a-stranger"}
    meter.emit(Event(at_ms=9, name="no-job", queue="orders", receive_count=1, detail=detail))
    assert values(meter, "onefold.messages.settled") == {("", "orders", "dead", "no-job"): 1}


def test_every_metric_of_the_table_is_counted_by_somebody() -> None:
    """The three that only a worker knows are in `cli/measuring.py`."""
    meter = Meter()
    for name in EVENTS:
        meter.emit(event(name, took_ms=1, wait_ms=-1, detail={"late_ms": 1, "schedule": "s", "count.parcels": 1}))
    with Office().opened() as there:
        there.office.book.send(Order("o-1"))
        there.world.run_for(10_000)
        shown = {one.metric.name for one in gauges(Reader(there.session.engine, there.clock, jobs=["book"]).read())}
    of_runs = {"onefold.run.items", "onefold.runs", "onefold.reconcile.age"}
    of_workers = {"onefold.worker.progress.age", "onefold.engine.failing.age", "onefold.events.lost"}
    of_spans = {name for name in METRICS if name.startswith("messaging.client.")}  # see test_otel.py
    assert {one.metric.name for one in meter.samples()} | shown | of_runs | of_workers | of_spans == set(METRICS)


def test_a_failed_job_says_how_long_it_ran_and_waited() -> None:
    with Office().opened() as there:
        there.office.book.send(Order("a"))
        there.clock.advance(4_000)
        there.world.run()
        (done,) = [one for one in there.world.events if one.name == "completed"]
        assert (done.took_ms, done.wait_ms) == (0, 4_000)
        there.office.book.send(Order("a"))
        there.world.run()
        (again,) = [one for one in there.world.events if one.name == "duplicate"]
        assert (again.took_ms, again.wait_ms) == (None, None)


# -- Prometheus ------------------------------------------------------------------------------------------------------


@pytest.fixture
def samples() -> list[Sample]:
    meter = Meter()
    meter.emit(event("completed", took_ms=250, wait_ms=2_000))
    with Office().opened() as there:
        there.office.book.send(Order("waits"))
        there.clock.advance(7_000)
        return [*meter.samples(), *gauges(Reader(there.session.engine, there.clock).read())]


def test_the_exposition_is_read_by_prometheus_own_parser(samples: list[Sample]) -> None:
    text = exposition(samples).decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert families["onefold_messages_settled"].samples[0].value == 1
    durations = {
        (one.name, one.labels.get("le")): one.value for one in families["messaging_process_duration_seconds"].samples
    }
    assert durations["messaging_process_duration_seconds_bucket", "0.1"] == 0
    assert durations["messaging_process_duration_seconds_bucket", "0.25"] == 1
    assert durations["messaging_process_duration_seconds_bucket", "+Inf"] == 1
    ages = {one.labels["queue"]: one.value for one in families["onefold_queue_oldest_age_seconds"].samples}
    assert ages == {"orders": 7, "careful": 0, "lines.fifo": 0}
    assert "secret-key" not in text


class Families:
    """Samples as a collector of Prometheus's client library."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        """One family for each metric."""
        for metric in METRICS.values():
            own = [one for one in self._samples if one.metric is metric]
            kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
            family: Any = kinds[metric.instrument](metric.prometheus, metric.text, labels=metric.labels)
            for one in own:
                said = dict(one.labels)
                labels = [said.get(label, "") for label in metric.labels]
                if isinstance(one.value, Histogram):
                    bounds = [*(str(float(bound)) for bound in one.value.bounds), "+Inf"]
                    totals = itertools.accumulate(one.value.counts)
                    family.add_metric(labels, list(zip(bounds, totals, strict=True)), sum_value=one.value.sum)
                else:
                    family.add_metric(labels, one.value)
            if own:
                yield family


def test_it_is_what_prometheus_own_library_writes(samples: list[Sample]) -> None:
    odd = [
        0,
        0.0,
        -1,
        -2.5,
        7,
        0.1 + 0.2,
        1e-9,
        999_999,
        1_000_000,
        1_234_567.25,
        1e21,
        10**15,
        math.inf,
        -math.inf,
        math.nan,
        True,
    ]
    labels = ["plain", 'a "quoted"\nline \\ with', "ünï\u202e", ""]
    metric = METRICS["onefold.queue.oldest.age"]
    more = [Sample(metric, (("queue", text),), value) for text in labels for value in odd]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families([*samples, *more]))
    assert exposition([*samples, *more]) == generate_latest(registry)


@pytest.fixture
def server(samples: list[Sample]) -> Iterator[tuple[MetricsServer, list[str]]]:
    trouble: list[str] = []
    made = MetricsServer(("127.0.0.1", 0), lambda: samples, lambda: trouble[0] if trouble else None)
    yield made, trouble
    made.close()


def got(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_serves_metrics_and_its_state(server: tuple[MetricsServer, list[str]]) -> None:
    made, trouble = server
    status, text = got(f"{made.url}/metrics")
    assert (status, "onefold_queue_messages" in text) == (200, True)
    assert got(f"{made.url}/healthz") == (200, "ok\n")
    assert got(f"{made.url}/readyz") == (200, "ok\n")
    trouble.append("no progress for 5m")
    assert got(f"{made.url}/readyz") == (503, "no progress for 5m\n")
    assert got(f"{made.url}/other")[0] == 404


def test_a_loopback_server_answers_to_its_own_names_only(server: tuple[MetricsServer, list[str]]) -> None:
    assert got(f"{server[0].url}/metrics", Host="evil.example:80")[0] == 403


@pytest.mark.parametrize(
    ("text", "address"),
    [(":9400", ("127.0.0.1", 9400)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:80", ("::1", 80))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["9400", "host:", ":99999", ":x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(errors.UsageError, match="not an address"):
        address_of(text)


def test_an_address_that_is_taken_is_said(server: tuple[MetricsServer, list[str]]) -> None:
    port = int(server[0].url.rpartition(":")[2])
    with pytest.raises(errors.UsageError, match="cannot be served"):
        MetricsServer(("127.0.0.1", port), list, lambda: None)
