"""The rows of the page: how long the server takes for it. The goals are the issue's.

Never here: filling files (`filling`), asking (`opening`). Invariant: each goal is of server time, without a browser.
"""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

from benchmarks import trials
from benchmarks.rows import Bench, Pair, Planned, below
from benchmarks.trials import Figures

OPENS_MS, METRICS_MS = 300, 50


def opening(bench: Bench) -> Figures:
    count, queues = (20_000, 100) if bench.quick else (1_000_000, 1_000)
    with TemporaryDirectory(dir=bench.work) as folder:
        options = ["--folder", folder, "--count", str(count), "--queues", str(queues)]
        return trials.run_figures([sys.executable, "-m", "benchmarks.pages.opening", *options])


def pairs() -> list[Pair]:
    """Everything about the page."""
    about, goal = "page over 1,000,000 messages and 1,000,000 dead letters", below(OPENS_MS, "ms")
    return [
        Pair(
            opening,
            (
                Planned(f"{about}: what needs a person", "ms", "first_ms", goal),
                Planned(f"{about}: a queue", "ms", "queue_ms", goal),
                Planned(f"{about}: its dead letters", "ms", "dead_ms", goal),
                Planned(f"{about}: a filter that nothing fits", "ms", "filtered_ms", goal),
                Planned(f"{about}: preview of a redrive", "ms", "redrive_ms", goal),
                Planned(f"{about}: one dead letter", "ms", "letter_ms", goal),
                Planned("/metrics of 1,000 queues", "ms", "metrics_ms", below(METRICS_MS, "ms")),
            ),
            runs_max=3,
        ),
    ]
