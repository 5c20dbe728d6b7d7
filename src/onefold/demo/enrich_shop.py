"""The job of `onefold demo enrich`, as a user would write it: a map over the nightly file of invoices.

Each invoice gets its amount and its country's code; the row that its run writes commits together with the record. The
table of countries is a file that another team maintains: invoices of a country that it lacks fail until the country is
added.
Never here: processes, kills, judging. Invariant: the table of results allows an invoice to be in it twice.
"""

from __future__ import annotations

import json
import os
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

import onefold
from onefold.options import ItemRetry

app = onefold.App("enrich")
queue = app.queue("enrich", visibility="30s", dead_letter=onefold.DeadLetter(after=200))
_PLANTED = os.environ.get("ONEFOLD_DEMO_PLANT", "")
TOLERATED_PERCENT = 2.0


class UnknownCountryError(onefold.PermanentError):
    """The table of countries does not have this country."""


class BadDebtError(onefold.PermanentError):
    """A negative price is an adjustment of the books, not an invoice."""


class CatalogueBusyError(onefold.TransientError):
    """The table of countries cannot be read at the moment."""


class NightlyInvoice(Struct, frozen=True, kw_only=True):
    """One row of the nightly file."""

    InvoiceNo: str
    InvoiceDate: str
    CustomerID: str
    Country: str
    Quantity: int
    UnitPrice: Decimal


def business_key(invoice: NightlyInvoice) -> str:
    """The key: number and date, as 43 numbers occur twice. With the fault built in, each round has keys of its own."""
    salt = os.environ.get("ONEFOLD_DEMO_ROUND", "") if _PLANTED == "salted-key" else ""
    return f"{invoice.InvoiceNo} {invoice.InvoiceDate}{salt}"


@lru_cache(maxsize=1)
def _read(file: str, _stamp: int) -> dict[str, str]:
    found: dict[str, str] = json.loads(Path(file).read_text())
    return found


def countries() -> dict[str, str]:
    """The current table: name -> code."""
    file = Path(os.environ["ONEFOLD_DEMO_COUNTRIES"])
    return _read(str(file), file.stat().st_mtime_ns)


@app.map(
    queue,
    key=business_key,
    concurrency=400,
    tolerated_percent=100 if _PLANTED == "no-threshold" else TOLERATED_PERCENT,
    retry=[
        ItemRetry(errors=["UnknownCountryError", "BadDebtError"], retries=0),
        ItemRetry(errors=["States.ALL"], interval="50ms", retries=20, max_delay="1s", jitter="full"),
    ],
    effect="transactional",
    timeout="30s",
    owner="data",
)
def enrich(invoice: NightlyInvoice, ctx: onefold.Context) -> dict[str, str]:
    """Compute the amount of one invoice and write its row."""
    if ctx.attempt == 1 and hash_of(invoice.InvoiceNo) % 50 == 0:
        raise CatalogueBusyError("the table is being replaced")
    code = countries().get(invoice.Country)
    if code is None:
        raise UnknownCountryError(f"no code for {invoice.Country}")
    if invoice.UnitPrice < 0:
        raise BadDebtError("the price is negative")
    amount = str(invoice.Quantity * invoice.UnitPrice)
    ctx.connection.execute(
        "INSERT INTO enriched VALUES (?, ?, ?, ?)", (invoice.InvoiceNo, invoice.InvoiceDate, code, amount)
    )
    return {"country": code, "amount": amount}


def hash_of(text: str) -> int:
    """A hash that is the same in every process, unlike that of `hash`."""
    return sum((index + 1) * ord(sign) for index, sign in enumerate(text))
