"""The shop on a local AWS emulator: deployed by CloudFormation, run by Lambda, checked against the partner's ledger.

`onefold demo aws` starts an emulator and a partner, runs `onefold deploy`, and sends invoices, a tenth of them twice;
the event source mapping invokes the functions. When the queue is empty, the ledger is checked; then a dead letter is
corrected and redriven, and `why` explains it. Commands are run and shown as a user would type them. With `fault_rate`,
that share of the calls that functions and sender make to AWS fails (`testing/wire_faults`).

Here: the command, the run, and the table that is printed. Never here: what counts as a fault of a run (`verdict`,
`outcome`).
Invariant: nothing that was started outlives the call, and the exit code is 0 only if every invoice was fulfilled once
and the dead letters are right.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from onefold.clock import SystemClock
from onefold.demo import data
from onefold.demo.drill import LEDGER, expected_of, partner, stream
from onefold.demo.fulfilment import Invoice
from onefold.demo.outcome import IN_JUDGES_WORDS, dead_letter_of, faults_of_effects, faults_of_letters
from onefold.demo.partner_ledger import read_ledger
from onefold.demo.stage import Draw, bar, stage
from onefold.demo.verdict import JudgedDeadLetter, judge_dead_letters, judge_effects
from onefold.entropy import SeededEntropy
from onefold.errors import NotFoundError, OnefoldError
from onefold.private_files import make_folder
from onefold.testing.wire_faults import Wire, wire_faults

REGION: Final = "eu-west-1"
PREFIX: Final = "demo-"
BUCKET: Final = "onefold-demo"
URL: Final = f"aws://{REGION}?table={PREFIX}shop&prefix={PREFIX}"
START_S: Final = 30.0
STALL_MS_MAX: Final = (
    240_000  # a message whose delay could not be set stays hidden for the queue's visibility timeout, 90 s
)
_LOOK_S: Final = 0.25
_ALL: Final = 100_000

Command = Callable[..., str]
"""Runs one `onefold` command in the run's folder and environment, shows it, and returns its output."""


class CloudSettings(Struct, frozen=True, kw_only=True):
    """The options of the demo.

    Args:
        rows: how many rows of the file to send, from the first. seed: the seed of the random numbers.
        fault_rate: share of the calls that fail, 0 to 1.
        emulator: path of the emulator's program.
    """

    rows: int
    seed: int
    fault_rate: float
    emulator: str


class CloudOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a run; without `faults` it passed.

    Args:
        messages: how many were sent. again: how many of these were second copies. seconds: until the queue was empty.
        requests: requests for a booking that the partner received. repeated: those for an operation that it had already
            booked. expected: bookings that must exist. bookings: those that were made.
        twice, never: invoices booked twice, and those that should be booked but are not.
        dead_letters: rows of the file by reason. calls, met: calls through the proxy, and calls that failed on purpose.
        redriven: the key of the dead letter that was corrected; None if there was none.
    """

    messages: int
    again: int
    seconds: float
    requests: int
    repeated: int
    expected: int
    bookings: int
    twice: int
    never: int
    dead_letters: dict[str, int]
    calls: dict[str, int]
    met: dict[str, int]
    redriven: str | None
    faults: tuple[str, ...]


def find_emulator() -> str:
    """The emulator's program, looked for next to this Python, in `.venv-tools` and on the PATH.

    Raises:
        NotFoundError: it was not found.
    """
    for where in (Path(sys.executable).parent / "ministack", Path(".venv-tools/bin/ministack").absolute()):
        if where.exists():
            return str(where)
    found = shutil.which("ministack")
    if found is None:
        raise NotFoundError(
            "The emulator ministack is not installed.",
            meaning="It emulates CloudFormation, SQS, Lambda, DynamoDB and S3 on this machine.",
            todo="Run: pip install ministack   or name the program with --emulator.",
        )
    return found


def perform(
    settings: CloudSettings,
    folder: Path,
    command: Callable[[Path, Mapping[str, str]], Command],
    on_progress: Draw,
) -> CloudOutcome:
    """Perform the run in a folder of its own.

    Args:
        command: makes the object that runs commands in a folder and an environment.
        on_progress: called several times a second with the progress.

    Raises:
        OnefoldError: the emulator does not start, a command fails, or there is no more progress.
    """
    expected = expected_of(settings.rows)
    make_folder(folder)
    (folder / "shop.py").write_text(_shop_source(), encoding="utf-8")
    with ExitStack() as stack:
        port = stack.enter_context(partner("honours-keys", settings.seed, folder))
        endpoint = stack.enter_context(_emulator(settings.emulator, folder))
        wire = stack.enter_context(wire_faults(endpoint, rate=settings.fault_rate, seed=settings.seed))
        variables = {
            "AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo", "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": wire.url, "ONEFOLD_URL": URL,
            "PARTNER": f"http://127.0.0.1:{port}",
        }  # fmt: skip
        run = command(folder, variables)
        with _environment(variables, folder) as shop:
            _calmly(wire, lambda: _deploy(run, endpoint))
            clock = SystemClock()
            since_ms = clock.monotonic_ms()
            messages = stream(data.read_invoices(count_max=settings.rows), SeededEntropy(settings.seed))
            _until_empty(shop, messages, on_progress)
            seconds = (clock.monotonic_ms() - since_ms) / 1000
            calls, met = dict(wire.calls), dict(wire.met)
            wire.rate = 0.0
            dead = [dead_letter_of(one) for one in shop.app.runtime().engine.queues.peek("invoices-dead", limit=_ALL)]
            run("status", "shop:app")
            run("dlq", "list", "shop:app")
            redriven = _corrected(run, shop, dead)
    ledger = read_ledger(folder / LEDGER)
    corrected = {redriven} if redriven is not None else set()
    bookings = [one for one in ledger.bookings if one.order.reference not in corrected]
    effects = judge_effects(expected, bookings)
    letters = judge_dead_letters(expected, bookings, dead)
    words = {judged: kind for kind, judged in IN_JUDGES_WORDS.items()}
    booked = [one for one in ledger.requests if one.action == "book" and one.status in (200, 201)]
    return CloudOutcome(
        messages=len(messages),
        again=len(messages) - settings.rows,
        seconds=round(seconds, 1),
        requests=sum(one.action == "book" for one in ledger.requests),
        repeated=sum(one.status == 200 for one in booked),
        expected=expected.expected["bookings"],
        bookings=effects.bookings,
        twice=len(effects.twice),
        never=len(effects.never),
        dead_letters=dict(Counter(words.get(one.reason, one.reason) for one in set(dead))),
        calls=calls,
        met=met,
        redriven=redriven,
        faults=(*faults_of_effects(effects, ledger), *faults_of_letters(letters)),
    )


def _shop_source() -> str:
    found = importlib.util.find_spec("onefold.demo.data.shop_on_aws")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")


def _deploy(run: Command, endpoint: str) -> None:
    run("synth", "shop:app", "--prefix", PREFIX, "--disposable", "--output", "template.json")
    _make_bucket(endpoint)
    run(
        "deploy", "shop:app", "--prefix", PREFIX, "--disposable", "--alarms", "few", "--bucket", BUCKET, "--region", REGION,
        "--endpoint", endpoint, "--yes",
    )  # fmt: skip


def _make_bucket(endpoint: str) -> None:
    from onefold.engines.aws.session import Session  # needs boto3 from the extra aws; the other demos do not

    session = Session(REGION, {"*": endpoint})
    session.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    session.close()


def _calmly(wire: Wire, what: Callable[[], None]) -> None:
    """Let the deployment's calls through without faults, since only the jobs are tested."""
    rate, wire.rate = wire.rate, 0.0
    what()
    wire.rate = rate


# -- the emulator ----------------------------------------------------------------------------------------------------


