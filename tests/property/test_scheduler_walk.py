"""Two schedulers, restarts, kills and a clock that is set at will: in the end each planned time was sent exactly once.

With `missed="all"` nothing may be passed over, so what was sent is compared with every minute that a plain loop finds due.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run.ticking import HOUR_MS, MINUTE_MS, Place, at, clock_at, places

START = "2026-03-28T22:00:30"
EVERY_MINUTES = 7
MOVES = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 90 * MINUTE_MS)),
    st.tuples(st.just("set"), st.integers(-5 * HOUR_MS, 5 * HOUR_MS)),
    st.tuples(st.just("turn"), st.integers(0, 1)),
    st.tuples(st.just("restart"), st.integers(0, 1)),
)


def planned(start_ms: int, until_ms: int) -> list[str]:
    """Every seventh minute of each hour, found by asking each minute."""
    minutes = range(start_ms // MINUTE_MS + 1, until_ms // MINUTE_MS + 1)
    due = [minute * 60 for minute in minutes if minute % 60 % EVERY_MINUTES == 0]
    return [f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%SZ}" for second in due]


@settings(max_examples=60, deadline=None)
@given(st.lists(MOVES, max_size=25))
def test_each_planned_time_is_sent_exactly_once(moves: list[tuple[str, int]]) -> None:
    expression = f"cron(0/{EVERY_MINUTES} * * * ? *)"
    with tempfile.TemporaryDirectory() as folder:
        clock = clock_at(START)
        two = [Place(Path(folder) / "shop.db", clock, expression, missed="all", missed_max=1_000) for _ in range(2)]
        with places(*two):
            earliest_ms = latest_ms = clock.now_ms()
            for one in two:
                one.step()
            for what, how in moves:
                if what == "pass":
                    clock.advance(how)
                elif what == "set":
                    clock.jump(how)
                elif what == "restart":
                    two[how].again()
                two[how % 2].step()
                earliest_ms, latest_ms = min(earliest_ms, clock.now_ms()), max(latest_ms, clock.now_ms())
            clock.advance(max(latest_ms - clock.now_ms(), 0) + HOUR_MS)
            for one in two:
                one.step()
            sent = Counter(two[0].ticks())
            assert set(sent.values()) <= {1}
            expected = planned(at(START), clock.now_ms())
            assert sorted(tick for tick in sent if at(tick.removesuffix("Z")) > at(START)) == expected
            # Before the schedule was first seen there is nothing to send, unless that clock was wrong.
            early = {tick for tick in sent if at(tick.removesuffix("Z")) <= at(START)}
            assert early <= set(planned(earliest_ms, at(START)))
