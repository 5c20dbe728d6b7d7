"""What a release would leave behind is said before it runs: `check-payloads`, `worker --dry-run`."""

from __future__ import annotations

import sys

import pytest

from tests.faces.conftest import Shell
from tests.faces.test_suggested_commands import work

FIRST = """\
import onefold
from dataclasses import dataclass
app = onefold.App("till", url="sqlite:///till.db")

@dataclass
class Sale:
    id: str
    euros: int

@app.job(app.queue("sales"), key="{id}")
def book(sale: Sale) -> None: ...
"""
SECOND = """\
import onefold
from dataclasses import dataclass
app = onefold.App("till", url="sqlite:///till.db")

@dataclass
class Sale:
    id: str
    cents: int

@app.job(app.queue("sales"), key="{id}", name="sell"$OPTIONS)
def sell(sale: Sale) -> None:
    assert sale.cents == 500
"""


def deploy(shell: Shell, text: str, options: str = "") -> None:
    (shell.folder / "till.py").write_text(text.replace("$OPTIONS", options))
    sys.modules.pop("till", None)


@pytest.mark.slow
def test_a_renamed_job_with_another_payload_is_tried_before_it_runs(shell: Shell) -> None:
    deploy(shell, FIRST)
    shell("send", "till:app", "book", '{"id": "0", "euros": 5}')
    work(shell, "till:app")
    shell("send", "till:app", "book", '{"id": "1", "euros": 5}')

    deploy(shell, SECOND)
    said = " ".join(shell("check-payloads", "till:app", code=1).split())
    assert "book: not declared sales (waiting) 1" in said
    assert "No job is declared as 'book'." in said
    assert "The app has worked under the name 'book', and no job of it has that name." in said
    assert "declare aliases=['book']" in said
    assert shell("worker", "till:app", "--dry-run", code=1).endswith("Nothing was run.\n")

    deploy(shell, SECOND, ', aliases=["book"]')
    said = " ".join(shell("check-payloads", "till:app", code=1).split())
    assert "sell (as book) sales (waiting) 1 - 1" in said
    assert "The value does not fit Sale: Object missing required field `cents`." in said

    upgrade = (
        ', aliases=["book"], version=2, upgrade={1: lambda sale: {"id": sale["id"], "cents": sale["euros"] * 100}}'
    )
    deploy(shell, SECOND, upgrade)
    assert "All of them would run." in shell("check-payloads", "till:app")
    found = shell.json("worker", "till:app", "--dry-run")
    assert (found["looked_at"], found["unfit_count"], found["jobs"][0]["upgraded"]) == (1, 0, 1)
    shell("send", "till:app", "sell", '{"id": "0", "cents": 500}')
    work(shell, "till:app")
    assert "There are no messages." in shell("check-payloads", "till:app")
    assert "Done" in shell("why", "1", "till:app")
    assert "uplicate" in shell("why", "0", "till:app")


def test_they_need_an_app(shell: Shell) -> None:
    assert "Name the app" in shell.fails("check-payloads", code=2)
