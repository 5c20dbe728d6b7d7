"""Every row of the benchmark: what is run, what it stands beside, and its goal. The goals are the issue's.

A pair is a subject and the references it is run alternately with; one pair can fill several rows. A measure is a function
from a `Bench` (where to work, how much) to figures. Never here: starting processes or reading clocks (`trials`, `raw`,
`subjects`), the page (`report`). Invariant: a goal is a number or a comparison with the row's own reference.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks import trials
from benchmarks.peers import environment
from benchmarks.tools import DBOS, ONEFOLD, ONEFOLD_LINES, ONEFOLD_REPEATABLE, TASKIQ
from benchmarks.trials import ROOT, Figures, Tool, TrialFailed

GROUP = 100
"""Runs that the worker commits together at most: the default of its `group_max`."""
SHARED = 300
"""Messages between two synced commits of a claim, as counted in the worker: 163 messages a synced commit of either kind,
because groups that are ready at one moment share one. What raw must use to make as few commits."""
THREADS = 8
"""Of a worker, by default: so many runs with an external effect are under way at once."""
HELD = THREADS * GROUP
"""Messages that a worker has in hand at once."""
BACKLOGS = (1_000, 1_000_000)
GROUPS = 10_000
STREAMED = 6_000
COPIED_MAX = 10_000
"""Files with a backlog up to this are copied for each run, larger ones used again: a run adds 2 % to their records."""
IN_MEMORY = "Taskiq, Redis in memory"
REPEATABLE = "Its job is declared repeatable, so its records may be committed in groups."


class Bench:
    """Where one measure works and how much it does.

    Args:
        work: a directory on the disk that is measured.
        prepared: a directory for files that several runs use.
        quick: a fiftieth of the counts, to try things.
    """

    def __init__(self, work: Path, prepared: Path, quick: bool) -> None:
        self.work = work
        self.prepared = prepared
        self.quick = quick
        self.sent: Counter[Path] = Counter()

    def count(self, number: int) -> int:
        return max(200, number // 50) if self.quick else number

    def first_of(self, file: Path, count: int) -> int:
        """Returns where the next `count` numbers begin that no message of this file has had, the prepared ones aside."""
        self.sent[file] += count
        return self.sent[file] - count


Measure = Callable[[Bench], Figures]


def program(module: str, figure: str, file: Path, **options: int) -> Figures:
    """Runs one figure of `raw` or `subjects`, which take the same command lines, in a fresh process."""
    command = [sys.executable, "-m", f"benchmarks.{module}", figure, "--file", str(file)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return trials.run_figures(command)


def once(module: str, figure: str, bench: Bench, *, count: int, **options: int) -> Figures:
    """Runs a figure that begins with an empty file."""
    with TemporaryDirectory(dir=bench.work) as directory:
        return program(module, figure, Path(directory) / "bench.db", count=bench.count(count), **options)


def raw_stream(bench: Bench) -> Figures:
    return once("raw", "stream", bench, count=STREAMED, batch=GROUP)


def raw_drain(bench: Bench, batch: int, count: int = 100_000) -> Figures:
    with TemporaryDirectory(dir=bench.work) as directory:
        file = Path(directory) / "bench.db"
        program("raw", "load", file, count=bench.count(count))
        return program("raw", "drain", file, count=bench.count(count), batch=batch)


def growth(module: str, bench: Bench, groups: int) -> Figures:
    """Cost per message at the large backlog, at the small one, and one over the other.

    At both, as many records of finished work lie in the file as messages wait: what lives for 90 days is the records.
    """
    small, large = (backlog_us(module, bench, bench.count(backlog), groups) for backlog in BACKLOGS)
    return {"small_us": small, "large_us": large, "growth": large / small}


def backlog_us(module: str, bench: Bench, backlog: int, groups: int) -> float:
    prepare(bench)
    made, count = place(bench, module, backlog, groups), bench.count(24_000)
    with TemporaryDirectory(dir=bench.work) as directory:
        if backlog <= COPIED_MAX:
            shutil.copytree(made, directory, dirs_exist_ok=True)
            made = Path(directory)
        os.sync()  # what was left unwritten must not be paid for by the first commits
        first = 2 * backlog + bench.first_of(made, count)
        file = made / "bench.db"
        figures = program(module, "backlog", file, count=count, batch=HELD, first=first, groups=groups)
    return figures["us"]


def place(bench: Bench, module: str, backlog: int, groups: int) -> Path:
    return bench.prepared / f"{module}-{backlog}-{groups}"


def prepare(bench: Bench) -> None:
    """Makes all files with a backlog, once: onefold's and the raw program's at the same time, because it takes minutes."""
    if not any(bench.prepared.iterdir()):
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(prepare_for, bench), ("subjects", "raw")))


def prepare_for(bench: Bench, module: str) -> None:
    for backlog in (bench.count(number) for number in BACKLOGS):
        standard, fifo = (place(bench, module, backlog, groups) for groups in (0, GROUPS))
        standard.mkdir()
        program(module, "history", standard / "bench.db", count=backlog)
        shutil.copytree(standard, fifo)
        for made, groups in ((standard, 0), (fifo, GROUPS)):
            program(module, "load", made / "bench.db", count=backlog, first=backlog, groups=groups)


def onefold_drain(bench: Bench, tool: Tool = ONEFOLD_REPEATABLE, count: int = 100_000) -> Figures:
    return trials.drain(tool, bench.work, bench.count(count))


def onefold_scale(bench: Bench, workers: Sequence[int]) -> Figures:
    """Drains with so many workers at once: `1_per_s`, `2_per_s`..."""
    return {
        f"{number}_per_s": trials.drain(ONEFOLD_REPEATABLE, bench.work, bench.count(50_000), number)["per_s"]
        for number in workers
    }


def taskiq(bench: Bench, trial: Measure) -> Figures:
    if not environment.installed() or environment.redis_program() is None:
        raise TrialFailed("Taskiq is not installed: make bench-peers installs it")
    return trial(bench)


def taskiq_drain(bench: Bench) -> Figures:
    return trials.drain(TASKIQ, bench.work, bench.count(10_000))


def onefold_stream(bench: Bench, workers: Sequence[int]) -> Figures:
    """One process sends one by one while so many workers run what comes: `1_per_s`, `2_per_s`..."""
    return {
        f"{number}_per_s": trials.stream(ONEFOLD, bench.work, bench.count(STREAMED), number)["per_s"]
        for number in workers
    }


def taskiq_stream(bench: Bench) -> Figures:
    return trials.stream(TASKIQ, bench.work, bench.count(STREAMED))


def powertools(bench: Bench) -> Figures:
    if not environment.installed():
        raise TrialFailed("Powertools is not installed: make bench-peers installs it")
    count = str(bench.count(5_000))
    return trials.run_figures([environment.PYTHON, "-m", "benchmarks.peers.powertools_memory", "--count", count])


def latency(bench: Bench, tool: Tool) -> Figures:
    return trials.latency(tool, bench.work, seconds=1 if bench.quick else 5)


def onefold_recovery(bench: Bench) -> Figures:
    """The mean of five instants in the half second between two looks for dead workers: one alone depends on the start."""
    found = [trials.recovery(ONEFOLD, bench.work, standby=True, later_s=tenth / 10) for tenth in range(5)]
    return {"again_s": mean(one["again_s"] for one in found)} if all(found) else {}


def dbos_recovery(bench: Bench) -> Figures:
    if not environment.installed():
        raise TrialFailed("DBOS is not installed: make bench-peers installs it")
    return trials.recovery(DBOS, bench.work)


def interpreter(code: str, bench: Bench) -> Figures:
    """Runs a line of Python in a fresh interpreter, ten times: median milliseconds from start to exit."""
    return {"ms": median(trials.elapsed_ms([sys.executable, "-c", code]) for _ in range(10))}


def installed_size(bench: Bench) -> Figures:
    """Size of onefold and of what it cannot be installed without."""
    import msgspec

    return {"mb": size_mb(ROOT / "src" / "onefold", Path(msgspec.__file__).parent)}


def powertools_size(bench: Bench) -> Figures:
    if not environment.installed():
        raise TrialFailed("Powertools is not installed: make bench-peers installs it")
    folders = [
        next(environment.VENV.glob(f"lib/*/site-packages/{name}")) for name in ("aws_lambda_powertools", "jmespath")
    ]
    return {"mb": size_mb(*folders)}


def size_mb(*folders: Path) -> float:
    """Size of all files in the folders, byte code not counted."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sum(path.stat().st_size for path in files) / 1e6


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
    """A row to be filled from a pair's figures.

    Args:
        name, unit: of the row.
        figure: which of the subject's.
        goal: None where the row only informs.
        reference: the name of the program it stands beside; empty for none.
        reference_figure: which of its figures; the same as the subject's unless given.
        note: what a reader must know.
    """

    name: str
    unit: str
    figure: str
    goal: Goal | None = None
    reference: str = ""
    reference_figure: str = ""
    note: str = ""


