"""The conformance table: which documented or recorded answer of AWS is shown by which test.

A test says what it shows with `@pytest.mark.conformance(operation=..., case=..., source=...)`: the operation, the case in
words, and the section of AWS's behaviour it follows, with [O] for an answer recorded from AWS. `make conformance` runs
them all and writes docs/conformance.md; every other run checks that the page names the same rows.
Never here: what is shown. Invariant: a row is written from the outcome of a test that ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "conformance.md"
PROPERTY = "conformance"


class Row(NamedTuple):
    """One line of the table."""

    operation: str
    case: str
    source: str
    protocol: str
    test: str

    def cells(self) -> str:
        """The line without its outcome."""
        shown = (self.case, self.source, self.protocol, f"`{self.test}`")
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in shown)


def rows_of(item: pytest.Item) -> Iterator[Row]:
    """What a test shows; one that runs with several parameters shows each case once."""
    test = item.nodeid.removeprefix("tests/").partition("[")[0]
    for marker in item.iter_markers("conformance"):
        said = {"protocol": "", **marker.kwargs}
        yield Row(str(said["operation"]), str(said["case"]), str(said["source"]), str(said["protocol"]), test)


class Collector:
    """Gathers outcomes in the process that reports them, and writes the page when asked."""

    def __init__(self) -> None:
        self.outcomes: dict[Row, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        for name, value in report.user_properties:
            if name == PROPERTY:
                row = Row(*json.loads(str(value)))
                if self.outcomes.get(row, "passed") == "passed":
                    self.outcomes[row] = report.outcome

    def pytest_sessionfinish(self) -> None:
        if self.outcomes:
            PAGE.write_text(page(self.outcomes))


ABOUT = """\
# Conformance

Written by `make conformance`; do not edit. What AWS documents, or was recorded to answer, and the test that shows that
the local SQS and the local event source mappings do the same. Sources are sections of the fact list this project is built
from: 1.x is SQS, 2.x Lambda's event source mapping; [O] marks an answer recorded from AWS that AWS does not promise;
"clients" is a client library that ran against the server over HTTP; "onefold" is what the server does otherwise than AWS
where its file is also a worker's. The tests are in `tests/`.
"""


def page(outcomes: dict[Row, str]) -> str:
    """The page, from what ran."""
    failing = sum(outcome != "passed" for outcome in outcomes.values())
    parts = [ABOUT, f"{len(outcomes)} rows, {failing} failing.\n"]
    for operation in sorted({row.operation for row in outcomes}):
        parts.append(f"## {operation}\n\n| case | source | protocol | test | |\n|---|---|---|---|---|")
        chosen = sorted(row for row in outcomes if row.operation == operation)
        words = {"passed": "pass"}
        parts += [f"{row.cells()} | {words.get(outcomes[row], '**FAIL**')} |" for row in chosen]
        parts.append("")
    return "\n".join(parts)


def missing(items: Iterable[pytest.Item], text: str) -> list[str]:
    """Which rows of these tests the page lacks."""
    return sorted(
        {f"{row.operation}: {row.cells()}" for item in items for row in rows_of(item) if row.cells() not in text}
    )
