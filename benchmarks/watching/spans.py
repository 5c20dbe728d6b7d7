"""What spans cost: processor time of a job that does nothing, traced in several ways; prints figures as JSON.

`python -m benchmarks.watching.spans --count 20000`: one process and one engine in memory for each way, one after the other,
in rounds; of each the median of the rounds, in microseconds of processor time of all threads for one job, from the receive
to the settled record; and how much of the rate without a sink is left.
Never here: goals. Invariant: each way does the same work; the sends are not in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import onefold
from onefold.options import WorkerSettings
from onefold.runner import worker_setup

ROUNDS = 5


class Idle:
    def emit(self, event: onefold.observe.Event) -> None:
        """Nothing."""


def traced(share: float) -> onefold.observe.OpenTelemetry:
    """The SDK with a batch processor and an exporter that drops what it gets; `share` of the traces is sampled."""
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    class Drop(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    tracers.add_span_processor(BatchSpanProcessor(Drop()))
    return onefold.observe.OpenTelemetry(tracer_provider=tracers, metrics=False)


WAYS: Mapping[str, Callable[[], list[onefold.observe.Sink]]] = {
    "none": list,
    "events": lambda: [Idle()],
    "all": lambda: [traced(1.0)],
    "hundredth": lambda: [traced(0.01)],
    "dropped": lambda: [traced(0.0)],
}


def job_us(way: str, count: int) -> float:
    app = onefold.App("bench", url="sqlite://:memory:", sinks=WAYS[way]())

    @app.job(app.queue("orders"), key="{id}", effect="repeatable")
    def job(payload: dict[str, str]) -> None:
        """Nothing."""

    job.send_many([{"id": f"o-{number}"} for number in range(count)])
    runtime = app.runtime()
    settings = WorkerSettings(until_empty=True)
    worker = worker_setup.make_worker(
        runtime, app.jobs, app.registry.job_of, settings=settings, history=app.history, sinks=app.sinks
    )
    began = time.process_time()
    report = worker.run()
    took = time.process_time() - began
    assert report.counts.completed == count
    app.close()
    return took / count * 1e6


def figures(count: int, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, values in found.items():
            command = [sys.executable, "-m", "benchmarks.watching.spans", "--way", way, "--count", str(count)]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            values.append(json.loads(said)["us"])
    times = {way: median(values) for way, values in found.items()}
    rates = {f"{way}_ratio": times["none"] / took for way, took in times.items() if way != "none"}
    return {f"{way}_us": took for way, took in times.items()} | rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--way", choices=WAYS, help="only this one, in this process")
    options = parser.parse_args()
    if options.way:
        print(json.dumps({"us": job_us(options.way, options.count)}))
    else:
        print(json.dumps(figures(options.count, options.rounds)))


if __name__ == "__main__":
    main()
