"""The lines of functions' logs on a descriptor whose reader may be slow, stop reading, or leave.

Whoever starts a server and never reads its standard error fills a pipe. A write that waits for that reader would hold
up the loop: no request answered, no timeout enforced, no signal heard. So a line waits a moment for its reader, and is
dropped after that; how many were is said once somebody reads again. A reader that has left gets nothing more, and ends
nothing.
Never here: what a line says (`containers.py`), how it looks (`cli/commands`). Invariant: no call waits longer than the
patience for each `PIPE_BUF` bytes of its line, and not at all while the reader does not read.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Final

PATIENCE_MS: Final = 200  # a terminal, `tee` and a log shipper take a full pipe in far less


class LogOutput:
    """Lines to one descriptor.

    Args:
        descriptor: written to, never closed; a pipe, a file or a terminal.
        patience_ms: how long a line waits for a reader that was there for the line before.
    """

    def __init__(self, descriptor: int, *, patience_ms: int = PATIENCE_MS) -> None:
        self._fd = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._patience_ms = patience_ms
        self._wait_ms = patience_ms
        self._dropped = 0
        self._is_gone = False

    def say(self, text: str) -> None:
        """Write one line, or drop it when nobody reads."""
        if self._dropped:
            if not self._write(f"\n... {self._dropped} lines of the log were dropped: nobody read them\n"):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._write(f"{text}\n"):
            self._dropped += 1

    def _write(self, text: str) -> bool:
        """Whether nothing of it is missing; True as well when nobody will ever read."""
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while left and not self._is_gone:
                if not self._writable.poll(self._wait_ms):
                    self._wait_ms = 0
                    return False
                left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]
        except BlockingIOError:  # a descriptor that somebody made non-blocking
            return False
        except OSError:  # the reader has left, as with `2>&1 | head`
            self._is_gone = True
        self._wait_ms = self._patience_ms
        return True


def is_terminal() -> bool:
    """Whether standard error is one; where it is closed it is none."""
    try:
        return sys.stderr.isatty()
    except (ValueError, AttributeError):  # closed later, or before the start
        return False


def to_standard_error(otherwise: Callable[[str], None]) -> Callable[[str], None]:
    """What writes lines to standard error; `otherwise` where that has no descriptor, as inside some tests."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return otherwise
    return LogOutput(descriptor).say
