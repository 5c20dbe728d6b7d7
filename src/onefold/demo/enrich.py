"""A nightly file through a map run under fire, twice: past what is tolerated, then repaired and redriven.

    night     damaged rows are quarantined; a country is missing in somebody else's table: more than 2 % fail, the run ends
    repair    the table and the file are mended; the same run is redriven with the repaired file

Workers are killed meanwhile, also those that drive the run. Then the table is held against another reading of the file.
Never here: the job (`enrich_shop`), the figures (`enrich_figures`), output. Invariant: every process that was started is
gone when the call returns, and the table is read after that.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from onefold.clock import SystemClock
from onefold.demo import data, enrich_figures
from onefold.demo.crew import Crew
from onefold.demo.enrich_file import write_countries, write_nightly
from onefold.demo.progress import Draw
from onefold.entropy import SeededEntropy
from onefold.errors import OnefoldError
from onefold.service.maps import Progress
from onefold.watch.wording import counted

if TYPE_CHECKING:
    from onefold.outside import Entropy

APP: Final = "onefold.demo.enrich_shop:app"
RUN: Final = "nightly/2011-12-10"
WORKERS: Final = 3
_WORKERS: Final = [["worker", APP, "--no-progress"]] * WORKERS
TICK_MS: Final = 100
STALL_MS_MAX: Final = 90_000
_KILL_CHANCE: Final = 0.15  # per tick
_FILES: Final = ("SUCCEEDED", "FAILED", "PENDING", "QUARANTINED")


class Settings(Struct, frozen=True, kw_only=True):
    """What a user may choose.

    Args:
        kills: of workers, in each of the two rounds. seed: of when and whom. rows: of the file.
        plant: a fault to be built in, or None.
    """

    kills: int
    seed: int
    rows: int = data.ROWS
    plant: Literal["salted-key", "no-threshold"] | None = None


class Round(Struct, frozen=True, kw_only=True):
    """How the run stood at the end of a round: its status, its counts, and the records in its result files."""

    name: str
    status: str
    done: int
    failed: int
    malformed: int
    pending: int
    files: dict[str, int]
    kills: int
    seconds: float


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of it all.

    Args:
        expected, made: invoices in the table. twice, never, unexpected: of these. wrong: with another amount.
        net_expected, net: in pounds. faults: in words, empty when all is well.
    """

    rounds: tuple[Round, ...]
    expected: int
    made: int
    twice: int
    never: int
    unexpected: int
    wrong: int
    net_expected: str
    net: str
    faults: tuple[str, ...]


def perform(settings: Settings, folder: Path, told: Draw) -> Outcome:
    """Do both rounds in a folder of their own.

    Raises:
        OnefoldError: a worker ended by itself, or nothing moved any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    damaged = write_nightly(folder, settings.rows)
    countries = folder / "countries.json"
    write_countries(countries, complete=False)
    variables = {
        "ONEFOLD_URL": f"sqlite:///{folder.absolute() / 'enrich.db'}",
        "ONEFOLD_DEMO_COUNTRIES": str(countries.absolute()),
    }
    variables |= {"ONEFOLD_DEMO_PLANT": settings.plant} if settings.plant is not None else {}
    with _opened(variables) as (app, _):
        app.runtime()
        _make_table(folder / "enrich.db")
    entropy = SeededEntropy(settings.seed)
    night = _round("night", settings, folder, variables, entropy, told)
    quarantined = [one["Line"] for one in _records(folder, "QUARANTINED")]
    write_countries(countries, complete=True)
    again = _round("repair", settings, folder, variables, entropy, told)
    return _judged(settings, folder, (night, again), damaged, quarantined)


def _round(
    name: Literal["night", "repair"], settings: Settings, folder: Path, variables: Mapping[str, str], entropy: Entropy,
    told: Draw,
) -> Round:  # fmt: skip
    """One round from its first message to its last, under fire."""
    clock, never = SystemClock(), threading.Event()
    since_ms = moved_ms = clock.monotonic_ms()
    of_round = {**variables, "ONEFOLD_DEMO_ROUND": name}
    with _opened(of_round) as (app, maps), closing(Crew(_WORKERS, of_round, folder / "crew.log")) as crew:
        if name == "night":
            maps.start(app, "enrich", run=RUN, items=str(folder / "nightly.csv"))
        else:
            maps.redrive(app, RUN, items=str(folder / "repaired.csv"))
        most = -1
        while True:
            clock.wait(never, TICK_MS)
            crew.check()
            found: Progress = maps.progress(app, RUN)
            over = found.done + found.failed + found.malformed
            kills = crew.kills["worker"]
            text = f"{over:,} of {found.total:,}, {found.failed:,} failed, {counted(kills, 'kill')}"
            told(name, over, found.total, text)
            if found.over:
                break
            if found.done > 0 and kills < settings.kills and entropy.fraction() < _KILL_CHANCE:
                crew.kill(int(entropy.fraction() * WORKERS))
            if found.done + found.failed > most:
                most, moved_ms = found.done + found.failed, clock.monotonic_ms()
            elif clock.monotonic_ms() - moved_ms > STALL_MS_MAX:
                raise OnefoldError(
                    f"For {STALL_MS_MAX // 1000} s there were never more than {most} of {found.total} items over.",
                    todo=f"Run it again with --keep DIR, and see: onefold status --url {variables['ONEFOLD_URL']}",
                )
        kills = crew.kills["worker"]
    return Round(
        name=name, status=found.status, done=found.done, failed=found.failed, malformed=found.malformed,
        pending=found.pending, files={kind: len(_records(folder, kind)) for kind in _FILES}, kills=kills,
        seconds=round((clock.monotonic_ms() - since_ms) / 1000, 1),
    )  # fmt: skip


@contextmanager
def _opened(variables: Mapping[str, str]) -> Iterator[tuple[Any, Any]]:
    """The shop in this process, as the workers have it."""
    from importlib import import_module, reload

    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        app = reload(import_module("onefold.demo.enrich_shop")).app
        with closing(app):
            yield app, import_module("onefold.service.maps")
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _make_table(file: Path) -> None:
    """The job's own table, in the same file: nothing in it keeps an invoice from standing there twice."""
    with closing(sqlite3.connect(file)) as link:
        link.execute("CREATE TABLE enriched (number TEXT, day TEXT, country TEXT, amount TEXT)")
        link.commit()


