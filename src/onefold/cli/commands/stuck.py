"""`onefold stuck`: runs that went silent and were not taken over yet; empty when all is well, or each explained.

Never here: what ends a lease. Invariant: every line says what happens next, and whether that needs a person.
"""

from __future__ import annotations

import click

from onefold.cli import render, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, ago, line
from onefold.service import status, stories


@declared("stuck", looks=True, example="onefold stuck shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
def command(words: tuple[str, ...], url: str | None) -> Answer:
    """Runs that have stopped renewing their lease and that nobody has taken over yet.

    A worker that dies on this machine is noticed within a second or so, on another one when its lease ends; its work is then
    taken over by the next delivery. What is listed here is on its way there, or has no message left that would do it.
    Messages whose job no worker declares are named first.
    """
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    silent = stories.silent(found.desk)
    orphans = status.no_job(found.desk, sorted(found.desk.settings()))
    return Answer({"stuck": silent, "no_job": orphans}, draw=lambda: _draw(silent, orphans))


def _draw(silent: list[stories.Silent], orphans: list[status.Warning]) -> None:
    for one in orphans:
        line(f"! {one.text}")
    if not silent and orphans:
        return
    if not silent:
        line("Nothing is stuck.")
        return
    columns = [Column("key"), Column("job"), Column("silent", right=True), Column("next", folds=True)]
    rows = [(one.key, one.job, ago(one.silent_ms), one.explanation) for one in silent]
    render.draw(render.table(columns, rows))
