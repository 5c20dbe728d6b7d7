"""Asking about an app whose queues are on SQS: nothing is received unasked, and nothing is said that cannot be known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.admin import jobs, queues, status, status_warnings, stuck, why
from onefold.admin.session import AdminSession, SessionJobs, jobs_of, open_session
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.testing import Endpoint

pytestmark = pytest.mark.slow


class Shop:
    """A queue whose messages are dead-lettered after five receives, and a second one."""

    def __init__(self, url: str, sqs_client: Any) -> None:
        self.app = onefold.App("shop", url=url)
        self.sqs = sqs_client
        self.fails = False

        @self.app.job(self.app.queue("orders", dead_letter=onefold.DeadLetter(after=5)), key="{id}", name="charge")
        def charge(order: dict[str, str]) -> None:
            if self.fails:
                raise onefold.TransientError("not now")

        @self.app.job(self.app.queue("steps", fifo=True), key="{id}", group="{id}", name="step")
        def step(order: dict[str, str]) -> None: ...

        self.charge, self.step = charge, step

    @property
    def session(self) -> AdminSession:
        known = SessionJobs(named=self.app.jobs, of=self.app.registry.job_of, history="brief")
        return AdminSession(self.app.runtime(), actor="person:ada", jobs=known)

    def received(self, queue: str) -> list[int]:
        """How often each message of a queue was received, with this time."""
        url = self.sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        found = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["ApproximateReceiveCount"]
        )
        return [int(one["Attributes"]["ApproximateReceiveCount"]) for one in found.get("Messages", ())]

    def begin(self, *, lease_ms: int) -> Any:
        """A worker that has begun what waits in `orders`."""
        runtime = self.app.runtime()
        runner = make_runner(
            runtime, self.app.jobs, self.app.registry.job_of, lease_ms=lease_ms, sinks=Sinks(), history="brief"
        )
        return runner, runner.begin(runtime.engine.queues.open("orders").receive(10))


@pytest.fixture
def shop(endpoint: Endpoint, url: str) -> Iterator[Shop]:
    one = Shop(url, endpoint.boto3("sqs"))
    one.app.runtime()
    yield one
    one.app.close()


def test_asking_about_a_key_receives_no_message_of_any_job(shop: Shop) -> None:
    shop.charge.send({"id": "b1"})
    shop.step.send({"id": "s1"})
    for key in ("another", "b1", "b2"):
        assert why.explain(shop.session, key).stories == ()
    stuck.runs(shop.session)
    status.status(shop.session)
    jobs._wake(shop.session, "charge")
    for queue in ("orders", "steps.fifo"):
        with pytest.raises(onefold.errors.UsageError, match="reading messages receives them"):
            queues.look(shop.session, queue)
    assert queues.look(shop.session, "orders-dead") == []
    assert (shop.received("orders"), shop.received("steps.fifo")) == ([1], [1])


def test_a_key_whose_message_may_wait_is_not_said_to_be_unseen(shop: Shop) -> None:
    shop.charge.send({"id": "b1"})
    answer = why.explain(shop.session, "b1")
    assert "orders: 1, steps.fifo: 0" in answer.not_asked
    assert "--receive" in answer.not_asked
    assert answer.near == ()
    assert not any("relative file" in one for one in answer.meanings)


def test_a_look_that_receives_is_asked_for(shop: Shop) -> None:
    (sent,) = shop.charge.send_many([{"id": "b1"}])
    for asked in ("b1", sent.message_id):
        (story,) = why.explain(shop.session, asked, receive=True).stories
        assert (story.job, story.key, story.state) == ("charge", "b1", "waiting")
    assert [one.key for one in queues.look(shop.session, "orders", receive=True)] == ["b1"]
    assert shop.received("orders")[0] > 1


def test_a_silent_run_is_taken_over_with_its_message(shop: Shop) -> None:
    shop.charge.send({"id": "b1"})
    shop.begin(lease_ms=1)  # and then its worker is killed
    (story,) = why.explain(shop.session, "b1").stories
    assert story.state == "silent"
    assert "no message is left" not in story.text
    assert "visible again when its visibility timeout is over" in story.text
    assert not any("send it again" in one for one in story.todo)
    (one,) = stuck.runs(shop.session)
    assert one.resolves
    assert "visible again when its visibility timeout is over" in one.explanation


def test_a_failed_run_waits_for_its_retry(shop: Shop) -> None:
    shop.charge.send({"id": "b1"})
    shop.fails = True
    runner, (run,) = shop.begin(lease_ms=30_000)
    runner.perform(run)
    runner.finish([run])
    (story,) = why.explain(shop.session, "b1").stories
    assert story.state == "retrying"
    assert "no message is left" not in story.text
    assert not any("Send it again" in one for one in story.todo)


def pay(payout: dict[str, str]) -> None: ...


def test_a_queue_that_was_renamed_is_named_where_queues_have_a_prefix(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one the queues of the account may be anybody's; who sent a message is not known before it is received."""
    place = f"aws://{endpoint.region}?create=yes&records=sqlite:///{tmp_path}/records.db"
    for prefix, expected in (("&prefix=pay-", ["payouts"]), ("", [])):
        before, after = onefold.App("pay", url=place + prefix), onefold.App("pay", url=place + prefix)
        before.job(before.queue("payouts"), key="{id}", name="pay")(pay).send({"id": "p-1"})
        before.close()
        after.job(after.queue("transfers"), key="{id}", name="pay")(pay)
        with closing(open_session(place + prefix, actor="person:ada", jobs=jobs_of(after))) as session:
            found = [one for one in status.status(session).warnings if one.code == "no-receiver"]
            assert [one.queue for one in found] == expected
            assert status_warnings.waiting_in_vain(session) == found
            assert status_warnings.left_behind(session) == [], "a worker that starts may not list queues"
            assert all(one.text.startswith("About 1 message is in queue payouts, on which this app") for one in found)
        after.close()
