"""How answers are drawn: tables that fit any terminal, ages like `3m12s`, local time, colours only on a terminal.

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
from onefold.observe.timeline import Line
from onefold.observe.wording import age

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text


NOTHING = "-"
_NO_WIDTH = 100_000  # a pipe has none: a row is a line there, so that grep finds a whole key and its row
_WIDTH = 80  # where COLUMNS says 0, as some terminals of CI do
_LEAST_CHARACTERS = 8  # of a column whose text folds: narrower ones are hard to read

Style = Literal["", "dim", "bold", "red", "yellow", "green", "cyan"]


class Column(Struct, frozen=True):
    """One column of a table: its head, alignment to the right or not, how it looks, and whether long text folds in it."""

    head: str
    right: bool = False
    style: Style = ""
    folds: bool = False


@cache
def console(*, stderr: bool = False, folds: bool = True) -> Console:
    """The terminal, or the stream in its place; without `folds` long lines are left to the terminal to break."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """A console that obeys its own control codes and no text's: every segment passes here, whatever drew it."""

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                Segment(redact.printable(one.text), one.style) if not one.control else one for one in buffer
            )

    made = Safe(stderr=stderr, highlight=False, emoji=False, markup=False, soft_wrap=not folds)
    made.width = made.width or _WIDTH
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made.width = _NO_WIDTH
    return made


class Drawn:
    """A table that fits the width it is drawn at: long text folds, and where that is not enough each row is a block.

    Nothing is ever cut off: every head and every cell is there at any width.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: object) -> None:
        """One more row; None is shown as a dash."""
        from rich.text import Text

        self._rows.append(
            [
                cell if isinstance(cell, Text) else Text(NOTHING if cell is None else one_line(str(cell)))
                for cell in cells
            ]
        )

    def __rich_console__(self, drawing: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw it at the width there is."""
        from rich.cells import cell_len

        room = options.max_width - 2 * len(self._columns) + 1  # two spaces between columns, and rich pads the last
        widest = [
            max([cell_len(column.head), *(_widest_line(row[place]) for row in self._rows)])
            for place, column in enumerate(self._columns)
        ]
        least = [
            max(min(full, max(cell_len(column.head), _LEAST_CHARACTERS)), min(words, full)) if column.folds else full
            for column, full, words in zip(self._columns, widest, self._longest_words(), strict=True)
        ]
        if options.max_width >= _NO_WIDTH:
            yield self._as_lines(widest)
        elif sum(least) <= room:
            yield self._as_table(_shared(least, widest, room))
        else:
            yield from self._as_blocks(drawing, options.max_width)

    def _as_lines(self, widths: Sequence[int]) -> Text:
        """A line for each row, with nothing behind its last word."""
        from rich.cells import cell_len
        from rich.text import Text

        drawn = []
        heads = [Text(column.head) for column in self._columns]
        for row in [heads, *self._rows]:
            cells = []
            for column, cell, width in zip(self._columns, row, widths, strict=True):
                plain = " ".join(cell.plain.splitlines())
                gap = " " * (width - cell_len(plain))
                cells.append(f"{gap}{plain}" if column.right else f"{plain}{gap}")
            drawn.append("  ".join(cells).rstrip())
        return Text("\n".join(drawn), no_wrap=True, overflow="ignore")

    def _longest_words(self) -> list[int]:
        """Of each column: no key, id or name is broken in a table; where they have no room, each row is a block."""
        from rich.cells import cell_len

        return [
            max((cell_len(word) for row in self._rows for word in row[place].plain.split()), default=0)
            for place in range(len(self._columns))
        ]

    def _as_table(self, widths: Sequence[int]) -> Table:
        from rich import box
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
        for column, width in zip(self._columns, widths, strict=True):
            justify: Literal["left", "right"] = "right" if column.right else "left"
            drawn.add_column(column.head, justify=justify, style=column.style, overflow="fold", width=width)
        for row in self._rows:
            drawn.add_row(*row)
        return drawn

    def _as_blocks(self, drawing: Console, width: int) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.text import Text

        if not self._rows:
            yield Text(", ".join(column.head for column in self._columns if column.head), style="bold")
        for number, row in enumerate(self._rows):
            if number:
                yield Text()
            for place, (column, cell) in enumerate(zip(self._columns, row, strict=True)):
                block = Text(overflow="fold", style=column.style)
                if column.head:
                    block.append(f"{column.head}: ", style="bold")
                block.append_text(cell)
                indent = 2 if place else 0
                for row_of_text, each in enumerate(block.wrap(drawing, width - indent - 2, overflow="fold")):
                    yield Padding(each, (0, 0, 0, indent + 2 * bool(row_of_text)))


def _widest_line(cell: Text) -> int:
    from rich.cells import cell_len

    return max((cell_len(line) for line in cell.plain.splitlines()), default=0)


