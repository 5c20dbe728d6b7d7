"""What must happen, worked out from the invoice file alone: the expected figures of each demo.

    python figures.py online-retail-invoices.csv.gz [--rows N] [--of fulfilment|billing|enrich]     prints one JSON
    object

Here: the rules of the demos' shops a second time, in the plainest form. Never here: an import of onefold, or of
anything outside the standard library (a test runs this file where neither can be imported), so that no defect of
onefold can distort the figures that its results are compared with. Invariant: money is a decimal, never a float, and
every row of the file counts exactly once: in fulfilment as booked, refused or conflict, whichever row of an invoice
number happens to come first; in billing in one month; in enrich as an amount or as refused.

Fulfilment, in this order:

1. a negative price is refused;
2. a number that starts with C is a cancellation: refund;
3. a negative quantity of any other invoice is refused, even if the price is zero, as it is in all 1,336 cases;
4. a price of zero ships free;
5. everything else ships.

One invoice number is one operation. If rows with different figures share a number, the first to be claimed
gets the number, whether it is booked or refused, and every other row is a conflict. So each of them is an
acceptable winner, and the file does not determine which; `what_is_left` computes the rest once the winner is
known. A refused winner leaves nothing booked, because a row is claimed first and checked afterwards; no pair in
the shipped file is of that kind (`order_decides` in the output lists them; it is empty).

Billing: a customer gets one statement a month; an invoice without a customer (`(blank)`) gets a statement of its own.
The net of a statement is the sum of quantity x unit price of its rows; cancellations have negative quantities.

Enrich: each row of the file must be in the table once, with quantity x unit price; rows with a negative price must not.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import islice
from typing import Any

SHIP, SHIP_FREE, REFUND, REFUSED = "ship", "ship-free", "refund", "refused"
"""Outcome of a row that comes first and is refused: it has no effect and becomes a dead letter."""

CONFLICT = "conflict"
"""Outcome of a row whose invoice number was claimed by another row: it becomes a dead letter too."""


@dataclass(frozen=True)
class FileRow:
    """One row, or several identical ones, and its outcome if it comes first.

    Attributes:
        kind: SHIP, SHIP_FREE, REFUND or REFUSED.
        quantity: as in the file.
        unit_price: the text in the file, so that nothing is rounded.
        lines: line numbers in the file (1 is the header).
    """

    kind: str
    quantity: int
    unit_price: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Figures:
    """What must happen according to the file.

    Attributes:
        invoices: invoice number -> its rows with different figures, in file order; any of them may win the
            number.
        counts: plain counts of the file, to compare with its description.
        expected: bookings in all and by kind, refused rows and conflicts; invoice numbers in `order_decides`
            are left out, because their outcome depends on which row comes first.
        order_decides: invoice numbers whose rows are of different kinds.
    """

    invoices: dict[str, tuple[FileRow, ...]]
    counts: dict[str, int]
    expected: dict[str, int]
    order_decides: tuple[str, ...]

    def to_json(self) -> str:
        """The figures as one line of JSON; `from_json` reads it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Figures:
        """Read what `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError: the text is not the output of this script.
        """
        found: dict[str, Any] = json.loads(text)
        invoices = {
            number: tuple(FileRow(row["kind"], row["quantity"], row["unit_price"], tuple(row["lines"])) for row in rows)
            for number, rows in found["invoices"].items()
        }
        return cls(invoices, found["counts"], found["expected"], tuple(found["order_decides"]))


def kind_of(number: str, quantity: int, unit_price: Decimal) -> str:
    """The outcome of a row by the five rules above."""
    if unit_price < 0:
        return REFUSED
    if number.startswith("C"):
        return REFUND
    if quantity < 0:
        return REFUSED
    if unit_price == 0:
        return SHIP_FREE
    return SHIP


def what_is_left(rows: tuple[FileRow, ...], winner: FileRow) -> dict[FileRow, str]:
    """The dead letters of one invoice number if `winner` claimed it first: row -> "refused" or "conflict"."""
    left = {row: CONFLICT for row in rows if row != winner}
    if winner.kind == REFUSED:
        left[winner] = REFUSED
    return left


