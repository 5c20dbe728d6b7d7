"""`onefold demo billing`: the options, the proof table, and the exit code of the billing year.

Never here: how it goes (`billing`). Invariant: 0 only when every account has one statement for each month, the totals are
those of the file, and no fault was built in.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from onefold.demo.progress import bar
from onefold.demo.stage import stage
from onefold.watch.wording import counted

if TYPE_CHECKING:
    from onefold.demo.billing import Outcome

EPILOG = """
Exit codes: 0 every account has one statement a month and the totals are the file's; 1 not so; 2 wrong usage.
"""


@click.command("billing", epilog=EPILOG)
@click.option(
    "--kills", type=click.IntRange(0, 200), default=15, show_default=True, help="At random, of workers and schedulers."
)
@click.option(
    "--falls", type=click.IntRange(0, 13), default=4, show_default=True, help="Months killed in the middle of dispatch."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Of when, and whom.")
@click.option("--plant", type=click.Choice(["two-keys"]), help="Build a fault in; the demo must fail.")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the engine's file and the log there."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def billing(
    context: click.Context, kills: int, falls: int, seed: int, plant: str | None, keep: Path | None, as_json: bool
) -> None:
    """Bill a year of real invoices: thirteen ticks at 03:00 London time, two schedulers, kills in mid-dispatch.

    Each month's customers are dispatched to a FIFO queue; each gets one statement. In the end they are held against
    an independent sum of the file, to the penny.
    """
    from onefold.demo import billing as year

    settings = year.Settings(kills=kills, falls=falls, seed=seed, plant=plant)
    with stage(keep) as folder, bar() as told:
        found = year.perform(settings, folder, told)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _draw(found)
    context.exit(1 if found.faults or plant is not None else 0)


def _draw(found: Outcome) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("month", "dispatched", "made", "twice", "never", "net, GBP", "by the file"):
        table.add_column(title, justify="left" if title == "month" else "right", no_wrap=True)
    for one in found.months:
        table.add_row(
            one.month, f"{one.dispatched:,}", f"{one.made:,}", str(one.twice), str(one.never),
            f"{Decimal(one.net):,.2f}", f"{Decimal(one.net_expected):,.2f}", style="" if one.right else "red",
        )  # fmt: skip
    console = Console(highlight=False)
    console.print(table)
    killed = ", ".join(counted(count, name) for name, count in sorted(found.kills.items())) or "nobody"
    console.print(
        f"Killed: {killed}; dispatches that ended in the middle: {found.interrupted}. {found.seconds:,} s.",
        soft_wrap=True,
    )
    console.print(
        f"All {len(found.months)} ticks were sent twice; {found.duplicates} were answered from their record.",
        soft_wrap=True,
    )
    for fault in found.faults:
        console.print(fault, style="red", soft_wrap=True)
    if not found.faults:
        console.print("twice: 0, never: 0; every month's total is the file's.", style="bold green")
