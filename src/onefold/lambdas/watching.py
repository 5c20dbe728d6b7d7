"""Looking at a folder of code for changes, every half second: what `--reload` does.

Modification times and sizes of `.py` files are compared; the folder is read in a thread, so that a slow disk holds nobody
up after the first look.
Never here: what a change means (`functions.py`). Invariant: each change is told once, and none after `close`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final

from onefold.local.timers import Timer, Timers

LOOK_MS: Final = 500
_FILES_MAX = 20_000
_NO_CODE = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))

Seen = Mapping[str, tuple[int, int]]


class CodeWatch:
    """Watches one folder, with what is below it.

    Args:
        folder: hidden folders, installed packages and caches in it are left out; at most 20,000 files are looked at.
        changed: called with the paths of files that changed, appeared or went, relative to the folder, sorted.
    """

    def __init__(self, folder: str, timers: Timers, changed: Callable[[list[str]], None]) -> None:
        self._folder = folder
        self._timers = timers
        self._changed = changed
        self._seen = scan(folder)
        self._timer: Timer | None = None
        self._look: asyncio.Future[Seen] | None = None
        self._closed = False
        self._arm()

    def _arm(self) -> None:
        self._timer = self._timers.call_at(self._timers.now_ms() + LOOK_MS, self._begin)

    def _begin(self) -> None:
        self._look = self._timers.loop.run_in_executor(None, scan, self._folder)
        self._look.add_done_callback(self._compare)

    def _compare(self, look: asyncio.Future[Seen]) -> None:
        if self._closed or look.cancelled():
            return
        now, before = look.result(), self._seen
        self._seen = now
        different = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        if different:
            self._changed(different)
        self._arm()

    def close(self) -> None:
        """Stop looking; harmless twice."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def scan(folder: str) -> Seen:
    """Modification time in nanoseconds and size of each `.py` file, by its path relative to `folder`."""
    found: dict[str, tuple[int, int]] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NO_CODE]
        for name in files:
            if name.endswith(".py") and len(found) < _FILES_MAX:
                path = os.path.join(parent, name)
                try:
                    state = os.stat(path)
                except OSError:  # gone since it was listed
                    continue
                found[os.path.relpath(path, folder)] = (state.st_mtime_ns, state.st_size)
    return found
