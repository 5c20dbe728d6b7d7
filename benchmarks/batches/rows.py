"""The rows about time, fan-out and batches: next firings, matching, schedulers, dispatchers, map runs.

Never here: what is timed (the other modules of this room). Invariant: what must not grow is measured at two sizes in one
run, in a process and an engine of its own each.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import trials
from benchmarks.peers import environment
from benchmarks.rows import Bench, Goal, Pair, Planned, ratio_at_least
from benchmarks.trials import Figures, TrialFailed

CRONITER, CRONSIM = "croniter", "cronsim"


def program(module: str, *, python: str = sys.executable, **options: str | int) -> Figures:
    command = [python, "-m", f"benchmarks.batches.{module}"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return trials.run_figures(command)


def firing(bench: Bench, subject: str) -> Figures:
    if subject == "onefold":
        return program("firing", subject=subject, count=bench.count(100_000))
    if not environment.installed():
        raise TrialFailed(f"{subject} is not installed: make bench-peers installs it")
    return program("firing", python=environment.PYTHON, subject=subject, count=bench.count(20_000))


def matching(bench: Bench) -> Figures:
    few, many = (program("matching", rules=rules, count=bench.count(20_000)) for rules in (10, 1_000))
    return {"per_s": 1e6 / many["us"], "growth": many["us"] / few["us"]}


def in_new_folder(bench: Bench, module: str, **options: int) -> Figures:
    with TemporaryDirectory(dir=bench.work) as folder:
        return program(module, folder=str(Path(folder)), **options)


def scheduling(bench: Bench) -> Figures:
    few = in_new_folder(bench, "scheduling", schedules=1_440)
    many = in_new_folder(bench, "scheduling", schedules=max(1_440, bench.count(100_000)))
    return many | {"minute_us": few["tick_us"]}


def dispatching(bench: Bench, sizes: tuple[int, int]) -> Figures:
    small, large = (in_new_folder(bench, "dispatching", count=bench.count(size)) for size in sizes)
    return {"per_s": large["per_s"], "cpu_us": large["cpu_us"], "rss_mb": large["rss_mb"],
            "more_mb": large["rss_mb"] - small["rss_mb"]}  # fmt: skip


def mapping(bench: Bench, sizes: tuple[int, int]) -> Figures:
    small, large = (in_new_folder(bench, "mapping", rows=bench.count(size)) for size in sizes)
    return large | {"more_mb": large["rss_mb"] - small["rss_mb"]}


def at_most(limit: float, unit: str) -> Goal:
    return Goal(f"at most {limit:g} {unit}".rstrip(), "figure", lambda figure: figure <= limit)


def pairs() -> list[Pair]:
    """Everything about time, fan-out and batches."""
    return [
        Pair(
            partial(firing, subject="onefold"),
            (
                Planned("next firing of a cron expression, beside croniter", "firings/s", "firings_per_s",
                        ratio_at_least(1), CRONITER, note="Five expressions in five zones, walked onwards."),
                Planned("next firing of a cron expression, beside cronsim", "firings/s", "firings_per_s",
                        ratio_at_least(1), CRONSIM),
            ),
            {name: partial(firing, subject=name) for name in (CRONITER, CRONSIM)},
        ),
        Pair(
            matching,
            (
                Planned("events matched against 1,000 rules", "events/s", "per_s"),
                Planned("an event at 1,000 rules, over one at 10", "x", "growth", at_most(10, "x"),
                        note="100 times the rules. The goal is ours: the issue asks that it does not grow linearly."),
            ),
        ),
        Pair(
            scheduling,
            (
                Planned("scheduler with 100,000 schedules: first start", "ms", "first_ms",
                        note="All are registered durably."),
                Planned("scheduler with 100,000 schedules: later start", "ms", "again_ms"),
                Planned("scheduler with 100,000 schedules: a tick", "us", "tick_us",
                        note="About 70 are due each minute and share a transaction."),
                Planned("scheduler with 1,440 schedules: a tick", "us", "minute_us",
                        note="One is due each minute: the transaction and its sync are its own."),
                Planned("scheduler with 100,000 schedules: memory", "MB", "rss_mb"),
            ),
        ),
        Pair(
            partial(dispatching, sizes=(250_000, 1_000_000)),
            (
                Planned("dispatch of 1,000,000 messages", "messages/s", "per_s",
                        note="Each with a row of history and a checkpoint in its batch's transaction."),
                Planned("dispatch of 1,000,000 messages: processor time of one", "us", "cpu_us"),
                Planned("dispatch: memory more at 1,000,000 than at 250,000", "MB", "more_mb", at_most(8, "MB"),
                        note="At 250,000 SQLite's page cache of 64 MiB is full."),
            ),
        ),
        Pair(
            partial(dispatching, sizes=(1_000_000, 10_000_000)),
            (
                Planned("dispatch of 10,000,000 messages", "messages/s", "per_s"),
                Planned("dispatch: memory more at 10,000,000 than at 1,000,000", "MB", "more_mb", at_most(8, "MB")),
            ),
            runs_max=1,
        ),
        Pair(
            partial(mapping, sizes=(50_000, 1_000_000)),
            (
                Planned("map run over a CSV of 1,000,000 rows", "items/s", "per_s",
                        note="One worker, one item a message, killed half way and taken over."),
                Planned("map run: from the new worker's start to the first row it finishes", "s", "resume_s"),
                Planned("map run: memory more at 1,000,000 rows than at 50,000", "MB", "more_mb", at_most(64, "MB"),
                        note="SQLite's page cache of 64 MiB fills on the way."),
            ),
            runs_max=1,
        ),
    ]  # fmt: skip
