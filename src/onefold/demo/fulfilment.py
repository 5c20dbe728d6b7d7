"""The shop of the demo: one queue, one job, the rules for each invoice, and the client of the courier partner.

    sales ship, cancellations refund, a price of zero ships free; a negative price is a permanent error, and so is a
    negative quantity that is not a cancellation

Here: what a user of onefold would write: the HTTP client, payload, key, handler, probe, and the three ways to deal with
a run that was interrupted. Never here: processes, kills, counting, an import of the partner, or the figures that the
outcome is compared with (the judge implements the rules a second time, in `figures`, and shares no line with this
module).
Invariant: the handler asks the partner for at most one booking in each run, and reports exactly what it knows about it.
The client never repeats a request that may have been carried out: a request that could not be sent at all raises
`TransientError`, and one that was sent and not answered raises `OutcomeUnknown`.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import quote

from msgspec import Struct

import onefold
from onefold.demo import data
from onefold.errors import OutcomeUnknown, TransientError
from onefold.runner.handlers import Found

LOOPBACK = "127.0.0.1"
ANSWER_S_MAX = 30
"""How many seconds an answer may take; the partner's slowest takes 1.5."""


class PartnerAnswer(Struct, frozen=True, kw_only=True):
    """What the partner answered.

    Args:
        status: HTTP status.
        bookings: the numbers of the bookings that it shows, oldest first; empty if there are none.
        error: the partner's text if it refused, else empty.
        retry_after_ms: how long the partner asks to wait; None if it does not say.
    """

    status: int
    bookings: tuple[str, ...] = ()
    error: str = ""
    retry_after_ms: int | None = None


class Health(Struct, frozen=True, kw_only=True):
    """The partner's own numbers at this moment.

    Args:
        requests: how many are written to its ledger. bookings: how many it has made.
        under_way: how many requests are not answered yet.
    """

    requests: int
    bookings: int
    under_way: int


class Courier:
    """The HTTP client of the partner. Any thread can use it; each has a connection of its own.

    Args:
        port: the partner's port on loopback.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._local = threading.local()

    def book(self, order: Mapping[str, str | int], *, key: str, fence: int) -> PartnerAnswer:
        """Ask for a booking.

        Args:
            order: reference, kind, quantity, unit_price.
            key: names the operation, for partners that honour keys.
            fence: names the attempt, for partners that fence.

        Raises:
            TransientError: the request could not be sent. OutcomeUnknown: it was sent and not answered.
        """
        headers = {"Idempotency-Key": key, "Onefold-Fence": str(fence)}
        return self._answer("POST", "/bookings", json.dumps(order).encode(), headers)

    def fence(self, reference: str, fence: int) -> PartnerAnswer:
        """Make the partner refuse all later requests of `reference` below `fence`; returns what it has booked."""
        return self._answer("POST", f"/fence?reference={quote(reference)}", b"", {"Onefold-Fence": str(fence)})

    def look(self, reference: str) -> PartnerAnswer:
        """Ask what has been booked for `reference`; more requests may be on their way."""
        return self._answer("GET", f"/bookings?reference={quote(reference)}", None, {})

    def health(self) -> Health:
        """The partner's own numbers."""
        _, _, found = self._ask("GET", "/health", None, {})
        return Health(requests=found["requests"], bookings=found["bookings"], under_way=found["under_way"])

    def _answer(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> PartnerAnswer:
        status, retry_after, found = self._ask(method, path, body, headers)
        return PartnerAnswer(
            status=status,
            bookings=tuple(booking["booking"] for booking in found.get("bookings", ())),
            error=found.get("error", ""),
            retry_after_ms=int(retry_after) * 1000 if retry_after else None,
        )

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str | None, dict[str, Any]]:
        connection = self._connection()
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.headers.get("Retry-After"), json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()  # the next request opens a new one
            raise OutcomeUnknown(
                f"{method} {path} was sent to the partner and not answered: {type(error).__name__}: {error}.",
                todo="Look in its ledger whether the request was carried out.",
            ) from error

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=ANSWER_S_MAX)
            self._local.connection = connection
        if connection.sock is None:
            try:
                connection.connect()
            except OSError as error:
                raise TransientError(
                    f"The partner on port {self._port} cannot be reached: {error}.", todo="Is it running?"
                ) from error
        return connection


QUEUE = "invoices"
Setup = Literal["keys", "probe", "hold"]
Kind = Literal["ship", "ship-free", "refund"]


class Invoice(Struct, frozen=True, kw_only=True):
    """The payload: one invoice from the file; the price is text, so that nothing is rounded."""

    number: str
    invoice_date: str
    customer: str | None
    country: str
    quantity: int
    unit_price: str


class Booked(Struct, frozen=True):
    """The result: the partner's number of the booking. It is stored in the record and answers duplicates."""

    booking: str


def invoice_of(row: data.InvoiceRow) -> Invoice:
    """The payload for a row of the file. It has no line number, so that rows sent twice have the same payload."""
    return Invoice(
        number=row.number,
        invoice_date=row.invoice_date,
        customer=row.customer,
        country=row.country,
        quantity=row.quantity,
        unit_price=str(row.unit_price),
    )


