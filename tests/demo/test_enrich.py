"""The enrich demo, small: night and repair under fire, the proof; planted faults that it must find; its file and figures."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from onefold.demo import data, enrich, figures
from onefold.demo.enrich import EVERY, MISSING, EnrichOutcome, Round, write_countries, write_nightly
from onefold.demo.enrich_shop import TOLERATED_PERCENT

ROWS = 2_000  # the fewest that may be asked for


def run(folder: Path, *words: str, code: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "onefold", "demo", "enrich", "--rows", str(ROWS), "--json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_every_invoice_once_though_workers_are_killed(tmp_path: Path) -> None:
    found = run(tmp_path, "--kills", "2", code=0)
    assert found["faults"] == []
    night, again = found["rounds"]
    assert (night["status"], again["status"]) == ("failed", "succeeded")
    assert night["malformed"] + night["failed"] > ROWS * 2 // 100
    assert (found["twice"], found["never"], found["net"]) == (0, 0, found["net_expected"])
    assert night["files"]["QUARANTINED"] == (ROWS // EVERY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "said"), [("salted-key", "are in the table twice"), ("no-threshold", "the night succeeded, though")]
)
def test_a_planted_fault_is_found(tmp_path: Path, plant: str, said: str) -> None:
    found = run(tmp_path, "--kills", "0", "--plant", plant, code=1)
    assert any(said in fault for fault in found["faults"])


def test_only_the_damaged_lines_differ(tmp_path: Path) -> None:
    damaged = write_nightly(tmp_path, 2_600)
    nightly = (tmp_path / "nightly.csv").read_bytes().splitlines()
    repaired = (tmp_path / "repaired.csv").read_bytes().splitlines()
    assert len(nightly) == len(repaired) == 2_601
    assert [number for number in range(1, 2_602) if nightly[number - 1] != repaired[number - 1]] == damaged
    assert damaged == [EVERY * number + 1 for number in range(1, 14)]


def test_more_fail_at_night_than_are_tolerated_whatever_number_of_rows_is_asked_for() -> None:
    (least,) = [one.type.min for one in enrich.enrich.params if one.name == "rows"]  # type: ignore[attr-defined]
    failing = 0
    for number, row in enumerate(data.read_invoices(), start=1):
        failing += number % EVERY == 0 or row.country == MISSING or row.unit_price < 0
        assert number < least or failing * 100 > TOLERATED_PERCENT * number, number


def test_one_country_is_missing_at_first(tmp_path: Path) -> None:
    file = tmp_path / "countries.json"
    write_countries(file, complete=False)
    short = json.loads(file.read_text())
    write_countries(file, complete=True)
    assert set(json.loads(file.read_text())) - set(short) == {MISSING}


def test_the_figures_are_those_of_every_row() -> None:
    with gzip.open(data.INVOICES, "rt") as lines:
        found = figures.enrich(lines)
    amounts, refused = found["amounts"], found["refused"]
    assert isinstance(amounts, dict)
    assert isinstance(refused, list)
    assert len(amounts) + len(refused) == data.ROWS
    assert sum(map(Decimal, amounts.values())) == sum(
        one.quantity * one.unit_price for one in data.read_invoices() if one.unit_price >= 0
    )


def test_what_fails_in_the_repaired_run_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    night = Round(
        name="night", status="failed", done=90, failed=3, malformed=2, pending=5, files={}, kills=1, seconds=1.0
    )
    again = structs.replace(night, name="repair", status="succeeded", done=98, failed=2, malformed=0, pending=0)
    found = EnrichOutcome(
        rounds=(night, again), expected=98, made=98, twice=0, never=0, unexpected=0, wrong=0, net_expected="1", net="1",
        faults=(),
    )  # fmt: skip
    enrich._draw(found)
    said = " ".join(capsys.readouterr().out.split())
    assert "The 2 that failed again in the repair have a negative price" in said
    enrich._draw(structs.replace(found, rounds=(night, structs.replace(again, failed=0))))
    assert "negative price" not in capsys.readouterr().out
