"""The judge's figures: the counts of the real file, each rule, and independence from onefold."""

from __future__ import annotations

import gzip
import subprocess
import sys
from decimal import Decimal
from functools import cache

import pytest

from onefold.demo import figures
from onefold.demo.data import INVOICES
from onefold.demo.figures import Figures, FileRow, kind_of, what_is_left, work_out

HEADER = "InvoiceNo,InvoiceDate,CustomerID,Country,Quantity,UnitPrice"


@cache
def real() -> Figures:
    """The script's own output, from an interpreter that finds neither onefold nor any installed package."""
    script = subprocess.run(
        [sys.executable, "-I", "-S", figures.__file__, INVOICES], capture_output=True, text=True, check=True
    )
    return Figures.from_json(script.stdout)


def small(*rows: str) -> Figures:
    return work_out([HEADER, *rows])


def test_the_real_file_counts_as_described() -> None:
    assert real().counts == {
        "rows": 25_943,
        "invoice_numbers": 25_900,
        "numbers_with_other_figures": 43,
        "cancellations": 3_837,
        "price_zero": 2_102,
        "price_negative": 2,
        "quantity_negative_no_cancellation": 1_336,
        "number_starts_with_a": 3,
        "customer_blank": 3_722,
    }


def test_what_must_happen_to_the_real_file() -> None:
    assert real().expected == {
        "bookings": 24_562,
        "ship": 19_960,
        "ship-free": 766,
        "refund": 3_836,
        "refused": 1_338,
        "conflict": 43,
    }
    assert real().order_decides == ()


def test_every_row_ends_in_exactly_one_place() -> None:
    expected = real().expected
    assert expected["bookings"] == expected["ship"] + expected["ship-free"] + expected["refund"]
    assert expected["bookings"] + expected["refused"] + expected["conflict"] == real().counts["rows"]
    lines = sorted(line for rows in real().invoices.values() for row in rows for line in row.lines)
    assert lines == list(range(2, 25_945))


def test_text_and_back_is_the_same() -> None:
    with gzip.open(INVOICES, "rt", encoding="utf-8", newline="") as text:
        assert work_out(text) == real()


@pytest.mark.parametrize(
    ("number", "quantity", "unit_price", "kind"),
    [
        ("536365", 40, "3.91", "ship"),
        ("A563185", 1, "11062.06", "ship"),
        ("536414", 56, "0", "ship-free"),
        ("536414", 56, "0.0", "ship-free"),
        ("C536379", -1, "27.5", "refund"),
        ("C536379", -1, "0", "refund"),
        ("C536379", -1, "-1", "refused"),
        ("A563186", 1, "-11062.06", "refused"),
        ("536589", -10, "0", "refused"),
        ("536589", -10, "2.5", "refused"),
    ],
)
def test_rules(number: str, quantity: int, unit_price: str, kind: str) -> None:
    assert kind_of(number, quantity, Decimal(unit_price)) == kind


def test_rows_alike_in_everything_are_one() -> None:
    found = small("1,d,c,UK,2,3.5", "1,d,c,UK,2,3.5")
    assert found.invoices == {"1": (FileRow("ship", 2, "3.5", (2, 3)),)}
    assert found.expected["conflict"] == 0


def test_rows_that_differ_only_in_the_date_are_two() -> None:
    assert small("1,d,c,UK,2,3.5", "1,e,c,UK,2,3.5").expected["conflict"] == 1


def test_order_decides_when_the_rows_of_a_number_are_of_different_kinds() -> None:
    found = small("1,d,c,UK,2,3.5", "1,e,c,UK,-2,3.5", "2,d,c,UK,1,1")
    assert found.order_decides == ("1",)
    assert (found.expected["bookings"], found.expected["refused"], found.expected["conflict"]) == (1, 0, 0)
    sold, refused = found.invoices["1"]
    assert what_is_left((sold, refused), sold) == {refused: "conflict"}
    assert what_is_left((sold, refused), refused) == {sold: "conflict", refused: "refused"}


def test_a_part_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main([str(INVOICES), "--rows", "132"]) == 0
    found = Figures.from_json(capsys.readouterr().out)
    assert found.counts["rows"] == 132
    assert found.counts["numbers_with_other_figures"] == 1


def test_a_negative_number_of_rows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        figures.main([str(INVOICES), "--rows", "-1"])
    assert "--rows is -1" in capsys.readouterr().err
