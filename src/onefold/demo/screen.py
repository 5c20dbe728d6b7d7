"""`onefold demo` on the screen: its runs one after the other, their progress and tables, and the verdict.

On a terminal, progress is a bar that is redrawn; elsewhere it is a plain line every few seconds. It goes to standard
error and the tables go to standard output, so either can be kept alone. Everything fits in 80 columns.

Never here: options (`command`), how a run proceeds (`drill`), what is right (`outcome`), or numbers that are not in the
values passed in. Invariant: a run with a fault is never shown as passed; everything is in a folder of its own, which is
deleted afterwards unless the user asked to keep it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace
from rich import box
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from onefold.demo.drill import OnProgress, drill, expected_of
from onefold.demo.outcome import RUNS, DemoProgress, DemoSettings, RunOutcome
from onefold.demo.stage import stage
from onefold.observe.wording import counted


def show(settings: DemoSettings, choice: str, keep: Path | None, *, as_json: bool, again: str) -> bool:
    """Perform the chosen runs and show them; returns whether all passed and no fault was built in.

    Args:
        choice: the name of a run, or `all`. keep: the folder in which everything is kept; None: a temporary one.
        again: the command that repeats these runs.
    """
    with stage(keep) as folder:
        found = _perform(settings, choice, folder, quiet=as_json)
    if keep is None:
        found = [replace(one, url=None) for one in found]
    passed = settings.plant is None and not any(one.faults for one in found)
    if as_json:
        click.echo(_document(settings, found, passed))
    else:
        out, _ = consoles()
        out.print()
        out.print(ending(settings, found, again=again), end="", soft_wrap=True)
    return passed


def _perform(settings: DemoSettings, choice: str, folder: Path, *, quiet: bool) -> list[RunOutcome]:
    """Perform the runs one after the other and show each; if `quiet`, on standard error only."""
    runs = [run for run in RUNS if choice in (run.name, "all")]
    out, err = consoles()
    if not quiet:
        out.print(opening(settings, len(runs)))
    expected = expected_of(settings.rows)
    found = []
    for number, run in enumerate(runs, start=1):
        with shown(f"{number}/{len(runs)} {run.name}", err) as on_progress:
            found.append(drill(run, settings, expected, folder / run.name, on_progress))
        if not quiet:
            out.print()
            out.print(table(number, found[-1]))
    return found


def _document(settings: DemoSettings, found: Sequence[RunOutcome], passed: bool) -> str:
    document = {"passed": passed, "settings": settings, "runs": found}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


LINE_S = 5
"""Seconds between two lines without a terminal."""
RATE_S = 3
"""The rate covers this many seconds."""


def consoles() -> tuple[Console, Console]:
    """The consoles of standard output and standard error."""
    return Console(highlight=False, emoji=False), Console(stderr=True, highlight=False, emoji=False)


# -- while a run is in progress --------------------------------------------------------------------------------------


class BookingRate:
    """Bookings per second over the last RATE_S seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_second(self, now: DemoProgress) -> int:
        """The rate, given the present progress of the run."""
        self._seen.append((now.seconds, now.bookings))
        while now.seconds - self._seen[0][0] > RATE_S:
            self._seen.popleft()
        since, before = self._seen[0]
        return round((now.bookings - before) / max(now.seconds - since, 0.1))


def progress_line(now: DemoProgress, per_second: int) -> str:
    """The progress of a run, in one line."""
    if now.held:
        return f"a person settles {now.held:,} held, {counted(now.kills, 'kill')}, {now.seconds:.0f} s"
    done = f"{now.bookings:,} of {now.expected:,} fulfilled, {per_second:,}/s"
    return f"{done}, {counted(now.kills, 'kill')}, {now.seconds:.0f} s"


@contextmanager
def shown(label: str, console: Console) -> Iterator[OnProgress]:
    """Show the progress of one run; yields the function to call with it."""
    rate = BookingRate()
    if not console.is_terminal:
        yield _lines(label, console, rate)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.fields[text]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None, text="starting")

        def draw(now: DemoProgress) -> None:
            bar.update(task, completed=now.bookings, total=now.expected, text=progress_line(now, rate.per_second(now)))

        yield draw


def _lines(label: str, console: Console, rate: BookingRate) -> Callable[[DemoProgress], None]:
    due_s = float(LINE_S)

    def write(now: DemoProgress) -> None:
        nonlocal due_s
        per_second = rate.per_second(now)
        if now.seconds >= due_s:
            due_s = now.seconds + LINE_S
            console.print(f"{label}: {progress_line(now, per_second)}", soft_wrap=True)

    return write


# -- before and after a run ------------------------------------------------------------------------------------------


def opening(settings: DemoSettings, runs: int) -> str:
    """A description of what is about to happen, for first-time readers; lines of at most 80 characters."""
    many = "s" if runs > 1 else ""
    lines = [
        f"{settings.rows:,} real invoices of a UK retailer, each to be booked with a courier once.",
        f"A tenth is sent twice. {settings.workers} worker processes with {settings.threads} handlers each do the work;",
        f"{settings.kills:,} times in a run one of them is killed (kill -9). The courier is",
        "another process: sometimes slow, sometimes busy, and sometimes it fails without",
        "saying whether it had booked. Its own books show what was booked twice, and",
        f"what never was. {runs} run{many} of about half a minute for all invoices; seed {settings.seed}.",
    ]
    if settings.plant is not None:
        lines += [
            f"A FAULT IS BUILT IN ({settings.plant}): the guard has no fence, the probe only reads.",
            "The books must show double bookings, and the exit code must say so.",
        ]
    return "\n".join(lines)