@dataclass(frozen=True)
class Pair:
    """A subject, and the references it is run alternately with, by name.

    Args:
        runs_max: of what takes many minutes.
    """

    subject: Measure
    rows: tuple[Planned, ...]
    references: Mapping[str, Measure] = field(default_factory=dict)
    runs_max: int | None = None


def pairs() -> list[Pair]:
    """Returns the whole benchmark in the order in which it is run; the page keeps it. What strains the disk comes last."""
    return [*waiting(), *weighing(), *guarding(), *sending(), *streaming(), *draining(), *growing()]


def draining() -> list[Pair]:
    shared, grouped, single = (f"raw, batches of {size}" for size in (SHARED, GROUP, THREADS))
    alone, quiet = "onefold, one worker", "onefold, without lines"
    commits = (
        "Both make the same durable writes: the claim (lease, record) is synced before a handler runs, then the result, "
        "the record's end and the delete together. onefold's receive is a commit of its own that waits for no disk; raw "
        "has it in the claim's commit. "
    )
    return [
        Pair(
            onefold_drain,
            (
                Planned(
                    "drain, one worker", "jobs/s", "per_s", ratio_at_least(0.5), shared,
                    note=f"{REPEATABLE} {commits}With up to {GROUP} runs a group, and groups that are ready at one moment "
                    f"sharing a commit, the worker makes as many synced commits as raw in batches of {SHARED}. Its log has "
                    "warnings and errors, as in every row of a worker but the one below: workers wrote no line for each job "
                    "when the page of 21 November was measured.",
                ),
                Planned(
                    "drain, beside raw at the group's size", "jobs/s", "per_s", ratio_at_least(0.5), grouped,
                    note=f"The same run beside raw with the worker's group size, {GROUP}.",
                ),
                Planned(
                    "drain, beside a queue that keeps jobs", "jobs/s", "per_s", ratio_at_least(5), IN_MEMORY,
                    note="The same run. Taskiq keeps a job whose worker is killed; its Redis syncs nothing to disk.",
                ),
            ),
            {
                shared: partial(raw_drain, batch=SHARED),
                grouped: partial(raw_drain, batch=GROUP),
                IN_MEMORY: partial(taskiq, trial=taskiq_drain),
            },
        ),
        Pair(
            partial(onefold_drain, tool=ONEFOLD_LINES),
            (
                Planned(
                    "drain, with a line a job", "jobs/s", "per_s", None, quiet,
                    note="The default of a worker whose output is not a terminal: a line for each completed job, here into "
                    "a file. A log of warnings and errors is `sinks=[onefold.LogSink(level='warning')]`.",
                ),
            ),
            {quiet: onefold_drain},
        ),
        Pair(
            partial(onefold_drain, tool=ONEFOLD, count=10_000),
            (
                Planned(
                    "drain, external effects", "jobs/s", "per_s", None, single,
                    note="The default kind of effect: each record is committed as soon as its handler is done, so a commit "
                    f"holds at most what the {THREADS} threads have finished at that moment.",
                ),
            ),
            {single: partial(raw_drain, batch=THREADS, count=10_000)},
        ),
        Pair(
            partial(onefold_scale, workers=(2, 4)),
            tuple(
                Planned(
                    f"drain, {number} workers", "jobs/s", f"{number}_per_s", ratio_at_least(1), alone, "1_per_s", REPEATABLE
                )
                for number in (2, 4)
            ),
            {alone: partial(onefold_scale, workers=(1,))},
        ),
    ]  # fmt: skip


