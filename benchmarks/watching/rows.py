"""Rows of what it costs to see what goes on. Never here: measuring (`alarms`, `spans`, and the drain of `trials`)."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import trials
from benchmarks.rows import REPEATABLE, Bench, Pair, Planned, below, onefold_drain, ratio_at_least
from benchmarks.trials import Figures, Tool

QUEUES = 1_000


def alarms(bench: Bench) -> Figures:
    queues = 100 if bench.quick else QUEUES
    with TemporaryDirectory(dir=bench.work) as directory:
        file = Path(directory) / "shop.db"
        return trials.run_figures(
            [sys.executable, "-m", "benchmarks.watching.alarms", "--file", str(file), "--queues", str(queues)]
        )


def spans(bench: Bench) -> Figures:
    options = ["--count", str(bench.count(20_000)), "--rounds", "1" if bench.quick else "5"]
    return trials.run_figures([sys.executable, "-m", "benchmarks.watching.spans", *options])


def pairs() -> list[Pair]:
    """Everything about watching."""
    return [*alarm_pairs(), *observing(), *tracing()]


def observing() -> list[Pair]:
    """The cost of being watched: the drain of a no-op job with a sink, beside the same drain without one."""
    alone = "onefold, no sink"
    kinds = (
        ("events", "events", 0.97, "A sink that does nothing: events are made, queued, passed on in a thread of its own."),
        ("metrics", "metrics", 0.97, "What `onefold worker --metrics` counts, which nobody scrapes meanwhile."),
        ("emf", "metrics, EMF", 0.97, "`EmfSink`, whose lines go nowhere: every value of a histogram is kept and written."),
        ("otel-metrics", "metrics, OpenTelemetry", 0.9,
         "`OpenTelemetry(spans=False)` on OpenTelemetry's SDK, which nobody reads meanwhile."),
        ("tracing", "tracing", 0.9,
         "`OpenTelemetry(metrics=False)`, its SDK recording every span, a batch processor, an exporter that drops them."),
        ("tracing-hundredth", "tracing, 1 % sampled", 0.9, "The same with a parent-based sampler of a trace in a hundred."),
    )  # fmt: skip
    return [
        Pair(
            partial(onefold_drain, tool=watched(sink), count=50_000),
            (
                Planned(
                    f"drain with {name}", "jobs/s", "per_s", ratio_at_least(goal), alone, note=f"{REPEATABLE} {note}"
                ),
            ),
            {alone: partial(onefold_drain, count=50_000)},
        )
        for sink, name, goal, note in kinds
    ]


def watched(sink: str) -> Tool:
    return Tool(
        f"onefold, SQLite, repeatable, {sink}", "benchmarks.onefold_tool",
        settings={"BENCH_EFFECT": "repeatable", "BENCH_SINK": sink},
    )  # fmt: skip


def tracing() -> list[Pair]:
    """Processor time of a job that does nothing, on an engine in memory: what spans take of the machine itself."""
    return [
        Pair(
            spans,
            (
                Planned("processor time of a job, no sink", "us", "none_us"),
                Planned("processor time of a job, every span recorded", "us", "all_us"),
                Planned("processor time of a job, 1 % of traces sampled", "us", "hundredth_us"),
                Planned("processor time of a job, no trace sampled", "us", "dropped_us"),
            ),
            runs_max=1,
        )
    ]


def alarm_pairs() -> list[Pair]:
    return [
        Pair(
            alarms,
            (
                Planned(
                    f"alarms of {QUEUES:,} queues, a look while nothing is wrong", "ms", "quiet_ms", below(200, "ms"),
                    note="Every 15 s: depths and ages of 3,000 queues are read, and nine alarms for each of the 1,000 "
                    "evaluated.",
                ),
                Planned(f"alarms of {QUEUES:,} queues, one of each is on", "ms", "on_ms", below(200, "ms")),
                Planned(
                    f"alarms of {QUEUES:,} queues, one of each begins at once", "ms", "begins_ms",
                    note="Once: 1,000 incidents and 1,000 reports are written, durably.",
                ),
            ),
        )
    ]  # fmt: skip
