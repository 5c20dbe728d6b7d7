"""What is sent, and what is counted of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

import onefold
from onefold.contracts.ledger import Row
from onefold.contracts.store import RecordKey
from onefold.demo import outcome
from onefold.demo.data import read_invoices
from onefold.demo.drill import CHUNK, DOSE, RESERVE_SHARE, Sending, stream
from onefold.demo.fulfilment import QUEUE, Courier, fulfil_job, shop
from onefold.entropy import SeededEntropy


def row(event: str, key: str | None = None, **detail: str | int) -> Row:
    return Row(at_ms=1, event=event, key=RecordKey("", "fulfil", key) if key else None, detail=detail)


def test_each_delivery_is_counted_once() -> None:
    found = outcome.count_deliveries(
        [
            row("takeover", "2"),
            row("unknown", "2"),
            row("held", "2"),
            row("completed", "1"),
            row("duplicate", "1"),
            row("running-elsewhere", "3"),
            row("retry", "3"),
            row("takeover", "3"),
            row("probe", "3"),
            row("completed", "3"),
            row("conflict", "1"),
            row("dead-letter", "4"),
            row("lease-lost", "5"),
            row("owner-dead", owner="a", messages=7),
            row("worker-draining", running=2, given_back=4),
            row("worker-started"),
            row("settled", "2"),
        ]
    )
    assert found == outcome.HistoryCounts(
        deliveries=9 + 7 + 4, duplicates=1, waited=1, takeovers=2, retries=1, lost=1, taken_over="3"
    )


def test_every_row_is_sent_once_and_about_a_tenth_again_with_the_same_payload() -> None:
    sent = stream(read_invoices(count_max=5_000), SeededEntropy(3))
    assert set(sent) == set(stream(read_invoices(count_max=5_000), SeededEntropy(4)))
    copies = Counter(Counter(sent).values())
    assert copies.keys() == {1, 2}
    assert 400 < copies[2] < 600
    assert sent == stream(read_invoices(count_max=5_000), SeededEntropy(3))


def test_the_copies_come_close_behind_or_much_later() -> None:
    sent = stream(read_invoices(count_max=5_000), SeededEntropy(3))
    first: dict[object, int] = {}
    behind = [place - first[one] for place, one in enumerate(sent) if first.setdefault(one, place) != place]
    close = sum(distance < 100 for distance in behind)
    assert 0.4 < close / len(behind) < 0.7
    assert max(behind) > 1_000


def test_sending_accepts_chunks_and_then_the_reserve_by_doses() -> None:
    app = shop("keys", "sqlite://:memory:", Courier(1))
    invoices = stream(read_invoices(count_max=CHUNK + 500), SeededEntropy(1))
    sending = Sending(fulfil_job(app), invoices)
    first = len(invoices) - round(len(invoices) * RESERVE_SHARE)
    for allowed in [*range(first, len(invoices), DOSE), len(invoices)]:
        until(partial(_has_sent, sending, allowed))
        assert sending.done == (allowed == len(invoices))
        sending.allow_more(DOSE)
    sending._thread.join()
    assert app.runtime().engine.queues.depth(QUEUE).visible == len(invoices)
    app.close()


def test_sending_that_waits_with_its_reserve_can_be_closed() -> None:
    app = shop("keys", "sqlite://:memory:", Courier(1))
    sending = Sending(fulfil_job(app), stream(read_invoices(count_max=100), SeededEntropy(1)))
    until(lambda: sending.sent > 0)
    sending.close()
    assert not sending.done
    app.close()


def _has_sent(sending: Sending, count: int) -> bool:
    return sending.sent == count


def until(came: Callable[[], bool]) -> None:
    """Wait for a thread; a test that hangs is ended by pytest's own timeout."""
    while not came():
        threading.Event().wait(0.001)


def test_what_stopped_the_sending_is_raised_to_who_asks() -> None:
    app = shop("keys", "sqlite://:memory:", Courier(1))
    app.runtime().engine.queues.drop(QUEUE)
    sending = Sending(fulfil_job(app), stream(read_invoices(count_max=5), SeededEntropy(1)))
    sending._thread.join()
    with pytest.raises(onefold.errors.NotFoundError):
        assert sending.done
    app.close()
