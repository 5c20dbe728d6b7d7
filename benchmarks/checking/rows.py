"""The rows of `onefold check`: a large template beside cfn-lint, and many templates. The goals are the issue's.

Never here: timing (`reading`), templates (`templates`). Invariant: both programs read the same file in the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import trials
from benchmarks.checking import templates
from benchmarks.rows import Bench, Pair, Planned, below, ratio_at_most
from benchmarks.trials import ROOT, Figures, TrialFailed

LINES = 5_000
CFN_LINT = "cfn-lint"
_TOOL = ROOT / ".venv-tools" / "bin" / "cfn-lint"


def large(bench: Bench) -> Path:
    file = bench.work / "large.yaml"
    file.write_text(templates.of_lines(LINES // 10 if bench.quick else LINES), encoding="utf-8")
    return file


def reading(*words: str) -> Figures:
    return trials.run_figures([sys.executable, "-m", "benchmarks.checking.reading", *words])


def cold(bench: Bench) -> Figures:
    return reading("once", sys.executable, "-m", "onefold", "check", str(large(bench)))


def cfn_lint(bench: Bench) -> Figures:
    if not _TOOL.exists():
        raise TrialFailed("cfn-lint is not installed: make setup installs it")
    return reading("once", str(_TOOL), str(large(bench)))


def many(bench: Bench) -> Figures:
    with TemporaryDirectory(dir=bench.work) as folder:
        templates.write_many(Path(folder), 20 if bench.quick else 1_000)
        return reading("warm", folder)


def pairs() -> list[Pair]:
    """Everything about checking."""
    name = f"onefold check, a template of {LINES:,} lines"
    return [
        Pair(
            cold,
            (
                Planned(f"{name}: from start to exit", "s", "s", below(1, "s")),
                Planned(f"{name}, beside cfn-lint", "s", "s", ratio_at_most(0.1), CFN_LINT),
                Planned(f"{name}: memory", "MB", "mb", below(200, "MB"), CFN_LINT),
            ),
            {CFN_LINT: cfn_lint},
        ),
        Pair(
            many,
            (
                Planned("onefold check, 1,000 templates in a process that runs", "s", "s", below(60, "s")),
                Planned("onefold check, 1,000 templates: memory", "MB", "mb", below(500, "MB")),
            ),
            runs_max=3,
        ),
    ]
