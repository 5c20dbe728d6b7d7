"""`onefold dlq redrive`: send dead letters back, or say what each would do. Parsing and drawing.

When it stops by itself is `service/redrive.py`'s. Never here: sending.
Invariant: an interrupt leaves what was sent where it is, and says how much that was.
"""

from __future__ import annotations

from typing import Final

import click
import msgspec

from onefold.cli import options, render, selection, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, line
from onefold.observe.wording import counted
from onefold.service import redrive as service
from onefold.service.dead_letters import Select
from onefold.service.reading import Fate


@declared(
    "redrive",
    example="onefold dlq redrive shop:app --reason attempts --error TimeoutError --dry-run\n"
    "onefold dlq redrive shop:app --all --rate 10/s --stop-after 3",
)
@click.argument("words", metavar="[ID]... [APP]", nargs=-1)
@target.by_url
@selection.selecting
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--dry-run", is_flag=True, help="Say what each message would do, and send nothing.")
@click.option(
    "--rate",
    type=options.RATE,
    default="100/s",
    show_default=True,
    help="Highest speed; it is reached gradually.",
)
@click.option(
    "--stop-after",
    type=click.IntRange(0),
    default=service.STOP_AFTER_DEFAULT,
    show_default=True,
    help="Stop when so many of the messages sent failed again; 0: never.",
)
@click.option("--no-watch", is_flag=True, help="Only send; do not wait for their outcome.")
@options.idle
@options.reason_text
def command(
    words: tuple[str, ...],
    url: str | None,
    select: Select,
    everything: bool,
    dry_run: bool,
    rate: int,
    stop_after: int,
    no_watch: bool,
    idle: bool,
    reason_text: str | None,
) -> Answer:
    """Send dead letters back to the queues they came from.

    Watches what becomes of them while it sends, in growing waves, and stops by itself when they fail again. That needs
    workers that run; without, say --no-watch. A stopped FIFO group goes back as a whole, in order, and goes on.
    """
    found, messages, wanted = selection.chosen(words, url, select, everything=everything)
    if dry_run:
        foreseen = service.foresee(found.desk, messages, select=wanted, idle=idle)
        return Answer({"foreseen": foreseen, "counts": _fates(foreseen)}, draw=lambda: _draw_foreseen(foreseen))
    work = service.Redrive(
        found.desk,
        messages,
        per_second=rate,
        stop_after=stop_after,
        watch=not no_watch,
        reason_text=reason_text,
        select=wanted,
        idle=idle,
    )
    tally = _run(work, len(messages))
    code = 1 if tally.end in ("failing-again", "no-worker") else 0
    return Answer(tally, draw=lambda: _draw_tally(tally, found), code=code)


def _fates(foreseen: list[service.Foreseen]) -> dict[Fate, int]:
    counts: dict[Fate, int] = {}
    for one in foreseen:
        counts[one.forecast.fate] = counts.get(one.forecast.fate, 0) + 1
    return counts


def _draw_foreseen(foreseen: list[service.Foreseen]) -> None:
    columns = [
        Column("message"),
        Column("key", folds=True),
        Column("job", folds=True),
        Column("would"),
        Column("because", folds=True),
    ]
    rows = [
        (one.letter.message_id, one.letter.key, one.letter.job, _WOULD[one.forecast.fate], one.forecast.why)
        for one in foreseen
    ]
    render.draw(render.table(columns, rows))
    line()
    counts = ", ".join(f"{count} would {_WOULD[fate]}" for fate, count in _fates(foreseen).items())
    line(f"{counted(len(foreseen), 'message')}: {counts}. Nothing was sent.")


_WOULD: Final[dict[Fate, str]] = {
    "run": "run",
    "answered": "be answered",
    "waits": "wait",
    "unknown": "be unknown",
    "held": "be held",
    "conflict": "conflict",
    "malformed": "be malformed",
    "comes-back": "come back",
    "no-job": "find no job",
}


def _run(work: service.Redrive, total: int) -> service.Tally:
    """Carry a redrive out, with a bar on a terminal; an interrupt leaves what was sent where it is."""
    if render.is_quiet() or not render.console(stderr=True).is_terminal:
        try:
            return work.run(lambda _: None)
        except KeyboardInterrupt:
            return msgspec.structs.replace(work.tally, end="interrupted")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(
        TextColumn("sent back"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        console=render.console(stderr=True),
    ) as progress:
        task = progress.add_task("", total=total, told="")

        def tell(tally: service.Tally) -> None:
            told = f"done {tally.done}, back {tally.came_back}, under way {tally.under_way + tally.waiting}"
            progress.update(task, completed=tally.sent + tally.gone, told=told)

        try:
            return work.run(tell)
        except KeyboardInterrupt:
            return msgspec.structs.replace(work.tally, end="interrupted")


_ENDS: Final[dict[service.End, str]] = {
    "done": "",
    "failing-again": "Stopped by itself: the messages fail again. The others are still dead letters.",
    "no-worker": "Stopped: none of them has been received. Is a worker running, or the job paused? See onefold status. "
    "What was sent waits in its queue; --no-watch sends without looking.",
    "under-way": "All are sent; some are still being retried.",
    "interrupted": "Interrupted. What was sent stays sent.",
}


def _draw_tally(tally: service.Tally, found: target.Target) -> None:
    line(f"{render.number(tally.sent)} of {counted(tally.selected, 'dead letter')} sent back.")
    parts = [
        (tally.done, "done"),
        (tally.came_back, "failed again"),
        (tally.held, "held: outcome unknown"),
        (tally.under_way, "received, not finished"),
        (tally.waiting, "not received yet"),
        (tally.gone, "were no longer there, or being processed"),
    ]
    for count, what in parts:
        if count:
            line(f"  {count:>6,} {what}")
    if _ENDS[tally.end]:
        line(_ENDS[tally.end], "yellow")
    render.todo([f"onefold dlq show {one}" for one in tally.examples[:3]], found.words)