def work_out(file_lines: Iterable[str]) -> Figures:
    """Work out the figures from the lines of a CSV file, header first.

    Raises:
        KeyError: a column is missing.
        ValueError, decimal.InvalidOperation: a quantity or price is not a number.
    """
    counts: Counter[str] = Counter()
    alike: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for line, row in enumerate(csv.DictReader(file_lines), start=2):
        number, quantity, unit_price = row["InvoiceNo"], int(row["Quantity"]), Decimal(row["UnitPrice"])
        figures = (row["Quantity"], row["UnitPrice"], row["InvoiceDate"], row["CustomerID"], row["Country"])
        alike.setdefault(number, {}).setdefault(figures, []).append(line)
        counts["rows"] += 1
        counts["cancellations"] += number.startswith("C")
        counts["price_zero"] += unit_price == 0
        counts["price_negative"] += unit_price < 0
        counts["quantity_negative_no_cancellation"] += quantity < 0 and not number.startswith("C")
        counts["number_starts_with_a"] += number.startswith("A")
        counts["customer_blank"] += row["CustomerID"] == "(blank)"
    invoices = {
        number: tuple(
            FileRow(kind_of(number, int(quantity), Decimal(price)), int(quantity), price, tuple(lines))
            for (quantity, price, *_), lines in rows.items()
        )
        for number, rows in alike.items()
    }
    counts["invoice_numbers"] = len(invoices)
    counts["numbers_with_other_figures"] = sum(len(rows) > 1 for rows in invoices.values())
    order_decides = tuple(number for number, rows in invoices.items() if len({row.kind for row in rows}) > 1)
    return Figures(invoices, dict(counts), _expected(invoices, order_decides), order_decides)


def _expected(invoices: dict[str, tuple[FileRow, ...]], order_decides: tuple[str, ...]) -> dict[str, int]:
    expected = dict.fromkeys(("bookings", SHIP, SHIP_FREE, REFUND, REFUSED, CONFLICT), 0)
    for number, rows in invoices.items():
        if number in order_decides:
            continue
        expected[rows[0].kind] += 1
        expected["bookings"] += rows[0].kind != REFUSED
        expected[CONFLICT] += len(rows) - 1
    return expected


def billing(file_lines: Iterable[str]) -> dict[str, dict[str, object]]:
    """Number of statements and net, in pounds, of every month (for example `2011-03`), in order."""
    statements: dict[str, set[str]] = defaultdict(set)
    net: dict[str, Decimal] = defaultdict(Decimal)
    for row in csv.DictReader(file_lines):
        day, _, _ = row["InvoiceDate"].partition(" ")
        month_of_year, _, year = day.split("/")
        month = f"{year}-{int(month_of_year):02d}"
        customer = row["CustomerID"]
        statements[month].add(row["InvoiceNo"] if customer == "(blank)" else customer)
        net[month] += int(row["Quantity"]) * Decimal(row["UnitPrice"])
    return {month: {"statements": len(found), "net": str(net[month])} for month, found in sorted(statements.items())}


def enrich(file_lines: Iterable[str]) -> dict[str, object]:
    """The amount of each invoice that must be in the table, by number and date, and the invoices that must not be."""
    amounts: dict[str, str] = {}
    refused: list[str] = []
    for row in csv.DictReader(file_lines):
        name, price = f"{row['InvoiceNo']} {row['InvoiceDate']}", Decimal(row["UnitPrice"])
        if price < 0:
            refused.append(name)
        else:
            amounts[name] = str(int(row["Quantity"]) * price)
    return {"amounts": amounts, "refused": refused}


def main(arguments: list[str]) -> int:
    """Print the figures of the file named in `arguments` as JSON; returns 0 (argparse exits with 2)."""
    parser = argparse.ArgumentParser(description="Work out from an invoice file what must happen to each row.")
    parser.add_argument("file", help="gzip-compressed CSV file")
    parser.add_argument("--rows", type=int, default=None, metavar="N", help="only the first N rows (default: all)")
    parser.add_argument("--of", choices=("fulfilment", "billing", "enrich"), default="fulfilment", help="which demo")
    options = parser.parse_args(arguments)
    if options.rows is not None and options.rows < 0:
        parser.error(f"--rows is {options.rows}; it must be 0 or more")
    with gzip.open(options.file, "rt", encoding="utf-8", newline="") as text:
        lines = islice(text, None if options.rows is None else options.rows + 1)
        if options.of == "fulfilment":
            written = work_out(lines).to_json()
        else:
            written = json.dumps(billing(lines) if options.of == "billing" else enrich(lines))
    sys.stdout.write(written + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
