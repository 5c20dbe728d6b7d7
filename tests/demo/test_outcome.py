"""Every fault of a run is told in words, and what is drawn of a run fits a terminal and hides none."""

from __future__ import annotations

import io
from collections.abc import Iterable

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from onefold.contracts.admin import Peeked
from onefold.contracts.queue import Reason
from onefold.demo import screen
from onefold.demo.figures import Figures, work_out
from onefold.demo.fulfilment import Invoice
from onefold.demo.outcome import (
    RUNS,
    SHOWN_MAX,
    DemoProgress,
    DemoSettings,
    HistoryCounts,
    Observed,
    PersonAnswers,
    RunOutcome,
    outcome,
)
from onefold.demo.partner_books import Booking, BookingOrder
from onefold.demo.partner_ledger import PartnerLedger, RequestRow

FIGURES: Figures = work_out(
    [
        "InvoiceNo,InvoiceDate,CustomerID,Country,Quantity,UnitPrice",
        "1,d,c,UK,2,3.5",
        "2,d,c,UK,-7,0",
        "3,d,c,UK,1,1.5",
        "3,e,c,UK,9,1.75",
    ]
)
SETTINGS = DemoSettings(rows=4, workers=3, threads=16, seed=1, kills=2, kills_min=2)
ORDERS = (BookingOrder("1", "ship", 2, "3.5"), BookingOrder("3", "ship", 9, "1.75"))


def dead(number: str, kind: str, quantity: int, unit_price: str) -> Peeked:
    invoice = Invoice(
        number=number, invoice_date="d", customer="c", country="UK", quantity=quantity, unit_price=unit_price
    )
    return Peeked(
        queue="invoices-dead",
        message_id=f"m-{number}",
        state="visible",
        body=msgspec.json.encode(invoice).decode(),
        attributes={},
        receive_count=1,
        sent_at_ms=1,
        visible_at_ms=1,
        expires_at_ms=2,
        reason=Reason(kind=kind, summary=""),
    )


DEAD = (dead("2", "permanent", -7, "0"), dead("3", "conflict", 1, "1.5"))
SEEN = Observed(
    seconds=20.04,
    messages=5,
    counted=HistoryCounts(deliveries=9, duplicates=1, waited=1, takeovers=2, retries=1, lost=0, taken_over="3"),
    dead=(*DEAD, DEAD[0]),
    held_left=0,
    hits=(4, 3),
    misses=1,
    stops=1,
    settled=PersonAnswers(done=1, not_done=0),
    url="sqlite:////somewhere/shop.db",
)


def ledger(orders: Iterable[BookingOrder], *, gone: bool = False) -> PartnerLedger:
    bookings = tuple(Booking(number, order) for number, order in enumerate(orders, start=1))
    requests = tuple(
        RequestRow(1, one.number * 10, "book", one.order.reference, "k", one.number, "booked", 201, gone, one)
        for one in bookings
    )
    return PartnerLedger(requests, bookings)


def judged(orders: Iterable[BookingOrder] = ORDERS, seen: Observed = SEEN, *, gone: bool = False) -> RunOutcome:
    return outcome(RUNS[2], SETTINGS, FIGURES, seen, ledger(orders, gone=gone))


def test_a_right_run_has_no_fault_and_all_its_numbers() -> None:
    found = judged()
    assert found.faults == ()
    assert (found.messages, found.again, found.seconds) == (5, 1, 20.0)
    assert (found.kills, found.in_hand, found.misses, found.held, found.held_done) == (2, 7, 1, 1, 1)
    assert (found.requests, found.bookings, found.expected, found.twice, found.never) == (2, 2, 2, 0, 0)
    assert found.dead_letters == {"permanent": 1, "conflict": 1}
    assert found.dead_messages == 3


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (
            judged((*ORDERS, ORDERS[0]), gone=True),
            (
                "twice: invoice 1 has 2 bookings: B000001 under fence 1, its worker dead by then; "
                "B000003 under fence 3 20 ms later, its worker dead by then"
            ),
        ),
        (judged(ORDERS[1:]), "never: invoice 1 was not booked"),
        (
            judged((*ORDERS, BookingOrder("2", "ship", -7, "0"))),
            "unasked: booking 3 is ship -7 at 0 for invoice 2, which asks for nothing like it",
        ),
        (
            judged(seen=replace(SEEN, dead=DEAD[1:])),
            "dead letter missing: invoice 2, -7 at 0, should be refused",
        ),
        (
            judged(seen=replace(SEEN, dead=(*DEAD, dead("1", "attempts", 2, "3.5")))),
            "dead letter wrong: invoice 1, 2 at 3.5, is attempts",
        ),
        (
            judged(seen=replace(SEEN, hits=(4,))),
            "1 kill hit a worker with work in progress; at least 2 are asked for",
        ),
        (judged(seen=replace(SEEN, held_left=3)), "3 invoices are still held for a person"),
    ],
)
def test_each_fault_is_told(found: RunOutcome, fault: str) -> None:
    assert found.faults == (fault,)
    text = drawn(screen.ending(SETTINGS, [found], again="onefold demo"))
    assert "FAILED: 1 fault." in text
    assert fault in text
    assert "Passed" not in text


