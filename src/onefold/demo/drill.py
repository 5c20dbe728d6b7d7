"""One run of the demo from the first message to the verdict.

    a partner and an engine, in a folder of their own; messages are sent while workers run under fire; when the queue is
    empty the person settles what is held and the workers finish that; then all end, and the partner's ledger is judged

Here: the order of things. Never here: how processes are killed (`fire`), how a run is judged (`outcome`), output.
Invariant: nothing that was started outlives the call, and the ledger is read after everything, the partner too, has ended.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from onefold.clock import SystemClock
from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import Row
from onefold.demo import data, figures, stream, tally
from onefold.demo.courier import Courier
from onefold.demo.figures import Figures
from onefold.demo.fire import Fire, Plan
from onefold.demo.fulfilment import QUEUE, fulfil_job, shop
from onefold.demo.outcome import Outcome, Seen, outcome
from onefold.demo.partner_books import Mode
from onefold.demo.partner_ledger import read_ledger
from onefold.demo.person import Person, Settled
from onefold.demo.runs import RUNS, Phase, Progress, Run, Settings
from onefold.entropy import SeededEntropy
from onefold.errors import OnefoldError

ENGINE, LEDGER, PARTNER_LOG, WORKERS_LOG = "shop.db", "partner.db", "partner.log", "workers.log"
"""Files in the folder of a run."""
TICK_MS = 50
STALL_MS_MAX = 60_000
"""A run in which the work does not become less for so long is given up."""
ROUNDS_MAX = 20
"""How often the person comes; each time less is left, because the partner breaks for one request in 200."""
PARTNER_LEAVE_S_MAX = 35
"""A little longer than the partner itself allows for what it has begun."""
_ALL_ROWS = 1 << 40
_NEVER_MS = 1 << 62

Told = Callable[[Progress], None]


def expected_of(rows: int) -> Figures:
    """The judge's figures for the first rows of the file, from a process that cannot find onefold.

    Raises:
        subprocess.CalledProcessError: the script failed; its own words are on standard error.
    """
    command = [sys.executable, "-I", "-S", figures.__file__, str(data.INVOICES), "--rows", str(rows)]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own script
    return Figures.from_json(found.stdout.decode())


def drill(run: Run, settings: Settings, expected: Figures, folder: Path, told: Told) -> Outcome:
    """Do one run.

    Args:
        expected: the figures of the rows that are sent.
        folder: of this run alone; is made, and holds the engine's file, the partner's ledger and the logs.
        told: hears some times a second how it stands.

    Raises:
        OnefoldError: the run came to no end: a worker or the partner ended by itself, or nothing moved any more.
    """
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        seen = _Drill(run, settings, expected, folder, told, stack).perform()
    return outcome(run, settings, expected, seen, read_ledger(folder / LEDGER))


class _Drill:
    """The moving parts of one run. Whatever is started here, `stack` ends, in the opposite order."""

    def __init__(
        self, run: Run, settings: Settings, expected: Figures, folder: Path, told: Told, stack: ExitStack
    ) -> None:
        self._expected = expected.expected["bookings"]
        self._told = told
        self._clock = SystemClock()
        self._never = threading.Event()
        entropy = SeededEntropy(settings.seed * len(RUNS) + RUNS.index(run))
        port = stack.enter_context(partner(run.mode, settings.seed, folder))
        self._courier = Courier(port)
        self._url = f"sqlite:///{folder.absolute() / ENGINE}"
        app = stack.enter_context(closing(shop(run.name, self._url, self._courier)))
        self._engine = app.runtime().engine
        self._person = Person(app, self._courier, clock=self._clock, never=self._never)
        invoices = stream.messages(data.read_invoices(count_max=settings.rows), entropy)
        self._messages = len(invoices)
        self._since_ms = self._clock.monotonic_ms()
        self._least = (self._messages, self._since_ms)
        self._sending = stack.enter_context(closing(stream.Sending(fulfil_job(app), invoices)))
        command = [sys.executable, "-m", "onefold.demo.worker", "--url", self._url, "--setup", run.name]
        command += ["--partner", str(port), "--threads", str(settings.threads)]
        command += ["--plant", settings.plant] if settings.plant is not None else []
        fire = Fire(
            command,
            settings.workers,
            plan=Plan(settings.kills, entropy),
            clock=self._clock,
            entropy=entropy,
            log=folder / WORKERS_LOG,
        )
        self._fire = stack.enter_context(closing(fire))

    def perform(self) -> Seen:
        """From the first message to the last worker's end."""
        self._until_empty("under fire")
        settled = Settled()
        for _ in range(ROUNDS_MAX):
            said = self._person.settle(lambda held: self._tell("settling", 0, held=held))
            if said.all == 0:
                break
            settled += said
            self._until_empty("settling")
        self._fire.drain()
        return Seen(
            seconds=self._seconds(),
            messages=self._messages,
            counted=tally.count(self._history(0)),
            dead=list(self._dead_letters()),
            held_left=len(self._person.waiting()),
            hits=tuple(self._fire.hits.values()),
            misses=self._fire.misses,
            stops=self._fire.stops,
            settled=settled,
            url=self._url,
        )

    def _until_empty(self, phase: Phase) -> None:
        """Burn until everything is sent, the queue is empty, and it is known of each kill what it hit."""
        while True:
            self._clock.wait(self._never, TICK_MS)
            unsent = self._messages - self._sending.sent
            depth = self._engine.queues.depth(QUEUE)
            left = unsent + depth.visible + depth.in_flight + depth.delayed
            self._fire.step(1 - left / max(self._messages, 1))
            killed_at_ms = self._fire.unproved_since_ms()
            if killed_at_ms is not None:
                self._fire.hear(self._history(killed_at_ms))
            self._tell(phase, left)
            if self._sending.done and left == 0 and self._fire.unproved_since_ms() is None:
                return
            self._check_moving(left)

    def _tell(self, phase: Phase, left: int, *, held: int = 0) -> None:
        self._told(
            Progress(
                phase=phase,
                bookings=self._courier.health().bookings,
                expected=self._expected,
                left=left,
                kills=self._fire.kills,
                held=held,
                seconds=self._seconds(),
            )
        )

    def _check_moving(self, left: int) -> None:
        now_ms = self._clock.monotonic_ms()
        least, since_ms = self._least
        if left < least or left == 0:
            self._least = (left, now_ms)
        elif now_ms - since_ms > STALL_MS_MAX:
            raise OnefoldError(
                f"For {STALL_MS_MAX // 1000} s there were never fewer than {least} messages left.",
                meaning="The run would not come to an end.",
                todo=f"Run it again with --keep DIR, and look at its engine: onefold status --url {self._url}",
            )

    def _history(self, since_ms: int) -> list[Row]:
        return self._engine.ledger.between(since_ms, _NEVER_MS, limit=_ALL_ROWS)

    def _dead_letters(self) -> Iterator[Peeked]:
        after: str | None = None
        while page := self._engine.queues.peek(f"{QUEUE}-dead", limit=1_000, after=after):
            yield from page
            after = page[-1].message_id

    def _seconds(self) -> float:
        return (self._clock.monotonic_ms() - self._since_ms) / 1000


@contextmanager
def partner(mode: Mode, seed: int, folder: Path) -> Iterator[int]:
    """The partner's process; the value is its port. Leaving lets it finish what it has begun."""
    command = [sys.executable, "-m", "onefold.demo.partner", "--mode", mode, "--ledger", str(folder / LEDGER)]
    with (folder / PARTNER_LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, "--seed", str(seed), "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            words = process.stdout.readline().split()
            if len(words) != 2:
                said = (folder / PARTNER_LOG).read_text(errors="replace").strip()
                raise OnefoldError("The partner did not start.", meaning=said, todo="Run the demo again.")
            yield int(words[1])
            process.stdin.close()
            process.wait(PARTNER_LEAVE_S_MAX)
        finally:
            process.kill()
