"""The time that processes on one file share, when the machine's clock was set while they used it.

Each notices a step by itself (`steady_clock.py`). Who opens the file later learns of it from a row that the others have
left (`onefold_state`, name `onefold/clock`), or from the file: written later than now, it says that the clock was set back.
Never here: the arithmetic of a step. Invariant: nobody goes by a row of another boot, as monotonic time begins anew.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from onefold import limits
from onefold.clock import SystemClock
from onefold.steady_clock import STEP_MS, Offset, SteadyClock

_NAME: Final = "onefold/clock"
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
# A file that claims more was touched by hand, or copied from elsewhere: no message may expire by that.
_AHEAD_MS_MAX: Final = limits.DAY_MS
_READ: Final = "SELECT value FROM onefold_state WHERE name = ? AND value IS NOT NULL"
_WRITE: Final = """
INSERT INTO onefold_state (name, version, value) VALUES (?, 1, ?)
ON CONFLICT (name) DO UPDATE SET version = version + 1, value = excluded.value
"""


class _Row(msgspec.Struct, frozen=True):
    boot: str
    by_ms: int
    at_ms: int


def note_in(connection: sqlite3.Connection, clock: SteadyClock) -> None:
    """Leave for processes to come how far the clock is beside the wall, inside the caller's transaction."""
    connection.execute(_WRITE, (_NAME, msgspec.json.encode(_Row(_boot(), *clock.offset))))


def written_at_ms(place: str) -> int:
    """When the file or its log was written last, by the clock of then, in milliseconds since the epoch; 0 for a new one."""
    found = 0
    for name in (place, f"{place}-wal"):
        with suppress(OSError):
            status = os.stat(name)
            found = max(found, status.st_mtime_ns // 1_000_000 if status.st_size else 0)
    return found


def adopt(connection: sqlite3.Connection, clock: SteadyClock, written_ms: int) -> None:
    """Let the clock of a process that has just opened the file go on from the others' time.

    Args:
        written_ms: `written_at_ms` before this process wrote.
    """
    row = connection.execute(_READ, (_NAME,)).fetchone()
    if row is not None:
        noted = msgspec.json.decode(row[0], type=_Row)
        if noted.boot == _boot():
            clock.adopt(Offset(noted.by_ms, noted.at_ms))
    ahead_ms = written_ms - clock.now_ms()
    if isinstance(clock.wall, SystemClock) and STEP_MS <= ahead_ms <= _AHEAD_MS_MAX:  # the system's, as the file's is
        clock.adopt(Offset(ahead_ms, clock.monotonic_ms()))


def _boot() -> str:
    with suppress(OSError):
        return Path(_BOOT).read_text().strip()
    return ""
