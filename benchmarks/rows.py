"""Every row of the benchmark: what is run, what it stands beside, and its goal. The goals are the issue's.

A pair is a subject and a reference that are run alternately; one pair can fill several rows. A measure is a function from
a `Bench` (where to work, how much) to figures. Never here: starting processes or reading clocks (`trials`, `raw`,
`subjects`), the page (`report`). Invariant: a goal is a number or a comparison with the row's own reference.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks import trials
from benchmarks.peers import environment
from benchmarks.tools import ONEFOLD, TASKIQ
from benchmarks.trials import ROOT, Figures, TrialFailed

BATCH = 100
"""Messages a commit, for the raw program: what the worker takes at once."""
BACKLOGS = (1_000, 1_000_000)
GROUPS = 10_000


class Bench:
    """Where one measure works and how much it does.

    Args:
        work: a directory on the disk that is measured.
        prepared: a directory for files that several runs start from a copy of.
        quick: a fiftieth of the counts, to try things.
    """

    def __init__(self, work: Path, prepared: Path, quick: bool) -> None:
        self.work = work
        self.prepared = prepared
        self.quick = quick

    def count(self, number: int) -> int:
        return max(200, number // 50) if self.quick else number


def program(module: str, figure: str, file: Path, **options: int | bool) -> Figures:
    """Runs one figure of `raw` or `subjects`, which take the same command lines, in a fresh process."""
    command = [sys.executable, "-m", f"benchmarks.{module}", figure, "--file", str(file)]
    for name, value in options.items():
        if value is True:
            command.append(f"--{name.replace('_', '-')}")
        elif value is not False:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return trials.run_figures(command)


def once(module: str, figure: str, bench: Bench, *, count: int, **options: int | bool) -> Figures:
    """Runs a figure that begins with an empty file."""
    with TemporaryDirectory(dir=bench.work) as directory:
        return program(module, figure, Path(directory) / "bench.db", count=bench.count(count), **options)


def raw_drain(bench: Bench, count: int = 100_000) -> Figures:
    """Drains in two commits a batch, then the same amount in one: `per_s`, `fused_per_s`."""
    return {
        **raw_drain_of(bench, count, fused=False),
        "fused_per_s": raw_drain_of(bench, count, fused=True)["per_s"],
    }


def raw_drain_of(bench: Bench, count: int, fused: bool) -> Figures:
    with TemporaryDirectory(dir=bench.work) as directory:
        file = Path(directory) / "bench.db"
        program("raw", "load", file, count=bench.count(count))
        return program("raw", "drain", file, count=bench.count(count), batch=BATCH, fused=fused)


def growth(module: str, bench: Bench, groups: int) -> Figures:
    """Cost per message at the large backlog, at the small one, and one over the other.

    At both, as many records of finished work lie in the file as messages wait: what lives for 90 days is the records.
    The files are made once and copied for each run.
    """
    small, large = (backlog_us(module, bench, bench.count(backlog), groups) for backlog in BACKLOGS)
    return {"small_us": small, "large_us": large, "growth": large / small}


def backlog_us(module: str, bench: Bench, backlog: int, groups: int) -> float:
    settings = {"backlog": backlog, "groups": min(groups, backlog)}
    made = bench.prepared / f"{module}-{backlog}-{groups}"
    if not made.exists():
        made.mkdir()
        program(module, "history", made / "bench.db", **settings)
    with TemporaryDirectory(dir=bench.work) as directory:
        shutil.copytree(made, directory, dirs_exist_ok=True)
        os.sync()  # what the copy left unwritten must not be paid for by the first commits
        settings |= {"count": bench.count(20_000), "batch": BATCH}
        return program(module, "backlog", Path(directory) / "bench.db", **settings)["us"]


def onefold_drain(bench: Bench, workers: int = 1, count: int = 100_000) -> Figures:
    return trials.drain(ONEFOLD, bench.work, bench.count(count), workers)


def taskiq_drain(bench: Bench) -> Figures:
    if not environment.installed() or environment.redis_program() is None:
        raise TrialFailed("Taskiq is not installed: make bench-peers installs it")
    return trials.drain(TASKIQ, bench.work, bench.count(10_000))


def powertools(bench: Bench) -> Figures:
    if not environment.installed():
        raise TrialFailed("Powertools is not installed: make bench-peers installs it")
    count = str(bench.count(5_000))
    return trials.run_figures(
        [environment.PYTHON, "-m", "benchmarks.peers.powertools_memory", "--count", count]
    )


def onefold_latency(bench: Bench) -> Figures:
    return trials.latency(ONEFOLD, bench.work, seconds=1 if bench.quick else 10)


def onefold_recovery(bench: Bench) -> Figures:
    return trials.recovery(ONEFOLD, bench.work, standby=True)


def interpreter(code: str, bench: Bench) -> Figures:
    """Runs a line of Python in a fresh interpreter, ten times: median milliseconds from start to exit."""
    return {"ms": median(trials.elapsed_ms([sys.executable, "-c", code]) for _ in range(10))}


def installed_size(bench: Bench) -> Figures:
    """Size of onefold and of what it cannot be installed without, byte code not counted."""
    import msgspec

    folders = [ROOT / "src" / "onefold", Path(msgspec.__file__).parent]
    files = [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    return {"mb": sum(path.stat().st_size for path in files) / 1e6}


Measure = Callable[[Bench], Figures]


@dataclass(frozen=True)
class Goal:
    """What a row must reach: in words, and as a question about its figure or about its ratio to the reference."""

    words: str
    of: Literal["figure", "ratio"]
    met: Callable[[float], bool]


def below(limit: float, unit: str) -> Goal:
    return Goal(f"below {limit:g} {unit}", "figure", lambda figure: figure < limit)


def above(limit: float, unit: str) -> Goal:
    return Goal(f"above {limit:,g} {unit}", "figure", lambda figure: figure > limit)


def ratio_at_least(limit: float) -> Goal:
    return Goal(f"ratio at least {limit:g}", "ratio", lambda ratio: ratio >= limit)


def ratio_at_most(limit: float) -> Goal:
    return Goal(f"ratio at most {limit:g}", "ratio", lambda ratio: ratio <= limit)


@dataclass(frozen=True)
class Planned:
    """A row to be filled from a pair's figures; the reference's figure has the same name unless another is given."""

    name: str
    unit: str
    figure: str
    goal: Goal | None
    reference_figure: str = ""
    note: str = ""


@dataclass(frozen=True)
class Pair:
    """A subject and the reference it is run alternately with."""

    subject: Measure
    rows: tuple[Planned, ...]
    reference: Measure | None = None
    reference_name: str = ""


def pairs() -> list[Pair]:
    """Returns the whole benchmark, in the order of the page."""
    return [*draining(), *sending(), *guarding(), *growing(), *waiting(), *weighing()]


def draining() -> list[Pair]:
    return [
        Pair(
            onefold_drain,
            (
                Planned("drain, one worker", "jobs/s", "per_s", ratio_at_least(0.5)),
                Planned("drain beside raw in one commit", "jobs/s", "per_s", None, "fused_per_s"),
            ),
            raw_drain,
            f"raw, {BATCH} a batch",
        ),
        Pair(
            onefold_drain,
            (Planned("drain beside a queue that keeps jobs", "jobs/s", "per_s", ratio_at_least(5)),),
            taskiq_drain,
            "Taskiq, Redis in memory",
        ),
        *(
            Pair(
                partial(onefold_drain, workers=workers),
                (Planned(f"drain, {workers} workers", "jobs/s", "per_s", ratio_at_least(1)),),
                onefold_drain,
                "onefold, one worker",
            )
            for workers in (2, 4)
        ),
    ]


def sending() -> list[Pair]:
    one_by_one = partial(once, "subjects", "enqueue", count=4_000)
    return [
        Pair(
            one_by_one,
            (Planned("send one by one", "us", "us", ratio_at_most(1.3)),),
            partial(once, "raw", "enqueue", count=4_000),
            "raw insert",
        ),
        Pair(
            partial(once, "subjects", "bulk", count=200_000, batch=1_000),
            (Planned("send in bulk", "messages/s", "per_s", above(50_000, "messages/s")),),
            partial(once, "raw", "bulk", count=200_000, batch=1_000),
            "raw, 1,000 a commit",
        ),
        Pair(
            partial(once, "subjects", "enqueue", count=16_000, threads=8),
            (Planned("send from 8 threads", "messages/s", "per_s", ratio_at_least(1)),),
            one_by_one,
            "onefold, one by one",
        ),
    ]


def guarding() -> list[Pair]:
    return [
        Pair(
            partial(once, "subjects", "once-memory", count=20_000),
            (
                Planned("@once in memory, first call", "us", "first_us", below(17, "us")),
                Planned("@once in memory, duplicate", "us", "duplicate_us", below(17, "us")),
            ),
            powertools,
            "Powertools",
        ),
        Pair(
            partial(once, "subjects", "once-sqlite", count=2_000),
            (Planned("@once on SQLite, first call", "us", "first_us", None, "us"),),
            partial(once, "raw", "record", count=2_000),
            "raw record",
        ),
    ]


def growing() -> list[Pair]:
    return [
        Pair(
            partial(growth, "subjects", groups=groups),
            (
                Planned(
                    f"{kind}: cost at a backlog of 1,000,000 over 1,000", "x", "growth", ratio_at_most(1)
                ),
                Planned(f"{kind}: cost at a backlog of 1,000,000", "us", "large_us", None),
            ),
            partial(growth, "raw", groups=groups),
            f"raw, {BATCH} a batch",
        )
        for kind, groups in (("standard", 0), (f"FIFO with {GROUPS:,} groups", GROUPS))
    ]


def waiting() -> list[Pair]:
    return [
        Pair(
            onefold_latency,
            (
                Planned("latency at 100 jobs/s, p50", "ms", "p50_ms", below(3, "ms")),
                Planned("latency at 100 jobs/s, p99", "ms", "p99_ms", below(15, "ms")),
                Planned("a waiting worker", "% of a core", "idle_percent", below(2, "%")),
            ),
        ),
        Pair(onefold_recovery, (Planned("killed worker's job begins again", "s", "again_s", below(2, "s")),)),
    ]


def weighing() -> list[Pair]:
    return [
        Pair(
            partial(interpreter, "import onefold"),
            (Planned("python -c 'import onefold'", "ms", "ms", below(100, "ms")),),
            partial(interpreter, "pass"),
            "python -c pass",
        ),
        Pair(installed_size, (Planned("installed size, with msgspec", "MB", "mb", None),)),
    ]
