"""`onefold workers`: lists the workers and what each one runs, and asks them to drain. It only prints and asks.

`onefold worker` runs jobs. Invariant: a worker is asked to end, never killed.
"""

from __future__ import annotations

import click

from onefold.admin import activity as admin
from onefold.cli import options, render, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line
from onefold.observe.wording import counted, with_target

command = Group("workers", help="Workers: list, drain.", no_args_is_help=True)


@declared("list", read_only=True, example="onefold workers list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
def list_workers(words: tuple[str, ...], url: str | None) -> Answer:
    """List the workers, and what each of them is running.

    Whatever else has claimed an operation is listed too: a Lambda function, a call under @once.
    """
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    there = admin.workers(found.session)
    return Answer(there, draw=lambda: _draw(there, found.session.now_ms(), found.words))


def _draw(there: admin.Workers, now_ms: int, words: str) -> None:
    if not there.workers:
        line(with_target("No worker is running. Start one: onefold worker <module>:<app>", words))
        return
    columns = [
        Column("worker", folds=True), Column("state"), Column("since", right=True), Column("where", folds=True),
        Column("queues", folds=True), Column("runs", folds=True),
    ]  # fmt: skip
    rows = [
        (
            one.owner,
            one.state,
            ago(now_ms - one.started_at_ms) if one.started_at_ms is not None else None,
            f"{one.host}, process {one.pid}" if one.host is not None else None,
            ", ".join(one.queues),
            _runs(one),
        )
        for one in there.workers
    ]
    render.draw(render.table(columns, rows))


def _runs(one: admin.WorkerView) -> str:
    shown = [f"{each.job} {each.key}" for each in one.operations[:3]]
    more = len(one.operations) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


@declared("drain", example="onefold workers drain 3f9c2d41 shop:app --reason-text 'the host is rebooted'")
@click.argument("words", metavar="[WORKER]... [APP]", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All known workers.")
@target.by_url
@options.reason_text
def drain(words: tuple[str, ...], every: bool, url: str | None, reason_text: str | None) -> Answer:
    """Ask workers to finish what they run, release what has not started, and end, as SIGTERM does.

    An embedded worker notices within two seconds, one on AWS or a server within fifteen. A supervisor that starts workers
    may start others in their place.
    """
    app, owners = target.split_ids(words)
    found = target.find(app, url, records=True)
    there = [one.owner for one in admin.workers(found.session).workers if one.app is not None and one.state != "ended"]
    if every == bool(owners):
        raise click.UsageError("Name workers, or give --all. `onefold workers list` shows them.")
    wanted = there if every else list(owners)
    asked = [owner for owner in wanted if admin.drain(found.session, owner, reason_text=reason_text)]
    said = f"{counted(len(asked), 'worker')} asked to drain"
    before = len(wanted) - len(asked)
    said += f", {before} asked before." if before else "."
    return Answer({"asked": asked, "wanted": wanted}, draw=lambda: line(said))


command.add_command(list_workers)
command.add_command(drain)
