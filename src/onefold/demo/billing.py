"""One billing year under fire: thirteen ticks, thirteen dispatches, one statement for each account and month.

    two schedulers and three workers on one file; they are killed at random, schedulers too, and workers in the middle of a
    dispatch; half way, every tick is sent once more; when all is done the statements' own table is held against an
    independent sum of the file, month by month, to the last decimal

Never here: the shop (`billing_shop`), the figures (`billing_figures`), output. Invariant: every process that was started
is gone when the call returns, and the table is read after that.
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

from msgspec import Struct

from onefold.clock import SystemClock
from onefold.demo import billing_figures, data
from onefold.demo.crew import Crew
from onefold.demo.progress import Draw
from onefold.entropy import SeededEntropy
from onefold.errors import OnefoldError
from onefold.watch.wording import counted

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


class Settings(Struct, frozen=True, kw_only=True):
    """What a user may choose.

    Args:
        kills: at random, of workers and schedulers together. falls: months in the middle of whose dispatch the worker is
            killed, 0 to 13. seed: of when and whom. plant: a fault to be built in, or None.
    """

    kills: int
    falls: int
    seed: int
    plant: str | None = None


class Month(Struct, frozen=True, kw_only=True):
    """One month as the file says it should be, and as it is.

    Args:
        month: `2011-03`. expected, made: statements. twice, never: accounts. net_expected, net: in pounds.
        dispatched: messages of its run, as onefold counts them.
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
        """Whether nothing is wrong with it."""
        return not (self.twice or self.never) and Decimal(self.net) == Decimal(self.net_expected)


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of the year.

    Args:
        kills: of workers and schedulers. interrupted: dispatches that began again after a kill.
        duplicates: ticks that came again and were answered from their record.
        faults: in words, empty when all is well.
    """

    months: tuple[Month, ...]
    seconds: float
    kills: dict[str, int]
    interrupted: int
    duplicates: int
    faults: tuple[str, ...]


def perform(settings: Settings, folder: Path, told: Draw) -> Outcome:
    """Do the year in a folder of its own.

    Raises:
        OnefoldError: a process ended by itself, or nothing moved any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
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
    with closing(Crew(_COMMANDS, variables, folder / "crew.log")) as crew:
        most, moved_ms, settled, again, random = 0, since_ms, 0, False, 0
        while settled < _SETTLED_LOOKS:
            clock.wait(_Waiter(never), TICK_MS)
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
            told("statements", made, total, f"{made:,} of {total:,}, {counted(sum(crew.kills.values()), 'kill')}")
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
    return Outcome(
        months=months,
        seconds=round(seconds, 1),
        kills=dict(crew.kills),
        interrupted=_counted(file, _INTERRUPTED),
        duplicates=_counted(file, _DUPLICATES),
        faults=tuple(_fault(one) for one in months if not one.right),
    )


class _Waiter:
    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def wait(self, timeout_s: float) -> bool:
        return self._event.wait(timeout_s)


def _expected() -> dict[str, dict[str, object]]:
    """The judge's figures, from a process that cannot find onefold."""
    command = [sys.executable, "-I", "-S", billing_figures.__file__, str(data.INVOICES)]
    found: dict[str, dict[str, object]] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)  # noqa: S603 - our own script
    return found


def _choose_falls(place: Path, months: Sequence[str], settings: Settings) -> Path:
    """One empty file for each month whose dispatcher is to be killed."""
    place.mkdir()
    entropy, left = SeededEntropy(settings.seed), list(months)
    for _ in range(settings.falls):
        (place / left.pop(int(entropy.fraction() * len(left)))).touch()
    return place


def _prepare(file: Path, variables: Mapping[str, str]) -> None:
    """The engine's file, and in it the statements' own table: nothing in that keeps an account from having two."""
    _in_the_shop("app.runtime(); app.close()", variables)
    with closing(sqlite3.connect(file)) as link:
        link.execute("CREATE TABLE statement (month TEXT, account TEXT, net TEXT)")
        link.commit()


def _in_the_shop(code: str, variables: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", f"from onefold.demo.billing_shop import app, fire_again; {code}"]
    subprocess.run(command, env={**os.environ, **variables}, check=True)  # noqa: S603 - our own program


def _is_over(file: Path, made: int, total: int) -> bool:
    """Whether every statement is there and no message is left."""
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
    """Messages of each month's run: the run's tick is at the beginning of the month after."""
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
