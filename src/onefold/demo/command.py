"""`onefold demo`: the command, its options and its exit code.

Never here: what it shows (`screen`), slow imports (the help and the other demos do not need them).
Invariant: the exit code is 0 only if every run passed and no fault was built in.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import click
from click.core import ParameterSource

from onefold.demo import data
from onefold.extras import missing

KILLS, KILLS_MIN = 12, 10
"""Kills planned in each run, and how many of them are needed; of another number, the same share is needed."""
ROWS_PER_KILL = 100
"""With fewer rows per kill, the work is done before a killed worker is replaced."""
FAILED = 1

# name -> (module, one line of help)
OTHERS: Final[Mapping[str, tuple[str, str]]] = {
    "aws": ("onefold.demo.cloud", "The same shop, deployed to an emulator of AWS by CloudFormation."),
    "billing": (
        "onefold.demo.billing",
        "A year of statements: thirteen ticks at 03:00 London time, two schedulers, kills in mid-dispatch.",
    ),
    "enrich": (
        "onefold.demo.enrich",
        "A nightly file: more than the tolerated 2 % fail; it is repaired and redriven under kills.",
    ),
    "web": ("onefold.demo.web", "The shop under fire with its page open; alarms begin and end in it."),
}


def check_partner() -> None:
    """Refuse to begin without the package of the demo's partner, which runs in a process of its own.

    Raises:
        UsageError: the package is not installed.
    """
    if find_spec("aiohttp") is None:
        raise missing("The demo's partner", "aiohttp", "demo")


Choice = Literal["keys", "probe", "hold", "all"]

EPILOG = """
\b
Runs
  keys   the partner honours the job's idempotency key; if in doubt, the job runs again
  probe  it does not, but can be made to refuse late requests; if in doubt, a probe asks and fences
  hold   it can do neither; if in doubt, the job waits for a person

Exit codes: 0 every invoice was fulfilled once; 1 one was fulfilled twice or never, a dead letter is wrong, or there were too
few kills; 2 wrong usage; 130 interrupted.
"""


class _Demos(click.Group):
    """The other demos, each of which is imported when it is first used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """The names of the demos, sorted."""
        return list(OTHERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import one."""
        if cmd_name not in OTHERS:
            return None
        module, _ = OTHERS[cmd_name]
        found: click.Command = getattr(import_module(module), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the demos without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in OTHERS.items()])


@click.group("demo", cls=_Demos, epilog=EPILOG, invoke_without_command=True)
@click.option(
    "--run",
    "choice",
    type=click.Choice(["keys", "probe", "hold", "all"]),
    default="all",
    show_default=True,
    help="Which of the runs below to perform.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, data.ROWS),
    default=data.ROWS,
    show_default=True,
    help="How many invoices to send, from the first.",
)
@click.option("--workers", type=click.IntRange(2, 16), default=3, show_default=True, help="Worker processes at a time.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=1,
    show_default=True,
    help="Seed of the random numbers.",
)
@click.option(
    "--kills",
    type=click.IntRange(0, 1000),
    help=f"Kills of busy workers in each run.  [default: {KILLS}; with few rows, one per {ROWS_PER_KILL}]",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep engines, ledgers and logs in this new folder.",
)
@click.option("--plant", type=click.Choice(["no-fence"]), help="Build a fault in; the demo must fail.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def demo(
    context: click.Context,
    choice: Choice,
    rows: int,
    workers: int,
    seed: int,
    kills: int | None,
    keep: Path | None,
    plant: Literal["no-fence"] | None,
    as_json: bool,
) -> None:
    """Fulfil 25,943 real invoices under fire, and show that each was fulfilled once.

    Workers are killed while they run, messages are sent twice, and the partner is slow, busy or fails. In the end the
    partner's own ledger is compared with figures that were worked out from the file without onefold.
    """
    if context.invoked_subcommand is not None:
        return
    if plant is not None and choice == "keys":
        raise click.UsageError(
            "--plant no-fence shows nothing in the run keys: the partner's memory of the key takes the fence's place. "
            "Use it with --run probe, hold or all."
        )
    check_partner()
    least = 0 if kills in (None, 0) else 1
    if kills is None:
        kills = min(KILLS, rows // ROWS_PER_KILL)
    from onefold.demo import outcome, screen  # takes 200 ms, and neither the help nor another demo needs it

    settings = outcome.DemoSettings(
        rows=rows,
        workers=workers,
        threads=16,
        seed=seed,
        kills=kills,
        kills_min=max(kills * KILLS_MIN // KILLS, least),
        plant=plant,
    )
    context.exit(0 if screen.show(settings, choice, keep, as_json=as_json, again=_again(context)) else FAILED)


def _again(context: click.Context) -> str:
    """The command line that repeats this run, without the options for what to keep and how to print it."""
    given = [
        f"--{name if name != 'choice' else 'run'} {value}"
        for name, value in context.params.items()
        if name not in ("keep", "as_json", "plant")
        and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    return " ".join(["onefold demo", *given])
