"""The shop of `onefold demo web`, as a user would write it: parcels at a slow partner, payments in doubt, stock counts.

Never here: processes, kills, the correction of what went wrong (`web.py`). Invariant: an invoice with a negative
quantity fails for good until the file `returns-allowed` exists, which declares it a return.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

import onefold
from onefold.demo import data, fulfilment
from onefold.demo.fulfilment import Booked, Courier, Invoice

FOLDER = Path(os.environ.get("ONEFOLD_DEMO_FOLDER", "."))
RETURNS_ALLOWED = FOLDER / "returns-allowed"
_COUNTRIES = 40  # how many countries one count covers

app = onefold.App("shop", url=os.environ.get("ONEFOLD_URL"))
app.alarms(command=["tee", "-a", str(FOLDER / "alarms.log")], owner="on call")
orders = app.queue("orders", visibility="30s")
payments = app.queue("payments", visibility="30s")
stock = app.queue("stock", visibility="30s")
courier = Courier(int(os.environ.get("ONEFOLD_DEMO_PARTNER", "0")))
bank = Courier(int(os.environ.get("ONEFOLD_DEMO_BANK", "0")))


class Count(Struct, frozen=True, kw_only=True):
    """The payload of a count: one country at one minute."""

    country: str
    minute: str


@app.job(
    orders, key="{number}", timeout="60s", retry=onefold.Retry(attempts=6, base="500ms", crashes=20), owner="fulfilment"
)
def fulfil(invoice: Invoice, ctx: onefold.Context) -> Booked:
    """Book a parcel. The partner honours the key, so a run that was killed is simply repeated."""
    if invoice.quantity < 0 and RETURNS_ALLOWED.exists():
        kind: fulfilment.Kind = "refund"
    else:
        kind = fulfilment.kind_of(invoice)
    answer = courier.book(
        {
            "reference": invoice.number,
            "kind": kind,
            "quantity": invoice.quantity,
            "unit_price": invoice.unit_price,
        },
        key=ctx.idempotency_key,
        fence=ctx.fence,
    )
    return fulfilment.booked(answer, harmless_again=True)


@app.job(payments, key="{number}", on_unknown="hold", timeout="60s", owner="billing")
def charge(invoice: Invoice, ctx: onefold.Context) -> Booked:
    """Charge a card. The bank does not honour keys: if it does not report what it did, a person has to find out."""
    order: dict[str, str | int] = {
        "reference": invoice.number,
        "kind": fulfilment.kind_of(invoice),
        "quantity": invoice.quantity,
        "unit_price": invoice.unit_price,
    }
    return fulfilment.booked(bank.book(order, key=ctx.idempotency_key, fence=ctx.fence), harmless_again=False)


@app.job(stock, key="{country} {minute}", owner="warehouse")
def count_stock(count: Count) -> dict[str, int]:
    """Stand in for a count of what was sent to a country."""
    return {"letters": len(count.country)}


@app.schedule("rate(1 minute)", name="stock-count", owner="warehouse")
def stock_count(tick: onefold.Tick) -> Iterator[object]:
    """Dispatch the count of each country."""
    countries = sorted({one.country for one in data.read_invoices(count_max=5_000)})[:_COUNTRIES]
    for country in countries:
        yield count_stock.message(Count(country=country, minute=f"{tick.local:%H:%M}"))


@app.schedule("cron(0 3 * * ? *)", tz="Europe/London", name="nightly-report", owner="finance")
def nightly_report(tick: onefold.Tick) -> None:
    """Stand in for the report that a shop writes at night."""


@app.schedule("cron(30 6 ? * MON-FRI *)", tz="Europe/London", name="order-paper", owner="warehouse")
def order_paper(tick: onefold.Tick) -> None:
    """Stand in for the order of paper on working-day mornings."""