def kind_of(invoice: Invoice) -> Kind:
    """The kind of booking that an invoice asks for.

    Raises:
        PermanentError: a negative price, or a negative quantity that is not a cancellation.
    """
    price = Decimal(invoice.unit_price)
    is_cancellation = invoice.number.startswith("C")
    if price < 0:
        raise onefold.PermanentError(
            f"Invoice {invoice.number} has the price {invoice.unit_price}.",
            meaning="A price is never negative.",
            todo="Correct the invoice and redrive it.",
        )
    if is_cancellation:
        return "refund"
    if invoice.quantity < 0:
        raise onefold.PermanentError(
            f"Invoice {invoice.number} has the quantity {invoice.quantity} and is not a cancellation.",
            meaning="Only cancellations, whose numbers start with C, take goods back.",
            todo="Correct the invoice and redrive it.",
        )
    return "ship" if price else "ship-free"


# How an interrupted run is handled. This includes the meaning of a 500: with a key, asking again is harmless; without
# one, it is not known whether the booking was made.

Probe = Callable[[Invoice, onefold.Context], Found]
OnUnknown = Literal["rerun", "hold"] | Probe


def shop(setup: Setup, url: str, courier: Courier, *, probe: Probe | None = None) -> onefold.App:
    """Declare the shop.

    Args:
        setup: `keys`: the partner honours the job's key, so a run in doubt is repeated; `probe`: it does not, but it
            can refuse late requests when asked to, so a probe asks it; `hold`: it can do neither, so a person decides.
        url: the URL of the engine.
        courier: the client of the partner.
        probe: replaces the probe that fences.
    """
    app = onefold.App("shop", url=url, history="full")
    # Workers are killed on purpose here, again and again, so an invoice that was hit several times is not a poison
    # message. Elsewhere the usual three crashes and five attempts are right.
    invoices = app.queue(QUEUE, visibility="30s", dead_letter=onefold.DeadLetter(after=200))
    often = onefold.Retry(attempts=100, base="100ms", cap="2s", crashes=100)

    def fence(invoice: Invoice, ctx: onefold.Context) -> Found:
        return ask_and_fence(courier, invoice, ctx)

    policies: Mapping[Setup, OnUnknown] = {"keys": "rerun", "probe": probe or fence, "hold": "hold"}

    @app.job(invoices, key="{number}", on_unknown=policies[setup], timeout="60s", retry=often, owner="fulfilment")
    def fulfil(invoice: Invoice, ctx: onefold.Context) -> Booked:
        order: dict[str, str | int] = {
            "reference": invoice.number,
            "kind": kind_of(invoice),
            "quantity": invoice.quantity,
            "unit_price": invoice.unit_price,
        }
        answer = courier.book(order, key=ctx.idempotency_key, fence=ctx.fence)
        return booked(answer, harmless_again=setup == "keys")

    return app


def fulfil_job(app: onefold.App) -> onefold.Job[Invoice, Booked]:
    """The job of a shop that invoices are sent to."""
    job: onefold.Job[Invoice, Any] = app.jobs["fulfil"]
    return job


def booked(answer: PartnerAnswer, *, harmless_again: bool) -> Booked:
    """The booking in the partner's answer to a request, or the error that the answer means.

    Args:
        harmless_again: whether the same request can be sent again without making a second booking.

    Raises:
        TransientError: nothing was done, or the request can be sent again. OutcomeUnknown: it may have been booked.
        LeaseLost: a later run has fenced this one off. PermanentError: the partner will never accept the order.
    """
    match answer.status:
        case 200 | 201:
            return Booked(answer.bookings[0])
        case 429 | 503:
            raise onefold.TransientError(f"The partner is busy ({answer.status}).", retry_in_ms=answer.retry_after_ms)
        case 409:
            raise onefold.errors.LeaseLost(f"The partner refused this run: {answer.error}.")
        case status if status >= 500:
            broke = f"The partner failed ({status}) and did not say whether it had booked."
            raise onefold.TransientError(broke) if harmless_again else onefold.OutcomeUnknown(broke)
        case status:
            raise onefold.PermanentError(f"The partner refused the order ({status}): {answer.error}.")


def ask_and_fence(courier: Courier, invoice: Invoice, ctx: onefold.Context) -> Found:
    """The probe: find out whether an earlier run's request was booked, and make sure that it cannot be booked later.

    Reading is not enough: the request of a dead worker may still be on its way, and be booked a moment after the read.
    A fence makes the partner refuse it from then on, so the answer "not done" stays true.
    """

    def ask() -> PartnerAnswer:
        answer = courier.fence(invoice.number, ctx.fence)
        if answer.status in (429, 503):
            raise onefold.TransientError("The partner is busy.", retry_in_ms=answer.retry_after_ms)
        return answer

    answer = ctx.retry(ask)
    if answer.status != 200:
        return onefold.StillUnknown(f"The partner would not say ({answer.status}): {answer.error}")
    return onefold.Done(Booked(answer.bookings[0])) if answer.bookings else onefold.NotDone()
