"""`onefold names`: whose the names of operations on a store are, and giving one to another app.

Parsing and drawing; `admin/jobs.py` does the work. Invariant: nothing is given but by name, or as all of one app's.
"""

from __future__ import annotations

import click

from onefold.admin import jobs
from onefold.cli import options, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, draw, line, table
from onefold.runtime.names import Taken

command = Group("names", help="Whose the names of operations are: list, give.", no_args_is_help=True)


@declared("list", looks=True, example="onefold names list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
def list_names(words: tuple[str, ...], url: str | None) -> Answer:
    """All names of operations on a store, and which app's jobs, or guarded calls, have them."""
    app, _ = target.split(words, 0, names="", url=url)
    found = target.find(app, url, records=True)
    taken = jobs.taken_names(found.session)
    return Answer({"names": taken}, draw=lambda: _draw(taken, found.session.now_ms()))


def _draw(taken: list[Taken], now_ms: int) -> None:
    if not taken:
        line("No names: a worker takes those of its app's jobs when it starts.")
        return
    columns = [Column("name", folds=True), Column("kind"), Column("apps", folds=True), Column("since", right=True)]
    draw(table(columns, [(one.name, one.kind, ", ".join(one.apps), ago(now_ms - one.since_ms)) for one in taken]))


@declared(
    "give",
    example="onefold names give book_courier --to shop2 shop:app\n"
    "onefold names give --of shop --to shop2 --url sqlite:///.onefold/shop.db",
)
@click.argument("words", metavar="[NAME]... [APP]", nargs=-1)
@click.option("--to", metavar="APP", required=True, help="Name of the app whose jobs have them from now on.")
@click.option("--of", metavar="APP", help="All names of that app, instead of single ones.")
@click.option("--share", is_flag=True, help="Who has them now keeps them too.")
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="As APP, where a name looks like one.")
@target.by_url
@options.reason_text
def give(
    words: tuple[str, ...],
    to: str,
    of: str | None,
    share: bool,
    app: str | None,
    url: str | None,
    reason_text: str | None,
) -> Answer:
    """Give names of operations to another app: after it was renamed, or when a job moved.

    Stop the workers of the app that had them. With --share both have them: while an app is being renamed, or where the keys
    of two apps never meet; if they do meet, each is answered with what the other has done.
    """
    names = words
    if app is None and url is None:
        app, names = target.split_ids(words)
    if bool(names) == bool(of):
        given = f"names ({', '.join(names)}) and --of {of} were" if names else "neither was"
        raise click.UsageError(f"Give names, or --of APP for all names of an app; {given} given.")
    found = target.find(app, url, records=True)
    changed = jobs.give_names(found.session, names, to, of=of, shared=share, reason_text=reason_text)

    def show() -> None:
        for one in changed:
            line(f"{one.name} belongs to {' and '.join(one.apps)}.")

    return Answer({"names": changed}, draw=show)


command.add_command(list_names)
command.add_command(give)
