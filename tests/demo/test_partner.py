"""The partner over HTTP: what it answers, what its ledger holds, and what it does for a caller that is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp import ClientSession as Client

from onefold.demo import partner as partner_module
from onefold.demo.partner import Partner, served
from onefold.demo.partner_books import Mode, PartnerBooks, Temper, Weather
from onefold.demo.partner_ledger import LedgerWriter, PartnerLedger, read_ledger

CALM = Temper(slow_rate=0, fast_ms_max=0, refuse_rate=0, break_rate=0)
BODY = {"reference": "536365", "kind": "ship", "quantity": 40, "unit_price": "3.91"}
TOLD = {"booking": "B000001", **BODY}


def talk(
    tmp_path: Path, mode: Mode, temper: Temper, dialogue: Callable[[Client, Partner], Awaitable[None]]
) -> PartnerLedger:
    """Hold a dialogue with a partner of its own, then read what it has written."""

    async def whole() -> None:
        writer = LedgerWriter(tmp_path / "ledger.db")
        partner = Partner(PartnerBooks(mode), Weather(temper), writer)
        async with served(partner, port=0) as port, Client(f"http://127.0.0.1:{port}") as client:
            await dialogue(client, partner)
        writer.close()

    asyncio.run(whole())
    return read_ledger(tmp_path / "ledger.db")


async def book(client: Client, key: str | None = None, fence: int | None = None, **other: object) -> ClientResponse:
    headers = {"Idempotency-Key": key, "Onefold-Fence": None if fence is None else str(fence)}
    return await client.post(
        "/bookings",
        json={**BODY, **other},
        headers={name: value for name, value in headers.items() if value is not None},
    )


def outcomes(ledger: PartnerLedger) -> list[tuple[str, str, int]]:
    return [(row.action, row.outcome, row.status) for row in ledger.requests]


def test_a_repeated_key_is_logged_and_booked_once(tmp_path: Path) -> None:
    async def dialogue(client: Client, _: Partner) -> None:
        first, again = await book(client, key="k"), await book(client, key="k")
        assert (first.status, again.status) == (201, 200)
        assert await first.json() == await again.json() == {"bookings": [TOLD]}

    ledger = talk(tmp_path, "honours-keys", CALM, dialogue)
    assert outcomes(ledger) == [("book", "booked", 201), ("book", "repeated", 200)]
    assert [row.key for row in ledger.requests] == ["k", "k"]
    assert len(ledger.bookings) == 1


def test_fence_then_late_request(tmp_path: Path) -> None:
    async def dialogue(client: Client, _: Partner) -> None:
        fence = await client.post("/fence?reference=536365", headers={"Onefold-Fence": "2"})
        assert (fence.status, await fence.json()) == (200, {"bookings": []})
        assert [(await book(client, fence=number)).status for number in (1, 2)] == [409, 201]
        look = await client.get("/bookings?reference=536365")
        assert await look.json() == {"bookings": [TOLD]}

    ledger = talk(tmp_path, "fences", CALM, dialogue)
    assert outcomes(ledger) == [
        ("fence", "nothing", 200),
        ("book", "fenced", 409),
        ("book", "booked", 201),
        ("look", "told", 200),
    ]


def test_a_group_is_committed_before_it_is_answered(tmp_path: Path) -> None:
    async def dialogue(client: Client, _: Partner) -> None:
        answers = await asyncio.gather(*(book(client, reference=str(number)) for number in range(40)))
        assert {answer.status for answer in answers} == {201}
        told = {(await answer.json())["bookings"][0]["reference"] for answer in answers}
        assert {booking.order.reference for booking in read_ledger(tmp_path / "ledger.db").bookings} == told

    ledger = talk(tmp_path, "no-keys", CALM, dialogue)
    assert [row.made for row in ledger.requests] == list(ledger.bookings)


def test_turned_away_says_when_to_come_again_and_did_nothing(tmp_path: Path) -> None:
    async def dialogue(client: Client, _: Partner) -> None:
        answers = [await book(client, reference=str(number)) for number in range(8)]
        assert {answer.status for answer in answers} == {429, 503}
        assert {answer.headers["Retry-After"] for answer in answers} == {"1"}

    ledger = talk(tmp_path, "no-keys", Temper(slow_rate=0, fast_ms_max=0, refuse_rate=1), dialogue)
    assert {row.outcome for row in ledger.requests} == {"turned-away"}
    assert ledger.bookings == ()


def test_a_500_does_not_say_whether_it_booked(tmp_path: Path) -> None:
    temper = Temper(slow_rate=0, fast_ms_max=0, refuse_rate=0, break_rate=1)

    async def dialogue(client: Client, _: Partner) -> None:
        answers = [await book(client, reference=str(number)) for number in range(12)]
        assert {answer.status for answer in answers} == {500}
        assert len({await answer.text() for answer in answers}) == 1
        assert not any("Retry-After" in answer.headers for answer in answers)

    ledger = talk(tmp_path, "honours-keys", temper, dialogue)
    assert {row.outcome for row in ledger.requests} == {"booked", "broke"}
    assert 0 < len(ledger.bookings) < 12


def test_a_request_is_carried_out_when_its_caller_is_gone(tmp_path: Path) -> None:
    reference = next(
        str(number)
        for number in range(100)
        if Temper(slow_rate=1, slow_ms_min=150, slow_ms_max=150).mood(str(number), 0).before_ms
    )
    temper = Temper(slow_rate=1, slow_ms_min=150, slow_ms_max=150, refuse_rate=0, break_rate=0)

    async def dialogue(client: Client, partner: Partner) -> None:
        body = json.dumps({**BODY, "reference": reference}).encode()
        port = (await client.get("/health")).url.port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /bookings HTTP/1.1\r\nHost: partner\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        while partner.under_way == 0:
            await client.get("/health")
        writer.transport.abort()

    ledger = talk(tmp_path, "no-keys", temper, dialogue)
    assert [(row.outcome, row.caller_gone) for row in ledger.requests] == [("booked", True)]
    assert [booking.order.reference for booking in ledger.bookings] == [reference]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "burn"}, "'burn'"),
        ({"quantity": "4"}, "'4'"),
        ({"quantity": True}, "True"),
        ({"quantity": 2**31}, "2147483648"),
        ({"unit_price": 3.91}, "3.91"),
        ({"unit_price": "NaN"}, "'NaN'"),
        ({"reference": ""}, "''"),
        ({"reference": "x" * 65}, "64 characters"),
        ({"extra": 1}, "must be an object"),
    ],
)
def test_a_malformed_order_is_refused_and_logged(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    async def dialogue(client: Client, _: Partner) -> None:
        answer = await book(client, **wrong)
        assert answer.status == 400
        assert said in (await answer.json())["error"]

    ledger = talk(tmp_path, "no-keys", CALM, dialogue)
    assert outcomes(ledger) == [("book", "malformed", 400)]
    assert ledger.bookings == ()


def test_other_malformed_requests(tmp_path: Path) -> None:
    async def dialogue(client: Client, _: Partner) -> None:
        assert (await client.post("/bookings", data=b"{")).status == 400
        assert (await client.get("/bookings")).status == 400
        assert (await client.post("/fence?reference=1")).status == 400
        for number in ("0", "-1", "1.5", "x", ""):
            headers = {"Onefold-Fence": number}
            assert (await client.post("/fence?reference=1", headers=headers)).status == 400

    ledger = talk(tmp_path, "fences", CALM, dialogue)
    assert {row.outcome for row in ledger.requests} == {"malformed"}


def test_health_counts(tmp_path: Path) -> None:
    async def dialogue(client: Client, _: Partner) -> None:
        await book(client)
        health = await client.get("/health")
        assert await health.json() == {
            "ready": True,
            "mode": "no-keys",
            "requests": 1,
            "bookings": 1,
            "under_way": 0,
        }

    assert len(talk(tmp_path, "no-keys", CALM, dialogue).requests) == 1


def test_a_ledger_that_cannot_be_written_stops_the_partner(tmp_path: Path) -> None:
    async def whole() -> None:
        writer = LedgerWriter(tmp_path / "ledger.db")
        partner = Partner(PartnerBooks("no-keys"), Weather(CALM), writer)
        with sqlite3.connect(tmp_path / "ledger.db") as other:
            other.execute("DROP TABLE booking")
        other.close()
        async with served(partner, port=0) as port, Client(f"http://127.0.0.1:{port}") as client:
            assert (await book(client)).status == 500
        assert partner.broken.is_set()
        writer.close()

    asyncio.run(whole())


def test_an_old_ledger_is_refused(tmp_path: Path) -> None:
    LedgerWriter(tmp_path / "ledger.db").close()
    with pytest.raises(FileExistsError, match="name another file"):
        LedgerWriter(tmp_path / "ledger.db")
    with pytest.raises(FileNotFoundError, match="did not start"):
        read_ledger(tmp_path / "other.db")


def start(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "onefold.demo.partner", "--mode", "no-keys"),
            *("--ledger", str(tmp_path / "ledger.db"), *options),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(partner_module.__file__).parents[2])},
    )


@pytest.mark.parametrize("told_by", ["signal", "stdin"])
def test_the_process_says_its_port_and_finishes_what_it_began(tmp_path: Path, told_by: str) -> None:
    slow = ("--slow-rate", "1", "--slow-ms", "100-100", "--refuse-rate", "0", "--break-rate", "0")
    body = json.dumps(BODY).encode()
    with start(tmp_path, "--stop-with-stdin", *slow) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        word, port = process.stdout.readline().split()
        assert word == "listening"
        with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as connection:
            connection.sendall(
                b"GET /health HTTP/1.1\r\nHost: partner\r\n\r\n"
                b"POST /bookings HTTP/1.1\r\nHost: partner\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            assert connection.recv(4_096).startswith(b"HTTP/1.1 200 OK")
        if told_by == "signal":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert process.wait(timeout=60) == 0
    assert [booking.order.reference for booking in read_ledger(tmp_path / "ledger.db").bookings] == ["536365"]


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    with start(tmp_path, "--slow-rate", "2") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "slow_rate is 2" in said