def sending() -> list[Pair]:
    one_by_one = partial(once, "subjects", "enqueue", count=2_000)
    return [
        Pair(
            one_by_one,
            (Planned("send one by one", "us", "us", ratio_at_most(1.3), "raw insert"),),
            {"raw insert": partial(once, "raw", "enqueue", count=2_000)},
        ),
        Pair(
            partial(once, "subjects", "bulk", count=200_000, batch=1_000),
            (Planned("send in bulk", "messages/s", "per_s", above(50_000, "messages/s"), "raw, 1,000 a commit"),),
            {"raw, 1,000 a commit": partial(once, "raw", "bulk", count=200_000, batch=1_000)},
        ),
        Pair(
            partial(once, "subjects", "enqueue", count=8_000, threads=8),
            (Planned("send from 8 threads", "messages/s", "per_s", ratio_at_least(1), "onefold, one by one"),),
            {"onefold, one by one": one_by_one},
        ),
        Pair(
            partial(once, "subjects", "asend", count=2_000, batch=1),
            (
                Planned(
                    "asend one by one", "us", "us", ratio_at_most(1.2), "onefold, send", note="A coroutine awaits each."
                ),
            ),
            {"onefold, send": one_by_one},
        ),
        Pair(
            partial(once, "subjects", "asend", count=8_000, batch=1_000),
            (
                Planned(
                    "asend, 1,000 at once",
                    "messages/s",
                    "per_s",
                    ratio_at_least(0.8),
                    "onefold, send from 8 threads",
                    note="So many tasks of one loop; eight of their sends at a time are in threads.",
                ),
            ),
            {"onefold, send from 8 threads": partial(once, "subjects", "enqueue", count=8_000, threads=8)},
        ),
        Pair(
            partial(once, "subjects", "relay", count=20_000),
            (
                Planned(
                    "relay",
                    "messages/s",
                    "per_s",
                    above(5_000, "messages/s"),
                    note="From an outbox in a SQLite file of the program's own to the engine's file, one relay.",
                ),
            ),
        ),
        Pair(
            partial(once, "subjects", "joined", count=2_000),
            (
                Planned(
                    "send in the caller's transaction", "us", "us", ratio_at_most(2), "raw, a bare INSERT in its place"
                ),
            ),
            {"raw, a bare INSERT in its place": partial(once, "raw", "joined", count=2_000)},
        ),
    ]


