"""The billing app of `billing.py` on a file, at a month's end, on a clock that the test moves; and faults to plant in it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onefold.admin.session import AdminSession, SessionJobs
from onefold.contracts.store import Ask, Claimed, RecordKey
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import Scheduler
from onefold.testing.inline import Recorder, World

ACTOR = "person:ada"
DUE_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z, which is 03:00 in London
RUN = "monthly_billing/2026-06-01T02:00:00Z"


class Month:
    """An open billing app."""

    def __init__(
        self, app: Any, module: Any, world: World, clock: ManualClock, session: AdminSession, recorder: Recorder
    ) -> None:
        self.app = app
        self.module = module
        self.world = world
        self.clock = clock
        self.session = session
        self.events = recorder.events
        self.scheduler = Scheduler(app.runtime(), Sinks([recorder]))

    def fire(self) -> None:
        """Let the scheduler send what is due, and work it off."""
        self.scheduler.catch_up()
        self.world.run()

    def dispatch(self) -> None:
        """Let the dispatcher send its messages, and work none of them off."""
        self.scheduler.catch_up()
        self.dispatch_sent()

    def dispatch_sent(self) -> None:
        """The same for a tick that was sent already."""
        queue = self.world._runtime.engine.queues.open("billing-schedules")
        self.world._perform(self.world._runner.begin(queue.receive(10)))

    def bill(self, customer: str) -> RecordKey:
        return RecordKey("", "charge", f"2026-06/{customer}")

    def lose(self, *customers: str) -> None:
        """Take messages away behind everybody's back."""
        queues = self.session.engine.queues
        for customer in customers:
            queues.remove([one.message_id for one in queues.find_key(self.bill(customer).key)])

    def die(self, customer: str, *, lease_ms: int = 1_000) -> None:
        """Claim an operation as a worker would that then dies."""
        now_ms = self.clock.now_ms()
        message = self.module.charge.message(self.module.Bill("2026-06", customer))
        ask = Ask(
            key=self.bill(customer), fingerprint=message.fingerprint, owner="dead", lease_until_ms=now_ms + lease_ms,
            start=True, expires_at_ms=now_ms + 10**10,
        )  # fmt: skip
        (found,) = self.session.engine.store.claim([ask], now_ms)
        assert isinstance(found, Claimed)
        self.clock.advance(lease_ms)


@contextmanager
def opened(
    folder: Path, customers: str, *, module_name: str = "tests.faces.billing", start_ms: int = DUE_MS - 3_600_000
) -> Iterator[Month]:
    """Open it in the current folder, an hour before the month's end unless given; the scheduler has started then."""
    (folder / "customers").write_text(customers, encoding="utf-8")
    sys.modules.pop(module_name, None)
    module = importlib.import_module(module_name)
    clock, recorder = ManualClock(start_ms), Recorder()
    with module.app._reopened(module.app.url, clock, SeededEntropy(7)) as runtime:
        runner = make_runner(
            runtime,
            module.app.jobs,
            module.app.registry.job_of,
            lease_ms=30_000,
            sinks=Sinks([recorder]),
            history="brief",
        )
        jobs = SessionJobs(named=module.app.jobs, of=module.app.registry.job_of, history="brief")
        world = World(module.app, clock, runner, recorder)
        month = Month(module.app, module, world, clock, AdminSession(runtime, actor=ACTOR, jobs=jobs), recorder)
        if start_ms < DUE_MS:
            month.scheduler.catch_up()
            clock.advance(DUE_MS - start_ms)
        yield month
