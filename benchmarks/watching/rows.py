"""Rows of what it costs to see what goes on. Never here: measuring (`alarms`)."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import trials
from benchmarks.rows import Bench, Pair, Planned, below
from benchmarks.trials import Figures

QUEUES = 1_000


def alarms(bench: Bench) -> Figures:
    queues = 100 if bench.quick else QUEUES
    with TemporaryDirectory(dir=bench.work) as directory:
        file = Path(directory) / "shop.db"
        return trials.run_figures(
            [sys.executable, "-m", "benchmarks.watching.alarms", "--file", str(file), "--queues", str(queues)]
        )


def pairs() -> list[Pair]:
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
