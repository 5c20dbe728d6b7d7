"""`onefold demo`: the command, its options, and its exit code.

Parses, has each run done (`drill`), shows it (`tables`), and says what to do next. Never here: how a run goes, or what
is right. Invariant: 0 only when every run passed and no fault was built in; everything is in a folder of its own, which
is gone afterwards unless it was to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec
from click.core import ParameterSource
from msgspec.structs import replace

from onefold.demo import data
from onefold.demo.billing_command import billing
from onefold.demo.cloud_command import aws
from onefold.demo.enrich_command import enrich
from onefold.demo.stage import stage
from onefold.errors import UsageError

if TYPE_CHECKING:
    from onefold.demo.outcome import Outcome
    from onefold.demo.runs import Settings

KILLS, KILLS_MIN = 12, 10
"""Planned in each run, and needed; of other numbers the same share."""
FAILED = 1

Choice = Literal["keys", "probe", "hold", "all"]

EPILOG = """
\b
Runs
  keys   the partner honours the job's idempotency key; in doubt the job runs again
  probe  it does not, but can be told to refuse late requests; in doubt a probe asks and fences
  hold   it can do neither; in doubt the job waits for a person

Exit codes: 0 every invoice was fulfilled once; 1 one was fulfilled twice or never, a dead letter is wrong, or there were too
few kills; 2 wrong usage; 130 interrupted.
"""


@click.group("demo", epilog=EPILOG, invoke_without_command=True)
@click.option(
    "--run",
    "choice",
    type=click.Choice(["keys", "probe", "hold", "all"]),
    default="all",
    show_default=True,
    help="Which of the runs below.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, data.ROWS),
    default=data.ROWS,
    show_default=True,
    help="Only the first invoices.",
)
@click.option("--workers", type=click.IntRange(2, 16), default=3, show_default=True, help="Processes at a time.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=1,
    show_default=True,
    help="Of everything left to chance.",
)
@click.option(
    "--kills",
    type=click.IntRange(0, 1000),
    default=KILLS,
    show_default=True,
    help="In each run, of workers at work.",
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
    kills: int,
    keep: Path | None,
    plant: Literal["no-fence"] | None,
    as_json: bool,
) -> None:
    """Fulfil 25,943 real invoices under fire, and show that each was fulfilled once.

    Workers are killed while they run, messages are sent twice, and the partner is slow, busy and breaks. In the end the
    partner's own ledger is held against figures that were worked out from the file without onefold.
    """
    if context.invoked_subcommand is not None:
        return
    from onefold.demo import tables
    from onefold.demo.runs import Settings

    if plant is not None and choice == "keys":
        raise click.UsageError(
            "--plant no-fence shows nothing in the run keys: the partner's memory of the key stands in for the fence. "
            "Use it with --run probe, hold or all."
        )
    _check_extra()
    settings = Settings(
        rows=rows,
        workers=workers,
        threads=16,
        seed=seed,
        kills=kills,
        kills_min=kills * KILLS_MIN // KILLS,
        plant=plant,
    )
    with stage(keep) as folder:
        found = _perform(settings, choice, folder, quiet=as_json)
    if keep is None:
        found = [replace(one, url=None) for one in found]
    passed = plant is None and not any(one.faults for one in found)
    if as_json:
        click.echo(_document(settings, found, passed))
    else:
        out, _ = tables.consoles()
        out.print()
        out.print(tables.ending(settings, found, again=_again(context)), end="", soft_wrap=True)
    context.exit(0 if passed else FAILED)


demo.add_command(aws)
demo.add_command(billing)
demo.add_command(enrich)


def _check_extra() -> None:
    if find_spec("aiohttp") is None:
        raise UsageError(
            "The demo's partner needs the package aiohttp, which is not installed.",
            meaning="onefold installs light; the demo comes with the extra `demo`.",
            todo="Run: pip install 'onefold[demo]'",
        )


def _perform(settings: Settings, choice: Choice, folder: Path, *, quiet: bool) -> list[Outcome]:
    """Do the runs one after the other, showing each; `quiet`: on standard error only."""
    from onefold.demo import drill, tables
    from onefold.demo.runs import RUNS

    runs = [run for run in RUNS if choice in (run.name, "all")]
    out, err = tables.consoles()
    if not quiet:
        out.print(tables.opening(settings, len(runs)))
    expected = drill.expected_of(settings.rows)
    found = []
    for number, run in enumerate(runs, start=1):
        with tables.shown(f"{number}/{len(runs)} {run.name}", err) as told:
            found.append(drill.drill(run, settings, expected, folder / run.name, told))
        if not quiet:
            out.print()
            out.print(tables.table(number, found[-1]))
    return found


def _again(context: click.Context) -> str:
    """The command line that does the same once more, but for what is kept."""
    given = [
        f"--{name if name != 'choice' else 'run'} {value}"
        for name, value in context.params.items()
        if name not in ("keep", "as_json", "plant")
        and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    return " ".join(["onefold demo", *given])


def _document(settings: Settings, found: Sequence[Outcome], passed: bool) -> str:
    document = {"passed": passed, "settings": settings, "runs": found}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
