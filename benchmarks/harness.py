"""Runs the benchmark and writes its page: `python -m benchmarks.harness --date 2026-11-20` (`make bench`).

Subject and references of a pair run alternately, five times or more; medians. Progress goes to standard error, the table
to standard output. A goal that is missed is printed and shown on the page, and is no error of the program: exit code 0.
Never here: what is measured (`rows`) and how (`trials`, `raw`, `subjects`). Invariant: only a whole run writes the page.
"""

from __future__ import annotations

import argparse
import compileall
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import report
from benchmarks import rows as worker_rows
from benchmarks.aws import rows as aws_rows
from benchmarks.batches import rows as batches_rows
from benchmarks.checking import rows as checking_rows
from benchmarks.pages import rows as pages_rows
from benchmarks.report import Row
from benchmarks.rows import Bench, Pair, Planned
from benchmarks.serving import rows as serving_rows
from benchmarks.trials import ROOT, Figures, TrialFailed, end_cleanly_when_told
from benchmarks.watching import rows as watching_rows

RUNS = 5
PARTS = {
    "rows": worker_rows.pairs, "serving": serving_rows.pairs, "aws": aws_rows.pairs, "batches": batches_rows.pairs,
    "watching": watching_rows.pairs,
    "pages": pages_rows.pairs,
    "check": checking_rows.pairs,
}  # fmt: skip
"""The parts of the page, by their names in its JSON file."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_pair(pair: Pair, bench: Bench, runs: int) -> list[Row]:
    """Runs subject, references, subject, references...; a reference that cannot be had leaves the subject's figures."""
    subjects: list[Figures] = []
    references: dict[str, list[Figures]] = {name: [] for name in pair.references}
    problems: dict[str, str] = {}
    runs = min(runs, pair.runs_max or runs)
    for number in range(runs):
        say(f"{pair.rows[0].name}: run {number + 1} of {runs}, fdatasync {report.fdatasync_ms(bench.work, 20):.2f} ms")
        try:
            subjects.append(pair.subject(bench))
        except TrialFailed as error:
            say(str(error))
            return [not_measured(planned, str(error)) for planned in pair.rows]
        for name, measure in pair.references.items():
            if name in problems:
                continue
            try:
                references[name].append(measure(bench))
            except TrialFailed as error:
                say(str(error))
                problems[name] = f"No reference: {first_line(error)}."
    return [
        row(planned, subjects, references.get(planned.reference, []), problems.get(planned.reference, ""))
        for planned in pair.rows
    ]


def words(planned: Planned) -> str:
    return planned.goal.words if planned.goal else ""


def first_line(error: object) -> str:
    return str(error).partition("\n")[0][:300]


def not_measured(planned: Planned, why: str) -> Row:
    passed = None if planned.goal is None else False
    return Row(
        name=planned.name, unit=planned.unit, median=None, min=None, max=None, n=0, reference=planned.reference or None,
        reference_median=None, ratio=None, goal=words(planned), passed=passed, note=f"Not measured: {first_line(why)}",
    )  # fmt: skip


def row(planned: Planned, subjects: Sequence[Figures], references: Sequence[Figures], problem: str) -> Row:
    """Makes a row of the figures that both programs gave in the pairs."""
    if any(planned.figure not in figures for figures in subjects):
        return not_measured(planned, f"a run gave no {planned.figure}")
    values = [figures[planned.figure] for figures in subjects]
    others = [figures[planned.reference_figure or planned.figure] for figures in references]
    ratios = [a / b for a, b in zip(values, others, strict=False) if b > 0]
    ratio = median(ratios) if ratios else None
    judged = {"figure": median(values), "ratio": ratio}[planned.goal.of] if planned.goal else None
    passed = planned.goal.met(judged) if planned.goal and judged is not None else None
    return Row(
        name=planned.name, unit=planned.unit, median=median(values), min=min(values), max=max(values), n=len(values),
        reference=planned.reference or None, reference_median=median(others) if others else None, ratio=ratio,
        goal=words(planned), passed=passed, note=" ".join(part for part in (planned.note, problem) if part),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--date", help="YYYY-MM-DD, printed on the page; without it the page is not written")
    parser.add_argument(
        "--part",
        choices=PARTS,
        default="rows",
        help="jobs and workers, the local SQS, AWS, schedules and batches, alarms, the page, or checking",
    )
    parser.add_argument("--only", help="only pairs with a row whose name contains this; the page is not written")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--quick", action="store_true", help="one run with few messages; the page is not written")
    options = parser.parse_args()
    end_cleanly_when_told()
    for folder in (
        "src",
        "benchmarks",
    ):  # before anything is timed; a peer's packages are compiled when pip installs them
        compileall.compile_dir(ROOT / folder, quiet=1)
    runs = 1 if options.quick else options.runs
    rows: list[Row] = []
    (ROOT / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ROOT / "build", prefix="bench-") as directory:
        work = Path(directory)
        machine = report.this_machine(options.date or "undated", work)
        (work / "prepared").mkdir()
        bench = Bench(work, work / "prepared", options.quick)
        for pair in PARTS[options.part]():
            if any((options.only or "") in planned.name for planned in pair.rows):
                rows += run_pair(pair, bench, runs)
        machine = machine.at_the_end(work)
    print(machine.sentence())
    print(report.table_of_rows(rows))
    for failing in (row for row in rows if row.passed is False):
        say(f"FAIL {failing.name}: {failing.goal}. {failing.note}")
    if options.date and not options.only and not options.quick:
        report.write(options.part, machine, rows)


if __name__ == "__main__":
    main()
