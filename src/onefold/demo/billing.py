"""A year of billing while processes are killed: thirteen ticks, thirteen dispatches, a statement per account and month.

`onefold demo billing`: two schedulers and three workers run on one file. They are killed at random, workers also in the
middle of a dispatch. Halfway through, every tick is sent again. At the end, the table of statements is compared with an
independent sum of the file, month by month, to the penny.

Here: the command, the run, the judgement and the table that is printed. Never here: the shop (`billing_shop`) and the
figures (`figures`). Invariant: every process that was started has ended before the table is read, and the exit code is
0 only if every account has one statement for each month, the totals match the file, and no fault was built in.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Final

import click
import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from onefold.clock import SystemClock
from onefold.demo import data, figures
from onefold.demo.processes import DemoProcesses
from onefold.demo.stage import Draw, bar, stage
from onefold.entropy import SeededEntropy
from onefold.errors import OnefoldError
from onefold.observe.wording import counted
from onefold.private_files import make_folder

APP: Final = "onefold.demo.billing_shop:app"
SCHEDULERS, WORKERS = 2, 3
_COMMANDS: Final = [
    *[["scheduler", APP]] * SCHEDULERS,
    *[["worker", APP, "--threads", "8", "--no-progress"]] * WORKERS,
]
TICK_MS: Final = 100
STALL_MS_MAX: Final = 90_000
_SETTLED_LOOKS: Final = 5
_LEFT: Final = "SELECT count(*) FROM onefold_message"
_INTERRUPTED: Final = "SELECT count(*) FROM onefold_record WHERE job = 'monthly-billing' AND crashes_total > 0"
_DUPLICATES: Final = "SELECT count(*) FROM onefold_ledger WHERE job = 'monthly-billing' AND event = 'duplicate'"


class BillingSettings(Struct, frozen=True, kw_only=True):
    """The options of the demo.

    Args:
        kills: number of random kills, of workers and schedulers together. falls: in how many months the worker is
            killed in the middle of the dispatch, 0 to 13. seed: the seed of the random numbers. plant: a fault to build
                in, or
            None.
    """

    kills: int
    falls: int
    seed: int
    plant: str | None = None


class Month(Struct, frozen=True, kw_only=True):
    """One month: the figures from the file, and the actual ones.

    Args:
        month: for example `2011-03`. expected, made: numbers of statements. twice, never: numbers of accounts with two
            statements and with none. net_expected, net: in pounds. dispatched: messages of its run, as onefold counts
            them.
    """

    month: str
    expected: int
    made: int
    twice: int
    never: int
    net_expected: str
    net: str
    dispatched: int

    @property
    def right(self) -> bool:
        """Whether the month has no fault."""
        return not (self.twice or self.never) and Decimal(self.net) == Decimal(self.net_expected)


class BillingOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of the year.

    Args:
        kills: how many workers and schedulers were killed. interrupted: dispatches that began again after a kill.
        duplicates: ticks that were sent again and answered from their record.
        faults: one sentence each; empty if there is none.
    """

    months: tuple[Month, ...]
    seconds: float
    kills: dict[str, int]
    interrupted: int
    duplicates: int
    faults: tuple[str, ...]


def perform(settings: BillingSettings, folder: Path, on_progress: Draw) -> BillingOutcome:
    """Run the year in a folder of its own.

    Raises:
        OnefoldError: a process ended unexpectedly, or there was no more progress.
    """
    make_folder(folder)
    expected = _expected()
    total = sum(int(str(one["statements"])) for one in expected.values())
    variables = {"ONEFOLD_URL": f"sqlite:///{folder.absolute() / 'billing.db'}"}
    if settings.plant is not None:
        variables["ONEFOLD_DEMO_PLANT"] = settings.plant
    clock, never, entropy = SystemClock(), threading.Event(), SeededEntropy(settings.seed)
    since_ms = clock.monotonic_ms()
    file = folder / "billing.db"
    falls = _choose_falls(folder / "falls", sorted(expected), settings)
    variables["ONEFOLD_DEMO_FALLS"] = str(falls.absolute())
    _prepare(file, variables)
    with closing(DemoProcesses(_COMMANDS, variables, folder / "crew.log")) as crew:
        most, moved_ms, settled, again, random = 0, since_ms, 0, False, 0
        while settled < _SETTLED_LOOKS:
            clock.wait(never, TICK_MS)
            crew.check()
            made = _counted(file, "SELECT count(*) FROM statement")
            if (
                random < settings.kills
                and made < total
                and entropy.fraction() < 0.3
                and clock.monotonic_ms() - since_ms > 1_500
            ):
                crew.kill(int(entropy.fraction() * (SCHEDULERS + WORKERS)))
                random += 1
            if not again and made > total // 2:
                _in_the_shop("fire_again(); app.close()", variables)
                again = True
            on_progress(
                "statements", made, total, f"{made:,} of {total:,}, {counted(sum(crew.kills.values()), 'kill')}"
            )
            settled = settled + 1 if _is_over(file, made, total) else 0
            if made > most:
                most, moved_ms = made, clock.monotonic_ms()
            elif clock.monotonic_ms() - moved_ms > STALL_MS_MAX:
                raise OnefoldError(
                    f"For {STALL_MS_MAX // 1000} s there were never more than {most} of {total} statements.",
                    todo=f"Run it again with --keep DIR, and see: onefold status --url {variables['ONEFOLD_URL']}",
                )
        seconds = (clock.monotonic_ms() - since_ms) / 1000
    months = _judge(file, expected)
    return BillingOutcome(
        months=months,
        seconds=round(seconds, 1),
        kills=dict(crew.kills),
        interrupted=_counted(file, _INTERRUPTED),
        duplicates=_counted(file, _DUPLICATES),
        faults=tuple(_fault(one) for one in months if not one.right),
    )


