"""Machines that share a record server need not agree on the time: leases are compared by the server's clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.clock import SystemClock
from onefold.engines.urls import open_engine
from onefold.entropy import SystemEntropy
from tests.stores.test_looking_at_records import PLACES

pytestmark = pytest.mark.slow
HOUR_MS = 3_600_000
SERVERS = [name for name in PLACES if name in ("redis", "postgres")]


class SetClock(SystemClock):
    """The machine's clock after somebody has set it."""

    def __init__(self, by_ms: int = 0) -> None:
        self.by_ms = by_ms

    def now_ms(self) -> int:
        """Wall time, off by the step."""
        return super().now_ms() + self.by_ms


def test_both_servers_are_tried() -> None:
    assert len(SERVERS) == 2


@pytest.mark.parametrize("where", SERVERS)
@pytest.mark.parametrize(("first_ms", "second_ms"), [(0, HOUR_MS), (-HOUR_MS, 0)])
@pytest.mark.parametrize("is_set_meanwhile", [False, True])
def test_a_clock_that_is_ahead_takes_no_call_over(
    where: str, first_ms: int, second_ms: int, is_set_meanwhile: bool
) -> None:
    begun, end = threading.Event(), threading.Event()
    ran: list[str] = []

    def charge(order: str) -> str:
        ran.append(order)
        begun.set()
        assert end.wait(60)
        return "charged"

    with PLACES[where]() as place:
        clocks = SetClock(first_ms), SetClock(second_ms)
        engines: list[Any] = [
            open_engine(place.url, clock=clock, entropy=SystemEntropy(), owner="host", records_alone=True)
            for clock in clocks
        ]
        first, second = (
            onefold.once(key="{order}", name="charge", store=engine.store, on_running="raise", lease="60s")(charge)
            for engine in engines
        )
        thread = threading.Thread(target=first, args=("o-1",))
        thread.start()
        assert begun.wait(60)
        if is_set_meanwhile:
            for clock in clocks:
                clock.by_ms += HOUR_MS
        with pytest.raises(errors.TransientError, match="charge 'o-1' "):
            second("o-1")
        end.set()
        thread.join(60)
        assert second("o-1") == "charged"
        assert ran == ["o-1"]
        for engine in engines:
            engine.close()
