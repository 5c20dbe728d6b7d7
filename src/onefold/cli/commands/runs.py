"""`onefold runs`: runs of schedules, dispatchers and map jobs: a page of them, one with what is left of it, or one live.

It only prints; `admin/runs.py` counts. Invariant: while a run is watched the picture is replaced, never scrolled; if output
is not a terminal, each poll that finds something new prints one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onefold import redact
from onefold.admin import runs as admin
from onefold.cli import render, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line, number, some
from onefold.observe.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

command = Group("runs", help="Runs: list, show, watch.", no_args_is_help=True)

_BAR_CELLS = 40
_COLOURS: dict[admin.RunStatus, render.Style] = {"complete": "green", "ended": "red", "stopped": "red"}
_NOT_ALL_DONE = 1


def _target(words: tuple[str, ...], url: str | None, wanted: int) -> tuple[target.Target, list[str]]:
    app, rest = target.split(words, wanted, names="RUN" if wanted else "", url=url)
    return target.find(app, url), rest


# -- list ------------------------------------------------------------------------------------------------------------


@declared(
    "list",
    read_only=True,
    example="onefold runs list shop:app\nonefold runs list shop:app --of monthly-billing --limit 50\n"
    "onefold runs list shop:app --unfinished",
)
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
@click.option("--of", "title", metavar="NAME", help="Only runs of this schedule or map job.")
@click.option("--unfinished", is_flag=True, help="Only runs that are not over.")
@click.option("--limit", metavar="N", default=admin.PAGE, show_default=True, help="How many.")
@click.option("--after", metavar="RUN", help="Show the page after this run, the last one of the page before.")
def list_runs(
    words: tuple[str, ...], url: str | None, title: str | None, unfinished: bool, limit: int, after: str | None
) -> Answer:
    """Runs, the latest first: how many operations are expected and done, and how the others ended."""
    found, _ = _target(words, url, 0)
    page = admin.listed(found.session, title, unfinished=unfinished, limit=limit, after=after)
    return Answer(page, draw=lambda: _draw_page(page, found))


_HEADS = {"missing": "open"}  # reconciliation alone knows which of these are lost


def _draw_page(page: admin.RunPage, found: target.Target) -> None:
    if not page.runs:
        line("No run.")
        return
    trouble = ("failed", "dead", "unknown", "missing")
    shown = [head for head in trouble if any(getattr(one, head) for one in page.runs)]  # a run's name needs the room
    columns = [Column("run", folds=True), Column("state")]
    columns += [Column(head, right=True) for head in ("done", "of", *(_HEADS.get(head, head) for head in shown), "age")]
    now_ms = found.session.now_ms()
    rows = [
        (
            one.run, one.status, number(one.done), number(one.expected), *(some(getattr(one, head)) for head in shown),
            ago(now_ms - one.started_at_ms),
        )
        for one in page.runs
    ]  # fmt: skip
    render.draw(render.table(columns, rows))
    stopped = [one for one in page.runs if one.status == "stopped"]
    for one in stopped:
        line()
        line(f"! {one.run} stopped while it was dispatched: {one.failure}", "yellow")
    if page.after is not None:
        line()
        render.todo([f"onefold runs list --after {page.after}"], found.words)


# -- show ------------------------------------------------------------------------------------------------------------


@declared("show", read_only=True, example="onefold runs show monthly-billing/2026-06 shop:app")
@click.argument("words", metavar="RUN [APP]", nargs=-1)
@target.by_url
@click.option("--limit", metavar="N", default=admin.PAGE, show_default=True, help="How many operations to list.")
@click.option("--skip", metavar="N", default=0, help="Skip the first N of them.")
def show_run(words: tuple[str, ...], url: str | None, limit: int, skip: int) -> Answer:
    """One run, and its operations that are not done: those that need a person first.

    RUN can be the beginning of a name, if no other run begins like that.
    """
    found, (name,) = _target(words, url, 1)
    shown = admin.show(found.session, name, limit=limit, after=skip)
    return Answer(shown, draw=lambda: _draw_shown(shown, skip, found))


def _draw_shown(shown: admin.RunDetail, skip: int, found: target.Target) -> None:
    run, now_ms = shown.run, found.session.now_ms()
    line(run.run, "bold")
    kinds = {"tick": "tick", "dispatch": "dispatcher", "map": "map run"}
    began = f"{render.local(run.started_at_ms)} ({ago(now_ms - run.started_at_ms)} ago)"
    line(f"  {kinds.get(run.kind, run.kind)} of {run.title}, began {began}")
    if run.nominal_at_ms is not None:
        line(f"  planned for {render.local(run.nominal_at_ms)}")
    if run.owner is not None:
        line(f"  owner {run.owner}")
    line(f"  {_said(run)}", _COLOURS.get(run.status, ""))
    if shown.restarts:
        again = "once" if shown.restarts == 1 else f"{shown.restarts} times"
        line(f"  its dispatcher yielded other messages than before, and was begun again {again}, under the same keys")
    if shown.malformed:
        are = "is malformed, and is no operation" if shown.malformed == 1 else "are malformed, and are no operations"
        line(f"  {counted(shown.malformed, 'row')} of its source {are}", "yellow")
    if shown.duplicates:
        one = shown.duplicates == 1
        repeat = "repeats an earlier one, and is no operation" if one else "repeat earlier ones, and are no operations"
        line(
            f"  {counted(shown.duplicates, 'row')} of its source {repeat} of {'its' if one else 'their'} own", "yellow"
        )
    line()
    counts = [("expected", run.expected), ("done", run.done), ("failed, will be tried again", run.failed)]
    counts += [("dead letters", run.dead), ("unknown outcome, held", run.unknown), ("no outcome yet", run.missing)]
    if shown.in_flight is not None:
        counts.append(("being worked on now", shown.in_flight))
    columns = [Column("operations", folds=True), Column("", right=True)]
    render.draw(render.table(columns, [(what, number(count)) for what, count in counts]))
    if shown.open:
        line()
        _draw_open(shown, now_ms)
    left = (shown.open_count or 0) - skip - len(shown.open)
    steps = [f"onefold runs show {run.run} --skip {skip + len(shown.open)}   ({left:,} more)"] if left > 0 else []
    steps += _steps(shown, has_app=found.app is not None)
    if steps:
        line()
        render.todo(steps, found.words)


def _draw_open(shown: admin.RunDetail, now_ms: int) -> None:
    columns = [Column("key", folds=True), Column("job"), Column("state"), Column("last"), Column("ago", right=True)]
    rows = [
        (f"{one.tenant}/{one.key}" if one.tenant else one.key, one.job, one.status, one.event, ago(now_ms - one.at_ms))
        for one in shown.open
    ]
    render.draw(render.table(columns, rows))


def _steps(shown: admin.RunDetail, *, has_app: bool) -> list[str]:
    """The next steps of a person, for what only a person can do."""
    run = shown.run
    is_map = run.kind == "map"  # its items are redriven with it, so that its figures and results are updated
    steps = ["onefold held list"] if run.unknown else []
    refused = sum(one.event == "conflict" for one in shown.open)
    if run.dead > refused:
        steps.append(f"onefold dlq list   ({'why items failed' if is_map else 'then redrive'})")
    if refused:
        steps.append("onefold dlq list --all --reason conflict   (key used with another payload; a redrive is refused)")
    steps += [redact.command("onefold why", one.key) for one in shown.open[:1]]
    over = run.status in ("stopped", "ended")
    if is_map and (over or shown.malformed):
        step = f"onefold map show {run.run}{' --quarantine 20' if shown.malformed else ''}"
        about = ["which rows are not items"] if shown.malformed else []
        about += ["what ended it; onefold map redrive does the rest"] if over else []
        remark = ", ".join(about)
        steps.append(f"{step}   ({remark})" if has_app else f"`{step} APP`   ({remark})")
    elif run.status == "stopped":
        steps.append("onefold dlq list   (the tick is listed after its last attempt; redrive it to continue)")
    return steps


def _said(run: admin.RunView) -> str:
    match run.status:
        case "dispatching":
            return f"being dispatched: {counted(run.dispatched, 'message')} so far"
        case "stopped":
            return f"stopped after {counted(run.dispatched, 'message')}: {run.failure}"
        case "running":
            return f"running: {run.settled:,} of {run.expected:,} settled"
        case "complete":
            return f"complete: {run.expected:,} of {counted(run.expected, 'operation')} done"
        case _:
            return f"over, and {counted(run.expected - run.done, 'operation')} not done"


# -- watch -----------------------------------------------------------------------------------------------------------


@declared("watch", read_only=True, example="onefold runs watch monthly-billing/2026-06 shop:app")
@click.argument("words", metavar="RUN [APP]", nargs=-1)
@target.by_url
def watch_run(words: tuple[str, ...], url: str | None) -> Answer:
    """Follow a run until nothing is left to do, with its rate and the time left; with --json, answer then.

    Exits with 0 when all of it is done, with 1 when some of it is left to a person, and with 130 if interrupted before
    that. A dispatcher whose tick is dead-lettered or held is left to a person too.
    """
    found, (name,) = _target(words, url, 1)
    session = found.session
    snapshots = admin.watched(session, name, wait=lambda pause_ms: session.clock.wait(session.never, pause_ms))
    last = next(snapshots)
    try:
        if render.is_quiet():
            for last in snapshots:  # noqa: B007 - the last one is the answer
                pass
        elif render.console().is_terminal:
            last = _live(last, snapshots)
        else:
            last = _in_lines(last, snapshots)
    except KeyboardInterrupt:
        return Answer(last, code=130)
    code = 0 if last.run.status == "complete" else _NOT_ALL_DONE
    return Answer(last, draw=lambda: _draw_end(last.run, found), code=code)


def _draw_end(run: admin.RunView, found: target.Target) -> None:
    line(_said(run), _COLOURS.get(run.status, ""))
    steps = [f"onefold runs show {run.run}   (what is left, and what to do)"]
    if run.status == "stopped" and run.kind == "dispatch":
        steps = [
            f"onefold why {run.run}   (its tick)",
            f"onefold dlq redrive --key {run.run}   (to continue, once it is fixed)",
        ]
    if run.status != "complete":
        render.todo(steps, found.words)


def _live(first: admin.RunProgress, snapshots: admin.Snapshots) -> admin.RunProgress:
    from rich.live import Live

    last = first
    with Live(picture(first), console=render.console(), auto_refresh=False) as live:
        for last in snapshots:
            live.update(picture(last), refresh=True)
    return last


def _in_lines(first: admin.RunProgress, snapshots: admin.Snapshots) -> admin.RunProgress:
    last = first
    if not first.ended:
        line(_pace(first))
    for progress in snapshots:
        if progress.run != last.run and not progress.ended:  # the answer says how it ended
            line(_pace(progress))
        last = progress
    return last


def picture(progress: admin.RunProgress) -> RenderableType:
    """A run in progress as one drawing: a bar, a line of counts, and how fast it goes."""
    from rich.console import Group as Lines
    from rich.text import Text

    run = progress.run
    bar = Text()
    for count, style in ((run.done, "green"), (run.dead, "red"), (run.unknown, "yellow")):
        bar.append("█" * (_BAR_CELLS * count // max(run.expected, 1)), style=style)
    bar.append("░" * (_BAR_CELLS - len(bar)), style="dim")
    return Lines(Text(run.run, style="bold"), bar, Text(_counts(run)), Text(_pace(progress), style="dim"))


def _counts(run: admin.RunView) -> str:
    parts = [(run.done, "done"), (run.failed, "failed"), (run.dead, "dead"), (run.unknown, "unknown")]
    texts = [f"{count:,} {what}" for count, what in parts if count or what == "done"]
    return ", ".join([*texts, f"{run.missing:,} without outcome yet"]) if run.missing else ", ".join(texts)


def _pace(progress: admin.RunProgress) -> str:
    parts = [_said(progress.run)]
    if progress.per_second is not None:
        parts.append(f"{progress.per_second:,.1f}/s")
    if progress.eta_ms:
        parts.append(f"about {ago(progress.eta_ms)} left")
    return ", ".join(parts)


for each in (list_runs, show_run, watch_run):
    command.add_command(each)
