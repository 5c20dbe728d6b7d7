"""The courier partner of the demo: a process of its own that books parcels and refunds over HTTP on loopback.

    python -m onefold.demo.partner --mode honours-keys --ledger partner.db [--port 0] [--seed 1] ...

prints `listening PORT` when it is ready, and stops on SIGTERM or SIGINT after answering the requests that it has begun.

    POST /bookings                  body {"reference", "kind", "quantity", "unit_price"}; headers
                                    Idempotency-Key, Onefold-Fence; 201 booked, 200 repeated, 409 fenced off,
                                    422 the key was used for another order
    GET  /bookings?reference=INV    200 {"bookings": [...]}: those made so far; more may be on their way
    POST /fence?reference=INV       header Onefold-Fence: N (from 1); cancel or report: 200 {"bookings": [...]},
                                    and later POSTs of this reference below N are refused; 409 if a higher
                                    fence came first; 404 if the mode has no fences
    GET  /health                    200 {"ready": true, "mode", "requests", "bookings", "under_way"}; no ledger row

429 and 503 carry Retry-After and mean that nothing was done; 500 does not say what was done; 400 is a
malformed request. A request is carried out even if its caller is gone.

Here: HTTP, waiting, and the order of the steps. Never here: a decision (`partner_books`), SQL
(`partner_ledger`), or an import of onefold proper; this process has its own clock, waits and seed.
Invariant: wait, decide, write, wait, answer, in this order: nothing is answered that is not in the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO, cast

from aiohttp import web

from onefold.demo.partner_books import (
    DOOR_RETRY_AFTER_S,
    MODES,
    Booking,
    BookingOrder,
    Mode,
    Mood,
    PartnerBooks,
    PartnerDecision,
    Temper,
    Weather,
)
from onefold.demo.partner_ledger import LedgerWriter, RequestRow

KINDS = ("ship", "ship-free", "refund")
REFERENCE_CHARS_MAX = 64
BODY_BYTES_MAX = 16_384
LOOPBACK = "127.0.0.1"
FINISH_S_MAX = 30
"""How many seconds, at most, a stopping partner waits for the requests that it has begun."""
CALM = Mood(0.0, 0.0)
BROKE = PartnerDecision(500, "broke", error="something broke")
"""The text of a 500, which is the same whether the booking was made or not."""


class MalformedRequest(Exception):
    """The request cannot be read; the text is the reason."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request whose headers, query and body were checked.

    Attributes:
        action: "book", "look" or "fence".
        reference: invoice number; empty if the request was malformed.
        key: the Idempotency-Key header; None if it is missing.
        fence: the Onefold-Fence header; None if it is missing.
        order: what to book, for "book" only.
    """

    action: str
    reference: str = ""
    key: str | None = None
    fence: int | None = None
    order: BookingOrder | None = None


class Partner:
    """The four endpoints over one set of books.

    Args:
        books: makes the decisions.
        weather: determines what goes wrong with which request.
        ledger: each decision is written to it before it is answered.
    """

    def __init__(self, books: PartnerBooks, weather: Weather, ledger: LedgerWriter) -> None:
        self._books = books
        self._weather = weather
        self._ledger = ledger
        self.broken = asyncio.Event()
        """Set if the ledger could not be written, after which the process must stop."""
        self.under_way = 0
        """How many requests have arrived and are not answered yet."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Return when no request is under way; one whose caller is gone is finished too, and may make a booking."""
        await self._idle.wait()

    def application(self) -> web.Application:
        """The routes, ready to be served."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.post("/bookings", partial(self._carry_out, "book")),
                web.get("/bookings", partial(self._carry_out, "look"), allow_head=False),
                web.post("/fence", partial(self._carry_out, "fence")),
                web.get("/health", self._health),
            ]
        )
        return app

    async def _carry_out(self, action: str, request: web.Request) -> web.Response:
        self.under_way += 1
        self._idle.clear()
        try:
            return await self._decide_write_tell(action, request)
        finally:
            self.under_way -= 1
            if self.under_way == 0:
                self._idle.set()

    async def _decide_write_tell(self, action: str, request: web.Request) -> web.Response:
        received_at_ms = _now_ms()
        mood = CALM
        try:
            asked = _asked_of(action, request, await request.read())
        except MalformedRequest as malformed:
            asked, decision = ParsedRequest(action), PartnerDecision(400, "malformed", error=str(malformed))
        else:
            if action != "look":
                mood = self._weather.next_mood(asked.reference, may_break=action == "book")
            await _pause(mood.before_ms)
            decision = self._decide(asked, mood)
        answer = BROKE if mood.breaks else decision
        row = RequestRow(
            received_at_ms=received_at_ms,
            decided_at_ms=_now_ms(),
            action=action,
            reference=asked.reference,
            key=asked.key,
            fence=asked.fence,
            outcome=decision.outcome,
            status=answer.status,
            caller_gone=request.transport is None or request.transport.is_closing(),
            made=decision.made,
        )
        try:
            await self._ledger.written(row)
        except sqlite3.Error:
            self.broken.set()
            raise
        await _pause(mood.after_ms)
        return _answer(answer)

    def _decide(self, asked: ParsedRequest, mood: Mood) -> PartnerDecision:
        if mood.door_status:
            return PartnerDecision(mood.door_status, "turned-away", error="busy, nothing was done; ask again")
        if mood.breaks == "before":
            return BROKE
        if asked.order is not None:
            return self._books.book(asked.order, asked.key, asked.fence or 0)
        if asked.action == "fence" and asked.fence is not None:
            return self._books.fence(asked.reference, asked.fence)
        return self._books.look(asked.reference)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "ready": True,
                "mode": self._books.mode,
                "requests": self._ledger.requests_count,
                "bookings": self._books.bookings_count,
                "under_way": self.under_way,
            }
        )


def _asked_of(action: str, request: web.Request, body: bytes) -> ParsedRequest:
    key, fence = request.headers.get("Idempotency-Key"), _fence_of(request)
    if action == "book":
        order = _order_of(body)
        return ParsedRequest(action, order.reference, key, fence, order)
    if action == "fence" and fence is None:
        raise MalformedRequest(
            "a fence needs the header Onefold-Fence: N, the number below which everything is refused"
        )
    return ParsedRequest(action, _reference_of(request.query.get("reference")), key, fence)


def _order_of(body: bytes) -> BookingOrder:
    try:
        found = json.loads(body)
    except ValueError:
        raise MalformedRequest("the body is not JSON") from None
    if not isinstance(found, dict) or set(found) != {"reference", "kind", "quantity", "unit_price"}:
        raise MalformedRequest("the body must be an object of reference, kind, quantity and unit_price")
    kind, quantity, unit_price = found["kind"], found["quantity"], found["unit_price"]
    if kind not in KINDS:
        raise MalformedRequest(f"kind is {kind!r}; one of {', '.join(KINDS)} was expected")
    if type(quantity) is not int or abs(quantity) >= 2**31:
        raise MalformedRequest(f"quantity is {quantity!r}; an integer of 32 bits was expected")
    if type(unit_price) is not str or not re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,6})?", unit_price):
        raise MalformedRequest(f'unit_price is {unit_price!r}; a decimal number as text, like "3.91", was expected')
    return BookingOrder(_reference_of(found["reference"]), kind, quantity, unit_price)


def _reference_of(found: object) -> str:
    if not isinstance(found, str) or not 1 <= len(found) <= REFERENCE_CHARS_MAX:
        raise MalformedRequest(
            f"reference is {found!r}; an invoice number of 1 to {REFERENCE_CHARS_MAX} characters was expected"
        )
    return found


def _fence_of(request: web.Request) -> int | None:
    text = request.headers.get("Onefold-Fence")
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise MalformedRequest(f"Onefold-Fence is {text!r}; a whole number from 1 was expected")
    return int(text)


def _answer(answer: PartnerDecision) -> web.Response:
    headers = {"Retry-After": str(DOOR_RETRY_AFTER_S)} if answer.status in (429, 503) else None
    if answer.error:
        return web.json_response({"error": answer.error}, status=answer.status, headers=headers)
    return web.json_response({"bookings": [_as_json(booking) for booking in answer.shown]}, status=answer.status)


def _as_json(booking: Booking) -> dict[str, str | int]:
    order = booking.order
    return {
        "booking": f"B{booking.number:06d}",
        "reference": order.reference,
        "kind": order.kind,
        "quantity": order.quantity,
        "unit_price": order.unit_price,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _pause(wait_ms: float) -> None:
    if wait_ms > 0:
        await asyncio.sleep(wait_ms / 1000)


@asynccontextmanager
async def served(partner: Partner, port: int) -> AsyncIterator[int]:
    """Serve `partner` on loopback; yields the port. At the end of the block all begun requests are finished.

    Raises:
        OSError: the port is taken.
    """
    runner = web.AppRunner(
        partner.application(),
        access_log=None,
        handle_signals=False,
        handler_cancellation=False,  # a request is carried out even if its caller is gone
        shutdown_timeout=1,
    )
    try:
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, port)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await site.stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(partner.idle(), FINISH_S_MAX)
    finally:
        await runner.cleanup()


async def serve(mode: Mode, temper: Temper, ledger_path: Path, port: int, *, stop_with_stdin: bool) -> int:
    """Serve until asked to stop.

    Args:
        mode: the kind of partner.
        temper: how often each thing goes wrong.
        ledger_path: the ledger's file, which is created.
        port: TCP port on loopback, 0 lets the system choose; the port is printed either way.
        stop_with_stdin: stop when standard input ends, so that no partner outlives the process that started
            it.

    Returns:
        0 after a requested stop; 1 if the ledger could not be written.

    Raises:
        FileExistsError: there is a ledger already.
        OSError: the port is taken or the file cannot be created.
    """
    ledger = LedgerWriter(ledger_path)
    partner = Partner(PartnerBooks(mode), Weather(temper), ledger)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        if stop_with_stdin:
            loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, stop)
        async with served(partner, port) as found_port:
            _say(sys.stdout, f"listening {found_port}")
            waits = [asyncio.create_task(event.wait()) for event in (stop, partner.broken)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
    finally:
        ledger.close()
    if partner.broken.is_set():
        _say(sys.stderr, f"the ledger {ledger_path} could not be written; the partner stopped")
        return 1
    return 0


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        stop.set()


def _say(where: TextIO, line: str) -> None:
    where.write(line + "\n")
    where.flush()


def _milliseconds_range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of milliseconds such as 200-1500")
    return int(found[1]), int(found[2])


def _arguments(arguments: list[str]) -> argparse.Namespace:
    usual = Temper()
    parser = argparse.ArgumentParser(prog="python -m onefold.demo.partner", description="The demo's courier partner.")
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--ledger", type=Path, required=True, help="SQLite file to create; must not exist")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 lets the system choose (default)")
    parser.add_argument("--seed", type=int, default=usual.seed, help="the same seed makes the same things go wrong")
    parser.add_argument("--slow-rate", type=float, default=usual.slow_rate, help="share of slow requests, 0 to 1")
    parser.add_argument(
        "--slow-ms",
        type=_milliseconds_range,
        default=(usual.slow_ms_min, usual.slow_ms_max),
        metavar="FROM-TO",
    )
    parser.add_argument("--fast-ms-max", type=int, default=usual.fast_ms_max, help="longest wait of the others")
    parser.add_argument("--refuse-rate", type=float, default=usual.refuse_rate, help="share answered 429 or 503")
    parser.add_argument("--break-rate", type=float, default=usual.break_rate, help="share of bookings answered 500")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the partner; returns 0 after a requested stop, 1 if its ledger failed, 2 if it did not start."""
    options = _arguments(arguments)
    try:
        temper = Temper(
            seed=options.seed,
            slow_rate=options.slow_rate,
            slow_ms_min=options.slow_ms[0],
            slow_ms_max=options.slow_ms[1],
            fast_ms_max=options.fast_ms_max,
            refuse_rate=options.refuse_rate,
            break_rate=options.break_rate,
        )
        mode, stop_with_stdin = cast(Mode, options.mode), options.stop_with_stdin
        return asyncio.run(serve(mode, temper, options.ledger, options.port, stop_with_stdin=stop_with_stdin))
    except (OSError, ValueError, sqlite3.Error) as wrong:
        _say(sys.stderr, f"the partner did not start: {wrong}")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
