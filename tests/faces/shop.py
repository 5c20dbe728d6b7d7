"""An app as a user's file would hold it; the command-line tests copy it into a folder and name it `shop:app`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import onefold

app = onefold.App("shop")
orders = app.queue("orders")
careful = app.queue("careful")
lines = app.queue("lines", fifo=True)


@dataclass
class Order:
    order_id: str
    city: str = "London"


def ill(order: Order) -> None:
    """A city that is down for good, one that is down now, one that does not answer; mended by a file's absence."""
    if order.city == "Atlantis" and os.path.exists("down"):
        raise onefold.PermanentError("there is no such city")
    if order.city == "Nowhere":
        raise onefold.OutcomeUnknown("the courier did not answer")


@app.job(orders, key="{order_id}", owner="fulfilment", retry=onefold.Retry(attempts=2, base="50ms"))
def book(order: Order) -> dict[str, str]:
    ill(order)
    with open("booked", "a", encoding="utf-8") as file:
        file.write(f"{order.order_id}\n")
    return {"label": f"L-{order.order_id}"}


@app.job(careful, key="{order_id}", owner="billing", on_unknown="hold")
async def charge(order: Order) -> None:
    ill(order)


@app.job(lines, key="{order_id}", group="{city}")
def pick(order: Order) -> None:
    ill(order)
