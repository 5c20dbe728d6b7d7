"""The clock without steps: what a step forward, a step back, drift and another process's word do to it."""

from __future__ import annotations

import pytest

from onefold import errors
from onefold.clock import HOLD_MS, Offset, SteadyClock, lease_from_ms, steady, until_ms
from onefold.manual_clock import ManualClock
from onefold.testing.records import LEASE_MS, NOW

HOUR_MS = 3_600_000


def test_it_is_the_wall_as_long_as_nobody_sets_it() -> None:
    wall = ManualClock(NOW)
    clock = SteadyClock(wall)
    for by_ms in (0, 1, 999, 1_000, 5_000, HOUR_MS, 24 * HOUR_MS):
        wall.advance(by_ms)
        assert clock.now_ms() == wall.now_ms()
        assert until_ms(clock, clock.now_ms(), 5) == until_ms(wall, wall.now_ms(), 5) == wall.now_ms() + 5
    wall.jump(300)  # NTP corrects by so little
    wall.jump(-600)
    assert clock.now_ms() == wall.now_ms()
    wall.advance(24 * HOUR_MS)
    wall.jump(4_999)  # a day's drift; the kernel steers both clocks alike, so it is mostly nothing
    assert clock.now_ms() == wall.now_ms()
    assert clock.steps == []
    assert steady(clock) is clock


@pytest.mark.parametrize("by_ms", [65_000, -65_000, 5_000])
@pytest.mark.parametrize("idle_ms", [20 * HOUR_MS, 60 * 24 * HOUR_MS])
def test_a_process_that_was_idle_for_long_notices_a_step_all_the_same(idle_ms: int, by_ms: int) -> None:
    """A web process after a quiet night must not take what another began before the step for over."""
    wall = ManualClock(NOW)
    clock = SteadyClock(wall)
    assert clock.now_ms() == NOW
    wall.advance(idle_ms)
    wall.jump(by_ms)
    assert clock.now_ms() == NOW + idle_ms
    assert clock.steps == [by_ms]


def test_set_forward_it_waits_for_those_at_work_and_then_follows() -> None:
    wall = ManualClock(NOW)
    clock = SteadyClock(wall)
    wall.jump(HOUR_MS)
    assert clock.now_ms() == NOW
    assert clock.behind_ms == HOUR_MS
    assert (
        until_ms(clock, clock.now_ms(), LEASE_MS) == NOW + HOUR_MS + LEASE_MS
    )  # a lease of now holds when it has followed
    wall.advance(HOLD_MS - 1)
    assert clock.now_ms() == NOW + HOLD_MS - 1
    wall.advance(1)
    assert clock.now_ms() == wall.now_ms() == NOW + HOUR_MS + HOLD_MS
    assert clock.behind_ms == 0
    assert until_ms(clock, clock.now_ms(), LEASE_MS) == wall.now_ms() + LEASE_MS
    assert clock.steps == [HOUR_MS]


def test_a_second_step_forward_is_waited_for_as_the_first_was() -> None:
    wall = ManualClock(NOW)
    clock = SteadyClock(wall)
    wall.jump(HOUR_MS)
    clock.now_ms()
    wall.advance(HOLD_MS - 1_000)
    assert clock.now_ms() == NOW + HOLD_MS - 1_000
    wall.jump(HOUR_MS)
    assert clock.now_ms() == NOW + HOLD_MS - 1_000
    wall.advance(HOLD_MS - 1)
    assert clock.now_ms() == NOW + 2 * HOLD_MS - 1_001
    wall.advance(1)
    assert clock.now_ms() == wall.now_ms()


