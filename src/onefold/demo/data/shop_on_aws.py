"""The shop of `onefold demo aws`, as a user would write it: one queue, one job, one Lambda handler.

It is copied to the run's folder as `shop.py`, packed, deployed, and runs in Lambda functions; the same file sends the
messages. It knows nothing about the demo: the partner is an HTTP address in the environment.
Never here: counting, judging. Invariant: the handler asks the partner for at most one booking in each run.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from decimal import Decimal
from urllib.parse import urlsplit

from msgspec import Struct

import onefold

app = onefold.App("shop", sinks=[onefold.LogSink()])
invoices = app.queue(
    "invoices",
    dead_letter=onefold.DeadLetter(after=20),
    function=onefold.aws.Function(
        timeout="15s",
        runtime=f"python{sys.version_info.major}.{sys.version_info.minor}",  # the emulator's
        environment={name: os.environ[name] for name in ("PARTNER", "AWS_ENDPOINT_URL") if name in os.environ},
    ),
)


class ShopInvoice(Struct, frozen=True, kw_only=True):
    """The payload: one invoice as in the file; the price is text, so that nothing is rounded."""

    number: str
    invoice_date: str
    customer: str | None
    country: str
    quantity: int
    unit_price: str


@app.job(
    invoices, key="{number}", timeout="5s", retry=onefold.Retry(attempts=15, base="1s", cap="4s"), owner="fulfilment"
)
def fulfil(invoice: ShopInvoice, ctx: onefold.Context) -> dict[str, str]:
    """Have the partner book an invoice; returns the number of the booking."""
    kind = kind_of(invoice)
    order = {
        "reference": invoice.number,
        "kind": kind,
        "quantity": invoice.quantity,
        "unit_price": invoice.unit_price,
    }
    headers = {"Idempotency-Key": ctx.idempotency_key, "Onefold-Fence": str(ctx.fence)}
    connection = http.client.HTTPConnection(urlsplit(os.environ["PARTNER"]).netloc, timeout=4)
    try:
        connection.request("POST", "/bookings", json.dumps(order), headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
    except OSError as error:
        raise onefold.TransientError(f"The partner did not answer: {error}.") from error
    finally:
        connection.close()
    if answer.status in (200, 201):
        return {"booking": said["bookings"][0]["booking"]}
    if answer.status == 429 or answer.status >= 500:
        raise onefold.TransientError(f"The partner is busy ({answer.status}).")
    raise onefold.PermanentError(f"The partner refused the order ({answer.status}).", todo="Correct the invoice.")


def kind_of(invoice: ShopInvoice) -> str:
    """The kind of booking that an invoice asks for.

    Raises:
        PermanentError: a negative price, or a negative quantity that is not a cancellation.
    """
    price = Decimal(invoice.unit_price)
    if price < 0:
        raise onefold.PermanentError(f"Invoice {invoice.number} has the price {price}.", todo="Correct it.")
    if invoice.number.startswith("C"):
        return "refund"
    if invoice.quantity < 0:
        raise onefold.PermanentError(
            f"Invoice {invoice.number} has the quantity {invoice.quantity} and is not a cancellation.",
            todo="Correct the quantity and redrive it.",
        )
    return "ship" if price else "ship-free"


handler = app.lambda_handler()
