"""The shop's side of the wire: how a worker, or a person, talks to the partner of the demo over HTTP.

Here: requests, one connection per thread kept open, and what it means when no answer comes. Never here: what an
answer means for a job (that is `fulfilment`'s), retries, an import of the partner itself.
Invariant: a request that may have been carried out is never repeated here. What could not be sent at all is a
`TransientError`; what was sent and not answered is `OutcomeUnknown`.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from onefold.errors import OutcomeUnknown, TransientError

LOOPBACK = "127.0.0.1"
ANSWER_S_MAX = 30
"""Seconds that an answer may take; the partner's slowest one takes 1.5."""


class Answer(Struct, frozen=True, kw_only=True):
    """What the partner answered.

    Args:
        status: HTTP status.
        bookings: the numbers of the bookings it shows, oldest first; empty when there are none.
        error: its text when it refused, else empty.
        retry_after_ms: how long it asks to wait; None when it does not say.
    """

    status: int
    bookings: tuple[str, ...] = ()
    error: str = ""
    retry_after_ms: int | None = None


class Health(Struct, frozen=True, kw_only=True):
    """The partner's own numbers of this moment.

    Args:
        requests: written to its ledger. bookings: made. under_way: requests that are not answered yet.
    """

    requests: int
    bookings: int
    under_way: int


class Courier:
    """One partner. Safe from any thread; each thread has a connection of its own.

    Args:
        port: on loopback.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._local = threading.local()

    def book(self, order: Mapping[str, str | int], *, key: str, fence: int) -> Answer:
        """Ask for a booking.

        Args:
            order: reference, kind, quantity, unit_price.
            key: names the operation, for partners that honour keys.
            fence: names the attempt, for partners that fence.

        Raises:
            TransientError: it could not be sent. OutcomeUnknown: it was sent and not answered.
        """
        headers = {"Idempotency-Key": key, "Onefold-Fence": str(fence)}
        return self._answer("POST", "/bookings", json.dumps(order).encode(), headers)

    def fence(self, reference: str, fence: int) -> Answer:
        """Have every request of `reference` below `fence` refused from now on, and be told what was booked before."""
        return self._answer("POST", f"/fence?reference={quote(reference)}", b"", {"Onefold-Fence": str(fence)})

    def look(self, reference: str) -> Answer:
        """Be told what was booked for `reference` by now; more may be on its way."""
        return self._answer("GET", f"/bookings?reference={quote(reference)}", None, {})

    def health(self) -> Health:
        """The partner's own numbers."""
        _, _, found = self._ask("GET", "/health", None, {})
        return Health(requests=found["requests"], bookings=found["bookings"], under_way=found["under_way"])

    def _answer(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        status, retry_after, found = self._ask(method, path, body, headers)
        return Answer(
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
            connection.close()  # the next request opens it again
            raise OutcomeUnknown(
                f"{method} {path} was sent to the partner and not answered: {type(error).__name__}: {error}.",
                todo="See in its ledger whether it was carried out.",
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
