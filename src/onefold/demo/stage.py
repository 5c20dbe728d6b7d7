"""The environment of a demo: its folder, its progress bar, and its end when a signal comes.

The folder is deleted afterwards unless it was to be kept. The bar is drawn on a terminal's standard error and nowhere
else. Never here: what a demo does or counts. Invariant: everything that a demo started ends before the command does, also by
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
            f"--keep {keep} exists and is not an empty folder.",
            meaning="What is kept of two runs would be mixed up. Nothing was done.",
            todo="Name a folder that does not exist yet.",
        )
    yield keep


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The processes of a demo have sessions of their own: unless it unwinds, they would run forever."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Draw(Protocol):
    """How far it is."""

    def __call__(self, name: str, done: int, total: int, text: str, /) -> None:
        """Show `done` of `total` as a bar, between a name and a text."""


@contextmanager
def bar() -> Iterator[Draw]:
    """A bar while the block runs."""
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
