"""`onefold demo web`: the shop under fire with its page open, where alarms begin and end until the demo is stopped.

A few orders arrive each second. The partner is slow, refuses or fails; a worker is killed every so often. In each round
some orders fail for good, and a bank does not report what it did, so alarms begin. After a while a simulated person on
call corrects the rule, sends the dead letters back and settles what is held, with reasons that the page shows, and the
alarms end. Here: the command, the processes and that person. Never here: the shop (`web_shop.py`), the page
(`onefold/web`).
Invariant: every process that was started here has ended when the command ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, extras, limits, redact
from onefold.admin import alarms, dead_letters, held, redrive
from onefold.admin.dead_letters import Select
from onefold.admin.session import AdminSession, jobs_of
from onefold.clock import SystemClock
from onefold.demo import data
from onefold.demo.command import check_partner
from onefold.demo.drill import partner
from onefold.demo.fulfilment import Courier, Invoice, invoice_of
from onefold.demo.processes import DemoProcesses
from onefold.demo.stage import stage
from onefold.entropy import SeededEntropy, SystemEntropy
from onefold.observe import incidents
from onefold.observe.wording import counted
from onefold.private_files import make_folder

if TYPE_CHECKING:
    from onefold.app import App

APP: Final = "onefold.demo.web_shop:app"
WORKERS: Final = 3
_TICK_MS: Final = 250
_KILL_MS: Final = 20 * limits.SECOND_MS
_PAYMENT_SHARE: Final = 0.15
_WRONG: Final = 12  # how many orders of a round fail for good


class WebRound(Struct, frozen=True, kw_only=True):
    """When things happen in a round, in milliseconds from its beginning: the fault, its correction, the end."""

    wrong_ms: int = 8_000
    corrected_ms: int = 75_000
    ends_ms: int = 210_000


class WebDemoOutcome(Struct, frozen=True, kw_only=True):
    """What happened: orders sent, kills of workers, rounds that were corrected, alarms that began and that ended."""

    sent: int
    kills: int
    corrected: int
    began: int
    ended: int


class Demonstration:
    """What happens to the shop from outside: orders, kills, corrections.

    Args:
        app: the shop. crew: its workers. bank: the client of the bank, to ask what was charged.
        folder: the folder of the shop. seed: the seed of the random numbers. times: when things happen in a round.
    """

    def __init__(self, app: App, crew: DemoProcesses, bank: Courier, folder: Path, seed: int, times: WebRound) -> None:
        self._app = app
        self._crew = crew
        self._bank = bank
        self._allowed = folder / "returns-allowed"
        self._times = times
        self._clock = SystemClock()
        self._entropy = SeededEntropy(seed)
        runtime = app.runtime()
        self._session = AdminSession(runtime, actor="person:demo", jobs=jobs_of(app))
        self._good, self._bad = _invoices()
        self._began_ms = self._clock.monotonic_ms()
        self._killed_ms = self._began_ms
        self._redrive: redrive.Redrive | None = None
        self._is_wrong = False
        self.sent = self.kills = self.corrected = 0

    def step(self) -> None:
        """Do what is due now."""
        now_ms = self._clock.monotonic_ms()
        self._crew.check()
        self._order(next(self._good))
        if now_ms - self._killed_ms >= _KILL_MS:
            self._killed_ms = now_ms
            self._crew.kill(int(self._entropy.fraction() * WORKERS))
            self.kills += 1
        at_ms = now_ms - self._began_ms
        if at_ms >= self._times.wrong_ms and not self._is_wrong:
            self._is_wrong = True
            self._allowed.unlink(missing_ok=True)
            for _ in range(_WRONG):
                self._order(next(self._bad))
        if at_ms >= self._times.corrected_ms and self._redrive is None:
            self._correct()
        if self._redrive is not None and not self._redrive.tally.end:
            self._redrive.step()
        if at_ms >= self._times.ends_ms:
            self._began_ms, self._redrive, self._is_wrong = now_ms, None, False

    def _order(self, invoice: Invoice) -> None:
        self._app.jobs["fulfil"].send(invoice)
        if self._entropy.fraction() < _PAYMENT_SHARE and invoice.quantity > 0:
            self._app.jobs["charge"].send(invoice)
        self.sent += 1

    def _correct(self) -> None:
        """Do what the person on call does: correct the rule, redrive, and settle what is held."""
        self._allowed.touch()
        messages = list(dead_letters.find(self._session, Select(queue="orders-dead")))
        why = "a negative quantity is a return: the rule was wrong"
        self._redrive = redrive.Redrive(self._session, messages, per_second=50, reason_text=why)
        for one in held.listed(self._session):
            found = self._bank.look(one.key.partition("/")[0]).bookings
            result = json.dumps({"booking": found[0]}) if found else None
            why = f"the bank has {'booking ' + found[0] if found else 'no such booking'}"
            with suppress(errors.OnefoldError):  # a user of the page settled it first
                held.settle(
                    self._session, one.key, done=bool(found), result=result, job=one.job, tenant=one.tenant,
                    hold=one.hold, reason_text=why,
                )  # fmt: skip
        self.corrected += 1

    def outcome(self) -> WebDemoOutcome:
        """What has happened so far."""
        kinds = [one.kind for one in incidents.history(self._session.engine.state)]
        return WebDemoOutcome(
            sent=self.sent,
            kills=self.kills,
            corrected=self.corrected,
            began=kinds.count("began"),
            ended=kinds.count("ended"),
        )

    def line(self) -> str:
        """The state of the demo in one line."""
        on = [one.alarm for one in alarms.now(self._session).alarms if one.phase == "on"]
        return f"{self.sent:,} orders, {counted(self.kills, 'kill')}, alarms on: {', '.join(on) or 'none'}"


def _invoices() -> tuple[Iterator[Invoice], Iterator[Invoice]]:
    """Two endless streams of real invoices: those that can be fulfilled, and the others; a repeat is a new order."""
    every = [invoice_of(one) for one in data.read_invoices()]
    wrong = [one for one in every if one.quantity < 0 and not one.number.startswith("C")]
    right = [one for one in every if one.quantity >= 0 and not one.unit_price.startswith("-")]

    def endless(some: list[Invoice]) -> Iterator[Invoice]:
        for number, one in enumerate(cycle(some)):
            round_number = number // len(some)
            yield replace(one, number=f"{one.number}-{number}" if round_number else f"{one.number}")

    return endless(list({one.number: one for one in right}.values())), endless(
        list({one.number: one for one in wrong}.values())
    )


@contextmanager
def _page(port: int, variables: dict[str, str], log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the page's process; yields it and the address that opens the page."""
    command = [sys.executable, "-m", "onefold", "web", APP, "--port", str(port), "--json"]
    with (
        log.open("ab") as errors_to,
        subprocess.Popen(  # noqa: S603 - onefold's own program
            command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors_to,
            text=True, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline() or "{}")
            if "open" not in said:
                raise errors.OnefoldError(
                    "The page did not start.",
                    meaning=log.read_text(errors="replace").strip()[-500:],
                    todo="Try another --port.",
                )
            yield process, said["open"]
        finally:
            process.terminate()


def _token() -> str:
    entropy = SystemEntropy()
    return entropy.token() + entropy.token()


def has_display() -> bool:
    """Whether a browser can be opened here."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(one) for one in ("DISPLAY", "WAYLAND_DISPLAY"))


EPILOG = """
Exit codes: 0 ended after --seconds or by Ctrl-C; 1 one of its processes ended unexpectedly; 2 wrong usage.
"""


@click.command("web", epilog=EPILOG)
@click.option("--seconds", type=click.IntRange(1), help="End after this many seconds, not only on Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Port of the page; 0: a free one.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Seed of the random numbers.")
@click.option("--quick", is_flag=True, help="Correct faults after 20 seconds instead of 75.")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the engine's file and the logs there."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the address as one JSON line, and the outcome at the end as another."
)
def web(seconds: int | None, port: int, seed: int, quick: bool, keep: Path | None, as_json: bool) -> None:
    """The shop under fire with its page open: kills, a slow partner, alarms that begin and end.

    Prints the address that opens the page, with its token, and opens it in a browser if there is one. Look around, send
    dead letters back, settle payments, silence an alarm, drain a worker: the shop continues.
    """
    check_partner()
    with extras.needed("The page", "web"):  # the page runs in a process of its own
        import_module("jinja2")
    times = WebRound(wrong_ms=3_000, corrected_ms=20_000) if quick else WebRound()
    clock, never = SystemClock(), threading.Event()
    with ExitStack() as stack:
        folder = stack.enter_context(stage(keep))
        make_folder(folder)
        (folder / "bank").mkdir()
        variables = {
            "ONEFOLD_URL": f"sqlite:///{folder / 'shop.db'}",
            "ONEFOLD_DEMO_FOLDER": str(folder),
            "ONEFOLD_DEMO_PARTNER": str(stack.enter_context(partner("honours-keys", seed, folder))),
            "ONEFOLD_DEMO_BANK": str(bank_port := stack.enter_context(partner("no-keys", seed, folder / "bank"))),
            "ONEFOLD_WEB_TOKEN": _token(),
        }
        os.environ.update(variables)
        app: App = stack.enter_context(closing(import_module("onefold.demo.web_shop").app))
        app.runtime()
        commands = [["worker", APP, "--threads", "8", "--no-progress", "--schedules"]] * WORKERS
        crew = stack.enter_context(closing(DemoProcesses(commands, variables, folder / "crew.log")))
        demonstration = Demonstration(app, crew, Courier(bank_port), folder, seed, times)
        process, opens = stack.enter_context(_page(port, variables, folder / "page.log"))
        _say_address(opens, times, as_json)
        until_ms = None if seconds is None else clock.monotonic_ms() + seconds * limits.SECOND_MS
        with suppress(KeyboardInterrupt):
            _until(demonstration, process, until_ms, clock, never, as_json)
        found = demonstration.outcome()
    if as_json:
        click.echo(json.dumps({name: getattr(found, name) for name in WebDemoOutcome.__struct_fields__}))
    else:
        alarms_said = f"{counted(found.began, 'alarm')} began, {found.ended} ended"
        click.echo(f"\n{found.sent:,} orders, {counted(found.kills, 'kill')}, {alarms_said}.")


def _say_address(opens: str, times: WebRound, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"open": opens}))
        sys.stdout.flush()
        return
    wrong, corrected, kills = (ms // limits.SECOND_MS for ms in (times.wrong_ms, times.corrected_ms, _KILL_MS))
    click.echo(redact.printable(f"Open  {opens}"))
    click.echo(
        f"  Orders arrive, the partner is slow, and a worker is killed every {kills} s. From second {wrong} on some fail\n"
        f"  for good, and alarms begin; at second {corrected} somebody corrects it, and they end. Then once more.\n"
        "Ctrl-C ends it."
    )
    if has_display():
        webbrowser.open(opens)


def _until(
    demonstration: Demonstration,
    page: subprocess.Popen[str],
    until_ms: int | None,
    clock: SystemClock,
    never: threading.Event,
    as_json: bool,
) -> None:
    said_ms = clock.monotonic_ms()
    while until_ms is None or clock.monotonic_ms() < until_ms:
        if page.poll() is not None:
            raise errors.OnefoldError(
                f"The page ended unexpectedly with exit code {page.returncode}.",
                todo="Run it again with --keep DIR, and see page.log.",
            )
        demonstration.step()
        clock.wait(never, _TICK_MS)
        if not as_json and clock.monotonic_ms() - said_ms >= 30 * limits.SECOND_MS:
            said_ms = clock.monotonic_ms()
            click.echo(demonstration.line(), err=True)