def table(number: int, found: RunOutcome) -> Table:
    """The table of one run."""
    drawn = Table(
        title=f"{number}  {found.title}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=False,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
    )
    drawn.add_column(no_wrap=True)
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(style="dim")
    for name, number_of, meaning in rows(found):
        style = "" if name not in ("twice", "never") else "bold red" if number_of else "bold green"
        drawn.add_row(Text(name, style), Text(f"{number_of:,}", style), meaning)
    return drawn


def rows(found: RunOutcome) -> list[tuple[str, float, str]]:
    """Name, number and meaning of everything that was counted."""
    first = found.messages - found.again
    dead = ", ".join(f"{kind} {count:,}" for kind, count in found.dead_letters.items())
    kinds = ((found.fences, "fences"), (found.looks, "looks"), (found.cut_off, "of killed workers"))
    asked = ", ".join(f"{count:,} {kind}" for count, kind in kinds if count)
    per_second = found.bookings / max(found.seconds, 0.1)
    return [
        ("messages", found.messages, f"{first:,} invoices, {found.again:,} of them sent again"),
        ("deliveries", found.deliveries, f"to workers; {found.waited:,} met a run under way and waited"),
        ("duplicates answered", found.duplicates, "from the record; the handler did not run again"),
        ("takeovers", found.takeovers, "runs that died with their worker, seen by another"),
        ("retries", found.retries, "failed for now, delivered again"),
        ("kills", found.kills, f"with {found.in_hand:,} messages in flight; {found.stops:,} more drained"),
        ("held", found.held, _held(found)),
        ("dead letters", sum(found.dead_letters.values()), dead),
        ("partner requests", found.requests, asked),
        ("partner bookings", found.bookings, f"{found.expected:,} are due"),
        ("twice", found.twice, "invoices booked more than once"),
        ("never", found.never, "invoices that are due and were not booked"),
        ("seconds", found.seconds, f"{per_second:,.0f} bookings a second"),
    ]


def _held(found: RunOutcome) -> str:
    if not found.held:
        return "for a person to settle"
    return f"for a person: {found.held_done:,} were booked, {found.held - found.held_done:,} were not"


def ending(settings: DemoSettings, found: Sequence[RunOutcome], *, again: str) -> Text:
    """The verdict on all runs, and where to look next.

    Args:
        again: the command that repeats the runs.
    """
    if settings.plant is not None:
        return _planted(settings.plant, found)
    faults = [(one, fault) for one in found for fault in one.faults]
    if faults:
        return _failed(faults, again=again)
    text = Text()
    text.append("Passed: twice 0, never 0", "bold green")
    text.append(f" in {'each of ' if len(found) > 1 else ''}{counted(len(found), 'run')}.\n\nWhere to look next:\n")
    if found[0].url is not None:
        for one in found:
            if one.taken_over is not None:
                text.append(f"  onefold why {one.taken_over} --url {one.url}\n", "cyan")
        text.append(f"  onefold status --url {found[0].url}\n", "cyan")
        text.append(f"  onefold dlq list --url {found[0].url}\n", "cyan")
    else:
        width = max(len(again) + 13, len("onefold demo --plant no-fence") + 2)
        text.append(f"  {f'{again} --keep DIR':<{width}}", "cyan").append(
            "to inspect it afterwards: onefold why, status, dlq\n"
        )
        text.append(f"  {'onefold demo --plant no-fence':<{width}}", "cyan").append("to see a fault found\n")
    return text


def _failed(faults: Sequence[tuple[RunOutcome, str]], *, again: str) -> Text:
    text = Text()
    text.append(f"FAILED: {counted(len(faults), 'fault')}.\n", "bold red")
    for one, fault in faults:
        text.append(f"  {one.name}: {fault}\n")
    if faults[0][0].url is not None:
        text.append("To see what happened to one: ")
        text.append(f"onefold why INVOICE --url {faults[0][0].url}\n", "cyan")
    else:
        text.append("To keep its files and inspect them: ").append(f"{again} --keep DIR\n", "cyan")
    return text


def _planted(plant: str, found: Sequence[RunOutcome]) -> Text:
    text = Text()
    doubles = [one for one in found if one.twice or one.never]
    if not doubles:
        words = f"FAILED: the fault {plant} was built in, and the partner's books do not show it.\n"
        return text.append(words, "bold red")
    text.append(f"FAILED, as it must: the fault {plant} was built in, and the partner's books show it.\n", "bold red")
    for one in found:
        text.append(f"  {one.name}: twice {one.twice:,}, never {one.never:,}")
        text.append("\n" if one in doubles else ": the partner's memory of the key took the fence's place\n")
        for fault in one.faults[:2]:
            text.append(f"    {fault}\n", "dim")
    return text
