"""Reconciliation on SQS, which cannot be asked what it holds: waiting, missing, dead letters, the look itself, a repair."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import onefold
from onefold.admin import reconcile
from onefold.admin.session import AdminSession, SessionJobs
from onefold.reconcile import findings
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.runtime.outgoing import Outgoing
from onefold.schedules.schedule import Tick
from onefold.testing import Endpoint
from tests.crash import victim

DUE_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z
RUN = "monthly/2026-06-01T02:00:00Z"


class Shop:
    """A dispatcher over three customers, one of whom has no card; a look an hour after."""

    def __init__(self, url: str) -> None:
        self.app = onefold.App("shop", url=url)
        self.done: list[str] = []

        @self.app.job(self.app.queue("bills"), key="{id}", name="charge", owner="billing")
        def charge(bill: dict[str, str]) -> None:
            if bill["id"] == "bad":
                raise onefold.PermanentError("no such card")
            self.done.append(bill["id"])

        @self.app.schedule("cron(0 2 1 * ? *)")
        def monthly(tick: Tick) -> Iterator[Outgoing]:
            yield from (charge.message({"id": one}) for one in ("ada", "bad", "cyd"))

        self.monthly = monthly
        self.app.reconcile(monthly, after="1h")

    @property
    def session(self) -> AdminSession:
        jobs = SessionJobs(named=self.app.jobs, of=self.app.registry.job_of, history="brief")
        return AdminSession(self.app.runtime(), actor="person:ada", jobs=jobs)

    def look(self) -> findings.ReconcileOutcome:
        (found,) = reconcile.reconcile(self.session, self.app, RUN)
        return found

    def work(self) -> None:
        victim.work(self.app, self.app.runtime())


@pytest.fixture
def shop(endpoint: Endpoint, url: str) -> Iterator[tuple[Shop, Endpoint]]:
    one = Shop(url)
    yield one, endpoint
    one.app.close()


def dispatched(one: Shop) -> None:
    """The tick is handled; none of its messages is."""
    one.app.runtime().send([one.monthly.outgoing(DUE_MS)])
    runtime = one.app.runtime()
    runner = make_runner(
        runtime, one.app.jobs, one.app.registry.job_of, lease_ms=30_000, sinks=Sinks(), history="brief"
    )
    (run,) = runner.begin(runtime.engine.queues.open("shop-schedules").receive(10))
    runner.perform(run)
    runner.finish([run])


@pytest.mark.slow
def test_a_run_on_sqs_is_looked_at_and_its_dead_letter_found(shop: tuple[Shop, Endpoint]) -> None:
    one, endpoint = shop
    dispatched(one)
    found = one.look()
    assert (found.verdict, found.waiting) == ("late", 3)
    assert found.examples[0].why == "not done; bills still holds messages, and cannot be asked which"
    one.work()
    assert sorted(one.done) == ["ada", "cyd"]
    found = one.look()
    assert (found.verdict, found.done, found.dead, found.dispatched) == ("disagrees", 2, 1, 3)
    (example,) = found.examples
    assert (example.key, example.queue, example.owner) == ("bad", "bills-dead", "billing")
    assert example.why == "PermanentError: no such card"
    assert example.message_id in {message.message_id for message in endpoint.peek("bills-dead")}


@pytest.mark.slow
def test_what_was_refused_under_a_key_that_is_done_is_dead(shop: tuple[Shop, Endpoint]) -> None:
    """The record of ada's key is complete, with another payload than the run dispatched."""
    one, _ = shop
    one.app.runtime().send([one.app.jobs["charge"].message({"id": "ada", "pence": "10"})])
    one.work()
    dispatched(one)
    assert one.look().waiting == 3
    one.work()
    assert one.done == ["ada", "cyd"]
    found = one.look()
    assert (found.verdict, found.done, found.dead, found.dispatched) == ("disagrees", 1, 2, 3)
    assert sorted((example.key, example.queue) for example in found.examples) == [
        ("ada", "bills-dead"), ("bad", "bills-dead")
    ]  # fmt: skip


@pytest.mark.slow
def test_what_was_purged_is_missing_and_is_sent_again(shop: tuple[Shop, Endpoint]) -> None:
    one, endpoint = shop
    dispatched(one)
    one.session.engine.queues.purge("bills")
    found = one.look()
    assert (found.verdict, found.missing) == ("disagrees", 3)
    assert reconcile.Repair(one.session, one.app, RUN).send().sent == 3
    assert len(endpoint.peek("bills")) == 3
    one.work()
    found = one.look()
    assert (found.done, found.dead, found.missing) == (2, 1, 0)


@pytest.mark.slow
def test_a_look_later_than_sqs_can_wait_is_sent_as_late_as_it_can(shop: tuple[Shop, Endpoint]) -> None:
    one, endpoint = shop
    dispatched(one)
    (look,) = endpoint.peek("onefold-reconcile")
    ahead_ms = look.visible_at_ms - look.sent_at_ms
    assert 890_000 <= ahead_ms <= 900_000  # of the hour; it sends itself on
