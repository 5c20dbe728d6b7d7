"""The shipped invoices are what they claim to be, and a bad file is refused by line and value."""

from __future__ import annotations

import gzip
import hashlib
import re
from decimal import Decimal
from pathlib import Path

import pytest

from onefold.demo.data import INVOICES, ROWS, InvoiceRow, read_invoices
from onefold.errors import PayloadError

HEADER = "InvoiceNo,InvoiceDate,CustomerID,Country,Quantity,UnitPrice"
GOOD = "536365,12/1/2010 8:26,17850,United Kingdom,40,3.91"


def packed(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "invoices.csv.gz"
    path.write_bytes(gzip.compress("\r\n".join([*lines, ""]).encode(), mtime=0))
    return path


def test_the_shipped_file_is_the_one_its_source_page_describes() -> None:
    described = re.search(r"^    ([0-9a-f]{64})$", INVOICES.with_name("SOURCE.md").read_text(), re.MULTILINE)
    assert described is not None
    assert hashlib.sha256(gzip.decompress(INVOICES.read_bytes())).hexdigest() == described[1]


def test_the_shipped_file_carries_no_time_stamp_or_name() -> None:
    assert INVOICES.read_bytes()[3:8] == bytes(5), "gzip flags and time must be 0: the same bytes from every build"


def test_all_rows_are_read() -> None:
    invoices = list(read_invoices())
    assert len(invoices) == ROWS
    assert invoices[0] == InvoiceRow(2, "536365", "12/1/2010 8:26", "17850", "United Kingdom", 40, Decimal("3.91"))
    assert [invoice.line for invoice in invoices] == list(range(2, ROWS + 2))
    assert sum(invoice.customer is None for invoice in invoices) == 3_722


def test_prices_keep_their_digits(tmp_path: Path) -> None:
    path = packed(tmp_path, HEADER, GOOD.replace("3.91", "-0.10"))
    assert [str(invoice.unit_price) for invoice in read_invoices(path)] == ["-0.10"]


@pytest.mark.parametrize(("count_max", "found"), [(0, 0), (2, 2), (3, 3), (9, 3), (None, 3)])
def test_reading_stops_where_told(tmp_path: Path, count_max: int | None, found: int) -> None:
    path = packed(tmp_path, HEADER, GOOD, GOOD, GOOD)
    assert len(list(read_invoices(path, count_max=count_max))) == found


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ((GOOD,), "line 1"),
        ((), "line 1"),
        ((HEADER, GOOD, "1,2"), "line 3"),
        ((HEADER, GOOD.replace(",40,", ",four,")), "'four'"),
        ((HEADER, GOOD.replace("3.91", "3,91")), "line 2"),
        ((HEADER, GOOD.replace("3.91", "NaN")), "'NaN'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: tuple[str, ...], named: str) -> None:
    path = packed(tmp_path, *lines)
    with pytest.raises(PayloadError, match=named):
        list(read_invoices(path))
