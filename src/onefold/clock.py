"""The only module that reads a clock or sleeps: two readings, one wait, and wall time without steps.

A `Clock` returns wall time (`now_ms`, for values that others read: records, messages, logs) and monotonic time
(`monotonic_ms`, for values that stay in this process: deadlines, rates), and it performs every wait. `SystemClock` is
the real one; the `ManualClock` of `manual_clock.py` does not move until a test or an inline run moves it.

`SteadyClock` is for leases, visibility and everything else that measures how long something lasts. A machine's clock
can be set: by hand, by NTP at boot, when a laptop or a virtual machine wakes up. Times that were stored before are then
wrong by the step. This clock detects a step by comparing with monotonic time, continues as if there had been none, and
then returns to the machine's time:

    set forward by J    it stays J behind for `HOLD_MS`, in which running processes extend their leases to the new time
                        (`until_ms`); then it follows. A lease that has ended by then has ended by both clocks.
    set back by J       it stays ahead and runs slower until the machine's time has caught up: messages that were sent
                        before stay visible, and durations take longer: up to twice as long, or by 1/15 if the processes
                        share the time by a file (`heals_in`).

If records are on a server that several machines share (Redis, PostgreSQL), the server's clock replaces the machine's
wall clock (`ServerTime`): leases are then compared on one clock, whatever the machines' own clocks say.

Schedules and `run_at` mean wall time, never a steady clock's; a delay is counted by this one. Private: may change with
any release. Invariant: `SteadyClock.now_ms` goes back by less than twice `STEP_MS`, unless it takes over the time of
processes that noticed an earlier step back before it did.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from onefold import errors, forks
from onefold.interrupts import let_through

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onefold.outside import Clock, Waiter


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Monotonic time in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def wait(self, waiter: Waiter, timeout_ms: float) -> bool:
        """Wait on `waiter` for at most `timeout_ms` milliseconds of real time."""
        return waiter.wait(max(timeout_ms, 0) / 1000)


class Never:
    """A waiter that is never woken, so that a wait on it is a pause.

    It is a lock that stays locked. An event is not used, because its own lock could stay taken if a signal handler
    raises, or in a fork while another thread waits.
    """

    def __init__(self) -> None:
        self._locked = threading.Lock()
        self._locked.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the whole time."""
        return self._locked.acquire(timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX))


STEP_MS: Final = 1_000  # smaller differences are followed at once, as NTP slews the clock by them
HOLD_MS: Final = 120_000  # in this time working processes extend their leases, however long these are
_HEALS_IN: Final = 2  # soon, since it may differ from that of other hosts until then
_LOOK_MS: Final = 1_000  # the two clocks are compared at least this often
_DRIFT_SHARE: Final = 1_000  # clocks drift by less than a thousandth,
_DRIFT_MS_MAX: Final = 5_000  # and by less than this in all, since kernels adjust both in the same way
_JUMPS_MAX: Final = 16  # if there are more, the oldest ones count together
_ASK_AGAIN_MS: Final = 60_000  # in this time two clocks drift apart by less than 60 ms
_ASK_AGAIN_FAILED_MS: Final = 1_000
_ANSWER_MS_MAX: Final = 2_000  # an answer that took longer can be wrong by half of the time it took


class Offset(NamedTuple):
    """The difference between a steady clock and the wall clock at a moment.

    Args:
        by_ms: how far ahead of the wall clock; negative: behind. at_ms: when, by the machine's monotonic clock.
    """

    by_ms: int
    at_ms: int