def test_many_faults_of_a_kind_are_counted() -> None:
    seen = replace(SEEN, dead=(*DEAD, *(dead(str(number), "attempts", 1, "1") for number in range(100, 110))))
    faults = judged(seen=seen).faults
    assert len(faults) == SHOWN_MAX + 1
    assert faults[-1] == "dead letter wrong: 5 more"


def drawn(*things: object) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    for thing in things:
        console.print(thing, soft_wrap=not isinstance(thing, screen.Table))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_table_of_a_full_run_takes_one_line_each_on_80_columns() -> None:
    found = replace(
        judged(), messages=28_512, again=2_569, deliveries=29_960, duplicates=2_456, waited=1_317, takeovers=1_163,
        in_hand=1_418, held=1_253, held_done=1_182, requests=25_411, fences=1_267, cut_off=1_029, bookings=24_562,
        expected=24_562, dead_letters={"permanent": 1_338, "conflict": 43},
    )  # fmt: skip
    lines = drawn(screen.table(3, found)).splitlines()
    assert len(lines) == 1 + len(screen.rows(found))
    assert max(len(line) for line in lines) <= 80


def test_the_opening_fits_too() -> None:
    settings = DemoSettings(rows=25_943, workers=16, threads=16, seed=2**31, kills=1_000, kills_min=1, plant="no-fence")
    assert max(len(line) for line in screen.opening(settings, 3).splitlines()) <= 80


def test_a_run_that_passed_says_where_to_look() -> None:
    kept = drawn(screen.ending(SETTINGS, [judged()], again="onefold demo"))
    assert "Passed: twice 0, never 0 in 1 run." in kept
    assert "onefold why 3 --url sqlite:////somewhere/shop.db" in kept
    gone = drawn(screen.ending(SETTINGS, [replace(judged(), url=None)], again="onefold demo --seed 4"))
    assert "onefold demo --seed 4 --keep DIR" in gone
    assert "onefold why 3" not in gone


def test_with_a_plant_nothing_is_said_to_have_passed() -> None:
    settings = replace(SETTINGS, plant="no-fence")
    hidden = drawn(screen.ending(settings, [judged()], again="onefold demo"))
    assert "FAILED" in hidden
    assert "do not show it" in hidden
    shown = drawn(screen.ending(settings, [judged(), judged((*ORDERS, ORDERS[0]))], again="onefold demo"))
    assert "FAILED, as it must" in shown
    assert "hold: twice 1, never 0" in shown


def test_progress_is_a_line_every_few_seconds_without_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    now = DemoProgress(phase="under fire", bookings=0, expected=2_000, left=2_000, kills=0, held=0, seconds=0.0)
    with screen.shown("1/3 keys", console) as told:
        for second in range(12):
            told(replace(now, seconds=float(second), bookings=second * 100, kills=second // 5))
        told(replace(now, phase="settling", held=7, seconds=20.0))
    file = console.file
    assert isinstance(file, io.StringIO)
    assert file.getvalue().splitlines() == [
        "1/3 keys: 500 of 2,000 fulfilled, 100/s, 1 kill, 5 s",
        "1/3 keys: 1,000 of 2,000 fulfilled, 100/s, 2 kills, 10 s",
        "1/3 keys: a person settles 7 held, 0 kills, 20 s",
    ]