def streaming() -> list[Pair]:
    raw, alone = f"raw, a sender beside one that drains up to {GROUP}", "onefold, one worker"
    about = (
        "One process sends one by one, each send durable, while another runs what comes: from the first send to the last "
        "job's start, external effects. Jobs that are sent and run a second."
    )
    return [
        Pair(
            partial(onefold_stream, workers=(1,)),
            (
                Planned(
                    "send one by one beside a worker", "jobs/s", "1_per_s", ratio_at_least(0.6), raw, "per_s",
                    f"{about} raw's second process makes two synced commits for all that it finds.",
                ),
                Planned(
                    "send one by one beside a worker, and Taskiq", "jobs/s", "1_per_s", ratio_at_least(2), IN_MEMORY,
                    "per_s", "The same run. Taskiq's Redis syncs nothing.",
                ),
            ),
            {raw: raw_stream, IN_MEMORY: partial(taskiq, trial=taskiq_stream)},
        ),
        Pair(
            partial(onefold_stream, workers=(2, 4)),
            tuple(
                Planned(
                    f"send one by one beside {number} workers", "jobs/s", f"{number}_per_s", ratio_at_least(0.95), alone,
                    "1_per_s", "One sender is the bound: a worker more must not take the file from it.",
                )
                for number in (2, 4)
            ),
            {alone: partial(onefold_stream, workers=(1,))},
        ),
    ]  # fmt: skip