@contextmanager
def _emulator(program: str, folder: Path) -> Iterator[str]:
    """Run the emulator on a free port until the end of the `with`; yields its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", folder / "emulator.log"
    with log.open("wb") as said:
        process = subprocess.Popen(  # noqa: S603 - the program that the user named
            [program],
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
            env={**os.environ, "GATEWAY_PORT": str(port), "TMPDIR": str(folder.absolute())},
        )  # fmt: skip
    try:
        never = threading.Event()
        for _ in range(int(START_S / _LOOK_S)):
            if _answers(f"{url}/_ministack/health"):
                break
            if process.poll() is not None:
                raise OnefoldError(
                    "The emulator ended.", meaning=log.read_text(errors="replace")[-500:], todo="Run it by hand."
                )
            never.wait(_LOOK_S)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # together with the functions' processes
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - loopback
    except (urllib.error.URLError, OSError):
        return False
    return True


# -- sending and waiting ---------------------------------------------------------------------------------------------


@contextmanager
def _environment(variables: Mapping[str, str], folder: Path) -> Iterator[Any]:
    """The shop's module, imported from the run's folder, in its environment."""
    before = dict(os.environ)
    os.environ.update(variables)
    spec = importlib.util.spec_from_file_location("shop", folder / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    sys.modules["shop"] = shop
    try:
        spec.loader.exec_module(shop)
        yield shop
        shop.app.close()
    finally:
        del sys.modules["shop"]
        os.environ.clear()
        os.environ.update(before)


def _report(on_progress: Draw, sent: int, messages: int, left: int) -> None:
    on_progress("invoices", messages - left, messages, f"{sent:,} sent, {left:,} not finished")


def _until_empty(shop: Any, messages: list[Invoice], on_progress: Draw) -> None:
    """Send all messages and wait until the queue is empty."""
    clock, never = SystemClock(), threading.Event()
    for first in range(0, len(messages), 100):
        chunk = [shop.ShopInvoice(**msgspec.structs.asdict(one)) for one in messages[first : first + 100]]
        _sent(shop, chunk)
        _report(on_progress, first + len(chunk), len(messages), len(messages))
    queues = shop.app.runtime().engine.queues
    least, since_ms, empty = len(messages) + 1, clock.monotonic_ms(), 0
    while empty < 3:
        never.wait(_LOOK_S)
        with contextlib.suppress(OnefoldError):
            depth = queues.depth("invoices")
            left = depth.visible + depth.in_flight + depth.delayed
            empty = empty + 1 if left == 0 else 0
            _report(on_progress, len(messages), len(messages), left)
            if left < least:
                least, since_ms = left, clock.monotonic_ms()
        if clock.monotonic_ms() - since_ms > STALL_MS_MAX and not empty:
            raise OnefoldError(
                f"For {STALL_MS_MAX // 1000} s there were never fewer than {least} messages left.",
                todo="Run it again with --keep DIR, and read emulator.log there.",
            )


def _sent(shop: Any, chunk: list[Any]) -> None:
    """Send a chunk, again if that fails; messages that were sent twice by this are duplicates like the others."""
    never = threading.Event()
    for _ in range(20):
        try:
            shop.fulfil.send_many(chunk)
        except OnefoldError:
            never.wait(_LOOK_S)
        else:
            return
    raise OnefoldError("A chunk of messages could not be sent in 20 tries.", todo="Lower --fault-rate.")


# -- after the run ---------------------------------------------------------------------------------------------------


def _corrected(run: Command, shop: Any, dead: list[JudgedDeadLetter]) -> str | None:
    """Correct one refused invoice in the dead-letter queue, redrive it, and show its `why`; returns its number."""
    refused = next((one for one in dead if one.reason == IN_JUDGES_WORDS["permanent"] and one.quantity < 0), None)
    if refused is None:
        return None
    queues = shop.app.runtime().engine.queues
    letter = next(one for one in queues.peek("invoices-dead", limit=_ALL) if dead_letter_of(one) == refused)
    body = json.loads(letter.body)
    body["quantity"] = -body["quantity"]
    run("dlq", "edit", letter.message_id, "shop:app", "--body", json.dumps(body))
    run("dlq", "redrive", "shop:app", "--key", refused.reference)
    never = threading.Event()
    for _ in range(int(START_S / _LOOK_S)):
        record = shop.app.runtime().engine.records.find(refused.reference, 1)
        if record and record[0].status == "completed":
            break
        never.wait(_LOOK_S)
    run("why", refused.reference, "shop:app")
    return refused.reference


COMMAND_S_MAX = 300

EPILOG = """
Exit codes: 0 every invoice was fulfilled once and the dead letters are right; 1 otherwise; 2 wrong usage.
"""


@click.command("aws", epilog=EPILOG)
@click.option(
    "--rows",
    type=click.IntRange(1, data.ROWS),
    default=500,
    show_default=True,
    help="How many invoices to send, from the first.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Seed of the random numbers.")
@click.option(
    "--fault-rate",
    type=click.FloatRange(0, 0.5),
    default=0.02,
    show_default=True,
    help="Share of the calls to AWS that fail: 5xx, throttled, answer lost before or after they were applied.",
)
@click.option("--emulator", metavar="PROGRAM", help="Path of ministack, if it is not found.")
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

    The emulator ministack provides SQS, Lambda's event source mapping, DynamoDB, S3 and CloudFormation on this machine.
    The partner's own ledger is checked as in the other demos.
    """
    settings = CloudSettings(rows=rows, seed=seed, fault_rate=fault_rate, emulator=emulator or find_emulator())
    with stage(keep) as folder, bar() as on_progress:
        found = perform(settings, folder, _commands(quiet=as_json), on_progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _draw(settings.rows, found)
    context.exit(1 if found.faults else 0)


def _commands(*, quiet: bool) -> Callable[[Path, Mapping[str, str]], Command]:
    """A maker of functions that run `onefold` as a user would, and show the command and its output."""

    def make(folder: Path, variables: Mapping[str, str]) -> Command:
        def run(*arguments: str) -> str:
            if not quiet:
                click.secho(f"\n$ onefold {shlex.join(arguments)}", bold=True)
            done = subprocess.run(  # noqa: S603 - onefold's own program
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
                    todo="Run the demo again with --keep DIR, and look at the files in that folder.",
                )
            return done.stdout

        return run

    return make


def _draw(rows: int, found: CloudOutcome) -> None:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("invoices", f"{rows:,}")
    table.add_row("messages, of which sent twice", f"{found.messages:,}, {found.again:,}")
    table.add_row("seconds until the queue was empty", f"{found.seconds:,}")
    for action, count in sorted(found.calls.items(), key=lambda one: -one[1])[:6]:
        table.add_row(f"calls: {action}", f"{count:,}")
    table.add_row("calls that failed on purpose", f"{sum(found.met.values()):,}")
    table.add_row("requests to the partner, of which repeated", f"{found.requests:,}, {found.repeated:,}")
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
