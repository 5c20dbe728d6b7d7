"""A demo's progress bar on a terminal's standard error, and nothing anywhere else.

Never here: what a demo counts. Invariant: standard output is left to the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


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
