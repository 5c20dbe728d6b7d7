"""The shop's side of the wire: what it reads from an answer, and what it makes of none."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import onefold
from onefold.demo.fulfilment import Courier, Health, PartnerAnswer
from tests.emulators.servers import free_port

ORDER: dict[str, str | int] = {"reference": "1", "kind": "ship", "quantity": 2, "unit_price": "3.5"}


def request(connection: socket.socket) -> bytes:
    """One whole request."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += connection.recv(65_536)
    length = re.search(rb"Content-Length: (\d+)", text)
    whole = text.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(text) < whole:
        text += connection.recv(65_536)
    return text


@contextmanager
def partner(*replies: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers each connection's request with the next reply, then closes; an empty one answers nothing."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for reply in replies:
                connection, _ = server.accept()
                with connection:
                    heard.append(request(connection))
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], heard
        thread.join()


def reply(status: str, body: str, header: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{header}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def test_a_booking_carries_key_and_fence_and_is_read() -> None:
    with partner(reply("201 Created", '{"bookings": [{"booking": "B000001"}]}')) as (port, heard):
        answer = Courier(port).book(ORDER, key="k", fence=7)
    assert answer == PartnerAnswer(status=201, bookings=("B000001",))
    assert b"Idempotency-Key: k\r\n" in heard[0]
    assert b"Onefold-Fence: 7\r\n" in heard[0]
    assert heard[0].endswith(b'{"reference": "1", "kind": "ship", "quantity": 2, "unit_price": "3.5"}')


def test_a_refusal_is_read_with_its_pause() -> None:
    with partner(reply("503 Busy", '{"error": "busy"}', "Retry-After: 1\r\n")) as (port, _):
        answer = Courier(port).look("C 1")
    assert answer == PartnerAnswer(status=503, error="busy", retry_after_ms=1_000)


def test_health() -> None:
    body = '{"ready": true, "mode": "no-keys", "requests": 3, "bookings": 2, "under_way": 1}'
    with partner(reply("200 OK", body)) as (port, _):
        assert Courier(port).health() == Health(requests=3, bookings=2, under_way=1)


def test_an_answer_that_does_not_come_leaves_the_outcome_unknown_and_the_next_request_connects_again() -> None:
    with partner(b"", reply("200 OK", '{"bookings": []}')) as (port, _):
        courier = Courier(port)
        with pytest.raises(onefold.OutcomeUnknown, match="not answered"):
            courier.book(ORDER, key="k", fence=1)
        assert courier.look("1") == PartnerAnswer(status=200)


def test_a_partner_that_is_not_there_was_asked_nothing() -> None:
    with pytest.raises(onefold.TransientError, match="cannot be reached"):
        Courier(free_port()).book(ORDER, key="k", fence=1)
