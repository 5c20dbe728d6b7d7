"""The time that the processes on one file share when the machine's clock is set.

Each process detects a step of the clock itself (`clock.py`). A process that opens the file later learns of it from a
row (`onefold_state`, name `onefold/clock`) that has the wall time at a monotonic instant: both clocks advance together,
so any other wall time now means a step, even if no process has noticed it yet. After a boot monotonic time
starts anew: the row then only says how far the shared time was ahead; and if the modification time of the file is later
than now, the clock was set back.
Never here: the arithmetic of a step. Invariants: the monotonic instant in a row of another boot is never used; a row is
replaced only by a process that continues from the time in it.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

import msgspec

from onefold import limits
from onefold.clock import HOLD_MS, STEP_MS, Jump, Jumps, Offset, SteadyClock, SystemClock, is_step
from onefold.interrupts import ignored

_NAME: Final = "onefold/clock"
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
# A file whose time is further ahead was touched by hand or copied from elsewhere; no message must expire because of
# that. A row has no such limit: it counts only within its own boot, and processes that do not agree on it would end
# each other's leases.
_AHEAD_MS_MAX: Final = limits.DAY_MS
_READ: Final = "SELECT value FROM onefold_state WHERE name = ? AND value IS NOT NULL"
_WRITE: Final = """
INSERT INTO onefold_state (name, version, value) VALUES (?, 1, ?)
ON CONFLICT (name) DO UPDATE SET version = version + 1, value = excluded.value
"""

HEALS_IN: Final = 16  # so that rates and delays change by 7 % at most while the clock is ahead of one that was set back
_IDLE_MS: Final = HOLD_MS // 2  # nobody has followed a step that was undone in this time
_SANE_MS: Final = 2**53  # no clock is off by more
# A row that is off by more than this is written again: NTP slews by less than that in three minutes.
_FRESH_MS: Final = 100


class _Row(msgspec.Struct, frozen=True):
    """The difference between the steady clock and the wall clock, and the wall time, at the monotonic instant `at_ms`.

    Args:
        wall_ms: 0 if the clock is not the machine's, or the row was written before December 2026.
        jumps: see `Jumps`. undo_ms: as `SteadyClock.undo_ms`.
    """

    boot: str
    by_ms: int
    at_ms: int
    wall_ms: int = 0
    jumps: list[Jump] = []
    undo_ms: int = 0

    def is_current(self, clock: SteadyClock) -> bool:
        """Whether it says what the time of all processes is now."""
        is_known = self.wall_ms > 0 and _is_the_machines(clock)
        return is_known and self.boot == _boot() and self.at_ms <= clock.monotonic_ms()

    def step_ms(self, clock: SteadyClock) -> int:
        """By how much the wall clock was set forward since the row was written, if it is current."""
        return clock.wall.now_ms() - self.wall_ms - (clock.monotonic_ms() - self.at_ms)


def longer_sql(jumps: Jumps, since: str) -> str:
    """SQL to be added to an expiry: how much longer a row is kept, given its column of the time that it is from."""
    return "".join(f" + ({since} < {jump.before_ms:d}) * {jump.by_ms:d}" for jump in jumps.noted)


def _row(connection: sqlite3.Connection) -> _Row | None:
    found = connection.execute(_READ, (_NAME,)).fetchone()
    try:
        row = None if found is None else msgspec.json.decode(found[0], type=_Row)
        return row if row is None or max(map(abs, (row.by_ms, row.at_ms, row.wall_ms))) < _SANE_MS else None
    except (
        msgspec.MsgspecError,
        TypeError,
        UnicodeDecodeError,
    ):
        # Written by another version, or by hand: as if it did not exist.
        return None


def _is_the_machines(clock: SteadyClock) -> bool:
    return isinstance(clock.wall, SystemClock)


def written_at_ms(real_path: str) -> int:
    """When the file or its log was last written, in ms since the epoch by the clock of that time; 0 for a new file."""
    found = 0
    for name in (real_path, f"{real_path}-wal"):
        with ignored(OSError):
            status = os.stat(name)
            found = max(found, status.st_mtime_ns // 1_000_000 if status.st_size else 0)
    return found


def _boot() -> str:
    with ignored(OSError):
        return Path(_BOOT).read_text().strip()
    return ""


def _ahead_ms(row: _Row | None, written_ms: int, wall_ms: int) -> int:
    """How far the time of the processes before this boot is ahead of the wall clock, which shows `wall_ms`."""
    ahead_ms, latest_ms = 0, written_ms
    if row is not None and row.wall_ms:
        ahead_ms = max(row.by_ms - max(wall_ms - row.wall_ms, 0) // HEALS_IN, 0)
        latest_ms = max(written_ms, row.wall_ms)
    back_ms = latest_ms - wall_ms  # how far it was set back while no process ran
    return ahead_ms + back_ms if STEP_MS <= back_ms <= _AHEAD_MS_MAX else ahead_ms


class FileTime:
    """The time that a process shares with the others on a file; for the thread that has the writer's turn.

    Args:
        clock: made when this process began to open the file.
    """

    def __init__(self, clock: SteadyClock) -> None:
        self._clock = clock
        self._known: tuple[_Row | None, ...] = ()  # this clock has continued from these: one of them is in the file
        self._steps_noted, self._begun_ms = 0, clock.monotonic_ms()

    def adopt(self, connection: sqlite3.Connection, written_ms: int) -> None:
        """Let the clock continue from the time of the other processes, when the file has just been opened.

        Args:
            written_ms: `written_at_ms` before this process wrote.
        """
        row, clock = _row(connection), self._clock
        if row is not None and row.is_current(clock):
            step_ms = self._continue(row)
            if step_ms and not clock.steps:
                clock.steps.append(step_ms)
            return
        if row is None and not written_ms:
            return  # a new file
        step_ms = sum(clock.steps)  # while the file was being opened
        offset, jumps, undo_ms = Offset(0, 0), [] if row is None else row.jumps, 0 if row is None else row.undo_ms
        if row is not None and row.boot == _boot():
            offset = Offset(row.by_ms, row.at_ms)
        elif _is_the_machines(clock):
            wall_ms = clock.wall.now_ms() - step_ms
            offset = Offset(_ahead_ms(row, written_ms, wall_ms), clock.monotonic_ms())
            undo_ms = max([undo_ms, *(jump.at_ms - wall_ms for jump in jumps)])  # set back while the machine was off
        clock.adopt(offset, jumps, undo_ms, step_ms)

    def begin_in(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction: note the steps that this process has noticed since the last one.

        If that is long ago, two steps may have undone each other unnoticed; the others then went on by the first one.
        """
        now_ms = self._clock.monotonic_ms()
        was_idle = now_ms - self._begun_ms >= _IDLE_MS and _is_the_machines(self._clock)
        self._begun_ms = now_ms
        if self._steps_noted != self._clock.count_steps() or was_idle:
            self.share_in(connection)
            self._steps_noted = len(self._clock.steps)

    def roll_back(self) -> None:
        """Note again what the transaction noted."""
        self._steps_noted = 0

    def share_in(self, connection: sqlite3.Connection) -> None:
        """Make the row agree with the wall clock; if another process wrote it last, continue from its time first.

        That process noticed a step earlier, or others that this one did not notice, since it was idle. If this one went
        on by what it has seen, what it sends would be early or late for all others.
        """
        row, clock = _row(connection), self._clock
        if row is not None and row.is_current(clock):
            step_ms = abs(row.step_ms(clock))
            if row not in self._known or step_ms < STEP_MS:
                self._continue(row)
            if step_ms < _FRESH_MS:
                return
        self.note_in(connection)

    def note_in(self, connection: sqlite3.Connection) -> None:
        """Store the current time of both clocks for the other processes, inside the caller's transaction."""
        clock = self._clock
        by_ms, at_ms = clock.offset
        wall_ms = clock.wall.now_ms() - (clock.monotonic_ms() - at_ms) if _is_the_machines(clock) else 0
        noted = _Row(_boot(), by_ms, at_ms, wall_ms, list(clock.jumps.noted), clock.undo_ms)
        self._known = (_row(connection), noted)  # the first one, if the transaction is rolled back
        connection.execute(_WRITE, (_NAME, msgspec.json.encode(noted)))

    def is_noted(self, connection: sqlite3.Connection) -> bool:
        """Whether the row agrees with the current wall time, so that the next process can detect a step."""
        row, clock = _row(connection), self._clock
        if not _is_the_machines(clock):
            return True
        return row is not None and row.is_current(clock) and abs(row.step_ms(clock)) < _FRESH_MS

    def _continue(self, row: _Row) -> int:
        """Continue from the time in the row; returns by how much the wall clock was set forward since."""
        clock = self._clock
        step_ms = row.step_ms(clock)
        # However old the row is: if this process has noticed a step, it is not drift.
        passed_ms = 0 if self._steps_noted != clock.count_steps() else clock.monotonic_ms() - row.at_ms
        step_ms = step_ms if is_step(step_ms, passed_ms) else 0
        clock.adopt(Offset(row.by_ms, row.at_ms), row.jumps, row.undo_ms, step_ms)
        self._known = (row,)
        return step_ms
