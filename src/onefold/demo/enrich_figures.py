"""What the enriched table must hold, worked out from the invoice file alone: the judge's side of the enrich demo.

    python enrich_figures.py online-retail-invoices.csv.gz      prints one JSON object

Never here: an import of onefold, or of anything beyond the standard library. Invariant: money is a decimal, never a float.

Each row of the file must stand in the table once, with quantity x unit price; rows with a negative price must not.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from decimal import Decimal


def figures(path: str) -> dict[str, object]:
    """The amount of each invoice that must be there, by number and date; and those that must not."""
    amounts: dict[str, str] = {}
    refused: list[str] = []
    with gzip.open(path, "rt", encoding="ascii", newline="") as text:
        for row in csv.DictReader(text):
            name, price = f"{row['InvoiceNo']} {row['InvoiceDate']}", Decimal(row["UnitPrice"])
            if price < 0:
                refused.append(name)
            else:
                amounts[name] = str(int(row["Quantity"]) * price)
    return {"amounts": amounts, "refused": refused}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(figures(sys.argv[1])) + "\n")
