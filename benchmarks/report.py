"""What was measured, as values, and the page made of them: `docs/benchmarks.json` and, from it, `docs/benchmarks.md`.

The programs own parts of the JSON file (`harness` four, `peers` one) and leave the others alone; the page is always
written from the whole file; `python -m benchmarks.report` does it again, with new explanations. Never here: measuring,
goals. Invariant: the page shows no figure that the JSON has not.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.trials import ROOT

JSON_PAGE = ROOT / "docs" / "benchmarks.json"
PAGE = ROOT / "docs" / "benchmarks.md"
EXPLANATIONS = Path(__file__).with_name("explanations.toml")


@dataclass(frozen=True)
class Row:
    """One measured figure beside its reference.

    Args:
        name: unique; also the name of its explanation.
        unit: of the figure and of the reference.
        median, min, max, n: of the subject's runs.
        reference, reference_median: the program it stands beside, run alternately with it; None when there is none.
        ratio: median of figure / reference over the pairs.
        goal: in words.
        passed: whether the goal is met; None when the row has no goal or could not be measured.
        note: what a reader must know, or why it could not be measured.
    """

    name: str
    unit: str
    median: float | None
    min: float | None
    max: float | None
    n: int
    reference: str | None
    reference_median: float | None
    ratio: float | None
    goal: str
    passed: bool | None
    note: str


@dataclass(frozen=True)
class PeerFigures:
    """What was measured of one tool beside others.

    Args:
        name, durable: the tool, and what its "accepted" survives.
        figures: a value per round: `sent_per_s`, `bulk_per_s`, `per_s` (drained), `p50_ms`, `p99_ms`, `idle_percent`,
            `rss_mb`, `again_s`. One that is missing could not be measured; `again_s`: the job did not run again.
        problem: why measuring stopped; empty when it did not.
    """

    name: str
    durable: str
    figures: dict[str, list[float]]
    problem: str


@dataclass(frozen=True)
class Machine:
    """Where a run was made; `fdatasync_ms` are medians of 4 KiB writes on the measured disk, before and after the run."""

    date: str
    cores: int
    processor: str
    python: str
    sqlite: str
    filesystem: str
    fdatasync_ms: tuple[float, ...]

    def at_the_end(self, directory: Path) -> Machine:
        return replace(self, fdatasync_ms=(*self.fdatasync_ms, fdatasync_ms(directory)))

    def sentence(self) -> str:
        synced = ", at the end ".join(f"{ms:.2f}" for ms in self.fdatasync_ms)
        return (
            f"{self.date}, {self.cores} cores ({self.processor}), Python {self.python}, SQLite {self.sqlite}, "
            f"{self.filesystem}, fdatasync of 4 KiB {synced} ms."
        )


def this_machine(date: str, directory: Path) -> Machine:
    return Machine(
        date=date,
        cores=len(os.sched_getaffinity(0)),
        processor=processor_name(),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        filesystem=filesystem_of(directory),
        fdatasync_ms=(fdatasync_ms(directory),),
    )


def processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def filesystem_of(directory: Path) -> str:
    """Returns the type of the file system that holds a directory: on tmpfs a sync costs nothing, and says nothing."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(len(fields[1]), fields[2]) for fields in mounts if directory.is_relative_to(fields[1])]
    return max(holding)[1]


def fdatasync_ms(directory: Path, count: int = 200) -> float:
    path = directory / "sync"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            started = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    path.unlink()
    return median(taken) * 1e3


def write(part: str, machine: Machine, entries: Sequence[Any]) -> None:
    """Replaces one part (`peers`, or one of `SECTIONS`) of the JSON file and writes the page anew."""
    whole = json.loads(JSON_PAGE.read_text()) if JSON_PAGE.exists() else {}
    whole[part] = {"machine": asdict(machine), "entries": [asdict(entry) for entry in entries]}
    JSON_PAGE.write_text(json.dumps(whole, indent=1) + "\n")
    write_page()


def write_page() -> None:
    """Writes the page anew from the JSON file and the explanations."""
    PAGE.write_text(page(json.loads(JSON_PAGE.read_text())))


ABOUT = (
    "Written by the benchmark itself; do not edit. A figure is the median [smallest-largest] of n runs. Each run of onefold "
    "was followed by a run of the reference beside it, both in fresh processes on the same disk, and the ratio is the "
    "median over these pairs: compare ratios, because absolute figures drift with the machine. Durable means: the file was "
    "synced (`synchronous=FULL`) before the call returned."
)


def page(whole: Mapping[str, Any]) -> str:
    parts = ["# Benchmarks", ABOUT]
    for part, title, about in SECTIONS:
        if part in whole:
            machine = Machine(**whole[part]["machine"])
            rows = [Row(**entry) for entry in whole[part]["entries"]]
            parts += [f"## {title}", "`make bench`. " + machine.sentence(), *([about] if about else [])]
            parts += [table_of_rows(rows), *(text for row in rows if (text := below_the_table(row)))]
    if "peers" in whole:
        machine = Machine(**whole["peers"]["machine"])
        parts += ["## Beside other queues", "`make bench-peers`. " + machine.sentence()]
        parts += [table_of_peers([PeerFigures(**entry) for entry in whole["peers"]["entries"]]), ABOUT_PEERS]
    return "\n\n".join(parts) + "\n"


