"""An app with a few ways to fail, opened with a session beside it, on a clock that the test moves. Nothing sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onefold
from onefold.admin.dead_letters import Select, find
from onefold.admin.session import AdminSession, SessionJobs, open_session
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.ledger import History
from onefold.contracts.store import Ask, Claimed, RecordKey
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.testing.inline import Recorder, World

START_MS = 1_700_000_000_000
ACTOR = "person:ada"


@dataclass
class Order:
    order_id: str
    city: str = "London"
    customer: str = "c-1"


class Office:
    """The app and what stands around it.

    Attributes:
        ill: order id -> the exception its handler raises.
        ran: order ids, in the order their handlers were called.
    """

    def __init__(self) -> None:
        self.ill: dict[str, Exception] = {}
        self.ran: list[str] = []
        self.app = onefold.App("office")
        self.orders = self.app.queue("orders")
        self.careful = self.app.queue("careful")
        self.lines = self.app.queue("lines", fifo=True)
        quick = onefold.Retry(attempts=2, base="1s", jitter="none")

        def run(order: Order) -> dict[str, str]:
            self.ran.append(order.order_id)
            if order.order_id in self.ill:
                raise self.ill[order.order_id]
            return {"label": f"L-{order.order_id}"}

        self.book = self.app.job(self.orders, key="{order_id}", name="book", retry=quick, owner="fulfilment")(run)
        self.pay = self.app.job(self.careful, key="{order_id}", name="pay", on_unknown="hold", owner="billing")(run)
        self.step = self.app.job(
            self.lines, key="{order_id}", name="step", group="{customer}", retry=quick, on_unknown="hold"
        )(run)
        self.skipped = self.app.job(
            self.lines, key="{order_id}", name="skipped", group="{customer}", retry=quick, after_failure="skip"
        )(run)
        self.charge = self.app.job(
            self.careful, key="{order_id}", tenant="{customer}", name="charge", on_unknown="hold"
        )(run)

    @contextmanager
    def opened(self, url: str = "sqlite://:memory:", history: History = "brief") -> Iterator[Open]:
        """Open it on an engine."""
        clock, recorder = ManualClock(START_MS), Recorder()
        with self.app._reopened(url, clock, SeededEntropy(7)) as runtime:
            runner = make_runner(
                runtime,
                self.app.jobs,
                self.app.registry.job_of,
                lease_ms=30_000,
                sinks=Sinks([recorder]),
                history=history,
            )
            jobs = SessionJobs(named=self.app.jobs, of=self.app.registry.job_of, history=history)
            world = World(self.app, clock, runner, recorder)
            yield Open(self, world, clock, AdminSession(runtime, actor=ACTOR, jobs=jobs))


class Open:
    """An open office."""

    def __init__(self, office: Office, world: World, clock: ManualClock, session: AdminSession) -> None:
        self.office = office
        self.world = world
        self.clock = clock
        self.session = session

    def without_app(self) -> AdminSession:
        """A second session on the same engine that knows no app."""
        bare = AdminSession(self.session._runtime, actor=ACTOR)
        assert bare.jobs is None
        return bare

    def dead(self) -> dict[str | None, str]:
        """Message ids of the dead letters, by key."""
        return {message.key: message.message_id for message in find(self.session, Select())}

    def claim(
        self, job: str, key: str, *, start: bool, message_id: str | None = None, lease_ms: int = 1_000
    ) -> Claimed:
        """Claim an operation as a worker would that then dies."""
        now_ms = self.clock.now_ms()
        ask = Ask(
            key=RecordKey("", job, key),
            fingerprint="f" * 32,
            owner="worker-that-dies",
            lease_until_ms=now_ms + lease_ms,
            start=start,
            expires_at_ms=now_ms + 1_000_000_000,
            message_id=message_id,
        )
        found = self.session.engine.store.claim([ask], now_ms)[0]
        assert isinstance(found, Claimed)
        return found

    def send_foreign(self, queue: str, body: str) -> str:
        """A message that onefold did not send; its id."""
        sent = self.session.engine.queues.open(queue).send([Entry(body=body)])[0]
        assert isinstance(sent, Sent)
        return sent.message_id


def file_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'office.db'}"


__all__ = ["ACTOR", "START_MS", "Office", "Open", "Order", "file_url", "open_session"]
