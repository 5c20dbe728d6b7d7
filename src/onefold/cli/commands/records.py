"""`onefold records`: moves a table of records to layout 2.

Never here: how records are moved (`engines/aws/dynamodb/migration.py`). Invariant: nothing is written without --yes.
"""

from __future__ import annotations

from typing import Any

import click

from onefold.cli import render
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import line
from onefold.clock import SystemClock
from onefold.engines import urls
from onefold.entropy import SystemEntropy
from onefold.observe.wording import counted

records_command = Group("records", help="The table of records on DynamoDB: move it to layout 2.", no_args_is_help=True)


@declared(
    "migrate",
    example="onefold records migrate dynamodb://eu-west-1/shop\nonefold records migrate dynamodb://eu-west-1/shop --yes",
)
@click.argument("url", metavar="URL")
@click.option("--yes", is_flag=True, help="Move them; without it the command only reads.")
def migrate(url: str, yes: bool) -> Answer:
    """Move the records of a table from layout 1 to layout 2, in which roles can be limited to their own jobs.

    Stop all workers and functions of the app first. Each record gets a copy where layout 2 reads it; the old ones stay.
    The command can be interrupted and run again: it continues. When it has ended, processes with
    layout 1 cannot use the table any more: add layout=2 to the URL, and deploy with --layout 2.
    """
    table, migration = urls.layout_migration(url, clock=SystemClock(), entropy=SystemEntropy())
    found = (migration.migrate if yes else migration.survey)(table, render.note)
    return Answer(found, draw=lambda: _draw_migration(found, moved=yes))


def _draw_migration(found: Any, *, moved: bool) -> None:
    if found.done:
        line("The table has layout 2.")
    elif moved:
        line(f"{counted(found.records, 'record')} moved and compared. The table has layout 2 from now on.")
        line("Add layout=2 to the URL of every process, and deploy with --layout 2.")
    else:
        line(f"{counted(found.records, 'record')} would be moved, {counted(found.notes, 'note')} beside them.")
        if found.running:
            line(f"{counted(found.running, 'run')} hold a lease: stop all workers and functions of the app first.")
        else:
            line("No run holds a lease. Stop all workers and functions of the app, then run it with --yes.")


records_command.add_command(migrate)
