"""`onefold demo billing`: thirteen months of statements under kills, twice-fired ticks, and a judge who knows no onefold."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onefold.demo import data, figures

HEADER = "InvoiceNo,StockCode,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"


def demo(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "onefold", "demo", "billing", "--json", "--keep", str(tmp_path / "run"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_every_account_has_one_statement_a_month_although_processes_are_killed(tmp_path: Path) -> None:
    code, found = demo(tmp_path, "--kills", "8", "--falls", "3", "--seed", "5")
    assert found["faults"] == []
    assert code == 0
    assert len(found["months"]) == 13
    for month in found["months"]:
        assert month["twice"] == month["never"] == 0
        assert month["made"] == month["expected"] == month["dispatched"]
        assert Decimal(month["net"]) == Decimal(month["net_expected"])
    assert sum(month["made"] for month in found["months"]) == 17_385
    assert sum(found["kills"].values()) == 11
    assert found["interrupted"] >= 3
    assert found["duplicates"] == 13


@pytest.mark.slow
def test_ticks_with_two_keys_bill_every_account_twice_and_the_demo_says_so(tmp_path: Path) -> None:
    code, found = demo(tmp_path, "--kills", "0", "--falls", "0", "--plant", "two-keys")
    assert code == 1
    assert len(found["faults"]) == 13
    assert all(month["twice"] == month["expected"] for month in found["months"])


def test_the_judge_adds_decimals_and_gives_an_invoice_without_customer_a_statement(tmp_path: Path) -> None:
    place = tmp_path / "invoices.csv.gz"
    rows = (
        "1,A,3,1/31/2011 23:59,0.1,77,France\n"
        "C2,A,-1,1/31/2011 9:00,0.1,77,France\n"
        "3,B,1,2/1/2011 0:00,0.3,(blank),France\n"
        "4,B,1,2/1/2011 0:00,0.3,(blank),France\n"
    )
    with gzip.open(place, "wt", encoding="ascii") as file:
        file.write(HEADER + rows)
    with gzip.open(place, "rt") as lines:
        found = figures.billing(lines)
    assert found == {
        "2011-01": {"statements": 1, "net": "0.2"},
        "2011-02": {"statements": 2, "net": "0.6"},
    }


def test_every_row_of_the_real_file_counts_in_one_month() -> None:
    with gzip.open(data.INVOICES, "rt") as lines:
        found = figures.billing(lines)
    net = sum((Decimal(str(month["net"])) for month in found.values()), Decimal())
    whole = sum((one.quantity * one.unit_price for one in data.read_invoices()), Decimal())
    assert net == whole
    assert list(found) == [f"{year}-{month:02d}" for year in (2010, 2011) for month in range(1, 13)][11:]
