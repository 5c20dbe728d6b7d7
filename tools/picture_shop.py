"""The shop of the page's pictures: most of it goes well, and a few things went wrong in ways that people meet.

Copied into a folder as `shop.py` and run there by `tools/pictures.py`. Nothing here is random, so that pictures stay alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onefold

app = onefold.App("shop")
app.alarms(command=["tee", "-a", "alarms.log"], owner="on call")
orders = app.queue("orders")
payments = app.queue("payments")
parcels = app.queue("parcels", fifo=True)


@dataclass
class Order:
    """What is ordered."""

    order_id: str
    city: str = "London"
    pence: int = 1_995


@app.job(orders, key="{order_id}", owner="fulfilment", retry=onefold.Retry(attempts=3, base="50ms"))
def book_courier(order: Order) -> dict[str, str]:
    """Book a courier."""
    if order.city == "Atlantis":
        raise onefold.PermanentError("the courier has no depot in Atlantis")
    if order.city == "Sealand":
        raise TimeoutError("courier.example did not answer within 30 s")
    return {"label": f"AB-{order.order_id}"}


@app.job(payments, key="{order_id}", owner="billing", on_unknown="hold")
def charge_card(order: Order) -> None:
    """Take the money."""
    if order.city == "Sealand":
        raise onefold.OutcomeUnknown("the bank closed the connection after the charge was sent")


@app.job(parcels, key="{order_id}", group="{city}", owner="warehouse")
def pick(order: Order) -> None:
    """Take it from the shelf."""


@app.schedule("cron(0 3 * * ? *)", tz="Europe/London", owner="billing")
def nightly_statements(tick: Any) -> Iterator[Any]:
    """One statement for each customer."""
    for number in range(40):
        city = "Atlantis" if number % 13 == 0 else "London"
        yield book_courier.message(Order(f"statement-{tick.local:%m%d}-{number}", city))


@app.schedule("rate(1 hour)", owner="fulfilment")
def hourly_parcels(tick: Any) -> Iterator[Any]:
    """What is to be sent in this hour."""
    for number in range(240):
        city = ("London", "Leeds", "York", "Sealand")[3 if number == 100 else number % 3]
        yield book_courier.message(Order(f"parcel-{tick.local:%H%M}-{number}", city))


def fill() -> None:
    """Send what the pictures show."""
    for number in range(60):
        city = "Atlantis" if number % 9 == 4 else "Sealand" if number % 17 == 3 else "London"
        book_courier.send(Order(f"o-{number}", city))
    for number in range(12):
        charge_card.send(Order(f"c-{number}", "Sealand" if number in (3, 8) else "London"))
        pick.send(Order(f"p-{number}", "Leeds" if number % 2 else "York"))


def leave_work() -> None:
    """Send what waits while the pictures are taken."""
    for number in range(60, 67):
        book_courier.send(Order(f"o-{number}"))


if __name__ == "__main__":
    import sys

    {"fill": fill, "leave": leave_work}[sys.argv[1]]()
    app.close()