def _records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """All records of the result files of one kind, by the manifest."""
    place = folder / "map-runs" / RUN
    listed = json.loads((place / "manifest.json").read_text())["ResultFiles"].get(kind, [])
    return [record for one in listed for record in json.loads((place / one["Key"]).read_text())]


# -- judging -----------------------------------------------------------------------------------------------------------


def _judged(
    settings: Settings, folder: Path, rounds: tuple[Round, Round], damaged: list[int], quarantined: list[int]
) -> Outcome:
    expected, refused = _expected(folder, settings.rows)
    with closing(sqlite3.connect(f"file:{folder / 'enrich.db'}?mode=ro", uri=True)) as link:
        rows = link.execute("SELECT number || ' ' || day, amount FROM enriched").fetchall()
    times = Counter(name for name, _ in rows)
    found = Outcome(
        rounds=rounds,
        expected=len(expected),
        made=len(rows),
        twice=sum(count > 1 for count in times.values()),
        never=len(expected.keys() - times.keys()),
        unexpected=len(times.keys() - expected.keys()),
        wrong=sum(name in expected and Decimal(amount) != Decimal(expected[name]) for name, amount in rows),
        net_expected=str(sum(map(Decimal, expected.values()), Decimal())),
        net=str(sum((Decimal(amount) for _, amount in rows), Decimal())),
        faults=(),
    )
    faults = [*_faults_of_table(found), *_faults_of_rounds(rounds, settings.rows, len(refused))]
    if quarantined != damaged:
        faults.append(f"quarantined lines: {len(quarantined)}, and {len(damaged)} were damaged")
    return Outcome(**{**{name: getattr(found, name) for name in found.__struct_fields__}, "faults": tuple(faults)})


def _faults_of_table(found: Outcome) -> Iterator[str]:
    for count, text in (
        (found.twice, "invoices stand in the table twice"),
        (found.never, "invoices are not in the table"),
        (found.unexpected, "rows are of no invoice of the file"),
        (found.wrong, "rows have another amount than the file"),
    ):
        if count:
            yield f"{count:,} {text}"
    if Decimal(found.net) != Decimal(found.net_expected):
        yield f"the table's total is {found.net}, the file's {found.net_expected}"


def _faults_of_rounds(rounds: tuple[Round, Round], rows: int, refused: int) -> Iterator[str]:
    night, again = rounds
    if night.status != "failed":
        yield f"the night {night.status}, though more than 2 % had failed"
    if (again.status, again.failed, again.malformed) != ("succeeded", refused, 0):
        yield f"the repaired run {again.status}, with {again.failed} failed and {again.malformed} malformed"
    for one in rounds:
        if sum(one.files.values()) != rows:
            yield f"the result files of the {one.name} have {sum(one.files.values()):,} records for {rows:,} rows"


def _expected(folder: Path, rows: int) -> tuple[dict[str, str], list[str]]:
    """The judge's figures, from a process that cannot find onefold."""
    file = folder / "judged.csv.gz"
    import gzip

    with gzip.open(data.INVOICES, "rb") as whole, gzip.open(file, "wb") as part:
        part.write(b"\n".join(whole.read().splitlines()[: rows + 1]) + b"\n")
    command = [sys.executable, "-I", "-S", enrich_figures.__file__, str(file)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)  # noqa: S603 - our own script
    return found["amounts"], found["refused"]