def test_set_back_it_goes_on_and_is_back_after_twice_the_step() -> None:
    wall = ManualClock(NOW)
    clock = SteadyClock(wall)
    wall.jump(-HOUR_MS)
    seen = [clock.now_ms()]
    assert seen == [NOW]
    for _ in range(24):
        wall.advance(HOUR_MS // 12)
        seen.append(clock.now_ms())
    assert seen[12] == NOW + HOUR_MS // 2
    assert seen[24] == wall.now_ms()
    assert seen == sorted(seen)
    assert clock.steps == [-HOUR_MS]


def test_a_step_that_is_taken_back_leaves_nothing() -> None:
    for by_ms in (HOUR_MS, -HOUR_MS):
        wall = ManualClock(NOW)
        clock = SteadyClock(wall)
        wall.jump(by_ms)
        assert clock.now_ms() == NOW
        wall.jump(-by_ms)
        assert clock.now_ms() == NOW
        wall.advance(5)
        assert clock.now_ms() == NOW + 5
        assert clock.behind_ms == 0
        assert clock.steps == [by_ms, -by_ms]


def test_a_process_that_comes_later_goes_by_the_time_of_the_others() -> None:
    wall = ManualClock(NOW)
    first = SteadyClock(wall)
    for by_ms in (HOUR_MS, -HOUR_MS):
        wall.jump(by_ms)
        first.now_ms()
        noted = first.offset
        wall.advance(10_000)
        later = SteadyClock(wall)
        later.adopt(noted)
        assert later.now_ms() == first.now_ms()
        assert later.behind_ms == first.behind_ms
        wall.advance(HOLD_MS + 2 * HOUR_MS)
        assert later.now_ms() == first.now_ms() == wall.now_ms()
    after = SteadyClock(wall)
    after.adopt(Offset(-HOUR_MS, wall.monotonic_ms() - HOLD_MS))  # long ago
    assert after.now_ms() == wall.now_ms()


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_second_step_is_from_the_time_that_all_have_followed(by_ms: int) -> None:
    """One looks when the hold ends, the other one only after the next step."""
    wall = ManualClock(NOW)
    clocks = [SteadyClock(wall), SteadyClock(wall)]
    wall.jump(70_000)
    assert [clock.now_ms() for clock in clocks] == [NOW, NOW]
    wall.advance(HOLD_MS)
    assert clocks[0].now_ms() == wall.now_ms()
    wall.jump(by_ms)
    assert [clock.now_ms() for clock in clocks] == [NOW + 70_000 + HOLD_MS] * 2
    assert clocks[0].offset == clocks[1].offset


def test_the_offset_of_a_clock_that_is_behind_is_from_when_it_was_set() -> None:
    wall = ManualClock(NOW)
    clock = SteadyClock(wall)
    wall.jump(HOUR_MS)
    clock.now_ms()
    for _ in range(3):  # from one to the next
        wall.advance(30_000)
        clock, before = SteadyClock(wall), clock
        clock.adopt(before.offset)
        assert clock.behind_ms == HOUR_MS
    wall.advance(30_000)
    assert clock.now_ms() == wall.now_ms()


class Server:
    """A server's clock, which another machine keeps."""

    def __init__(self, wall: ManualClock, by_ms: int) -> None:
        self.wall = wall
        self.true_ms = NOW + by_ms - wall.monotonic_ms()
        self.asked = 0
        self.is_down = False

    def now_ms(self) -> int:
        self.asked += 1
        if self.is_down:
            raise errors.TransientError("The server does not answer.")
        return self.true_ms + self.wall.monotonic_ms()


def test_a_server_that_is_followed_is_asked_once_a_minute_and_its_time_counts() -> None:
    wall = ManualClock(NOW)
    clock, server = SteadyClock(wall), Server(wall, HOUR_MS)
    assert clock.now_ms() == NOW
    clock.follow(server.now_ms)
    assert clock.fresh_ms() == clock.now_ms() == lease_from_ms(clock) == NOW + HOUR_MS
    wall.jump(-12 * HOUR_MS)  # somebody sets this machine's clock: the server is asked, and nothing moves
    assert clock.now_ms() == clock.fresh_ms() == NOW + HOUR_MS
    assert server.asked == 2
    wall.advance(59_999)
    assert clock.fresh_ms() == NOW + HOUR_MS + 59_999
    assert server.asked == 2
    server.true_ms += 30  # drift
    wall.advance(1)
    assert clock.now_ms() == NOW + HOUR_MS + 60_000  # not asked by a look
    assert clock.fresh_ms() == NOW + HOUR_MS + 60_030
    assert (server.asked, clock.steps, clock.behind_ms) == (3, [], 0)


def test_a_server_whose_clock_is_set_is_followed_like_a_machine_whose_clock_is_set() -> None:
    wall = ManualClock(NOW)
    clock, server = SteadyClock(wall), Server(wall, 0)
    clock.follow(server.now_ms)
    assert clock.fresh_ms() == NOW
    server.true_ms += HOUR_MS
    wall.advance(60_000)
    assert clock.fresh_ms() == NOW + 60_000
    assert (clock.steps, clock.behind_ms) == ([HOUR_MS], HOUR_MS)


def test_a_machine_that_stood_still_asks_before_it_begins_a_lease() -> None:
    """Its monotonic clock stood still, too, as in a suspended laptop or a paused virtual machine."""
    wall = ManualClock(NOW)
    clock, server = SteadyClock(wall), Server(wall, 0)
    clock.follow(server.now_ms)
    assert clock.fresh_ms() == NOW
    wall.jump(HOUR_MS)
    server.true_ms += HOUR_MS
    clock.fresh_ms()
    assert server.asked == 2


def test_while_the_server_does_not_answer_its_last_word_counts() -> None:
    wall = ManualClock(NOW)
    clock, server = SteadyClock(wall), Server(wall, 500)
    server.is_down = True
    clock.follow(server.now_ms)
    assert clock.fresh_ms() == clock.now_ms() == NOW
    assert server.asked == 1
    server.is_down = False
    wall.advance(1_000)
    assert clock.fresh_ms() == NOW + 1_500
    server.is_down = True
    wall.advance(120_000)
    assert [clock.fresh_ms(), clock.fresh_ms()] == [NOW + 121_500] * 2
    assert server.asked == 3