def _shared(least: Sequence[int], widest: Sequence[int], room: int) -> list[int]:
    """Widths of columns: at least the least, and what is left over goes to those that still have text, evenly."""
    widths = list(least)
    left = room - sum(widths)
    while left > 0 and (short := [place for place, width in enumerate(widths) if width < widest[place]]):
        share = max(left // len(short), 1)
        for place in short[:left]:
            more = min(share, widest[place] - widths[place])
            widths[place] += more
            left -= more
    return widths


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Drawn:
    """A table without lines; None is shown as a dash."""
    drawn = Drawn(columns)
    for row in rows:
        drawn.add_row(*row)
    return drawn


class _Shown(str):
    """A text that `shown` has answered."""

    __slots__ = ()


def shown(text: str) -> str:
    """A text as it may reach a terminal: without secrets, and with what a terminal would obey as escapes."""
    return text if isinstance(text, _Shown) else _Shown(redact.printable(redact.masked(text)))


def one_line(text: str) -> str:
    """As `shown`, with line ends as escapes too: a name that a stranger chose begins no line of its own."""
    return _Shown(shown(text).replace("\n", "\\n"))


def joined(*parts: str) -> str:
    """One line of parts that are masked alone: what follows a key `pre-auth:` or a class `InvalidToken:` is not a secret."""
    return _Shown("".join(shown(part) for part in parts))


def cause(error: str | None, summary: str) -> str:
    """An exception's class and text as one."""
    return (
        shown(summary) if error is None else shown(error) if summary in ("", error) else joined(f"{error}: ", summary)
    )


def is_quiet() -> bool:
    """Whether the running command was asked for JSON, so that nothing is to be drawn."""
    return bool(click.get_current_context().obj["json"])


def draw(*things: object) -> None:
    """Print tables and lines, one under the other."""
    for thing in things:
        console().print(shown(thing) if isinstance(thing, str) else thing)


def line(text: str = "", style: Style = "") -> None:
    """Print one line: line ends in it are escapes."""
    console().print(one_line(text), style=style or None, soft_wrap=True)


def block(text: str, mark: str = "") -> None:
    """Print a text of several lines as it is, with a mark before each of them."""
    rows = shown(text).split("\n")
    console().print(_Shown("\n".join(f"{mark}{row}" for row in rows)), soft_wrap=True)


def fold(text: str, first: str, following: str, style: Style = "") -> None:
    """Print a sentence over as many lines as the terminal needs, broken at spaces only, so that an id in it stays whole.

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


def hanging(text: str, first: str, following: str, style: Style = "") -> Text:
    """A text that holds a stranger's names, as a drawing: no line of it but the first begins where a terminal's lines begin.

    Args:
        first, following: as of `fold`.
    """
    from rich.text import Text

    folded = TextWrapper(
        console().width - 1, initial_indent=first, subsequent_indent=following, break_on_hyphens=False
    )  # what is longer than a line is broken here, or the terminal would
    return Text("\n".join(folded.wrap(one_line(text))), style=style)


def note(text: str) -> None:
    """Say something on standard error that is not part of the answer; a reader that has gone ends no work."""
    try:
        # Not `click.echo`, which writes past the stream that keeps lines above a live picture.
        sys.stderr.write(f"{shown(text)}\n")
        sys.stderr.flush()
    except BrokenPipeError:  # as with `2>&1 | head`: what is running goes on, and its next lines have nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def confirm(question: str) -> None:
    """Ask on standard error, and end the command unless the answer is yes.

    Raises:
        UsageError: of click; there is nobody to answer. Abort: no, or interrupted.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        note("")
        raise click.UsageError(
            "Nobody can answer here: standard input is empty or not a terminal. Nothing was changed. Add --yes.",
            click.get_current_context(silent=True),
        ) from None


def todo(steps: Iterable[str], target: str = "") -> None:
    """Print next steps; commands get the target that this one was given, so that they can be copied as they are."""
    for step in steps:
        line(f"  {with_target(step, target)}", "cyan" if step.startswith("onefold ") else "")


def with_target(step: str, target: str) -> str:
    """A command with the target of the running one; other advice as it is, but for the command at its end."""
    if target and not target.startswith("-"):
        step = step.replace("onefold worker <module>:<app>", f"onefold worker {target}")
    if (": onefold resume " in step or ": onefold names give " in step) and target:
        return f"{step} {target}"
    if not step.startswith("onefold ") or not target:
        return step
    command, gap, remark = step.partition("   (")
    before, sign, word = command.partition(" -- ")
    if sign and target.startswith("-"):  # behind the sign it would be no option
        return f"{before} {target} -- {word}{gap}{remark}"
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
    try:
        return datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone()
    except (ValueError, OverflowError):  # of a damaged record
        return datetime.max.replace(tzinfo=UTC) if at_ms > 0 else datetime.min.replace(tzinfo=UTC)


_EVENT_WIDTH = 12  # of the column of events, unless one is longer


def draw_steps(steps: Sequence[Line], message: str | None = None) -> None:
    """Print steps, oldest first.

    Args:
        message: the message that the reader has in mind already; the first step's unless given.
    """
    message = message or (steps[0].message_id if steps else None)
    width = max([_EVENT_WIDTH, *(len(step.event) for step in steps)])
    shown_day = ""
    for step in steps:
        if day(step.at_ms) != shown_day:
            if shown_day:
                line()
            shown_day = day(step.at_ms)
            line(f"  {shown_day}", "dim")
        begin = f"  {clock_time(step.at_ms)}  {step.event:<{width}}  "
        hanging = " " * len(begin)
        _step_line(step.text, begin, hanging)
        about = _about_step(step, names_message=step.message_id not in (None, message))
        if about:
            _step_line(about, hanging, hanging, "dim")
        message = step.message_id or message


def _step_line(text: str, first: str, following: str, style: Style = "") -> None:
    """One line in a pipe; on a terminal as many as it needs, so that the column of times stays one."""
    if console().is_terminal:
        fold(text, first, following, style)
    else:
        line(f"{first}{text}", style)


def _about_step(step: Line, *, names_message: bool) -> str:
    about = []
    if names_message and step.message_id is not None and step.message_id not in step.text:
        about.append(f"message {step.message_id}")
    if step.actor is not None and step.actor.startswith("person:"):
        about.append(f"by {step.actor.removeprefix('person:')}")
    if step.rule:
        about.append(step.rule)
    return "; ".join(about)
