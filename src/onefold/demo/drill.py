"""One run of the demo from the first message to the verdict.

A partner and an engine get a folder of their own. Every row of the file is sent in order, in chunks, while workers run
and are killed. About a tenth of the messages are sent again with the same payload: half of those soon after the first,
so that another worker receives the duplicate while the first is running, and half at any later time, so that it arrives
when the first is done. When the queue is empty, a simulated person settles what is held: the person waits until the
partner has nothing under way (before that its ledger can still change), looks up each held invoice in it, and answers
through the same service as `onefold held settle`. The workers finish what was released; then everything ends, and the
partner's ledger is checked.

Here: the sequence of a run, the sender, and the person. Never here: how processes are killed (`processes`), how a run
is judged (`outcome`), output. Invariant: the same seed sends the same messages in the same order; no held invoice is
settled while the partner is still working on anything; nothing that was started outlives the call; and the ledger is
read after everything, including the partner, has ended.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import onefold
from onefold.admin import held
from onefold.admin.session import AdminSession, SessionJobs
from onefold.clock import SystemClock
from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import Row
from onefold.demo import data, figures
from onefold.demo.figures import Figures
from onefold.demo.fulfilment import QUEUE, Booked, Courier, Health, Invoice, fulfil_job, invoice_of, shop
from onefold.demo.outcome import (
    RUNS,
    DemoProgress,
    DemoRun,
    DemoSettings,
    Observed,
    PersonAnswers,
    Phase,
    RunOutcome,
    count_deliveries,
    outcome,
)
from onefold.demo.partner_books import Mode
from onefold.demo.partner_ledger import read_ledger
from onefold.demo.processes import Fire, KillPlan
from onefold.entropy import SeededEntropy
from onefold.errors import OnefoldError

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy, Waiter

ENGINE, LEDGER, PARTNER_LOG, WORKERS_LOG = "shop.db", "partner.db", "partner.log", "workers.log"
"""Files in the folder of a run."""
TICK_MS = 50
STALL_MS_MAX = 60_000
"""A run without progress for this long is abandoned."""
ROUNDS_MAX = 20
"""At most this many rounds of settling; each leaves fewer held, as the partner fails only one request in 200."""
PARTNER_LEAVE_S_MAX = 35
"""How long a stopping partner may take, in seconds: a little longer than its own limit for begun requests."""
_ALL_ROWS = 1 << 40
_NEVER_MS = 1 << 62

OnProgress = Callable[[DemoProgress], None]


def expected_of(rows: int) -> Figures:
    """The judge's figures for the first rows of the file, from a process that cannot import onefold.

    Raises:
        subprocess.CalledProcessError: the script failed; its output is on standard error.
    """
    command = [sys.executable, "-I", "-S", figures.__file__, str(data.INVOICES), "--rows", str(rows)]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - onefold's own script
    return Figures.from_json(found.stdout.decode())


def drill(run: DemoRun, settings: DemoSettings, expected: Figures, folder: Path, on_progress: OnProgress) -> RunOutcome:
    """Perform one run.

    Args:
        expected: the figures of the rows that are sent.
        folder: for this run only; it is created, and holds the engine's file, the partner's ledger and the logs.
        on_progress: called several times a second with the progress.

    Raises:
        OnefoldError: the run did not finish: a worker or the partner ended unexpectedly, or there was no more progress.
    """
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        seen = _Drill(run, settings, expected, folder, on_progress, stack).perform()
    return outcome(run, settings, expected, seen, read_ledger(folder / LEDGER))


class _Drill:
    """The parts of one run. `stack` ends everything started here, in reverse order."""

    def __init__(
        self,
        run: DemoRun,
        settings: DemoSettings,
        expected: Figures,
        folder: Path,
        on_progress: OnProgress,
        stack: ExitStack,
    ) -> None:
        self._expected = expected.expected["bookings"]
        self._on_progress = on_progress
        self._clock = SystemClock()
        self._never = threading.Event()
        entropy = SeededEntropy(settings.seed * len(RUNS) + RUNS.index(run))
        port = stack.enter_context(partner(run.mode, settings.seed, folder))
        self._courier = Courier(port)
        self._url = f"sqlite:///{folder.absolute() / ENGINE}"
        app = stack.enter_context(closing(shop(run.name, self._url, self._courier)))
        self._engine = app.runtime().engine
        self._person = Person(app, self._courier, clock=self._clock, never=self._never)
        invoices = stream(data.read_invoices(count_max=settings.rows), entropy)
        self._messages = len(invoices)
        self._since_ms = self._clock.monotonic_ms()
        self._least = (self._messages, self._since_ms)
        self._sending = stack.enter_context(closing(Sending(fulfil_job(app), invoices)))
        command = [sys.executable, "-m", "onefold.demo.worker", "--url", self._url, "--setup", run.name]
        command += ["--partner", str(port), "--threads", str(settings.threads)]
        command += ["--plant", settings.plant] if settings.plant is not None else []
        fire = Fire(
            command,
            settings.workers,
            plan=KillPlan(settings.kills, entropy),
            clock=self._clock,
            entropy=entropy,
            log=folder / WORKERS_LOG,
        )
        self._fire = stack.enter_context(closing(fire))

    def perform(self) -> Observed:
        """Perform the run, from the first message to the end of the last worker."""
        self._until_empty("under fire")
        settled = PersonAnswers()
        for _ in range(ROUNDS_MAX):
            said = self._person.settle(lambda held: self._report("settling", 0, held=held))
            if said.all == 0:
                break
            settled += said
            self._until_empty("settling")
        self._fire.drain()
        return Observed(
            seconds=self._seconds(),
            messages=self._messages,
            counted=count_deliveries(self._history(0)),
            dead=list(self._dead_letters()),
            held_left=len(self._person.waiting()),
            hits=tuple(self._fire.hits.values()),
            misses=self._fire.misses,
            stops=self._fire.stops,
            settled=settled,
            url=self._url,
        )

    def _until_empty(self, phase: Phase) -> None:
        """Run until everything is sent, the queue is empty, and the effect of each kill is known."""
        while True:
            self._clock.wait(self._never, TICK_MS)
            unsent = self._messages - self._sending.sent
            depth = self._engine.queues.depth(QUEUE)
            left = unsent + depth.visible + depth.in_flight + depth.delayed
            if self._fire.takes_more_work(idle=left - unsent < DOSE):
                self._sending.allow_more(DOSE if self._fire.kills_due else max(DOSE, self._messages // 200))
            self._fire.step(1 - left / max(self._messages, 1), self._busy)
            killed_at_ms = self._fire.unproved_since_ms()
            if killed_at_ms is not None:
                self._fire.hear(self._history(killed_at_ms))
            self._report(phase, left)
            if self._sending.done and left == 0 and self._fire.unproved_since_ms() is None:
                return
            self._check_moving(left)

    def _busy(self) -> set[str]:
        """The owners with work in progress; messages in flight are among the oldest, so only these are read."""
        return {one.owner for one in self._engine.queues.peek(QUEUE, limit=1_000) if one.owner is not None}

    def _report(self, phase: Phase, left: int, *, held: int = 0) -> None:
        self._on_progress(
            DemoProgress(
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
                meaning="The run does not come to an end.",
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
    """Run the partner's process; yields its port. After the block it finishes the requests that it has begun."""
    command = [sys.executable, "-m", "onefold.demo.partner", "--mode", mode, "--ledger", str(folder / LEDGER)]
    with (folder / PARTNER_LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and onefold's own module
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


AGAIN_SHARE = 0.1
CLOSE_MESSAGES = 60
CHUNK = 1_000


def stream(rows: Iterable[data.InvoiceRow], entropy: Entropy) -> list[Invoice]:
    """The messages of a run, in the order in which they are sent."""
    invoices = [invoice_of(row) for row in rows]
    placed: list[tuple[float, Invoice]] = list(enumerate(invoices))
    for position, invoice in enumerate(invoices):
        if entropy.fraction() < AGAIN_SHARE:
            far = CLOSE_MESSAGES if entropy.fraction() < 0.5 else len(invoices) - position
            placed.append((position + far * entropy.fraction(), invoice))
    placed.sort(key=lambda one: one[0])
    return [invoice for _, invoice in placed]


RESERVE_SHARE = 0.3
"""Share of the messages that is sent in small doses, so that slow-starting workers still have work when killed."""
DOSE = 5
"""Messages released at a time while a kill is due; otherwise a two-hundredth of all, if that is more."""


class Sending:
    """Sends messages in the background in chunks, each durable before the next; the reserve only when allowed."""

    def __init__(self, job: onefold.Job[Invoice, Booked], invoices: Sequence[Invoice]) -> None:
        self._job = job
        self._invoices = invoices
        self._stopped = False
        self._changed = threading.Condition()
        self._allowed = len(invoices) - round(len(invoices) * RESERVE_SHARE)
        self._error: BaseException | None = None
        self.sent = 0
        """How many messages have been accepted."""
        self._thread = threading.Thread(target=self._send, name="demo-sender", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether everything has been sent.

        Raises:
            OnefoldError: the error that stopped the sending.
        """
        if self._error is not None:
            raise self._error
        return self.sent == len(self._invoices)

    def allow_more(self, dose: int) -> None:
        """Release this many messages of the reserve, if everything released before has been sent."""
        with self._changed:
            if self.sent == self._allowed:
                self._allowed = min(self._allowed + dose, len(self._invoices))
                self._changed.notify()

    def close(self) -> None:
        """Stop after the current chunk."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _send(self) -> None:
        try:
            while self.sent < len(self._invoices) and not self._stopped:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped or self.sent < self._allowed)
                chunk = self._invoices[self.sent : min(self.sent + CHUNK, self._allowed)]
                self._job.send_many(chunk)
                self.sent += len(chunk)
        except BaseException as error:  # noqa: BLE001 - raised again when the result is read
            self._error = error


ACTOR = "person:demo"
CALM_MS = 200
"""The partner must be idle at two checks this many ms apart, with no request between them."""
WAIT_MS_MAX = 30_000
"""How long to wait until the partner is idle, in ms; its slowest request takes 1.5 s."""


class Person:
    """A simulated operator of a shop.

    Args:
        app: the shop. courier: the client of the partner.
    """

    def __init__(self, app: onefold.App, courier: Courier, *, clock: Clock, never: Waiter) -> None:
        jobs = SessionJobs(named=app.jobs, of=app.registry.job_of, history=app.history)
        self._session = AdminSession(app.runtime(), actor=ACTOR, jobs=jobs)
        self._courier = courier
        self._clock = clock
        self._never = never

    def waiting(self) -> list[held.HeldOperation]:
        """The operations that are held."""
        return held.listed(self._session)

    def settle(self, on_progress: Callable[[int], None]) -> PersonAnswers:
        """Settle everything that is held; operations that were not done go back to the queue.

        Args:
            on_progress: called before each invoice with the number of those left.

        Raises:
            OnefoldError: the partner did not become idle.
        """
        waiting = self.waiting()
        if waiting:
            self._wait_for_calm()
        settled = PersonAnswers()
        for position, one in enumerate(waiting):
            on_progress(len(waiting) - position)
            bookings = self._courier.look(one.key).bookings
            held.settle(
                self._session,
                one.key,
                hold=one.hold,
                done=bool(bookings),
                result=msgspec.json.encode(Booked(bookings[0])).decode() if bookings else None,
                reason_text=f"the partner's books show {bookings[0]}" if bookings else "not in the partner's books",
            )
            settled += PersonAnswers(done=1) if bookings else PersonAnswers(not_done=1)
        return settled

    def _wait_for_calm(self) -> None:
        before: Health | None = None
        for _ in range(WAIT_MS_MAX // CALM_MS):
            now = self._courier.health()
            if now.under_way == 0 and now == before:
                return
            before = now
            self._clock.wait(self._never, CALM_MS)
        raise OnefoldError(
            f"The partner still had something under way after {WAIT_MS_MAX} ms.",
            meaning="Its books may still change, so nothing can be settled from them.",
            todo="Run the demo again; if it happens again, the partner is at fault.",
        )
