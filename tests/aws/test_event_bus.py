"""Puts on EventBridge: batches of ten, entries tried again alone, refusals; on moto from put to rule, queue and job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import onefold
from onefold import errors, limits
from onefold.contracts.entries import Entry, Refused, Sent, bus_of, bus_queue_name
from onefold.engines.aws.sqs import PUT_BYTES_MAX, PUT_TRIES, EventBusQueue
from onefold.events import EventEntry
from onefold.manual_clock import ManualClock
from onefold.record.envelopes import Envelope, Origin, request_of, sealed
from tests.crash import victim
from tests.emulators import servers

Answers = Callable[[int, dict[str, Any]], dict[str, str]]


class Client:
    """A client of EventBridge that answers as it is told, entry by entry, and keeps the requests."""

    def __init__(self, answers: Answers) -> None:
        self.requests: list[list[dict[str, Any]]] = []
        self._answers = answers

    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - boto3's
        self.requests.append(Entries)
        return {"Entries": [self._answers(len(self.requests), entry) for entry in Entries]}


class Clients:
    """A session with one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def client(self, service: str) -> Client:
        assert service == "events"
        return self._client


def taken(_: int, entry: dict[str, Any]) -> dict[str, str]:
    return {"EventId": f"id of {entry['Detail']}"}


def entries(count: int, size: int = 1) -> list[Entry]:
    made = []
    for number in range(count):
        entry = EventEntry(source="shop", detail_type="x", detail={"n": number, "x": "x" * size}, time_ms=1_000)
        event = sealed(entry, Origin("0" * 12, "eu-west-1"), f"own-{number}", 0)
        assert isinstance(event, Envelope)
        made.append(Entry(body=request_of(event), key=event.id))
    return made


def bus(answers: Answers = taken) -> tuple[EventBusQueue, Client]:
    client = Client(answers)
    return EventBusQueue(Clients(client), bus_queue_name("orders"), "app-orders"), client  # type: ignore[arg-type]


def test_entries_go_ten_at_a_time_as_putevents_has_them() -> None:
    queue, client = bus()
    answers = queue.send(entries(23))
    assert [len(request) for request in client.requests] == [10, 10, 3]
    assert answers[22] == Sent('id of {"n":22,"x":"x"}')
    first = client.requests[0][0]
    assert first.pop("Time").timestamp() == 1
    assert first == {
        "Source": "shop",
        "DetailType": "x",
        "Detail": '{"n":0,"x":"x"}',
        "Resources": [],
        "EventBusName": "app-orders",
    }
    assert queue.send([]) == []
    assert len(client.requests) == 3


def test_a_request_stays_below_its_size() -> None:
    queue, client = bus()
    queue.send(entries(4, size=PUT_BYTES_MAX // 2 - 1_000))
    assert [len(request) for request in client.requests] == [2, 2]
    queue.send(entries(1, size=PUT_BYTES_MAX))
    assert len(client.requests[-1]) == 1 < limits.BATCH_ENTRIES_MAX


def test_what_failed_for_now_is_tried_again_alone() -> None:
    def answers(number: int, entry: dict[str, Any]) -> dict[str, str]:
        late = number == 1 and '"n":1,' in entry["Detail"]
        return {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"} if late else taken(number, entry)

    queue, client = bus(answers)
    assert all(isinstance(one, Sent) for one in queue.send(entries(3)))
    assert [len(request) for request in client.requests] == [3, 1]


def test_what_never_goes_is_said_after_a_few_tries() -> None:
    queue, client = bus(
        lambda _, entry: {"ErrorCode": "InternalFailure"} if '"n":0' in entry["Detail"] else taken(0, entry)
    )
    with pytest.raises(errors.TransientError, match="did not take 1 of 2 events on bus app-orders"):
        queue.send(entries(2))
    assert [len(request) for request in client.requests] == [2, *[1] * (PUT_TRIES - 1)]


def test_a_refusal_is_final_and_one_entrys_own() -> None:
    def answers(number: int, entry: dict[str, Any]) -> dict[str, str]:
        bad = '"n":0' in entry["Detail"]
        return {"ErrorCode": "MalformedDetail", "ErrorMessage": "no"} if bad else taken(number, entry)

    queue, client = bus(answers)
    refused, sent = queue.send(entries(2))
    assert refused == Refused("MalformedDetail", "no")
    assert isinstance(sent, Sent)
    assert len(client.requests) == 1


def test_a_bus_is_only_sent_to() -> None:
    queue, _ = bus()
    for verb in (
        lambda: queue.receive(1),
        lambda: queue.delete(["x"]),
        lambda: queue.set_visible_in([]),
        lambda: queue.move_aside([]),
        lambda: queue.receipt_states([]),
        queue.depth,
    ):
        with pytest.raises(errors.UsageError, match="can only be sent to"):
            verb()


def test_a_place_is_no_queues_name() -> None:
    assert (bus_of(bus_queue_name("orders")), bus_of("orders"), bus_of("archive:orders/all")) == ("orders", None, None)


# -- on moto ---------------------------------------------------------------------------------------------------------


class Town:
    """An app on AWS whose bus and rule a deployment has made."""

    def __init__(self, url: str) -> None:
        self.app = onefold.App("town", url=url, clock=ManualClock(1_780_279_200_000))
        self.billing, self.work = self.app.queue("billing"), self.app.queue("work")
        self.bus = self.app.bus("orders")
        self.bus.rule("billing", {"source": ["shop"]}, to=self.billing)
        self.done: list[str] = []

        @self.app.job(self.billing, key="{id}", source="eventbridge")
        def bill(order: dict[str, Any]) -> None:
            self.done.append(order["id"])

        @self.app.job(self.work, key="{id}")
        def place(order: dict[str, Any], ctx: onefold.Context) -> None:
            (answer,) = self.bus.put([EventEntry(source="shop", detail_type="x", detail=order)])
            assert (answer.event_id, answer.error_code) == (None, None)

        self.place = place

    def deploy(self, account: str) -> None:
        events = boto3.client("events", region_name="us-east-1")
        events.create_event_bus(Name="t-orders")
        events.put_rule(Name="t-billing", EventBusName="t-orders", EventPattern=self.bus.rules["billing"].pattern)
        target = {"Id": "billing", "Arn": f"arn:aws:sqs:us-east-1:{account}:t-billing"}
        events.put_targets(Rule="t-billing", EventBusName="t-orders", Targets=[target])

    def run(self) -> None:
        for _ in range(2):
            victim.work(self.app, self.app.runtime())


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with servers.moto() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        one = Town(f"aws://us-east-1?prefix=t-&create=yes&records=sqlite:///{tmp_path}/records.db")
        one.app.runtime()
        one.deploy("123456789012")
        yield one
        one.app.close()


@pytest.mark.slow
def test_a_put_goes_through_the_rules_of_eventbridge(town: Town) -> None:
    good, bad = town.bus.put(
        [
            EventEntry(source="shop", detail_type="x", detail={"id": "o-1"}),
            EventEntry(source="shop", detail_type="x", detail="x"),
        ]
    )
    assert good.event_id
    assert bad.error_code == "MalformedDetail"
    town.place.send({"id": "o-2"})
    town.run()
    assert sorted(town.done) == ["o-1", "o-2"]
    with pytest.raises(errors.UsageError, match="no event bus of its own"):
        town.bus.archives_of(town.app.runtime())
