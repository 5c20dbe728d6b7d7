"""Pipes: each message forwarded once, filtered out, or a dead letter of its source; on the real engine."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import onefold
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from onefold.errors import ConflictError, UsageError
from onefold.testing import inline

QUICK = onefold.Retry(attempts=2, base="1s", jitter="none")


class Town:
    """An app with queues for pipes; what is put into one and what lies in another."""

    def __init__(self) -> None:
        self.app = onefold.App("town")
        self.source = self.app.queue("source")
        self.target = self.app.queue("target", max_bytes=1_024)
        self.lines = self.app.queue("lines", fifo=True)

    def send(self, body: Any, queue: str = "source", **more: Any) -> str:
        text = body if isinstance(body, str) else json.dumps(body)
        (sent,) = self.app.runtime().engine.queues.open(queue).send([Entry(body=text, **more)])
        return str(sent.message_id)  # type: ignore[union-attr]

    def lies(self, queue: str = "target") -> list[Any]:
        return self.app.runtime().engine.queues.peek(queue)

    def bodies(self, queue: str = "target") -> list[str]:
        return [one.body for one in self.lies(queue)]


@pytest.fixture
def town() -> Town:
    return Town()


# -- forwarding ------------------------------------------------------------------------------------------------------


def test_a_body_is_forwarded_as_it_is(town: Town) -> None:
    pipe = town.app.pipe(town.source, town.target)
    with inline(town.app) as world:
        for body in ('{"b": 1.0,  "a": 2}', "plain text", "[1]", '"x"', "{not json"):
            town.send(body)
        world.run()
        assert town.bodies() == ['{"b": 1.0,  "a": 2}', "plain text", "[1]", '"x"', "{not json"]
        assert town.lies("source") == []
    assert (pipe.name, pipe.source, pipe.target, pipe.input_template) == (
        "source-to-target",
        "source",
        "target",
        "<$.body>",
    )


def test_what_no_filter_matches_is_deleted(town: Town) -> None:
    town.app.pipe(
        town.source, town.target, filter=[{"body": {"kind": ["order"]}}, {"body": {"n": [{"numeric": [">", 5]}]}}]
    )
    with inline(town.app) as world:
        for body in ({"kind": "order"}, {"kind": "visit"}, {"n": 6}, {"n": 5}, "text"):
            town.send(body)
        world.run()
        assert [json.loads(one) for one in town.bodies()] == [{"kind": "order"}, {"n": 6}]
        assert (town.lies("source"), town.lies("source-dead")) == ([], [])
        assert world.names().count("discarded") == 3


def test_a_template_reads_the_record_of_the_message(town: Town) -> None:
    town.app.pipe(
        town.source,
        town.target,
        transform='{"id": "<$.messageId>", "o": <$.body.order>, "by": "<$.messageAttributes.by.stringValue>"}',
    )
    with inline(town.app) as world:
        message_id = town.send('{"order": {"pence": 12345678901234567.10}}', attributes={"by": Attribute("ada")})
        world.run()
        assert town.bodies() == [f'{{"id":"{message_id}","o":{{"pence":12345678901234567.10}},"by":"ada"}}']


def test_what_enrich_returns_goes_on(town: Town) -> None:
    asked: list[Any] = []

    def with_customer(order: dict[str, Any], ctx: onefold.Context) -> dict[str, Any] | None:
        asked.append((order["id"], ctx.attempt))
        return {**order, "customer": "c-1"} if order["id"] != "o-2" else None

    pipe = town.app.pipe(
        town.source, town.target, filter={"body": {"id": [{"exists": True}]}}, enrich=with_customer,
        transform='{"c": "<$.customer>", "o": "<$.id>"}',
    )  # fmt: skip
    with inline(town.app) as world:
        for body in ({"id": "o-1"}, {"id": "o-2"}, {"x": 1}):
            town.send(body)
        world.run()
        assert town.bodies() == ['{"c":"c-1","o":"o-1"}']
        assert asked == [("o-1", 1), ("o-2", 1)]
    assert pipe.input_template == '{"c": "<$.customer>", "o": "<$.id>"}'


class Order(msgspec.Struct):
    """What a typed enrichment takes."""

    id: str


def test_an_enrichment_may_be_typed_and_a_coroutine(town: Town) -> None:
    async def title(order: Order) -> str:
        return f"order {order.id}"

    assert town.app.pipe(town.source, town.target, enrich=title).input_template is None
    with inline(town.app) as world:
        town.send({"id": "o-1"})
        town.send({"id": 7})
        world.run()
        assert town.bodies() == ["order o-1"]
        (dead,) = town.lies("source-dead")
        assert json.loads(dead.body) == {"id": 7}


def test_a_fifo_target_gets_group_and_deduplication(town: Town) -> None:
    town.app.pipe(town.source, town.lines, group="$.body.customer", transform='"<$.body.id>"')
    with inline(town.app) as world:
        ids = [town.send({"id": number, "customer": f"c-{number % 2}"}) for number in range(3)]
        world.run()
        found = town.lies("lines.fifo")
        assert [(one.group, one.dedup_id, one.body) for one in found] == [
            ("c-0", ids[0], '"0"'),
            ("c-1", ids[1], '"1"'),
            ("c-0", ids[2], '"2"'),
        ]


def test_a_fifo_source_keeps_its_order(town: Town) -> None:
    town.app.pipe(town.lines, town.target, transform='"<$.attributes.MessageGroupId> <$.body.n>"')
    with inline(town.app) as world:
        for number in range(4):
            town.send({"n": number}, "lines.fifo", group="g", dedup_id=str(number))
        world.run()
        assert town.bodies() == [f'"g {number}"' for number in range(4)]


# -- once ------------------------------------------------------------------------------------------------------------


def test_a_message_that_comes_twice_is_forwarded_once(town: Town) -> None:
    town.app.pipe(town.source, town.target)
    with inline(town.app) as world:
        town.send("x")
        queue = town.app.runtime().engine.queues.open("source")
        (zombie,) = queue.receive(1)
        world.clock.advance(60_000)
        world.run()
        assert town.bodies() == ["x"]
        assert world._runner.begin([zombie]) == []
        assert town.bodies() == ["x"]
        assert world.names()[-1] == "duplicate"


def test_an_enrichment_that_fails_is_tried_again_and_forwards_once(town: Town) -> None:
    def shaky(body: Any, ctx: onefold.Context) -> Any:
        if ctx.attempt == 1:
            raise ConnectionError("not now")
        return body

    town.app.pipe(town.source, town.target, enrich=shaky, retry=QUICK)
    with inline(town.app) as world:
        town.send({"a": 1})
        world.run()
        assert town.bodies() == []
        world.clock.advance(1_000)
        world.run()
        assert town.bodies() == ['{"a":1}']


def test_an_enrichment_that_always_fails_is_a_dead_letter(town: Town) -> None:
    def broken(body: Any) -> Any:
        raise onefold.PermanentError(f"no customer for {type(body).__name__}")

    town.app.pipe(town.source, town.target, enrich=broken, owner="sales")
    with inline(town.app) as world:
        town.send({"a": 1})
        world.run()
        (dead,) = town.lies("source-dead")
        assert (dead.reason.summary, dead.reason.owner) == ("no customer for dict", "sales")
        assert town.bodies() == []


@pytest.mark.parametrize(
    ("options", "body", "words"),
    [
        ({}, "x" * 2_000, "does not take what pipe source-to-target forwards"),
        ({"transform": '"\\u0001<$.body.a>"'}, {"a": "x" * 2_000}, "does not take"),
    ],
)
def test_what_the_target_refuses_is_a_dead_letter_of_the_source(
    town: Town, options: dict[str, Any], body: Any, words: str
) -> None:
    town.app.pipe(town.source, town.target, **options)
    with inline(town.app) as world:
        town.send(body)
        town.send("small" if not options else {"a": "small"})
        world.run()
        (dead,) = town.lies("source-dead")
        assert words in dead.reason.summary
        assert len(town.bodies()) == 1


def test_a_group_that_leads_nowhere_is_a_dead_letter_of_the_source(town: Town) -> None:
    town.app.pipe(town.source, town.lines, group="$.body.customer")
    with inline(town.app) as world:
        town.send({"id": 1})
        world.run()
        (dead,) = town.lies("source-dead")
        assert "leads to nothing" in dead.reason.summary


def test_a_bus_feeds_a_pipe_and_a_pipe_a_job(town: Town) -> None:
    done: list[Any] = []
    orders = town.app.queue("orders")
    town.app.bus("b").rule("all", {"source": ["shop"]}, to=town.source)
    town.app.pipe(town.source, orders, filter={"body": {"detail": {"n": [1, 2]}}}, transform="<$.body.detail>")

    @town.app.job(orders, key="{n}")
    def work(order: dict[str, Any]) -> None:
        done.append(order)

    with inline(town.app) as world:
        for number in (1, 2, 3, 1):
            town.app.bus("b").put([onefold.events.EventEntry(source="shop", detail_type="x", detail={"n": number})])
        world.run()
        assert done == [{"n": 1}, {"n": 2}]


# -- declaring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "a b"}, "not a valid name for a pipe"),
        ({"filter": {"body": {}}}, "Invalid filter pattern definition"),
        ({"filter": {"kind": ["x"]}}, "Invalid filter pattern definition"),
        ({"filter": [{"body": [n]} for n in "abcdef"]}, "6 filters are too many"),
        ({"filter": {"body": {"a": [{"wildcard": "x*"}]}}}, "Unrecognized match type wildcard"),
        ({"filter": {"body": {"$or": [{"a": [{"wildcard": "x*"}]}, {"b": [1]}]}}}, "Unrecognized match type wildcard"),
        (
            {"filter": '{"body": {"a": [{"anything-but": {"prefix": "x"}}]}}'},
            "Unrecognized match type anything-but/prefix",
        ),
        ({"transform": "<order>"}, "invalid placeholder order"),
        ({"group": "$..a"}, "JSON path"),
        ({"enrich": lambda: None}, "takes no payload"),
        ({"timeout": "0s"}, "timeout"),
    ],
)
def test_a_pipe_that_cannot_be_declares_nothing(town: Town, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        town.app.pipe(town.source, town.target, **options)
    assert (town.app.pipes, town.app.jobs) == ({}, {})


def test_a_pipe_needs_queues_of_its_app_and_a_source_of_its_own(town: Town) -> None:
    with pytest.raises(UsageError, match="loops forever"):
        town.app.pipe(town.source, town.source)
    with pytest.raises(UsageError, match="not a queue of this app"):
        town.app.pipe(onefold.App("other").queue("source"), town.target)
    with pytest.raises(UsageError, match="has no group"):
        town.app.pipe(town.source, town.lines)
    town.app.pipe(town.source, town.target)
    with pytest.raises(ConflictError, match="has source-to-target already"):
        town.app.pipe(town.source, town.lines, group="all")
    with pytest.raises(ConflictError, match="declared already"):
        town.app.pipe(town.lines, town.target, name="source-to-target")


def test_a_pipe_is_not_sent_to(town: Town) -> None:
    town.app.pipe(town.source, town.target)
    with inline(town.app), pytest.raises(UsageError, match="from its source queue only"):
        town.app.jobs["source-to-target"].send("x")
