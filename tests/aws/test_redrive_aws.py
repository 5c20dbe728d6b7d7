"""A stopped FIFO group on SQS, without transactions and looks of more than ten: sent back in order, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import onefold
from onefold.admin import dead_letters, groups
from onefold.admin.dead_letters import Select
from onefold.admin.redrive import Redrive
from onefold.admin.session import AdminSession, SessionJobs
from tests.crash import victim


class Shop:
    """Lines of one customer, the first of which is bad at first."""

    def __init__(self, url: str) -> None:
        self.app = onefold.App("shop", url=url)
        self.ran: list[int] = []
        self.bad = True

        @self.app.job(self.app.queue("lines", fifo=True), key="{number}", group="{customer}", name="step")
        def step(line: dict[str, int]) -> None:
            if self.bad and line["number"] == 0:
                raise onefold.PermanentError("bad line")
            self.ran.append(line["number"])

        self.step = step

    @property
    def session(self) -> AdminSession:
        jobs = SessionJobs(named=self.app.jobs, of=self.app.registry.job_of, history="brief")
        return AdminSession(self.app.runtime(), actor="person:ada", jobs=jobs)

    def work(self) -> None:
        victim.work(self.app, self.app.runtime())


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    one = Shop(url)
    yield one
    one.app.close()


@pytest.mark.slow
def test_a_stopped_group_is_sent_back_whole_and_in_order_while_its_queue_is_idle(shop: Shop) -> None:
    shop.step.send_many({"number": number, "customer": 1} for number in range(12))
    shop.work()
    shop.bad = False
    shop.step.send_many({"number": number, "customer": 1} for number in range(12, 23))
    session = shop.session
    messages = list(dead_letters.find(session, Select()))
    with pytest.raises(onefold.errors.UsageError, match="--idle"):
        Redrive(session, messages, watch=False, select=Select())
    assert (shop.ran, len(groups.stopped(session))) == ([], 1)
    tally = Redrive(session, messages, watch=False, select=Select(), idle=True).run(lambda _: None)
    assert tally.end == "done"
    shop.work()
    assert shop.ran == list(range(23))
    assert groups.stopped(session) == []
