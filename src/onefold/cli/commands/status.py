"""`onefold status`: one look at everything, or the same look again and again; `onefold stuck`: runs that went silent.

Drawing only; what is counted and warned about is decided in `admin/status.py`.
Invariants: with --watch the picture is replaced, never scrolled; every line of `stuck` says what happens next, and whether
that needs a person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onefold.admin import status as admin
from onefold.cli import render, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, ago, line, number, some
from onefold.observe.wording import age

if TYPE_CHECKING:
    from rich.console import RenderableType


_AGAIN_MS = 2_000


@declared(
    "status", looks=True, example="onefold status shop:app\nonefold status --url sqlite:///.onefold/shop.db --watch"
)
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--watch", is_flag=True, help="Look again every 2 seconds until interrupted.")
def command(words: tuple[str, ...], url: str | None, queue: str | None, watch: bool) -> Answer:
    """How much waits, how fast it is done, and what needs a person.

    Per queue: messages that wait, that workers have in progress, that are delayed; the age of the oldest; dead letters and
    when the first of them expires; held messages. Per job: how many were done in the last minute and hour.
    """
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    if watch and not render.is_quiet():
        _watch(found, queue)
        return Answer(None)
    status = admin.status(found.session, queue)
    return Answer(status, draw=lambda: _draw(status, found.words))


def _draw(status: admin.Status, words: str) -> None:
    render.line(_head(status), "dim")  # never broken: a path is copied
    render.draw(picture(status, words))


def _head(status: admin.Status) -> str:
    return f"{status.url}   {render.local(status.at_ms)}"


def _watch(found: target.Target, queue: str | None) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    session = found.session
    with Live(console=render.console(), auto_refresh=False) as live:
        try:
            while True:
                status = admin.status(session, queue)
                live.update(
                    Group(Text(render.shown(_head(status)), style="dim"), picture(status, found.words)), refresh=True
                )
                session.clock.wait(session.never, _AGAIN_MS)
        except KeyboardInterrupt:
            return


def picture(status: admin.Status, words: str = "") -> RenderableType:
    """The whole status as one drawing, but for its head."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text()]
    if status.queues:
        parts.append(_queues(status))
    elif status.has_queues:
        parts.append(Text("No queue yet: it is made when an app first sends or runs."))
    elif not status.jobs:
        parts.append(Text("Records alone. No call was completed within the last hour."))
    if status.jobs:
        parts += [Text(), _jobs(status)]
    for warning in status.warnings:
        parts += [
            Text(),
            render.hanging(warning.text, "! ", "    ", "yellow"),
            Text(render.one_line(f"  {render.with_target(warning.todo, words)}"), style="cyan"),
        ]
    return Group(*parts)


def _queues(status: admin.Status) -> RenderableType:
    columns = [
        Column("queue", folds=True),
        *[
            Column(head, right=True)
            for head in ("waiting", "in progress", "delayed", "oldest", "dead", "expires in", "held")
        ],
    ]
    rows = [
        (
            one.queue, number(one.visible), some(one.in_flight), some(one.delayed), ago(one.oldest_age_ms), some(one.dead),
            ago(one.dead_expires_in_ms), some(one.held),
        )
        for one in status.queues
    ]  # fmt: skip
    return render.table(columns, rows)


def _jobs(status: admin.Status) -> RenderableType:
    columns = [
        Column("job", folds=True),
        Column("queue", folds=True),
        Column("done/min", right=True),
        Column("done/h", right=True),
        Column("", folds=True),
    ]
    rows = [
        (
            one.job,
            one.queue,
            number(one.done_last_minute),
            number(one.done_last_hour),
            _paused(one, status.at_ms),
        )
        for one in status.jobs
    ]
    return render.table(columns, rows)


def _paused(one: admin.JobStatus, now_ms: int) -> str:
    if one.paused_until_ms is None:
        return ""
    left_ms = one.paused_until_ms - now_ms
    return f"paused, next try in {age(left_ms)}" if left_ms > 0 else "paused, being tried"


@declared("stuck", looks=True, example="onefold stuck shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
def stuck(words: tuple[str, ...], url: str | None) -> Answer:
    """Runs that have stopped renewing their lease and that nobody has taken over yet, and runs past their timeout.

    A worker that dies on this machine is noticed within a second or so, on another one when its lease ends; its work is then
    taken over by the next delivery. What is listed here is on its way there, or has no message left that would do it.
    A handler past its timeout that still runs is listed where the app is named. Messages whose job no worker declares are
    named first.
    """
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    silent = admin.stuck(found.session)
    orphans = admin.no_job(found.session, sorted(found.session.settings()))
    return Answer({"stuck": silent, "no_job": orphans}, draw=lambda: _draw_stuck(silent, orphans))


def _draw_stuck(silent: list[admin.StuckRun], orphans: list[admin.Warning]) -> None:
    for one in orphans:
        render.draw(render.hanging(one.text, "! ", "    "))
    if not silent and orphans:
        return
    if not silent:
        line("Nothing is stuck.")
        return
    columns = [Column("key"), Column("job"), Column("silent", right=True), Column("next", folds=True)]
    rows = [(one.key, one.job, ago(one.silent_ms), one.explanation) for one in silent]
    render.draw(render.table(columns, rows))
