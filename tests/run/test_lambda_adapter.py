"""`app.lambda_handler`: what each outcome does to a batch, order, what an event must be, and what is wired."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

import onefold
from onefold import errors
from onefold.aws.lambda_function import engine_url
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute, RetryIn
from onefold.contracts.store import Hold, RecordKey
from onefold.runner.lambda_invocation import ExecutorPools
from tests.run.mapped import (
    REGION,
    LambdaContext,
    Mapped,
    Through,
    claim_elsewhere,
    event_of,
    mapped,
    order,
    through,
)
from tests.run.shop import Shop


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)


# -- what becomes of a batch -----------------------------------------------------------------------------------------


def test_what_is_done_is_not_named_and_lambda_deletes_it() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        shop.ship.send_many([order(number) for number in range(10)])
        assert world.poll() == []
        assert world.answers == [{"batchItemFailures": []}]
        assert sorted(key for key, _ in shop.calls) == sorted(f"o-{number}" for number in range(10))
        assert world.left() == 0
        assert len(world.disowned) == 10
        record = world.record("o-3")
        assert record is not None
        assert record.status == "completed"


def test_a_failure_is_hidden_for_its_pause_and_named() -> None:
    shop = Shop(errors.TransientError("busy"), "shipped")
    with mapped(shop.app) as world:
        shop.ship.send(order(1))
        [stays] = world.poll()
        assert world.answers == [{"batchItemFailures": [{"itemIdentifier": stays}]}]
        assert world.visible() == 0
        world.clock.advance(9_999)
        assert world.visible() == 0
        world.clock.advance(1)  # the job's own pause, long before the visibility of the receive ends
        assert world.visible() == 1
        assert world.poll() == []
        assert shop.calls == [("o-1", 1), ("o-1", 2)]
        assert world.left() == 0


def test_one_failure_keeps_no_other_message() -> None:
    shop = Shop(lambda order, ctx: _fail_if(order["id"] == "o-2"))
    with mapped(shop.app) as world:
        shop.ship.send_many([order(number) for number in range(5)])
        assert len(world.poll()) == 1
        assert world.left() == 1


def test_a_permanent_failure_is_dead_lettered_and_reported_as_done() -> None:
    shop = Shop(errors.PermanentError("no such customer"))
    with mapped(shop.app) as world:
        shop.ship.send(order(1))
        assert world.poll() == []
        [dead] = world.peek("orders-dead")
        assert dead.reason is not None
        assert (dead.reason.kind, dead.reason.error, dead.reason.job) == ("permanent", "PermanentError", "ship")
        assert world.left() == 0


def test_the_last_attempt_is_dead_lettered() -> None:
    shop = Shop(errors.TransientError("busy"))
    with mapped(shop.app) as world:
        shop.ship.send(order(1))
        assert len(world.poll()) == 1
        for _ in range(2):
            world.clock.advance(60_000)
            stays = world.poll()
        assert stays == []
        [dead] = world.peek("orders-dead")
        assert dead.reason is not None
        assert (dead.reason.kind, dead.reason.attempts) == ("attempts", 3)


def test_an_unknown_outcome_is_held_and_reported_as_done() -> None:
    shop = Shop(errors.OutcomeUnknown("no answer"), on_unknown="hold")
    with mapped(shop.app) as world:
        shop.ship.send(order(1))
        assert world.poll() == []
        assert len(world.peek("orders-held")) == 1


def test_a_malformed_message_is_dead_lettered() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        world.queue().send([Entry(body="{"), Entry(body='{"customer": "c-1"}'), Entry(body='{"id": "o-1"}')])
        assert world.poll() == []
        assert [one.reason.kind for one in world.peek("orders-dead") if one.reason] == ["malformed", "malformed"]
        assert shop.calls == [("o-1", 1)]


def test_a_duplicate_is_answered_from_its_record() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        for _ in range(2):
            shop.ship.send(order(1))
            assert world.poll() == []
        assert shop.calls == [("o-1", 1)]
        assert world.told.names().count("duplicate") == 1


def test_the_same_operation_twice_in_a_batch_runs_once() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        shop.ship.send_many([order(1), order(1), order(2), order(1)])
        assert world.poll() == []
        assert sorted(shop.calls) == [("o-1", 1), ("o-2", 1)]


def test_the_same_message_twice_in_a_batch_is_named_once() -> None:
    shop = Shop(errors.TransientError("busy"))
    with mapped(shop.app) as world:
        shop.ship.send(order(1))
        [first] = world.receive()
        world.clock.advance(300_000)
        [second] = world.receive()
        assert world.invoke([first, second]) == [first.message_id] * 2
        assert len(world.answers[-1]["batchItemFailures"]) == 1


def test_a_message_for_a_job_that_is_not_there_waits() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        shop.ship.send_many([order(1), order(2)])
        job = shop.app.jobs.pop("ship")
        shop.app.jobs["other"] = job
        assert len(world.poll()) == 2
        assert world.left() == 2
        assert world.told.names() == ["waits-for-job", "released", "released"]


def test_what_runs_elsewhere_comes_back_later() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        shop.ship.send(order(1))
        [delivery] = world.receive()
        claim_elsewhere(world, shop, delivery, lease_ms=5_000)
        assert world.invoke([delivery]) == [delivery.message_id]
        assert shop.calls == []
        world.clock.advance(5_001)
        assert world.poll() == []


def test_where_every_look_costs_a_receive_a_duplicate_waits_for_the_whole_lease() -> None:
    shop = Shop("shipped")

    class Counting(Through):
        @property
        def capabilities(self) -> Any:
            return structs.replace(self.queue.capabilities, uncounted=False)  # as SQS

    with mapped(shop.app, wrap=through(Counting)) as world:
        shop.ship.send(order(1))
        [delivery] = world.receive()
        claim_elsewhere(world, shop, delivery, lease_ms=25_000)
        assert world.invoke([delivery]) == [delivery.message_id]
        world.clock.advance(25_000)
        assert world.receive() == []
        world.clock.advance(1)
        assert world.poll() == []


def test_a_message_that_only_waits_is_not_given_up_by_its_queue() -> None:
    shop = Shop("shipped", dead_after=3)

    class Counting(Through):
        @property
        def capabilities(self) -> Any:
            return structs.replace(self.queue.capabilities, uncounted=False)

        def set_visible_in(self, changes: Any) -> Any:
            return self.queue.set_visible_in([(receipt, RetryIn(change.delay_ms)) for receipt, change in changes])

    with mapped(shop.app, wrap=through(Counting)) as world:
        shop.ship.send(order(1))
        [delivery] = world.receive()
        ids = {delivery.message_id}
        claim_elsewhere(world, shop, delivery, lease_ms=60_000)
        store = world.app.runtime().engine.store
        for _ in range(9):
            hold = Hold(RecordKey("", "ship", "o-1"), "another", 1)
            assert store.renew([hold], world.clock.now_ms() + 60_000) == [True]
            assert len(world.invoke([delivery])) == (delivery.receive_count < 2)
            world.clock.advance(60_001)
            [delivery] = world.receive()
            ids.add(delivery.message_id)
        assert not world.peek("orders-dead")
        assert len(ids) > 3  # it was sent again, before the third receive
        assert world.invoke([delivery]) == []
        assert shop.calls == [("o-1", 2)]
        assert world.left() == 0


def test_an_invocation_that_comes_in_before_the_answer_changes_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(*["shipped"] * 4)
    with mapped(shop.app) as world:
        shop.ship.send_many([order(number) for number in range(4)])
        first, second = world.receive(count=2), world.receive(count=2)
        take_back = ExecutorPools._take_back
        answers: list[Any] = []

        def slip_in(pools: ExecutorPools, pool: Any) -> None:
            take_back(pools, pool)
            if not answers:
                answers.append(None)
                answers[0] = world.handler(event_of(second), LambdaContext(world.clock, 60_000))

        monkeypatch.setattr(ExecutorPools, "_take_back", slip_in)
        answers.append(world.handler(event_of(first), LambdaContext(world.clock, 60_000)))
        assert answers == [{"batchItemFailures": []}] * 2


def test_not_one_done_raises_where_that_is_asked_for() -> None:
    shop = Shop(errors.TransientError("busy"))
    with mapped(shop.app, raise_for_batch=True) as world:
        shop.ship.send_many([order(1), order(2)])
        with pytest.raises(errors.TransientError, match="2 of 2 messages of the batch are not done"):
            world.poll()
        assert world.left() == 2


def _fail_if(fails: bool) -> str:
    if fails:
        raise errors.TransientError("busy")
    return "shipped"


# -- order -----------------------------------------------------------------------------------------------------------


def fifo(world: Mapped, shop: Shop, *orders: dict[str, Any]) -> None:
    shop.ship.send_many(list(orders))


def test_behind_a_failure_its_group_stays_and_other_groups_go_on() -> None:
    shop = Shop(lambda order, ctx: _fail_if(order["id"] == "o-2"), fifo=True)
    with mapped(shop.app) as world:
        fifo(world, shop, order(1), order(2), order(3), order(4, customer="c-2"), order(5))
        stays = world.poll("orders.fifo")
        assert len(stays) == 3
        assert sorted(shop.calls) == [("o-1", 1), ("o-2", 1), ("o-4", 1)]
        assert world.receive("orders.fifo") == []  # the group is locked by the pause of its first message
        world.clock.advance(10_000)
        assert world.poll("orders.fifo") == stays
        assert [key for key, _ in shop.calls if key in ("o-3", "o-5")] == []


def test_a_group_runs_in_order_after_its_failure() -> None:
    shop = Shop(errors.TransientError("busy"), "shipped", fifo=True)
    with mapped(shop.app) as world:
        fifo(world, shop, *[order(number) for number in range(4)])
        assert len(world.poll("orders.fifo")) == 4
        world.clock.advance(10_000)
        assert world.poll("orders.fifo") == []
        assert shop.calls == [("o-0", 1), ("o-0", 2), ("o-1", 1), ("o-2", 1), ("o-3", 1)]


def test_a_dead_letter_stops_its_group() -> None:
    shop = Shop(lambda order, ctx: _move_if(order["id"] == "o-1"), fifo=True, after_failure="stop")
    with mapped(shop.app) as world:
        fifo(world, shop, order(1), order(2), order(3, customer="c-2"))
        assert world.poll("orders.fifo") == []
        assert sorted(key for key, _ in shop.calls) == ["o-1", "o-3"]
        kinds = [one.reason.kind for one in world.peek("orders-dead.fifo") if one.reason]
        assert kinds == ["permanent", "group-stopped"]


def test_a_dead_letter_is_passed_over() -> None:
    shop = Shop(lambda order, ctx: _move_if(order["id"] == "o-1"), fifo=True, after_failure="skip")
    with mapped(shop.app) as world:
        fifo(world, shop, order(1), order(2))
        assert world.poll("orders.fifo") == []
        assert shop.calls == [("o-1", 1), ("o-2", 1)]
        assert len(world.peek("orders-dead.fifo")) == 1


def test_a_failure_stops_the_batch() -> None:
    shop = Shop(lambda order, ctx: _fail_if(order["id"] == "o-2"), fifo=True)
    with mapped(shop.app, on_failure="batch") as world:
        fifo(world, shop, order(1), order(2), order(3, customer="c-2"), order(4, customer="c-3"))
        assert len(world.poll("orders.fifo")) == 3
        assert shop.calls == [("o-1", 1), ("o-2", 1)]
        assert world.visible("orders.fifo") == 2  # the other groups need not wait for the pause


def test_a_batch_without_a_failure_is_done_in_order() -> None:
    shop = Shop("shipped", fifo=True)
    with mapped(shop.app, on_failure="batch") as world:
        orders = [order(number, customer=f"c-{number % 3}") for number in range(9)]
        fifo(world, shop, *orders)
        deliveries = world.receive("orders.fifo")
        assert world.invoke(deliveries) == []
        assert [key for key, _ in shop.calls] == [_id(one.body) for one in deliveries]


def test_a_failure_stops_the_batch_of_a_standard_queue_too() -> None:
    shop = Shop(lambda order, ctx: _fail_if(order["id"] == "o-2"))
    with mapped(shop.app, on_failure="batch") as world:
        shop.ship.send_many([order(number) for number in range(1, 5)])
        assert len(world.poll("orders")) == 3
        assert shop.calls == [("o-1", 1), ("o-2", 1)]


def _id(body: str) -> str:
    return str(json.loads(body)["id"])


def _move_if(poison: bool) -> str:
    if poison:
        raise errors.PermanentError("no such customer")
    return "shipped"


# -- events ----------------------------------------------------------------------------------------------------------


def test_attributes_travel_as_they_were_sent() -> None:
    seen: list[Any] = []
    shop = Shop(lambda order, ctx: seen.append(ctx.message))
    with mapped(shop.app) as world:
        attributes = {
            "source": Attribute("web"),
            "weight": Attribute("1.50", "Number.kg"),
            "photo": Attribute(b"\x00\xff", "Binary.png"),
        }
        world.queue().send([Entry(body=json.dumps(order(1)), attributes=attributes, group="tenant-1")])
        assert world.poll() == []
    [message] = seen
    assert dict(message.attributes) == attributes
    assert (message.group, message.sequence, message.receive_count) == ("tenant-1", None, 1)


def test_envelopes_of_other_services_are_taken_off() -> None:
    app = onefold.App("shop")
    files, notes = app.queue("files"), app.queue("notes")
    seen: list[Any] = []

    @app.job(files, key="{s3.object.key}", source="s3-record")
    def index(record: dict[str, Any]) -> None:
        seen.append(record["s3"]["object"]["key"])

    @app.job(notes, key="{id}", source="sns")
    def note(payload: dict[str, Any]) -> None:
        seen.append(payload["id"])

    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"object": {"key": "a%2Fb.csv"}}}
    envelope = {"Type": "Notification", "MessageId": "1", "TopicArn": "arn", "Message": '{"id": "n-1"}'}
    with mapped(app) as world:
        test_event = json.dumps({"Event": "s3:TestEvent", "Service": "Amazon S3", "Bucket": "b"})
        world.queue("files").send([Entry(body=test_event), Entry(body=json.dumps({"Records": [record]}))])
        world.queue("notes").send([Entry(body=json.dumps(envelope))])
        assert world.poll("files") == []
        assert world.poll("notes") == []
    assert seen == ["a%2Fb.csv", "n-1"]


def test_a_batch_of_two_queues_is_done_whole() -> None:
    app = onefold.App("shop")
    seen: list[str] = []

    def take(order: dict[str, Any]) -> None:
        seen.append(order["id"])

    jobs = [app.job(app.queue(name), key="{id}", name=name)(take) for name in ("one", "two")]
    with mapped(app) as world:
        for job in jobs:
            job.send({"id": job.name})
        assert world.invoke([*world.receive("one"), *world.receive("two")]) == []
    assert sorted(seen) == ["one", "two"]


def test_an_empty_batch_is_nothing_to_do() -> None:
    with mapped(Shop("shipped").app) as world:
        assert world.handler({"Records": []}, None) == {"batchItemFailures": []}


RECORD = {
    "messageId": "m-1",
    "receiptHandle": "r-1",
    "body": "{}",
    "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
    "messageAttributes": {},
    "eventSource": "aws:sqs",
    "eventSourceARN": f"arn:aws:sqs:{REGION}:123456789012:orders",
    "awsRegion": REGION,
}


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (None, "it is null"),
        ({}, "it is an empty object"),
        ([], "it is a list"),
        ("{}", "it is a str"),
        ({"detail-type": "Order", "source": "shop"}, "it is an object with detail-type, source"),
        ({"Records": None}, "it is an object with Records"),
        ({"Records": "m-1"}, "it is an object with Records"),
        ({"Records": ["m-1"]}, "Record 0 of the event is a str"),
        ({"Records": [RECORD | {"eventSource": "aws:s3"}]}, "comes from 'aws:s3'.*source='s3'"),
        ({"Records": [{"EventSource": "aws:sns", "Sns": {}}]}, "comes from 'aws:sns'.*source='sns'"),
        ({"Records": [{"eventSource": "aws:kinesis"}]}, "comes from 'aws:kinesis'.*takes queues only"),
        ({"Records": [{}]}, "comes from 'None'"),
        ({"Records": [RECORD, RECORD | {"body": None}]}, "Record 1 of the event has no text in 'body'"),
        ({"Records": [RECORD | {"messageId": ""}]}, "has no text in 'messageId'"),
        ({"Records": [RECORD | {"receiptHandle": 7}]}, "has no text in 'receiptHandle'"),
        ({"Records": [RECORD | {"attributes": []}]}, "has no object in 'attributes'"),
        ({"Records": [RECORD | {"messageAttributes": "x"}]}, "has no object in 'messageAttributes'"),
        ({"Records": [RECORD | {"eventSourceARN": "orders"}]}, "has the eventSourceARN 'orders'"),
        ({"Records": [RECORD | {"eventSourceARN": "arn:aws:sqs:eu-west-1:1:other"}]}, "queue other.*no job.*orders"),
        ({"Records": [RECORD | {"eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders-dead"}]}, "queue orders-dead"),
        ({"Records": [RECORD | {"messageAttributes": {"a": {}}}]}, "not a record of an SQS event"),
    ],
)
def test_an_event_that_is_none_of_ours(event: Any, says: str) -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        with pytest.raises(errors.UsageError, match=says):
            world.handler(event, LambdaContext(world.clock, 10_000))
        assert shop.calls == []


def test_an_error_never_shows_a_body() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        for event in ({"Records": [RECORD | {"body": "secret", "messageId": None}]}, {"secret": "secret value"}):
            with pytest.raises(errors.UsageError) as caught:
                world.handler(event, None)
            assert "secret value" not in str(caught.value)
            assert "body" not in str(caught.value).replace("'body'", "")


# -- options and wiring ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency": 0}, "concurrency=0 is out of range"),
        ({"concurrency": True}, "concurrency=True is not a whole number"),
        ({"margin": "soon"}, "margin='soon' is not a duration"),
        ({"margin": 1}, "margin=1 is not a duration"),
        ({"on_failure": "stop"}, "on_failure='stop' is not known"),
        ({"heart_beat": True}, "Did you mean 'heartbeat'"),
    ],
)
def test_an_option_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.UsageError, match=says):
        Shop("shipped").app.lambda_handler(**options)


@pytest.mark.parametrize(
    ("url", "environment", "opens"),
    [
        ("aws://eu-west-1?table=t", {}, "aws://eu-west-1?table=t"),
        ("sqlite:///x.db", {"AWS_REGION": "eu-west-1"}, "aws://eu-west-1?records=sqlite:///x.db"),
        ("sqlite:///x.db", {"AWS_DEFAULT_REGION": "us-east-1"}, "aws://us-east-1?records=sqlite:///x.db"),
        ("redis://h:1/0?prefix=of:", {"AWS_REGION": "r"}, "aws://r?records=redis://h:1/0%3Fprefix%3Dof:"),
    ],
)
def test_messages_are_on_sqs_and_records_where_the_app_says(url: str, environment: dict[str, str], opens: str) -> None:
    assert engine_url(url, environment) == opens


def test_records_in_a_file_of_one_container_are_refused_on_aws() -> None:
    with pytest.raises(errors.UsageError, match="a file of one container"):
        engine_url("sqlite:///x.db", {"AWS_REGION": "eu-west-1", "AWS_LAMBDA_RUNTIME_API": "127.0.0.1:9001"})
    with pytest.raises(errors.UsageError, match="AWS_REGION is not set"):
        engine_url("sqlite:///x.db", {})


def test_a_prefix_is_not_seen_by_the_app_and_another_region_is_refused() -> None:
    shop = Shop("shipped")
    with mapped(shop.app) as world:
        shop.app.url = "aws://eu-west-1?table=t&prefix=test-"
        record = RECORD | {"eventSourceARN": f"arn:aws:sqs:{REGION}:1:test-orders", "body": '{"id": "o-1"}'}
        assert world.handler({"Records": [record]}, None) == {"batchItemFailures": []}
        assert shop.calls == [("o-1", 1)]
        with pytest.raises(errors.UsageError, match="on AWS: test-orders"):
            world.handler({"Records": [RECORD]}, None)
        with pytest.raises(errors.UsageError, match="in us-east-1, but the app's engine is in eu-west-1"):
            world.handler({"Records": [record | {"awsRegion": "us-east-1"}]}, None)


def test_a_handler_is_made_without_opening_anything() -> None:
    app = onefold.App("shop", url="nowhere://")
    handler = app.lambda_handler()
    orders = app.queue("orders")
    app.job(orders, key="{id}", name="ship")(lambda order: None)
    with pytest.raises(errors.UsageError, match="nowhere"):
        handler({"Records": []}, None)


def test_a_snapshot_is_taken_of_nothing_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "snap-start")
    assert callable(onefold.App("shop", url="nowhere://").lambda_handler())


def test_in_lambda_the_engine_is_opened_before_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand")
    with pytest.raises(errors.UsageError, match="nowhere"):
        onefold.App("shop", url="nowhere://").lambda_handler()
