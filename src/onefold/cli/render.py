"""How results are rendered: tables that fit any terminal, ages like `3m12s`, local time, colours only on a terminal.

Cells fold instead of being cut, so that an id can always be copied. rich is imported when something is first rendered, so a
command with --json does not load it. Never here: what is worth showing, decisions. Invariant: nothing rendered here is meant
for machines; they use --json.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Final, Literal

import click
from msgspec import Struct

from onefold import redact
from onefold.observe.timeline import Line
from onefold.observe.wording import age, with_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text


NOTHING = "-"
_NO_WIDTH = 100_000  # a pipe has no width: each row is one line, so that grep finds a whole key and its row
_WIDTH = 80  # if COLUMNS is 0, as on some CI terminals
_LEAST_CHARACTERS = 8  # least width of a column whose text folds: narrower ones are hard to read

Style = Literal["", "dim", "bold", "red", "yellow", "green", "cyan"]


class Column(Struct, frozen=True):
    """One column of a table: its head, whether it is aligned right, its style, and whether long text folds in it."""

    head: str
    right: bool = False
    style: Style = ""
    folds: bool = False


@cache
def console(*, stderr: bool = False, folds: bool = True) -> Console:
    """The terminal, or the stream that replaces it; without `folds` the terminal wraps long lines."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """A console that emits only its own control codes, never those in a text: every segment passes through here."""

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
    """A table that fits the available width: long text folds, and if that is not enough each row becomes a block.

    Nothing is ever cut off: every head and every cell is shown at any width.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: object) -> None:
        """Add a row; None is shown as a dash."""
        from rich.text import Text

        self._rows.append(
            [
                cell if isinstance(cell, Text) else Text(NOTHING if cell is None else one_line(str(cell)))
                for cell in cells
            ]
        )

    def __rich_console__(self, drawing: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Render it at the available width."""
        from rich.cells import cell_len

        room = options.max_width - 2 * len(self._columns) + 1  # two spaces between columns; rich pads the last one too
        widest = [
            max([cell_len(column.head), *(_widest_line(row[index]) for row in self._rows)])
            for index, column in enumerate(self._columns)
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
        """A line for each row, without trailing spaces."""
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
        """The least width of each column: no key, id or name is broken; without room for that, each row becomes a block."""
        from rich.cells import cell_len

        return [
            max((cell_len(word) for row in self._rows for word in row[index].plain.split()), default=0)
            for index in range(len(self._columns))
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
            for index, (column, cell) in enumerate(zip(self._columns, row, strict=True)):
                block = Text(overflow="fold", style=column.style)
                if column.head:
                    block.append(f"{column.head}: ", style="bold")
                block.append_text(cell)
                indent = 2 if index else 0
                for row_of_text, each in enumerate(block.wrap(drawing, width - indent - 2, overflow="fold")):
                    yield Padding(each, (0, 0, 0, indent + 2 * bool(row_of_text)))


def _widest_line(cell: Text) -> int:
    from rich.cells import cell_len

    return max((cell_len(line) for line in cell.plain.splitlines()), default=0)


def _shared(least: Sequence[int], widest: Sequence[int], room: int) -> list[int]:
    """Widths of columns: at least the minimum; the rest is divided evenly among columns that need more."""
    widths = list(least)
    left = room - sum(widths)
    while left > 0 and (short := [index for index, width in enumerate(widths) if width < widest[index]]):
        share = max(left // len(short), 1)
        for index in short[:left]:
            more = min(share, widest[index] - widths[index])
            widths[index] += more
            left -= more
    return widths


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Drawn:
    """A table without lines; None is shown as a dash."""
    drawn = Drawn(columns)
    for row in rows:
        drawn.add_row(*row)
    return drawn


class _Shown(str):
    """A text returned by `shown`."""

    __slots__ = ()


def shown(text: str) -> str:
    """A text that is safe to print on a terminal: secrets are masked, control characters are escaped."""
    return text if isinstance(text, _Shown) else _Shown(redact.printable(redact.masked(text)))


def one_line(text: str) -> str:
    """Like `shown`, with line ends escaped too, so that a name from outside cannot start a new line."""
    return _Shown(shown(text).replace("\n", "\\n"))


def joined(*parts: str) -> str:
    """One line of parts, masked separately: the text after a key `pre-auth:` or a class `InvalidToken:` is not secret."""
    return _Shown("".join(shown(part) for part in parts))


def cause(error: str | None, summary: str) -> str:
    """An exception's class and text as one."""
    return (
        shown(summary) if error is None else shown(error) if summary in ("", error) else joined(f"{error}: ", summary)
    )


def is_quiet() -> bool:
    """Whether the running command has --json, so that nothing is rendered."""
    return bool(click.get_current_context().obj["json"])


def draw(*things: object) -> None:
    """Print tables and lines, one below the other."""
    for thing in things:
        console().print(shown(thing) if isinstance(thing, str) else thing)


def line(text: str = "", style: Style = "") -> None:
    """Print one line: line ends in it are escapes."""
    console().print(one_line(text), style=style or None, soft_wrap=True)


def block(text: str, mark: str = "") -> None:
    """Print a text of several lines unchanged, with a mark before each line."""
    rows = shown(text).split("\n")
    console().print(_Shown("\n".join(f"{mark}{row}" for row in rows)), soft_wrap=True)


def fold(text: str, first: str, following: str, style: Style = "") -> None:
    """Print a sentence, wrapped for the terminal at spaces only, so that an id in it is not broken.

    Args:
        first, following: prefixes of the first line and of the following ones.
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


def sentence(text: str, first: str = "", following: str = "", style: Style = "") -> None:
    """Print a sentence: one line in a pipe, on a terminal wrapped as by `fold`, so that what is above stays aligned."""
    if console().is_terminal:
        fold(text, first, following, style)
    else:
        line(f"{first}{text}", style)


def hanging(text: str, first: str, following: str, style: Style = "") -> Text:
    """A text that contains names from outside, for rendering: only its first line can begin at the left edge.

    Args:
        first, following: as for `fold`.
    """
    from rich.text import Text

    folded = TextWrapper(
        console().width - 1, initial_indent=first, subsequent_indent=following, break_on_hyphens=False
    )  # a word that is longer than a line is broken here; otherwise the terminal would break it
    return Text("\n".join(folded.wrap(one_line(text))), style=style)


def note(text: str) -> None:
    """Print something on standard error that is not part of the result; a closed pipe does not end the work."""
    try:
        # Not `click.echo`, which bypasses the stream that keeps lines above a live picture.
        sys.stderr.write(f"{shown(text)}\n")
        sys.stderr.flush()
    except BrokenPipeError:  # as with `2>&1 | head`: what is running continues, and further lines are lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def confirm(question: str, otherwise: str = "--yes") -> None:
    """Ask on standard error, and end the command unless the answer is yes.

    Args:
        otherwise: the option that answers if nobody can.

    Raises:
        UsageError: of click; nobody can answer. Exit: of click; the answer was no. Abort: an interrupt.
    """
    try:
        if not click.confirm(question, err=True):
            note("Nothing was changed.")
            raise click.exceptions.Exit(1)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        note("")
        raise click.UsageError(
            f"Nobody can answer here: standard input is empty or not a terminal. Nothing was changed. Add {otherwise}.",
            click.get_current_context(silent=True),
        ) from None


def todo(steps: Iterable[str], target: str = "") -> None:
    """Print next steps; commands get this command's target, so that they can be copied and pasted."""
    for step in steps:
        line(f"  {with_target(step, target)}", "cyan" if step.startswith("onefold ") else "")


TARGET: Final = "onefold.target"  # in click's context: how to name what the running command works on
_NAMED: Final = re.compile(
    r"`(onefold (?:alarms|calendar|counts|dlq|held|map|names|queue|reconcile|resume|runs|status|stuck|why)\b[^`<]*)`"
)


def copyable(text: str, target: str) -> str:
    """An error's text with the target of the running command in the commands that it names."""
    return _NAMED.sub(lambda one: one[0] if "--help" in one[1] else f"`{with_target(one[1], target)}`", text)


# -- numbers and times -----------------------------------------------------------------------------------------------


def ago(ms: int | None) -> str:
    """An age for a table; a dash if there is none."""
    return NOTHING if ms is None else age(ms)


def number(count: float | None) -> str:
    """A count with separators; a dash if there is none."""
    return NOTHING if count is None else f"{count:,.0f}"


def some(count: int) -> str:
    """A count; 0 is shown as a dash."""
    return number(count) if count else NOTHING


def local(at_ms: int) -> str:
    """An instant in the reader's own zone, to the second: `2026-11-21 00:31:05 EST`."""
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
    except (ValueError, OverflowError):  # from a damaged record
        return datetime.max.replace(tzinfo=UTC) if at_ms > 0 else datetime.min.replace(tzinfo=UTC)


_EVENT_WIDTH = 12  # width of the column of events, unless one is longer


def draw_steps(steps: Sequence[Line], message: str | None = None) -> None:
    """Print steps, oldest first.

    Args:
        message: the message that the reader already knows about; by default the first step's, if there is only one.
    """
    several = len({step.message_id for step in steps} - {None}) > 1
    message = message or (steps[0].message_id if steps and not several else None)
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
        sentence(step.text, begin, hanging)
        comes = several and step.event in ("sent", "received")  # where two messages of one key alternate
        about = _about_step(step, names_message=comes or step.message_id not in (None, message))
        if about:
            sentence(about, hanging, hanging, "dim")
        message = step.message_id or message


def _about_step(step: Line, *, names_message: bool) -> str:
    about = []
    if names_message and step.message_id is not None and step.message_id not in step.text:
        about.append(f"message {step.message_id}")
    if step.actor is not None and step.actor.startswith("person:"):
        about.append(f"by {step.actor.removeprefix('person:')}")
    if step.rule:
        about.append(step.rule)
    return "; ".join(about)
