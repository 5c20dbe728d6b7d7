"""The demo's input: real invoices of a UK retailer, read row by row from the file next to this module.

Here: the file's name and its only reader. `SOURCE.md` in this folder describes the source, the licence and the changes.
Never here: what should happen to a row (the job decides that in `fulfilment`, and the judge works it out a second
time, independently, in `figures`). Invariant: a row is returned exactly as it is in the file, or not at all; nothing is
cleaned, skipped or rounded.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path

from onefold.errors import PayloadError

INVOICES = Path(__file__).with_name("online-retail-invoices.csv.gz")
"""The shipped file."""

ROWS = 25_943
"""Number of invoice rows in the shipped file, without the header (counted by `figures`, asserted by a test)."""

COLUMNS = ["InvoiceNo", "InvoiceDate", "CustomerID", "Country", "Quantity", "UnitPrice"]


@dataclass(frozen=True, slots=True)
class InvoiceRow:
    """One row of the file.

    Attributes:
        line: line number in the file, 1 is the header. It identifies a row but is not part of the invoice, so it
            must not be in a payload (the same invoice sent twice would look like two different ones).
        number: invoice number; `C...` is a cancellation. Not unique: 43 numbers occur twice.
        invoice_date: date and time as in the file, month/day/year hour:minute, in the shop's local time.
        customer: customer number; None if the file has `(blank)`.
        country: country of the customer.
        quantity: pieces, summed over the invoice; negative for cancellations and written-off stock.
        unit_price: mean price of a piece in pounds sterling, exactly as written in the file.
    """

    line: int
    number: str
    invoice_date: str
    customer: str | None
    country: str
    quantity: int
    unit_price: Decimal


def read_invoices(path: Path = INVOICES, *, count_max: int | None = None) -> Iterator[InvoiceRow]:
    """Stream the invoices of a gzip-compressed CSV file in the file's order; only one row is in memory at a time.

    Args:
        path: the file; the shipped one by default.
        count_max: stop after this many rows, 0 or more; None reads all.

    Raises:
        PayloadError: a header or row does not have the six columns, or has a number that is malformed; the error
            names line and value.
        OSError: the file cannot be read or is not gzip.
    """
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        lines = csv.reader(text)
        header = next(lines, [])
        if header != COLUMNS:
            raise PayloadError(
                f"{path.name} line 1 reads {header!r}.",
                meaning=f"The demo reads files with the columns {','.join(COLUMNS)}.",
                todo="Pass such a file, or none to use the shipped one.",
            )
        for row in islice(lines, count_max):
            yield _invoice(lines.line_num, row, path.name)


def _invoice(line: int, row: list[str], name: str) -> InvoiceRow:
    try:
        number, invoice_date, customer, country, quantity, unit_price = row
        return InvoiceRow(
            line=line,
            number=number,
            invoice_date=invoice_date,
            customer=None if customer == "(blank)" else customer,
            country=country,
            quantity=int(quantity),
            unit_price=_price(unit_price),
        )
    except (ValueError, InvalidOperation):
        raise PayloadError(
            f"{name} line {line} reads {row!r}.",
            meaning="A row has six columns, of which Quantity is an integer and UnitPrice a decimal number.",
            todo="Correct the line; nothing after it was read.",
        ) from None


def _price(text: str) -> Decimal:
    price = Decimal(text)
    if not price.is_finite():
        raise ValueError(text)
    return price