def table_of_rows(rows: Sequence[Row]) -> str:
    lines = ["| what | onefold | reference | ratio | goal | |", "|---|---|---|---|---|---|"]
    for row in rows:
        reference = ""
        if row.reference is not None:
            reference = f"{number(row.reference_median)} {row.reference}".strip()
        cells = (row.name, spread(row), reference, number(row.ratio), row.goal, verdict(row))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(row: Row) -> str:
    if row.median is None:
        return "not measured"
    between = f" [{number(row.min)}-{number(row.max)}]" if row.n > 1 else ""
    return f"{number(row.median)}{between} {row.unit}, n={row.n}"


def verdict(row: Row) -> str:
    return {True: "pass", False: "**FAIL**", None: ""}[row.passed]


def below_the_table(row: Row) -> str:
    """Returns what is said about a row under the table: its note, and the explanation kept for it."""
    said = " ".join(part.strip() for part in (row.note, explanations().get(row.name, "")) if part)
    return f"**{row.name}.** {said}" if said else ""


def explanations() -> dict[str, str]:
    texts: dict[str, str] = tomllib.loads(EXPLANATIONS.read_text())
    return texts


ABOUT_SERVING = (
    "SQS's JSON protocol over HTTP. The client costs next to nothing: prepared requests on keep-alive connections, so that "
    "the server is what is measured; with one connection it is the whole way there and back, for which the client waits "
    "without sleeping (what waking it costs is no server's doing), with 16 what it can do. In memory: nothing survives the "
    "process, as with the other servers. Durable: a send is on disk before it is answered, and stands beside the other "
    "server's figure in memory, which has nothing durable to compare. A backlog is in the queue while the rates are "
    "measured where the row says so."
)


ABOUT_AWS = (
    "A batch of 10 records is delivered twice to a handler that does nothing but answer. DynamoDB is a server that answers "
    "as AWS documents it, 5 ms later; ministack returns no items with the errors of a batch, which costs a call. Calls are "
    "all requests of the process. The worker is on the local SQS and the same DynamoDB, 5 ms on every answer of both."
)

ABOUT_BATCHES = (
    "Schedules, dispatchers, map runs and events on the embedded engine, durable. Memory is the process's largest resident "
    "size, so that what grows with a run shows between two sizes of it."
)

ABOUT_WATCHING = (
    "What alarms, events, metrics and traces take from the work. A look at the alarms is durable, and of a new process. A "
    "drain with a sink is of a job that does nothing, beside the same drain without one: a handler that does something pays "
    "less, as a share. Processor time is of all threads of one process with an engine in memory (`python -m "
    "benchmarks.watching.spans`), so that neither the disk nor a second process is in it."
)

ABOUT_PAGES = (
    "Server time of one request, from its bytes to the answer's, on a file with so many messages; no browser and no network "
    "are in it."
)

ABOUT_CHECK = (
    "`onefold check` on templates in which nothing is wrong: 53 lines for each queue with its function, mapping, "
    "dead-letter queue and alarm. cfn-lint reads the same file; it looks for other things, and has more of them."
)

SECTIONS = (
    ("rows", "Against the same durable writes", ""),
    ("serving", "The local SQS beside other local servers", ABOUT_SERVING),
    ("aws", "On AWS beside Powertools", ABOUT_AWS),
    ("batches", "Time, fan-out and batches", ABOUT_BATCHES),
    ("watching", "Seeing what goes on", ABOUT_WATCHING),
    ("pages", "The page", ABOUT_PAGES),
    ("check", "Checking templates", ABOUT_CHECK),
)
"""Parts of the page that `make bench` writes: name in the JSON file, heading, what to know first."""

ABOUT_PEERS = (
    "One worker process each; jobs do nothing and carry 200 bytes; latency is measured from before the send to the "
    "handler's first line at 100 jobs a second; idle is the share of one core that a waiting worker uses. Recovery: the "
    "worker and all its processes get SIGKILL in the middle of a job and a new worker is started at once; the time is "
    "from the kill until the job begins again, watched for 20 s. Each tool runs with its defaults, and with what its "
    "documentation offers to keep a job whose worker dies; what differs from the defaults is said in its module in "
    "`benchmarks/peers/`. Of the others none keeps an idempotency record per business key."
)


def table_of_peers(tools: Sequence[PeerFigures]) -> str:
    lines = [
        "| tool | accepted survives | send/s | bulk/s | drain/s | p50 ms | p99 ms | idle % | MB | killed worker's job |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tool in tools:
        drained = tool.figures.get("per_s")
        cells = [tool.name, tool.durable]
        cells += [middle(tool.figures.get(key)) for key in ("sent_per_s", "bulk_per_s")]
        cells.append(f"{middle(drained)} [{number(min(drained))}-{number(max(drained))}]" if drained else "")
        cells += [middle(tool.figures.get(key)) for key in ("p50_ms", "p99_ms", "idle_percent", "rss_mb")]
        lines.append("| " + " | ".join([*cells, again(tool)]) + " |")
    return "\n".join(lines)


def again(tool: PeerFigures) -> str:
    if tool.problem:
        return f"not measured: {tool.problem}"
    if "again_s" in tool.figures:
        return f"runs again after {median(tool.figures['again_s']):.2f} s"
    return "not within 20 s"


def middle(values: Sequence[float] | None) -> str:
    return number(median(values)) if values else ""


def number(value: float | None) -> str:
    """Writes a figure with three significant digits, or whole with thousands separated."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    write_page()