def _expected() -> dict[str, dict[str, object]]:
    """The judge's figures, from a process that cannot import onefold."""
    command = [sys.executable, "-I", "-S", figures.__file__, str(data.INVOICES), "--of", "billing"]
    found: dict[str, dict[str, object]] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)  # noqa: S603 - onefold's own script
    return found


def _choose_falls(where: Path, months: Sequence[str], settings: BillingSettings) -> Path:
    """Create an empty file for each month whose dispatcher is to be killed."""
    where.mkdir()
    entropy, left = SeededEntropy(settings.seed), list(months)
    for _ in range(settings.falls):
        (where / left.pop(int(entropy.fraction() * len(left)))).touch()
    return where


def _prepare(file: Path, variables: Mapping[str, str]) -> None:
    """Create the engine's file, and in it the table of statements, which allows an account to have two."""
    _in_the_shop("app.runtime(); app.close()", variables)
    with closing(sqlite3.connect(file)) as link:
        link.execute("CREATE TABLE statement (month TEXT, account TEXT, net TEXT)")
        link.commit()


def _in_the_shop(code: str, variables: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", f"from onefold.demo.billing_shop import app, fire_again; {code}"]
    subprocess.run(command, env={**os.environ, **variables}, check=True)  # noqa: S603 - onefold's own program


def _is_over(file: Path, made: int, total: int) -> bool:
    """Whether every statement was made and no message is left."""
    return made >= total and _counted(file, _LEFT) == 0


def _judge(file: Path, expected: Mapping[str, Mapping[str, object]]) -> tuple[Month, ...]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as link:
        rows = link.execute("SELECT month, account, net FROM statement").fetchall()
        runs = link.execute("SELECT name, value FROM onefold_state WHERE name LIKE 'run/monthly-billing/%'").fetchall()
    accounts: dict[str, Counter[str]] = defaultdict(Counter)
    net: dict[str, Decimal] = defaultdict(Decimal)
    for month, account, amount in rows:
        accounts[month][account] += 1
        net[month] += Decimal(amount)
    dispatched = _dispatched(runs)
    return tuple(
        Month(
            month=month,
            expected=int(str(should["statements"])),
            made=sum(accounts[month].values()),
            twice=sum(count > 1 for count in accounts[month].values()),
            never=max(int(str(should["statements"])) - len(accounts[month]), 0),
            net_expected=str(should["net"]),
            net=str(net[month]),
            dispatched=dispatched.get(month, 0),
        )
        for month, should in expected.items()
    )


def _dispatched(runs: list[tuple[str, bytes]]) -> dict[str, int]:
    """How many messages each month's run dispatched; its tick is at the beginning of the next month."""
    found = {}
    for name, value in runs:
        year, month = (int(part) for part in name.rpartition("/")[2].split("T")[0].split("-")[:2])
        before = (year, month - 1) if month > 1 else (year - 1, 12)
        found[f"{before[0]}-{before[1]:02d}"] = int(json.loads(value).get("dispatched", 0))
    return found


def _counted(file: Path, question: str) -> int:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=20)) as link:
        return int(link.execute(question).fetchone()[0])


def _fault(month: Month) -> str:
    return (
        f"{month.month}: {month.made:,} statements for {month.expected:,} accounts, {month.twice:,} twice, "
        f"{month.never:,} never; net {month.net} for {month.net_expected}"
    )


EPILOG = """
Exit codes: 0 every account has one statement a month and the totals match the file; 1 otherwise; 2 wrong usage.
"""


@click.command("billing", epilog=EPILOG)
@click.option(
    "--kills",
    type=click.IntRange(0, 200),
    default=15,
    show_default=True,
    help="Random kills of workers and schedulers.",
)
@click.option(
    "--falls", type=click.IntRange(0, 13), default=4, show_default=True, help="Months whose dispatch is killed midway."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Seed of the random numbers.")
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

    Each month's customers are dispatched to a FIFO queue; each gets one statement. In the end they are compared with
    an independent sum of the file, to the penny.
    """
    settings = BillingSettings(kills=kills, falls=falls, seed=seed, plant=plant)
    with stage(keep) as folder, bar() as on_progress:
        found = perform(settings, folder, on_progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _draw(found)
    context.exit(1 if found.faults or plant is not None else 0)


def _draw(found: BillingOutcome) -> None:
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
        console.print("twice: 0, never: 0; every month's total matches the file.", style="bold green")