class ServerTime:
    """A server's wall time, continued between its answers by this machine's monotonic clock.

    It has no lock: if two threads ask at the same time, either answer is used.

    Args:
        clock: the machine's.
        ask: returns the server's wall time in milliseconds since the epoch; if it raises OnefoldError, it is called
            again later.
    """

    def __init__(self, clock: Clock, ask: Callable[[], int]) -> None:
        self._clock = clock
        self._ask = ask
        self._base_ms: int | None = None  # the server's time at monotonic zero
        self._seen = (0, 0)  # wall and monotonic time at the last answer
        self._due_ms = clock.monotonic_ms()

    def now_ms(self) -> int:
        """The server's time; the machine's own until the server has answered once."""
        if self._base_ms is None:
            self.refresh()
        return self._clock.now_ms() if self._base_ms is None else self._base_ms + self._clock.monotonic_ms()

    def refresh(self) -> None:
        """Ask the server if its last answer is a minute old, or if this machine's clock was set or suspended since."""
        before_ms = self._clock.monotonic_ms()
        wall_ms, seen_ms = self._seen
        beside_ms = self._clock.now_ms() - wall_ms - (before_ms - seen_ms)
        if before_ms < self._due_ms and (self._base_ms is None or not is_step(beside_ms, before_ms - seen_ms)):
            return
        self._due_ms = before_ms + _ASK_AGAIN_FAILED_MS
        try:
            server_ms = self._ask()
        except errors.OnefoldError as error:
            let_through(error)
            return  # code that needs the server gets the error from its own call
        after_ms = self._clock.monotonic_ms()
        if self._base_ms is None or after_ms - before_ms <= _ANSWER_MS_MAX:
            self._base_ms = server_ms - (before_ms + after_ms) // 2
            self._seen = (self._clock.now_ms(), after_ms)
            self._due_ms = after_ms + _ASK_AGAIN_MS


class Jump(NamedTuple):
    """A step of the wall clock.

    Args:
        by_ms: how far it was set forward. at_ms: what it showed right after.
    """

    by_ms: int
    at_ms: int

    @property
    def before_ms(self) -> int:
        """What has an earlier time is from before the step.

        A time between this one and `at_ms` is not: the clock did not show it then, unless it had been set back before.
        """
        return self.at_ms - self.by_ms + HOLD_MS  # this long after a step, a `SteadyClock` goes on as before


class Jumps:
    """How a wall clock was set forward. What is kept for a time is kept for so much longer if it is from before.

    So nothing expires because a machine starts with an old clock, or because a wrong answer sets its clock to a later
    year for a while; what is kept while a machine sleeps is kept longer too.

    Attributes:
        noted: the jumps, the first one first; replaced as a whole, so that any thread can read it.
    """

    def __init__(self) -> None:
        self.noted: tuple[Jump, ...] = ()

    def note(self, step_ms: int, wall_ms: int) -> None:
        """Note a step of the wall clock, which shows `wall_ms` now; a step back undoes jumps."""
        found = list(self.noted)
        if step_ms >= STEP_MS:
            found.append(Jump(step_ms, wall_ms))
            if len(found) > _JUMPS_MAX:
                found[:2] = [Jump(found[0].by_ms + found[1].by_ms, found[0].by_ms + found[1].at_ms)]
        left_ms = -step_ms
        while found and left_ms > 0:
            last = found.pop()
            if last.by_ms - left_ms >= STEP_MS:
                found.append(Jump(last.by_ms - left_ms, last.at_ms - left_ms))
            left_ms -= last.by_ms
        self.noted = tuple(found)

    def expired_at_ms(self, now_ms: int, kept_ms: int) -> int:
        """The instant of which holds: what is kept for `kept_ms` and is from then or before has expired."""
        at_ms = now_ms - kept_ms
        for jump in reversed(self.noted):
            if at_ms >= jump.before_ms + jump.by_ms:
                break
            at_ms -= jump.by_ms
        return at_ms

    def over_ms(self, since_ms: int, until_ms: int, now_ms: int) -> int:
        """By how much a wait from `since_ms` to `until_ms` was cut short: the steady clock jumped between it and now."""
        over_ms = 0
        for jump in self.noted:
            if since_ms < jump.before_ms < until_ms + over_ms and jump.before_ms <= now_ms:
                over_ms += jump.by_ms
        return over_ms

    def longer_ms(self, since_ms: int) -> int:
        """How much longer something is kept that is from `since_ms`."""
        return sum(jump.by_ms for jump in self.noted if since_ms < jump.before_ms)


NO_JUMPS: Final = Jumps()