def guarding() -> list[Pair]:
    return [
        Pair(
            partial(once, "subjects", "once-memory", count=20_000),
            (
                Planned("@once in memory, first call", "us", "first_us", below(17, "us"), "Powertools"),
                Planned("@once in memory, duplicate", "us", "duplicate_us", below(17, "us"), "Powertools"),
            ),
            {"Powertools": powertools},
        ),
        Pair(
            partial(once, "subjects", "once-sqlite", count=1_000),
            (
                Planned(
                    "@once on SQLite, first call", "us", "first_us", None, "raw record", "us",
                    "Two synced commits on both sides: the claim, the result.",
                ),
                Planned("@once on SQLite, duplicate", "us", "duplicate_us"),
            ),
            {"raw record": partial(once, "raw", "record", count=1_000)},
        ),
    ]  # fmt: skip


def growing() -> list[Pair]:
    raw = f"raw, batches of {HELD}"
    about = (
        "As many records of finished jobs lie beside the waiting messages. A cost is that of sending a message and running "
        f"its job, in one thread: {HELD} are sent, claimed and settled together."
    )
    about_fifo = (
        "The same. Up to ten messages of a group are received together and run one after the other, as on SQS, so at the "
        "large backlog the batch is settled in ten parts; raw takes one message of each group."
    )
    return [
        Pair(
            partial(growth, "subjects", groups=groups),
            (
                Planned(f"{kind}: cost at 1,000,000 over 1,000", "x", "growth", ratio_at_most(1), raw, note=note),
                Planned(f"{kind}: cost a message at 1,000", "us", "small_us", None, raw),
                Planned(f"{kind}: cost a message at 1,000,000", "us", "large_us", None, raw),
            ),
            {raw: partial(growth, "raw", groups=groups)},
        )
        for kind, groups, note in (
            ("standard", 0, about),
            (f"FIFO with {GROUPS:,} groups", GROUPS, about_fifo),
        )
    ]


def waiting() -> list[Pair]:
    again = "DBOS, a new worker at once"
    return [
        Pair(
            partial(latency, tool=ONEFOLD),
            (
                Planned(
                    "latency at 100 jobs/s, p50", "ms", "p50_ms", below(3, "ms"), IN_MEMORY,
                    note="From before the send to the handler's first line, between two processes, external effects: two "
                    "synced commits lie between, the send and the claim. Taskiq's Redis syncs nothing.",
                ),
                Planned("latency at 100 jobs/s, p99", "ms", "p99_ms", below(15, "ms"), IN_MEMORY),
                Planned("a waiting worker", "% of a core", "idle_percent", below(2, "%"), IN_MEMORY),
            ),
            {IN_MEMORY: partial(taskiq, trial=partial(latency, tool=TASKIQ))},
        ),
        Pair(
            onefold_recovery,
            (
                Planned(
                    "killed worker's job begins again", "s", "again_s", below(2, "s"), again,
                    note="kill -9 in the middle of a job, a second worker on the same host, which looks for dead ones "
                    "every half second; the mean of five instants (until 21 November, one). Visibility 30 s; on another "
                    "host it is the lease, 30 s. DBOS runs it again when its worker starts again.",
                ),
            ),
            {again: dbos_recovery},
        ),
    ]  # fmt: skip


def weighing() -> list[Pair]:
    nothing = "python -c pass"
    return [
        Pair(
            partial(interpreter, "import onefold"),
            (Planned("python -c 'import onefold'", "ms", "ms", below(100, "ms"), nothing),),
            {nothing: partial(interpreter, "pass")},
        ),
        Pair(
            installed_size,
            (
                Planned(
                    "installed size, with msgspec",
                    "MB",
                    "mb",
                    None,
                    "Powertools, with jmespath",
                    note="Without byte code. 0.3 MB of onefold are the demo's invoices.",
                ),
            ),
            {"Powertools, with jmespath": powertools_size},
        ),
    ]
