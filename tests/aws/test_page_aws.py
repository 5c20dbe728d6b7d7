"""The page of an app on SQS and DynamoDB: every page answers, none receives a message unasked, and changes are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import onefold
from onefold.admin.session import AdminSession, jobs_of
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker
from onefold.testing import Endpoint
from onefold.web.application import Page
from onefold.web.redrives import RunningRedrives
from onefold.web.safety import Access
from tests.web.browsing import TOKEN, Reader

pytestmark = pytest.mark.slow

PAGES = (
    "/", "/queues/orders", "/dead", "/dead/orders-dead", "/held", "/alarms", "/why", "/why?key=b1", "/runs", "/schedules",
    "/workers", "/audit",
)  # fmt: skip


class Shop:
    """A shop whose order `bad` fails for good."""

    def __init__(self, url: str, sqs_client: Any) -> None:
        self.app = onefold.App("shop", url=url)
        self.sqs = sqs_client
        self.fails = True

        @self.app.job(self.app.queue("orders"), key="{id}", name="charge")
        def charge(order: dict[str, str]) -> None:
            if self.fails and order["id"] == "bad":
                raise onefold.PermanentError("there is no such card")

        @self.app.schedule("cron(0 3 * * ? *)", name="nightly")
        def nightly(tick: onefold.Tick) -> None:
            del tick

        self.charge = charge
        session = AdminSession(self.app.runtime(), actor="person:ada", jobs=jobs_of(self.app))
        self.redrives = RunningRedrives(lambda one: None)  # the test takes the steps
        page = Page(session, access=Access(token=TOKEN, actor="person:ada"), app=self.app, redrives=self.redrives)
        self.reader = Reader(page)

    def work(self) -> None:
        """Work until nothing is left."""
        settings = WorkerSettings(until_empty=True)
        make_worker(
            self.app.runtime(), self.app.jobs, self.app.registry.job_of, settings=settings, queues=["orders"]
        ).run()


@pytest.fixture
def shop(endpoint: Endpoint, url: str) -> Iterator[Shop]:
    one = Shop(url, endpoint.boto3("sqs"))
    yield one
    one.app.close()


def receives_of(shop: Shop, queue: str) -> int:
    """How often the one message of a queue was received, with this time."""
    place = shop.sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    (found,) = shop.sqs.receive_message(
        QueueUrl=place, MessageSystemAttributeNames=["ApproximateReceiveCount"], WaitTimeSeconds=2
    )["Messages"]
    return int(found["Attributes"]["ApproximateReceiveCount"])


def test_every_page_answers_and_receives_nothing_of_a_working_queue(shop: Shop) -> None:
    shop.charge.send({"id": "b1"})
    for path in PAGES:
        got = shop.reader.get(path)
        assert got.status in (200, 404), (path, got.words)
        assert (got.status == 404) == (path == "/why?key=b1"), (path, got.words)  # nobody has begun it yet
    assert "a look would receive" in shop.reader.get("/queues/orders").words
    assert "nightly not seen yet" in shop.reader.get("/schedules").words
    assert shop.reader.get("/readyz").status == 200
    assert 'onefold_queue_messages{queue="orders",state="visible"} 1.0' in shop.reader.get("/metrics").text
    assert receives_of(shop, "orders") == 1


def test_dead_letters_are_shown_previewed_and_sent_back(shop: Shop) -> None:
    shop.charge.send({"id": "bad"})
    shop.work()
    assert "dead letter" in shop.reader.get("/").words
    got = shop.reader.get("/dead/orders-dead")
    assert "there is no such card" in got.words
    shown = shop.reader.get("/dead/orders-dead/redrive?key=bad")
    assert "1 run" in shown.words
    shop.fails = False
    fields = {"key": "bad", "seen": shown.field("seen"), "why": "the card is there now"}
    got = shop.reader.post("/dead/orders-dead/redrive", fields)
    assert got.status == 303
    while not shop.reader.get(f"/api{got.headers['location']}").json()["tally"]["sent"]:
        shop.redrives.one(got.headers["location"].rpartition("/")[2]).step()
    shop.work()
    (deed,) = shop.reader.get("/api/audit").json()["deeds"]
    assert (deed["event"], deed["reason"]) == ("redrive", "the card is there now")
    assert "completed" in shop.reader.get("/why/charge/bad").words


def test_what_only_a_scheduler_of_ours_knows_is_refused_with_the_way_to_do_it(shop: Shop) -> None:
    seen = shop.reader.get("/schedules/nightly/pause").field("seen")
    got = shop.reader.post("/schedules/nightly/pause", {"seen": seen, "why": "x"})
    assert (got.status, "aws scheduler update-schedule" in got.words) == (409, True)
