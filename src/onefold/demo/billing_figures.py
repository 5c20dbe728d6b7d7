"""What each month's statements must add up to, worked out from the invoice file alone: the judge's side of the billing demo.

    python billing_figures.py online-retail-invoices.csv.gz        prints one JSON object: month -> statements, net

Never here: an import of onefold, or of anything beyond the standard library. Invariant: every row of the file counts in
exactly one month, and money is a decimal, never a float.

A customer has one statement a month; an invoice without a customer (`(blank)`) has a statement of its own. A statement's
net is the sum of quantity x unit price of its rows; cancellations have negative quantities.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from decimal import Decimal


def figures(path: str) -> dict[str, dict[str, object]]:
    """Statements and net of every month."""
    statements: dict[str, set[str]] = defaultdict(set)
    net: dict[str, Decimal] = defaultdict(Decimal)
    with gzip.open(path, "rt", encoding="ascii", newline="") as text:
        for row in csv.DictReader(text):
            day, _, _ = row["InvoiceDate"].partition(" ")
            month_of_year, _, year = day.split("/")
            month = f"{year}-{int(month_of_year):02d}"
            customer = row["CustomerID"]
            statements[month].add(row["InvoiceNo"] if customer == "(blank)" else customer)
            net[month] += int(row["Quantity"]) * Decimal(row["UnitPrice"])
    return {month: {"statements": len(found), "net": str(net[month])} for month, found in sorted(statements.items())}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(figures(sys.argv[1])) + "\n")
