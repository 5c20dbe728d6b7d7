"""`onefold demo aws`: the options, what is shown, and the exit code of the run on AWS's parts.

Every command of the run is shown as a user would type it, with what it says. Never here: how the run goes (`cloud`).
Invariant: 0 only when every invoice was fulfilled once and the dead letters are right.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from onefold.demo import data
from onefold.demo.progress import bar
from onefold.demo.stage import stage
from onefold.errors import OnefoldError

if TYPE_CHECKING:
    from onefold.demo.cloud import Command, Outcome

COMMAND_S_MAX = 300

EPILOG = """
Exit codes: 0 every invoice was fulfilled once and the dead letters are right; 1 not so; 2 wrong usage.
"""


@click.command("aws", epilog=EPILOG)
@click.option(
    "--rows", type=click.IntRange(1, data.ROWS), default=500, show_default=True, help="Only the first invoices."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Of what is left to chance.")
@click.option(
    "--fault-rate",
    type=click.FloatRange(0, 0.5),
    default=0.02,
    show_default=True,
    help="Part of the calls to AWS that fail: 5xx, throttled, answer lost before or after they were applied.",
)
@click.option("--emulator", metavar="PROGRAM", help="ministack, when it is not where it is looked for.")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep template, package, ledger and logs there."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def aws(
    context: click.Context,
    rows: int,
    seed: int,
    fault_rate: float,
    emulator: str | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Deploy the shop by CloudFormation to an emulator, and fulfil invoices in Lambda functions.

    SQS, Lambda's event source mapping, DynamoDB, S3 and CloudFormation are ministack's, on this machine. The partner's own
    ledger is judged as in the other runs.
    """
    from onefold.demo import cloud

    settings = cloud.Settings(rows=rows, seed=seed, fault_rate=fault_rate, emulator=emulator or cloud.find_emulator())
    with stage(keep) as folder, bar() as told:
        found = cloud.perform(settings, folder, _commands(quiet=as_json), told)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _draw(settings.rows, found)
    context.exit(1 if found.faults else 0)


def _commands(*, quiet: bool) -> Callable[[Path, Mapping[str, str]], Command]:
    """Runs `onefold` as a user would, and shows both the command and what it says."""

    def make(folder: Path, variables: Mapping[str, str]) -> Command:
        def run(*arguments: str) -> str:
            if not quiet:
                click.secho(f"\n$ onefold {shlex.join(arguments)}", bold=True)
            done = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-m", "onefold", *arguments],
                cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
                timeout=COMMAND_S_MAX, check=False,
            )  # fmt: skip
            if not quiet:
                click.echo(done.stdout, nl=False)
            if done.returncode != 0:
                raise OnefoldError(
                    f"onefold {arguments[0]} ended with exit code {done.returncode}.",
                    meaning=done.stderr.strip()[-1500:],
                    todo="Run the demo again with --keep DIR, and look into that folder.",
                )
            return done.stdout

        return run

    return make


def _draw(rows: int, found: Outcome) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("invoices", f"{rows:,}")
    table.add_row("messages, of them sent twice", f"{found.messages:,}, {found.again:,}")
    table.add_row("seconds until the queue was empty", f"{found.seconds:,}")
    for action, count in sorted(found.calls.items(), key=lambda one: -one[1])[:6]:
        table.add_row(f"calls: {action}", f"{count:,}")
    table.add_row("calls that failed on purpose", f"{sum(found.met.values()):,}")
    table.add_row("requests to the partner, of them repeated", f"{found.requests:,}, {found.repeated:,}")
    table.add_row("bookings, expected", f"{found.bookings:,}, {found.expected:,}")
    for reason, count in found.dead_letters.items():
        table.add_row(f"dead letters: {reason}", f"{count:,}")
    style = "bold red" if found.faults else "bold green"
    table.add_row("twice", str(found.twice), style=style)
    table.add_row("never", str(found.never), style=style)
    console = Console(highlight=False)
    console.print(table)
    for fault in found.faults:
        console.print(fault, style="red", soft_wrap=True)
    if not found.faults:
        console.print("Every invoice was fulfilled once; the partner's own ledger says so.", soft_wrap=True)
