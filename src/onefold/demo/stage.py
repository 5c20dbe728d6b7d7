"""Where a demo happens: its folder, which is gone afterwards unless it was to be kept, and its end when a signal comes.

Never here: what happens there. Invariant: whatever a demo has started is ended before the command is, also by SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from onefold.errors import UsageError


@contextmanager
def stage(keep: Path | None) -> Iterator[Path]:
    """A folder of the demo's own, absolute; until the block ends, SIGTERM and SIGHUP end the command as Ctrl-C does.

    Args:
        keep: the folder, which need not be there; None: a temporary one.

    Raises:
        UsageError: `keep` holds something already.
    """
    with _ended_by_signals(), _folder(keep) as folder:
        yield folder.absolute()


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="onefold-demo-") as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(
            f"--keep {keep} exists and is no empty folder.",
            meaning="What is kept of two runs would be mixed up. Nothing was done.",
            todo="Name a folder that does not exist yet.",
        )
    yield keep


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The processes of a demo have sessions of their own: unless it unwinds, they would go on for ever."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
