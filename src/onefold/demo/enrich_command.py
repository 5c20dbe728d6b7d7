"""`onefold demo enrich`: the options, the proof table, and the exit code of the nightly file's map run.

Never here: how it goes (`enrich`). Invariant: 0 only when every invoice was enriched once, the night ended at its threshold,
the repaired run succeeded, and no fault was built in.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from onefold.demo import data
from onefold.demo.progress import bar
from onefold.demo.stage import stage

if TYPE_CHECKING:
    from onefold.demo.enrich import Outcome

EPILOG = """
Exit codes: 0 every invoice was enriched once, and the run failed and was repaired as it should; 1 not so; 2 wrong usage.
"""


@click.command("enrich", epilog=EPILOG)
@click.option("--kills", type=click.IntRange(0, 200), default=8, show_default=True, help="Of workers, in each round.")
@click.option(
    "--rows", type=click.IntRange(2_000, data.ROWS), default=data.ROWS, show_default=True, help="Of the file."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Of when, and whom.")
@click.option(
    "--plant", type=click.Choice(["salted-key", "no-threshold"]), help="Build a fault in; the demo must fail."
)
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the engine, the files and the log there."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def enrich(
    context: click.Context,
    kills: int,
    rows: int,
    seed: int,
    plant: Literal["salted-key", "no-threshold"] | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Enrich a nightly file of real invoices: 2 % may fail, more do; it is repaired and redriven, workers killed meanwhile.

    Damaged rows are quarantined with their lines. In the end the table is held against an independent reading of the
    file: each invoice once, to the penny.
    """
    from onefold.demo import enrich as night

    settings = night.Settings(kills=kills, seed=seed, rows=rows, plant=plant)
    with stage(keep) as folder, bar() as told:
        found = night.perform(settings, folder, told)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _draw(found)
    context.exit(1 if found.faults or plant is not None else 0)


def _draw(found: Outcome) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from onefold.demo.enrich_shop import TOLERATED_PERCENT

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("round", "run", "done", "failed", "bad rows", "not sent", "killed", "seconds"):
        table.add_column(title, justify="left" if title in ("round", "run") else "right")
    for one in found.rounds:
        counts = (one.done, one.failed, one.malformed, one.pending, one.kills)
        table.add_row(one.name, one.status, *(f"{count:,}" for count in counts), f"{one.seconds:,}")
    console = Console(highlight=False)
    console.print(table)
    refused = found.rounds[-1].failed
    if refused and found.rounds[-1].status == "succeeded":
        console.print(
            f"The {refused:,} that failed in the repair, too, have a negative price: no invoices, refused each time, and "
            f"fewer than the {TOLERATED_PERCENT:g} % that are tolerated."
        )
    net, expected = Decimal(found.net), Decimal(found.net_expected)
    console.print(f"In the table: {found.made:,} of {found.expected:,} invoices, {net:,.2f} of {expected:,.2f} pounds.")
    for fault in found.faults:
        console.print(fault, style="red", soft_wrap=True)
    if not found.faults:
        console.print("twice: 0, never: 0; the total is the file's.", style="bold green")
