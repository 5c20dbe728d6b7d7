"""An app whose handler fails some calls below itself, with locals that must be shown nowhere."""

from __future__ import annotations

from typing import TypedDict

import onefold

app = onefold.App("traced", sinks=[onefold.LogSink()], history="full")
work = app.queue("work")


class Order(TypedDict):
    order_id: str


def charge(order: Order) -> None:
    card_number = "4111111111111111"
    try:
        int(order["order_id"])
    except ValueError as error:
        raise RuntimeError(f"no such order {order['order_id']!r}\nDETAIL:  the book has 3 pages\x1b[2J") from error
    assert card_number


@app.job(queue=work, key="{order_id}", permanent=[RuntimeError])
def book(order: Order) -> None:
    charge(order)
