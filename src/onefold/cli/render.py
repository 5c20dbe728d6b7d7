"""How answers are drawn: tables that fit 80 columns, ages like `3m12s`, local time, colours only on a terminal.

Cells fold instead of being cut, so that an id can always be copied. rich is imported when something is first drawn: a
command with --json never pays for it. Never here: what is worth drawing, decisions.
Invariant: nothing drawn here is meant for machines; they use --json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Literal

import click
from msgspec import Struct

from onefold import redact
from onefold.watch.wording import age

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOTHING = "-"
_WIDTH = 80  # where COLUMNS says 0, as some terminals of CI do
_WHOLE_CHARACTERS = 24  # cells up to this long are never broken

Style = Literal["", "dim", "bold", "red", "yellow", "green", "cyan"]


class Column(Struct, frozen=True):
    """One column of a table: its head, whether its cells stand right, how it looks, and whether long text folds in it."""

    head: str
    right: bool = False
    style: Style = ""
    folds: bool = False


@cache
def console(*, stderr: bool = False) -> Console:
    """The terminal, or what stands in for it."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """A console that obeys its own control codes and no text's: every segment passes here, whatever drew it."""

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                Segment(redact.printable(one.text), one.style) if not one.control else one for one in buffer
            )

    made = Safe(stderr=stderr, highlight=False, emoji=False, markup=False)
    made.width = made.width or _WIDTH
    return made


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Table:
    """A table without lines; None is shown as a dash."""
    from rich import box
    from rich.table import Table

    cells = [[NOTHING if cell is None else shown(str(cell)) for cell in row] for row in rows]
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        widest = max([len(column.head), *(len(row[place]) for row in cells)])
        drawn.add_column(
            column.head,
            justify="right" if column.right else "left",
            style=column.style or None,
            overflow="fold",
            min_width=len(column.head) if column.folds else min(widest, _WHOLE_CHARACTERS),
            no_wrap=not column.folds and widest <= _WHOLE_CHARACTERS,  # so that what may fold gives way first
        )
    for row in cells:
        drawn.add_row(*row)
    return drawn


def shown(text: str) -> str:
    """A text as it may reach a terminal: without secrets, and with what a terminal would obey as escapes."""
    return redact.printable(redact.masked(text))


def is_quiet() -> bool:
    """Whether the running command was asked for JSON, so that nothing is to be drawn."""
    return bool(click.get_current_context().obj["json"])


def draw(*things: object) -> None:
    """Print tables and lines, one under the other."""
    for thing in things:
        console().print(shown(thing) if isinstance(thing, str) else thing)


def line(text: str = "", style: Style = "") -> None:
    """Print one line."""
    console().print(shown(text), style=style or None, soft_wrap=True)


def fold(text: str, first: str, following: str, style: Style = "") -> None:
    """Print a sentence over as many lines as the terminal needs, broken at spaces only, so that an id in it stands whole.

    Args:
        first, following: what the first line, and those behind it, begin with.
    """
    folded = TextWrapper(
        console().width,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for each in folded.wrap(text):
        line(each, style)


def note(text: str) -> None:
    """Say something on standard error that is no part of the answer; a reader that has gone ends no work."""
    try:
        click.echo(shown(text), err=True)
    except BrokenPipeError:  # as with `2>&1 | head`: what is running goes on, and its next lines have nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def todo(steps: Iterable[str], target: str = "") -> None:
    """Print next steps; commands get the target that this one was given, so that they can be copied as they are."""
    for step in steps:
        line(f"  {with_target(step, target)}", "cyan" if step.startswith("onefold ") else "")


def with_target(step: str, target: str) -> str:
    """A command with the target of the running one; other advice as it is."""
    if not step.startswith("onefold ") or not target:
        return step
    command, gap, remark = step.partition("   (")
    return f"{command} {target}{gap}{remark}"


# -- numbers and times -----------------------------------------------------------------------------------------------


def ago(ms: int | None) -> str:
    """An age for a table; a dash where there is none."""
    return NOTHING if ms is None else age(ms)


def number(count: float | None) -> str:
    """A count with separators; a dash where there is none."""
    return NOTHING if count is None else f"{count:,.0f}"


def some(count: int) -> str:
    """A count where 0 is nothing to look at."""
    return number(count) if count else NOTHING


def local(at_ms: int) -> str:
    """An instant in the reader's own zone, to the second: `2026-11-21 00:31:05`."""
    return _local(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def zoned(at_ms: int) -> str:
    """An instant as `local` says it, with the zone."""
    return _local(at_ms).strftime("%Y-%m-%d %H:%M:%S %Z")


def day(at_ms: int) -> str:
    """The reader's own date, with the zone."""
    return _local(at_ms).strftime("%A %Y-%m-%d (%Z)")


def clock_time(at_ms: int) -> str:
    """The reader's own time of day, to the millisecond."""
    return f"{_local(at_ms):%H:%M:%S}.{at_ms % 1000:03d}"


def _local(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone()
