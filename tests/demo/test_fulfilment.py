"""The shop's rules and what the partner's answers mean; the rules are held against the judge's own on every real row."""

from __future__ import annotations

from decimal import Decimal

import pytest

import onefold
from onefold.contracts.store import Hold, RecordKey
from onefold.demo import figures
from onefold.demo.data import read_invoices
from onefold.demo.fulfilment import (
    Booked,
    Courier,
    Invoice,
    PartnerAnswer,
    Setup,
    ask_and_fence,
    booked,
    fulfil_job,
    invoice_of,
    kind_of,
    shop,
)
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock

INVOICE = Invoice(
    number="536365",
    invoice_date="12/1/2010 8:26",
    customer="17850",
    country="UK",
    quantity=40,
    unit_price="3.91",
)


def test_the_shop_and_the_judge_agree_on_every_row() -> None:
    differ = []
    for row in read_invoices():
        judged = figures.kind_of(row.number, row.quantity, Decimal(str(row.unit_price)))
        try:
            kind: str = kind_of(invoice_of(row))
        except onefold.PermanentError:
            kind = figures.REFUSED
        if kind != judged:
            differ.append((row, kind, judged))
    assert differ == []


def test_a_row_sent_twice_is_the_same_payload() -> None:
    first, second = list(read_invoices(count_max=2))
    assert first.line != second.line
    assert "line" not in Invoice.__struct_fields__


@pytest.mark.parametrize("status", [200, 201])
def test_a_booking_is_the_result(status: int) -> None:
    assert booked(PartnerAnswer(status=status, bookings=("B000007",)), harmless_again=False) == Booked("B000007")


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_partner_says_when_to_come_again(status: int) -> None:
    with pytest.raises(onefold.TransientError) as raised:
        booked(PartnerAnswer(status=status, retry_after_ms=1_000), harmless_again=False)
    assert raised.value.retry_in_ms == 1_000


def test_a_500_is_tried_again_only_where_that_is_harmless() -> None:
    with pytest.raises(onefold.TransientError):
        booked(PartnerAnswer(status=500), harmless_again=True)
    with pytest.raises(onefold.OutcomeUnknown):
        booked(PartnerAnswer(status=500), harmless_again=False)


def test_a_run_that_was_fenced_off_stops() -> None:
    with pytest.raises(onefold.errors.LeaseLost, match="below 2"):
        booked(PartnerAnswer(status=409, error="attempt 1 is fenced off below 2"), harmless_again=False)


def test_an_order_that_the_partner_will_never_take_is_permanent() -> None:
    with pytest.raises(onefold.PermanentError, match="another order"):
        booked(PartnerAnswer(status=422, error="another order"), harmless_again=True)


class BreakerUpdate(Courier):
    """A courier that is told what it hears."""

    def __init__(self, *answers: PartnerAnswer) -> None:
        super().__init__(port=1)
        self.answers = list(answers)
        self.fences: list[tuple[str, int]] = []

    def fence(self, reference: str, fence: int) -> PartnerAnswer:
        self.fences.append((reference, fence))
        return self.answers.pop(0)


class Hurried(ManualClock):
    """Waiting takes no time."""

    def wait(self, waiter: object, timeout_ms: int) -> bool:
        self.advance(timeout_ms)
        return False


def context(fence: int) -> onefold.Context:
    return onefold.Context(
        Hold(RecordKey("", "fulfil", INVOICE.number), "owner", fence),
        attempt=2,
        attempts_max=5,
        message=None,
        clock=Hurried(),
        entropy=SeededEntropy(1),
        deadline_ms=None,
    )


def test_the_probe_fences_with_its_own_fence_and_tells_the_first_booking() -> None:
    courier = BreakerUpdate(PartnerAnswer(status=200, bookings=("B000001",)))
    assert ask_and_fence(courier, INVOICE, context(3)) == onefold.Done(Booked("B000001"))
    assert courier.fences == [("536365", 3)]


def test_the_probe_asks_again_while_the_partner_is_busy() -> None:
    busy = PartnerAnswer(status=503, retry_after_ms=1_000)
    courier = BreakerUpdate(busy, busy, PartnerAnswer(status=200))
    assert ask_and_fence(courier, INVOICE, context(2)) == onefold.NotDone()
    assert len(courier.fences) == 3


def test_the_probe_does_not_guess() -> None:
    found = ask_and_fence(BreakerUpdate(PartnerAnswer(status=409, error="overtaken")), INVOICE, context(2))
    assert isinstance(found, onefold.StillUnknown)


def test_each_setup_has_its_policy() -> None:
    setups: dict[Setup, str] = {"keys": "rerun", "probe": "probe", "hold": "hold"}
    shops = {setup: shop(setup, "sqlite://:memory:", Courier(1)) for setup in setups}
    assert {setup: fulfil_job(app).policy.on_unknown for setup, app in shops.items()} == setups
