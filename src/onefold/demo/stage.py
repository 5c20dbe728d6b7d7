"""The environment of a demo: its folder, its progress bar, and its end on a signal.

The folder is deleted afterwards unless the user asked to keep it. The bar is drawn only if standard error is a
terminal.
Never here: what a demo does or counts. Invariant: everything that a demo started ends before the command does, even on
SIGTERM, and standard output is left to the result.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from onefold.errors import UsageError


@contextmanager
def stage(keep: Path | None) -> Iterator[Path]:
    """Yield the absolute path of the demo's folder; until the block ends, SIGTERM and SIGHUP act like Ctrl-C.

    Args:
        keep: the folder, which need not exist; None: a temporary one.

    Raises:
        UsageError: `keep` is not empty.
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
            f"--keep {keep} exists and is not an empty folder.",
            meaning="The files of two runs would be mixed up. Nothing was done.",
            todo="Name a folder that does not exist yet.",
        )
    yield keep


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn signals into KeyboardInterrupt; the demo's processes have their own sessions and would run forever."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Draw(Protocol):
    """Shows the progress of a demo."""

    def __call__(self, name: str, done: int, total: int, text: str, /) -> None:
        """Show `done` of `total` as a bar, between a name and a text."""


@contextmanager
def bar() -> Iterator[Draw]:
    """Show a progress bar while the block runs; yields the function that draws it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as drawn:
        task = drawn.add_task("starting", total=None, text="")

        def draw(name: str, done: int, total: int, text: str) -> None:
            drawn.update(task, description=name, total=total, completed=done, text=text)

        yield draw
