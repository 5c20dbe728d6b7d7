"""The time that the processes on one file share when the machine's clock is set.

Each process detects a step of the clock itself (`clock.py`). A process that opens the file later learns of it from a
row (`onefold_state`, name `onefold/clock`) that has the wall time at a monotonic instant: both clocks advance together,
so any other wall time now means a step, even if no process has noticed it yet. Without such a row the modification time
of the file is used: if it is later than now, the clock was set back.
Never here: the arithmetic of a step. Invariant: a row from another boot is never used, because monotonic time starts anew.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

import msgspec

from onefold import limits
from onefold.clock import STEP_MS, Jump, Jumps, Offset, SteadyClock, SystemClock, is_step
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


_SANE_MS: Final = 2**53  # no clock is off by more
_FRESH_MS: Final = (
    100  # a row that is off by more than this is written again: NTP slews by less than that in three minutes
)


class _Row(msgspec.Struct, frozen=True):
    """The difference between the steady clock and the wall clock, and the wall time, at the monotonic instant `at_ms`.

    Args:
        wall_ms: 0 if the clock is not the machine's, or the row was written before December 2026.
        jumps: see `Jumps`; unlike the rest they count in any boot. undo_ms: as `SteadyClock.undo_ms`.
    """

    boot: str
    by_ms: int
    at_ms: int
    wall_ms: int = 0
    jumps: list[Jump] = []
    undo_ms: int = 0

    def step_ms(self, clock: SteadyClock) -> int:
        """By how much the wall clock was set forward since the row was written; 0 if that is not known."""
        if not self.wall_ms or not _is_the_machines(clock) or self.boot != _boot():
            return 0
        return clock.wall.now_ms() - self.wall_ms - (clock.monotonic_ms() - self.at_ms)


def longer_sql(jumps: Jumps, since: str) -> str:
    """SQL to be added to an expiry: how much longer a row is kept, given its column of the time that it is from."""
    return "".join(f" + ({since} < {jump.before_ms:d}) * {jump.by_ms:d}" for jump in jumps.noted)


def note_in(connection: sqlite3.Connection, clock: SteadyClock) -> None:
    """Store the current time of both clocks for later processes, inside the caller's transaction."""
    by_ms, at_ms = clock.offset
    wall_ms = clock.wall.now_ms() - (clock.monotonic_ms() - at_ms) if _is_the_machines(clock) else 0
    jumps = list(clock.jumps.noted)
    if not jumps and not clock.steps and (row := _row(connection)) is not None:
        jumps = row.jumps  # of a process that saw them before this one began
    noted = _Row(_boot(), by_ms, at_ms, wall_ms, jumps, clock.undo_ms)
    connection.execute(_WRITE, (_NAME, msgspec.json.encode(noted)))


def share_in(connection: sqlite3.Connection, clock: SteadyClock) -> None:
    """Note a step that this process has noticed; if another one has noted it already, follow as that one does.

    A process that was idle when the clock was set notices it late. If it went on by the earlier time for two minutes
    from then, what it sends meanwhile would be early for all others.
    """
    row = _row(connection)
    if row is not None and row.wall_ms and row.boot == _boot() and abs(row.step_ms(clock)) < STEP_MS:
        clock.share(Offset(row.by_ms, row.at_ms), row.jumps, row.undo_ms)
    else:
        note_in(connection, clock)


def is_noted(connection: sqlite3.Connection, clock: SteadyClock) -> bool:
    """Whether the row agrees with the current wall time, so that the next process can detect a step."""
    row = _row(connection)
    if not _is_the_machines(clock):
        return True
    return row is not None and row.boot == _boot() and row.wall_ms > 0 and abs(row.step_ms(clock)) < _FRESH_MS


def _row(connection: sqlite3.Connection) -> _Row | None:
    found = connection.execute(_READ, (_NAME,)).fetchone()
    try:
        row = None if found is None else msgspec.json.decode(found[0], type=_Row)
        return row if row is None or max(map(abs, (row.by_ms, row.at_ms, row.wall_ms))) < _SANE_MS else None
    except (
        msgspec.MsgspecError,
        TypeError,
        UnicodeDecodeError,
    ):  # written by another version, or by hand: as if it did not exist
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


def adopt(connection: sqlite3.Connection, clock: SteadyClock, written_ms: int) -> None:
    """Let the clock of a process that has just opened the file continue from the time of the other processes.

    Args:
        written_ms: `written_at_ms` before this process wrote.
    """
    row, undone_ms = _row(connection), 0
    if row is not None and not clock.steps:
        clock.jumps.noted = tuple(row.jumps)
        undone_ms = _undone_ms(row, clock)
    if row is not None and row.boot == _boot():
        clock.adopt(Offset(row.by_ms, row.at_ms), row.undo_ms)
        step_ms = row.step_ms(clock)
        if is_step(step_ms, clock.monotonic_ms() - row.at_ms) and not clock.steps:
            clock.stepped(step_ms)
    ahead_ms = written_ms - clock.now_ms()
    if _is_the_machines(clock) and STEP_MS <= ahead_ms <= _AHEAD_MS_MAX:  # the file's time is the machine's too
        clock.adopt(Offset(ahead_ms, clock.monotonic_ms()), undone_ms)
    elif undone_ms:
        clock.jumps.note(-undone_ms, clock.wall.now_ms())


def _undone_ms(row: _Row, clock: SteadyClock) -> int:
    """How far the clock was set back, at least, since its last jump, if that was while the machine was off."""
    last_ms = max((jump.at_ms for jump in row.jumps), default=0)
    return 0 if row.boot == _boot() else max(last_ms - clock.wall.now_ms(), 0)


def _boot() -> str:
    with ignored(OSError):
        return Path(_BOOT).read_text().strip()
    return ""
