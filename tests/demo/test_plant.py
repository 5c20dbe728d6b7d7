"""The fault that can be built in is the one it says: no lease, no fence, no doubt; what was completed is still known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

import onefold
from onefold.contracts.commit import Settlement
from onefold.contracts.queue import Ack
from onefold.contracts.store import Ask, Claimed, Complete, Completed, RecordKey
from onefold.demo import worker
from onefold.demo.fulfilment import Booked, Courier, Invoice, PartnerAnswer, shop
from onefold.runner.settlement import Backend, backend_of

KEY = RecordKey("", "fulfil", "1")
NOW_MS = 1_700_000_000_000
DONE = Complete(result=b"null", expires_at_ms=NOW_MS + 10**10)


@pytest.fixture
def backend() -> Iterator[Backend]:
    with closing(shop("probe", "sqlite://:memory:", Courier(1))) as app:
        yield worker.without_fence(backend_of(app.runtime().engine))


def claim(backend: Backend, owner: str, now_ms: int = NOW_MS) -> object:
    ask = Ask(
        key=KEY,
        fingerprint="f",
        owner=owner,
        lease_until_ms=now_ms + 30_000,
        start=True,
        expires_at_ms=now_ms + 10**10,
    )
    return backend.store.claim([ask], now_ms)[0]


def test_a_second_worker_gets_what_is_under_way_and_is_told_of_no_doubt(backend: Backend) -> None:
    first, second = claim(backend, "a"), claim(backend, "b", NOW_MS + 10)
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert (second.started, second.doubt) == (True, False)
    assert second.hold.fence == first.hold.fence + 1


def test_the_first_one_is_believed_although_it_was_taken_over(backend: Backend) -> None:
    first = claim(backend, "a")
    claim(backend, "b", NOW_MS + 10)
    assert isinstance(first, Claimed)
    assert backend.store.renew([first.hold], NOW_MS + 60_000) == [True]
    assert backend.store.write([(first.hold, DONE)], NOW_MS + 20) == [True]


def test_what_was_completed_is_known_and_who_comes_late_is_settled_all_the_same(backend: Backend) -> None:
    first, second = claim(backend, "a"), claim(backend, "b", NOW_MS + 10)
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert backend.commit is not None
    settlements = [
        Settlement(write=(one.hold, DONE), queue=None, receipt=None, settle=Ack()) for one in (first, second)
    ]
    assert [backend.commit.commit([one], NOW_MS + 20)[0].written for one in settlements] == [True, True]
    assert isinstance(claim(backend, "c", NOW_MS + 30), Completed)


class Books(Courier):
    """A courier whose partner tells what it is given, and must not be asked to fence."""

    def __init__(self, *bookings: str) -> None:
        super().__init__(port=1)
        self.bookings = bookings

    def look(self, reference: str) -> PartnerAnswer:
        return PartnerAnswer(status=200, bookings=self.bookings)


def test_the_probe_only_looks() -> None:
    invoice = Invoice(number="1", invoice_date="", customer=None, country="", quantity=1, unit_price="1")
    nothing = partial(worker.only_looking, Books())
    assert nothing(invoice, None) == onefold.NotDone()  # type: ignore[arg-type]  # it does not even use its context
    something = partial(worker.only_looking, Books("B000001"))
    assert something(invoice, None) == onefold.Done(Booked("B000001"))  # type: ignore[arg-type]
