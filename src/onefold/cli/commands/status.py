"""`onefold status`: once, or repeated; `stuck`: runs that went silent; `counts`: outcome counters.

It only prints; what is counted and warned about is decided in `admin/status.py`, `admin/stuck.py` and `admin/counts.py`.
Invariants: with --watch the screen is replaced, never scrolled; every line of `stuck` says what happens next, and whether
that needs a person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onefold.admin import counts as admin_counts
from onefold.admin import status as admin
from onefold.admin import status_warnings
from onefold.admin import stuck as admin_stuck
from onefold.admin.counts import OutcomeCount
from onefold.admin.days import range_of
from onefold.cli import render, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, ago, line, number, some
from onefold.observe.wording import age, with_target

if TYPE_CHECKING:
    from rich.console import RenderableType


_AGAIN_MS = 2_000


@declared(
    "status", read_only=True, example="onefold status shop:app\nonefold status --url sqlite:///.onefold/shop.db --watch"
)
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--watch", is_flag=True, help="Look again every 2 seconds until interrupted.")
def command(words: tuple[str, ...], url: str | None, queue: str | None, watch: bool) -> Answer:
    """What waits, how fast it is done, and what needs a person.

    Per queue: messages that wait; that are in flight (received, and hidden from others until their visibility timeout
    ends); that were given back, to be tried again later (SQS counts these as in flight); that are delayed; the age of the
    oldest; dead letters and when the first of them expires; held messages. Per job: how many runs completed in the last
    minute and hour. Below: what needs a person, each with the command that shows or resolves it.
    """
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    if watch and not render.is_quiet():
        _watch(found, queue)
        return Answer(None)
    status = admin.status(found.session, queue)
    return Answer(status, draw=lambda: _draw(status, found.words))


def _draw(status: admin.Status, words: str) -> None:
    render.line(_head(status), "dim")  # never wrapped, so that a path can be copied
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
    """The whole status except its head, as one drawing."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if status.queues:
        parts += [Text(), _queues(status)]
    elif status.has_queues:
        parts += [Text(), Text("No queue yet: it is made when an app first sends or runs.")]
    elif not status.has_records:
        text = "It contains no records: nothing has used it yet, or its users name another database, prefix or schema."
        parts += [Text(), Text(text)]
    elif not status.jobs:
        parts += [Text(), Text("A store of records, without queues. No call was completed within the last hour.")]
    if status.jobs:
        parts += [Text(), _jobs(status)]
    if status.outbox is not None and status.outbox.trouble is None:
        found = status.outbox
        waits = f"{number(found.waiting)} waiting" + (
            f", the oldest for {age(found.oldest_age_ms)}" if found.oldest_age_ms else ""
        )
        parts += [Text(), Text(render.one_line(f"outbox   {waits}   {found.url}"))]
    for warning in status.warnings:
        parts += [
            Text(),
            render.hanging(warning.text, "! ", "    ", "yellow"),
            Text(render.one_line(f"  {with_target(warning.todo, words)}"), style="cyan"),
        ]
    return Group(*parts)


def _queues(status: admin.Status) -> RenderableType:
    retries = any(one.to_retry for one in status.queues)  # few queues have any, and a table has only so much room
    heads = (
        "waiting",
        "in flight",
        *(["to retry"] if retries else []),
        "delayed",
        "oldest",
        "dead",
        "expires in",
        "held",
    )
    columns = [Column("queue", folds=True), *(Column(head, right=True) for head in heads)]
    rows = [
        (
            one.queue, number(one.visible), some(one.in_flight - (one.to_retry or 0)),
            *([some(one.to_retry or 0)] if retries else []), some(one.delayed), ago(one.oldest_age_ms), some(one.dead),
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


@declared("stuck", read_only=True, example="onefold stuck shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
def stuck(words: tuple[str, ...], url: str | None) -> Answer:
    """Runs whose worker has died, or has not renewed its lease, and runs past their timeout.

    The death of a worker on this machine is noticed within about a second, elsewhere when its lease ends; the next delivery
    then takes the run over. The list contains runs for which that has not happened yet, or for which no message is left
    that could cause it. Runs past their timeout are listed if the app is named. Messages that no worker takes come first.
    """
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    silent = admin_stuck.runs(found.session)
    orphans = status_warnings.waiting_in_vain(found.session)
    return Answer({"stuck": silent, "no_job": orphans}, draw=lambda: _draw_stuck(silent, orphans, found.words))


def _draw_stuck(silent: list[admin_stuck.StuckRun], orphans: list[status_warnings.Warning], words: str) -> None:
    for one in orphans:
        render.draw(render.hanging(one.text, "! ", "    "))
        line(f"  {with_target(one.todo, words)}")
    if not silent and orphans:
        return
    if not silent:
        line("Nothing is stuck.")
        return
    columns = [Column("key"), Column("job"), Column("silent", right=True), Column("next", folds=True)]
    rows = [(one.key, one.job, ago(one.silent_ms), one.explanation) for one in silent]
    render.draw(render.table(columns, rows))


@declared(
    "counts",
    read_only=True,
    example="onefold counts 2026-11-23 shop:app\nonefold counts 2026-11 shop:app --job issue_invoice --tz Europe/Berlin",
)
@click.argument("words", metavar="DATE [APP]", nargs=-1)
@target.by_url
@click.option("--job", metavar="NAME", help="Only what this job counted.")
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="Zone of the days.")
def counts(words: tuple[str, ...], url: str | None, job: str | None, tz: str) -> Answer:
    """What handlers counted with `ctx.count`, by day, job and counter.

    DATE is a year, a month, a day or an instant: 2026, 2026-11, 2026-11-23. Only runs that completed count, each once,
    however often it was delivered or retried.
    """
    app, (date,) = target.split(words, 1, names="DATE", url=url, form="2026, 2026-11 or 2026-11-23")
    when = range_of(date, tz)
    found = target.find(app, url)
    rows = admin_counts.counted(found.session, when, job)
    return Answer({"counts": rows}, draw=lambda: _draw_counts(rows, date, job))


def _draw_counts(rows: list[OutcomeCount], date: str, job: str | None) -> None:
    if not rows:
        whose = f"of {job} " if job is not None else ""
        line(f"{date}: no run {whose}completed that counted anything. Handlers count with ctx.count(name).")
        return
    columns = [Column("day"), Column("job", folds=True), Column("counter", folds=True)]
    columns += [Column("total", right=True), Column("runs", right=True)]
    render.draw(
        render.table(columns, ((one.day, one.job, one.name, number(one.total), number(one.runs)) for one in rows))
    )