class SteadyClock:
    """A `Clock` whose `now_ms` has no steps; safe to share between threads.

    Args:
        clock: a clock whose wall time can be set.

    Attributes:
        wall: that clock.
        steps: by how many ms it was set, one entry for each detected step. jumps: what of that concerns expiry.
        behind_ms: how far this clock is behind a wall clock that was set forward; mostly 0.
        undo_ms: by how much jumps are undone as soon as this clock is no longer ahead of a wall clock that was set back.
        heals_in: how many times the length of a step back it takes until the machine's time has caught up.
    """

    def __init__(self, clock: Clock) -> None:
        self.wall = clock
        self.monotonic_ms: Callable[[], int] = clock.monotonic_ms
        self._wall_ms = clock.now_ms
        self._lock = threading.Lock()
        self._server: ServerTime | None = None
        self._seen_wall_ms, self._seen_ms = clock.now_ms(), clock.monotonic_ms()
        self.behind_ms: int = 0
        self._hold_until_ms = 0
        self._ahead = Offset(0, 0)
        self._beside = False  # whether it differs from the wall clock
        self._last_ms = 0  # the last answer while it differs
        self.undo_ms: int = 0
        self.heals_in: int = _HEALS_IN
        self.steps: list[int] = []
        self.jumps: Jumps = Jumps()
        forks.in_child(self._start_anew)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as if the wall clock had not been set."""
        wall_ms = self._wall_ms()
        if 0 <= wall_ms - self._seen_wall_ms < _LOOK_MS and not self._beside:
            return wall_ms
        with self._lock:
            return self._compare()

    def follow(self, ask: Callable[[], int]) -> None:
        """Use a server's clock from now on; it is asked at the next `now_ms`.

        Args:
            ask: see `ServerTime`.
        """
        with self._lock:
            self._server = ServerTime(self.wall, ask)
            self._wall_ms = self._server.now_ms
            self._seen_wall_ms, self._seen_ms = 1 << 62, -1  # this clock has not been read yet

    def fresh_ms(self) -> int:
        """`now_ms` for the start of a lease: if a server's clock is used, it has been asked within the last minute."""
        if self._server is not None:
            self._server.refresh()
        return self.now_ms()

    @property
    def offset(self) -> Offset:
        """The difference from the wall clock: now, or since the wall clock was set forward."""
        with self._lock:
            self._compare()
            now_ms = self.monotonic_ms()
            if self.behind_ms:
                return Offset(-self.behind_ms, self._hold_until_ms - HOLD_MS)
            return Offset(self._ahead_ms(now_ms), now_ms)

    def expired_at_ms(self, kept_ms: int) -> int:
        """The instant of which holds: what is kept for `kept_ms` and has an earlier time, by either clock, has expired."""
        now_ms = self.now_ms()
        return self.jumps.expired_at_ms(now_ms if self.undo_ms else min(now_ms, self._wall_ms()), kept_ms)

    def ahead_ms(self) -> int:
        """How far this clock is ahead of a wall clock that was set back; negative: how far it is behind. Mostly 0."""
        return self.offset.by_ms if self._beside else 0

    def adopt(self, offset: Offset, jumps: Sequence[Jump] = (), undo_ms: int = 0, step_ms: int = 0) -> None:
        """Continue from the time of the other processes on this machine, whatever this clock has seen itself.

        Args:
            offset, jumps, undo_ms: theirs, at the instant of `offset`.
            step_ms: by how much the wall clock was set forward since then.
        """
        with self._lock:
            self._compare()
            now_ms = self.monotonic_ms()
            since_ms = max(now_ms - offset.at_ms, 0)
            self._ahead, self._last_ms = Offset(max(offset.by_ms - since_ms // self.heals_in, 0), now_ms), 0
            self._hold_until_ms = now_ms + HOLD_MS - since_ms
            self.behind_ms = max(-offset.by_ms, 0) if since_ms < HOLD_MS else 0
            self._beside = bool(self._ahead.by_ms or self.behind_ms)
            self.jumps.noted = tuple(jumps)
            self._undo(undo_ms)
            if step_ms:
                self._step(step_ms, now_ms)

    def _undo(self, undo_ms: int) -> None:
        """Undo jumps by so much, or remember to do it when this clock is no longer ahead."""
        self.undo_ms = undo_ms if self._ahead_ms(self.monotonic_ms()) else 0
        self.jumps.note(self.undo_ms - undo_ms, self._wall_ms())

    def count_steps(self) -> int:
        """How many steps have been detected so far."""
        self.now_ms()
        return len(self.steps)

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        """Wait as the underlying clock does."""
        return self.wall.wait(waiter, timeout_ms)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it

    def _compare(self) -> int:
        wall_ms, now_ms = self._wall_ms(), self.monotonic_ms()
        passed_ms = now_ms - self._seen_ms
        step_ms = wall_ms - self._seen_wall_ms - passed_ms if self._seen_ms >= 0 else 0
        self._seen_wall_ms, self._seen_ms = wall_ms, now_ms
        if self.behind_ms and now_ms >= self._hold_until_ms:  # before a step that was seen only now
            self.behind_ms = 0
            self._beside = bool(self._ahead.by_ms)
        if is_step(step_ms, passed_ms):
            self.steps.append(step_ms)
            self._step(step_ms, now_ms)
        if not self._beside:
            return wall_ms
        ahead_ms = self._ahead_ms(now_ms)
        self._beside = bool(self.behind_ms or ahead_ms)
        if self.undo_ms and not ahead_ms:
            self._undo(self.undo_ms)
        self._last_ms = max(self._last_ms, wall_ms - self.behind_ms + ahead_ms)
        return self._last_ms

    def _step(self, step_ms: int, now_ms: int) -> None:
        was_ahead_ms = self._ahead_ms(now_ms)
        beside_ms = was_ahead_ms - self.behind_ms - step_ms
        if step_ms > 0:  # by as much as it had been set back, this clock went on as before
            self.jumps.note(-self.behind_ms, self._wall_ms())  # what it has not followed yet is one jump with this step
            self.jumps.note(max(-beside_ms, 0), self._wall_ms())
            self.undo_ms = max(self.undo_ms - step_ms, 0) if beside_ms > 0 else 0
        else:  # what this clock has not followed is undone now, the rest when it is no longer ahead
            self.jumps.note(-min(-step_ms, self.behind_ms), self._wall_ms())
            noted_ms = sum(jump.by_ms for jump in self.jumps.noted)
            self.undo_ms = min(self.undo_ms + max(-step_ms - self.behind_ms, 0), noted_ms)
        self._last_ms = 0
        self._ahead = Offset(max(beside_ms, 0), now_ms)
        if beside_ms < -self.behind_ms:  # even for a second step: a lease ends by the offset at which it was extended
            self._hold_until_ms = now_ms + HOLD_MS
        self.behind_ms = max(-beside_ms, 0)
        self._beside = beside_ms != 0

    def _ahead_ms(self, now_ms: int) -> int:
        return max(self._ahead.by_ms - (now_ms - self._ahead.at_ms) // self.heals_in, 0)


def is_step(step_ms: int, passed_ms: int) -> bool:
    """Whether `step_ms` between wall and monotonic clock, after `passed_ms`, is more than drift can explain."""
    return abs(step_ms) >= max(STEP_MS, min(passed_ms // _DRIFT_SHARE, _DRIFT_MS_MAX))


def lease_from_ms(clock: Clock) -> int:
    """The present time, for beginning or extending a lease."""
    return clock.fresh_ms() if type(clock) is SteadyClock else clock.now_ms()


def until_ms(clock: Clock, now_ms: int, for_ms: int) -> int:
    """When a lease of `for_ms` from `now_ms` (just read from `clock`) ends, by what the clock will show then."""
    return now_ms + for_ms + clock.behind_ms if type(clock) is SteadyClock else now_ms + for_ms


def expired_at_ms(clock: Clock, kept_ms: int) -> int:
    """The instant of which holds: what is kept for `kept_ms` and has an earlier time has expired; see `SteadyClock`."""
    return clock.expired_at_ms(kept_ms) if isinstance(clock, SteadyClock) else clock.now_ms() - kept_ms


def wall_ms(clock: Clock) -> int:
    """The wall time of a clock that may be steady."""
    return clock.wall.now_ms() if isinstance(clock, SteadyClock) else clock.now_ms()


def age_ms(clock: Clock, since_ms: int) -> int:
    """How old something is that has the time `since_ms` of this clock, whatever the wall clock was set to since."""
    longer_ms = clock.jumps.longer_ms(since_ms) if isinstance(clock, SteadyClock) else 0
    return clock.now_ms() - since_ms - longer_ms


def steady(clock: Clock) -> SteadyClock:
    """A steady clock over `clock`, or `clock` itself if it is one."""
    return clock if isinstance(clock, SteadyClock) else SteadyClock(clock)
