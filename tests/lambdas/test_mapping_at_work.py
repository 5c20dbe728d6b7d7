"""A mapping at work on local queues, with a function that answers as the test says, on a clock moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any

import msgspec
import pytest

from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from onefold.contracts.settings import QueueSettings
from onefold.entropy import SeededEntropy
from onefold.local.identifiers import QueueAddresses
from onefold.local.mapping import Mapping
from onefold.local.outcomes import Answered, Crashed, FunctionError, Outcome, Throttled, TimedOut
from onefold.local.settings import MappingSettings
from tests.local.house import House

Say = Callable[[list[dict[str, Any]]], Outcome]
DONE = Answered(b"null")


class Handler:
    """Stands for a function: keeps the events, answers what `say` says; `held` keeps invocations from ending."""

    def __init__(self, say: Say = lambda _: DONE, capacity: int = 8, limit: int = 1_000) -> None:
        self.say = say
        self.capacity = capacity
        self.limit = limit
        self.events: list[list[dict[str, Any]]] = []
        self.running = 0
        self.most = 0
        self.held: asyncio.Event | None = None

    def new_request_id(self) -> str:
        return f"request-{len(self.events)}"

    async def invoke(self, event: bytes, *, request_id: str, kill: str | None = None) -> Outcome:
        assert request_id
        assert kill is None
        records = msgspec.json.decode(event)["Records"]
        self.events.append(records)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.running -= 1
        return self.say(records)

    def bodies(self) -> list[list[str]]:
        return [[record["body"] for record in records] for records in self.events]


class Rig:
    """A house with a mapping of `orders` or another queue."""

    def __init__(self, handler: Handler, queue: str = "orders", **settings: Any) -> None:
        self.house = House()
        self.handler = handler
        self.mapping = Mapping(
            MappingSettings(uuid="m-1", queue=queue, function="book", **settings),
            self.house.queues,
            handler,  # type: ignore[arg-type]  # what a mapping needs of a function
            addresses=QueueAddresses("000000000000", "us-east-1", "localhost"),
            entropy=SeededEntropy(3),
        )

    async def settle(self) -> None:
        """Let everything happen that is ready."""
        for _ in range(60):
            turned = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turned.set_result, None)
            await turned

    async def advance(self, seconds: float) -> None:
        """Move the clock from timer to timer."""
        clock, timers = self.house.clock, self.house.timers
        end_ms = clock.now_ms() + int(seconds * 1_000)
        await self.settle()
        while (next_ms := timers.next_at_ms()) is not None and next_ms <= end_ms:
            self.house.advance(max(0, next_ms - clock.now_ms()))
            await self.settle()
        self.house.advance(end_ms - clock.now_ms())
        await self.settle()

    def depth(self, queue: str = "orders") -> tuple[int, int]:
        found = self.house.engine.queues.depth(queue)
        return found.visible, found.in_flight


def flat(lists: list[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def run(rig: Callable[[], Rig], body: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        made = rig()
        made.mapping.start()
        try:
            await body(made)
        finally:
            await made.mapping.stop(drain=False)
            made.house.engine.close()

    asyncio.run(asyncio.wait_for(whole(), 20))


def failing(*bodies: str) -> Say:
    """Reports the messages with these bodies as failed."""
    return lambda records: Answered(
        msgspec.json.encode(
            {
                "batchItemFailures": [
                    {"itemIdentifier": record["messageId"]} for record in records if record["body"] in bodies
                ]
            }
        )
    )


@pytest.mark.conformance(operation="Mapping", case="all deleted when the function is done", source="2.4")
def test_done_messages_are_deleted() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a", "b")
        await rig.settle()
        assert rig.handler.bodies() == [["a", "b"]]
        assert rig.depth() == (0, 0)

    run(lambda: Rig(Handler()), body)


@pytest.mark.conformance(operation="Mapping", case="event records: every key, all attributes text", source="2.6")
def test_the_records_shape() -> None:
    async def body(rig: Rig) -> None:
        entry = Entry(body="b", attributes={"n": Attribute("7", "Number"), "raw": Attribute(b"x", "Binary")}, group="t")
        await rig.house.queues.send("orders", [entry])
        await rig.settle()
        ((record,),) = rig.handler.events
        assert record.keys() == {
            "messageId", "receiptHandle", "body", "attributes", "messageAttributes", "md5OfBody",
            "md5OfMessageAttributes", "eventSource", "eventSourceARN", "awsRegion",
        }  # fmt: skip
        assert record["messageAttributes"]["n"] == {
            "stringValue": "7", "stringListValues": [], "binaryListValues": [], "dataType": "Number",
        }  # fmt: skip
        assert record["messageAttributes"]["raw"]["binaryValue"] == "eA=="
        assert all(isinstance(value, str) for value in record["attributes"].values())
        assert (record["eventSource"], record["awsRegion"]) == ("aws:sqs", "us-east-1")
        assert record["eventSourceARN"] == "arn:aws:sqs:us-east-1:000000000000:orders"

    run(lambda: Rig(Handler()), body)


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(outcome, marks=pytest.mark.conformance(operation="Mapping", case=case, source="2.4, 2.5"))
        for outcome, case in (
            (FunctionError("ValueError", "no"), "raises: nothing deleted, all come back after the visibility timeout"),
            (TimedOut(3_000), "times out: nothing deleted, all come back after the visibility timeout"),
            (Crashed("signal: killed"), "crashes or runs out of memory: nothing deleted, all come back"),
        )
    ],
)
def test_a_failed_batch_comes_back_when_its_visibility_ends(outcome: Outcome) -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a", "b")
        await rig.advance(29.9)
        assert rig.handler.bodies() == [["a", "b"]]
        assert rig.depth() == (0, 2)
        await rig.advance(0.1)
        assert [sorted(flat(rig.handler.bodies()[1:]))] == [["a", "b"]]
        assert all(record["attributes"]["ApproximateReceiveCount"] == "2" for record in flat(rig.handler.events[1:]))

    run(lambda: Rig(Handler(lambda _: outcome)), body)


@pytest.mark.conformance(
    operation="Mapping",
    case="partial failure: the others are deleted, the failed one waits for the original visibility",
    source="2.5 [D]",
)
def test_a_partial_failure() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a", "bad", "c")
        await rig.advance(29.9)
        assert rig.handler.bodies() == [["a", "bad", "c"]]
        assert rig.depth() == (0, 1)
        await rig.advance(30.2)
        assert rig.handler.bodies()[1:] == [["bad"]]
        assert rig.depth("orders-dead") == (1, 0)  # received twice: the next receive moved it

    run(lambda: Rig(Handler(failing("bad")), reports_failures=True), body)


@pytest.mark.conformance(operation="Mapping", case="a malformed answer fails the whole batch", source="2.4")
def test_a_malformed_answer() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a")
        await rig.settle()
        assert rig.depth() == (0, 1)
        assert rig.mapping.stats().failed == 1

    run(lambda: Rig(Handler(lambda _: Answered(b"oops")), reports_failures=True), body)


@pytest.mark.conformance(operation="Mapping", case="a message that no filter takes is deleted, silently", source="2.3")
def test_filtered_messages_are_deleted() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send('{"kind": "order"}', '{"kind": "other"}', "text")
        await rig.settle()
        assert rig.handler.bodies() == [['{"kind": "order"}']]
        assert rig.depth() == (0, 0)
        assert (rig.mapping.stats().filtered, rig.mapping.stats().deleted) == (2, 1)

    run(lambda: Rig(Handler(), filters=('{"body": {"kind": ["order"]}}',)), body)


@pytest.mark.conformance(
    operation="Mapping", case="a batching window collects until it is over or the batch is full", source="2.1"
)
def test_a_window() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a")
        await rig.advance(3)
        await rig.house.send("b")
        await rig.advance(1.9)
        assert rig.handler.events == []
        await rig.advance(0.1)
        assert rig.handler.bodies() == [["a", "b"]]
        await rig.house.send(*(str(number) for number in range(15)))
        await rig.settle()
        assert [len(bodies) for bodies in rig.handler.bodies()[1:]] == [12]

    run(lambda: Rig(Handler(capacity=1), batch_size=12, window_ms=5_000), body)


@pytest.mark.conformance(operation="Mapping", case="a batch is cut at the 6 MB event limit", source="2.1")
def test_the_event_limit() -> None:
    async def body(rig: Rig) -> None:
        rig.house.engine.queues.change(
            QueueSettings(name="orders", dead_letter="orders-dead", receives_max=9, message_bytes_max=1_048_576)
        )
        for _ in range(8):
            await rig.house.send("x" * 1_000_000)
        await rig.advance(6)
        assert sorted(len(bodies) for bodies in rig.handler.bodies()) == [2, 6]
        assert rig.depth() == (0, 0)

    run(lambda: Rig(Handler(capacity=1), batch_size=20, window_ms=5_000), body)


@pytest.mark.conformance(
    operation="Mapping",
    case="throttled: invoked again until the visibility ends, then dropped; the receive was counted",
    source="2.5, 9.5",
)
def test_throttling() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a")
        await rig.advance(29)
        tries = len(rig.handler.events)
        assert tries > 3
        assert {
            record["attributes"]["ApproximateReceiveCount"] for records in rig.handler.events for record in records
        } == {"1"}
        rig.handler.say = lambda _: DONE
        await rig.advance(2)
        assert rig.depth() == (0, 0)

    run(lambda: Rig(Handler(lambda _: Throttled(0))), body)


def test_throttled_until_the_end_the_copy_is_dropped_and_the_receive_counts() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a")
        await rig.advance(61)
        assert rig.mapping.stats().dropped == 2
        assert rig.depth("orders-dead") == (1, 0)

    run(lambda: Rig(Handler(lambda _: Throttled(0))), body)


@pytest.mark.conformance(operation="Mapping", case="concurrency: 5 at first, MaximumConcurrency caps", source="2.2")
@pytest.mark.parametrize(("settings", "most"), [({}, 5), ({"concurrency_max": 2}, 2)])
def test_how_many_at_a_time(settings: dict[str, Any], most: int) -> None:
    async def body(rig: Rig) -> None:
        rig.handler.held = asyncio.Event()
        for number in range(9):
            await rig.house.send(f"{number}")
            await rig.settle()
        assert rig.handler.most == most
        rig.handler.held.set()
        await rig.settle()
        assert rig.depth() == (0, 0)

    run(lambda: Rig(Handler(), batch_size=1, **settings), body)


@pytest.mark.conformance(
    operation="Mapping", case="FIFO: a group never twice at a time, order kept, groups side by side", source="2.2 [O]"
)
def test_fifo() -> None:
    async def body(rig: Rig) -> None:
        rig.handler.held = asyncio.Event()
        for number in range(6):
            await rig.house.send(f"{number}", queue="steps.fifo", group="ab"[number % 2])
        await rig.settle()
        assert sorted(rig.handler.bodies()) == [["0"], ["1"]]
        rig.handler.held.set()
        await rig.settle()
        order = flat(rig.handler.bodies())
        assert [one for one in order if int(one) % 2 == 0] == ["0", "2", "4"]
        assert [one for one in order if int(one) % 2] == ["1", "3", "5"]

    run(lambda: Rig(Handler(), queue="steps.fifo", batch_size=1), body)


def test_a_disabled_mapping_does_nothing() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a")
        await rig.settle()
        assert rig.handler.events == []
        assert rig.depth() == (1, 0)

    run(lambda: Rig(Handler(), enabled=False), body)


def test_a_drained_stop_finishes_what_is_in_hand() -> None:
    async def body(rig: Rig) -> None:
        rig.handler.held = asyncio.Event()
        await rig.house.send("a")
        await rig.settle()
        stopping = asyncio.ensure_future(rig.mapping.stop())
        await rig.house.send("b")
        await rig.settle()
        assert not stopping.done()
        rig.handler.held.set()
        await stopping
        assert rig.handler.bodies() == [["a"]]
        assert rig.depth() == (1, 0)

    run(lambda: Rig(Handler()), body)


def test_the_history_tells_who_did_what() -> None:
    async def body(rig: Rig) -> None:
        (message,) = await rig.house.send("bad")
        await rig.settle()
        told = [(event.what, event.via) for event in rig.house.history.of(message)]
        assert told == [
            ("sent", ""),
            ("received", "mapping m-1"),
            ("invoked", "mapping m-1"),
            ("answered", "mapping m-1"),
        ]
        last = rig.house.history.of(message)[-1]
        assert "1 of 1 were reported as failed" in rig.house.history.why(last)

    run(lambda: Rig(Handler(failing("bad")), reports_failures=True), body)


@pytest.mark.conformance(operation="Mapping", case="FIFO: as many groups side by side as are active", source="2.2 [O]")
def test_more_groups_than_a_standard_queue_starts_with() -> None:
    async def body(rig: Rig) -> None:
        rig.handler.held = asyncio.Event()
        for group in range(8):
            await rig.house.send("m", queue="steps.fifo", group=f"g{group}")
            await rig.settle()
        assert rig.handler.most == 8
        rig.handler.held.set()
        await rig.settle()
        assert rig.depth("steps.fifo") == (0, 0)

    # The queue derives the deduplication id from the body, but for each group: bodies may be alike.
    def made() -> Rig:
        rig = Rig(Handler(), queue="steps.fifo", batch_size=1)
        rig.house.engine.queues.change(
            QueueSettings(name="steps.fifo", fifo=True, content_dedup=True, dedup_scope="messageGroup")
        )
        return rig

    run(made, body)


@pytest.mark.conformance(
    operation="Mapping",
    case="polls beyond the reserved concurrency; what is throttled has spent a receive",
    source="2.5",
)
def test_reserved_concurrency_does_not_bound_polling() -> None:
    async def body(rig: Rig) -> None:
        rig.handler.say = lambda records: DONE if records[0]["body"] == "0" else Throttled(1)
        for number in range(3):
            await rig.house.send(f"{number}")
            await rig.settle()
        assert rig.depth() == (0, 2)
        assert rig.mapping.stats().busy == 2
        await rig.advance(61)
        assert rig.mapping.stats().dropped == 4
        assert rig.depth("orders-dead") == (2, 0)

    run(lambda: Rig(Handler(capacity=1, limit=1), batch_size=1), body)


def test_a_throttled_batch_is_not_invoked_once_its_visibility_is_over() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a")
        await rig.advance(29.99)
        tries = len(rig.handler.events)
        rig.handler.say = lambda _: DONE
        await rig.advance(0.01)
        (again,) = rig.handler.events[tries:]
        assert again[0]["attributes"]["ApproximateReceiveCount"] == "2"
        assert rig.mapping.stats().dropped == 1

    run(lambda: Rig(Handler(lambda _: Throttled(0))), body)


def test_a_window_longer_than_the_visibility_hands_each_message_over_once() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a", "b")
        await rig.advance(29.9)
        assert rig.handler.events == []
        await rig.advance(0.2)
        assert [sorted(bodies) for bodies in rig.handler.bodies()] == [["a", "b"]]
        assert rig.depth() == (0, 0)

    run(lambda: Rig(Handler(), batch_size=100, window_ms=300_000), body)


def test_a_drained_stop_hands_over_what_is_collected_so_far() -> None:
    async def body(rig: Rig) -> None:
        await rig.house.send("a", "b")
        await rig.settle()
        assert rig.handler.events == []
        await rig.mapping.stop()
        assert rig.handler.bodies() == [["a", "b"]]
        assert rig.depth() == (0, 0)

    run(lambda: Rig(Handler(), batch_size=100, window_ms=20_000), body)


def test_a_stop_without_drain_loses_nothing() -> None:
    async def body(rig: Rig) -> None:
        rig.handler.held = asyncio.Event()
        await rig.house.send("a")
        await rig.settle()
        await rig.mapping.stop(drain=False)
        assert rig.depth() == (0, 1)
        assert rig.handler.running == 0
        await rig.advance(30)
        assert rig.depth() == (1, 0)

    run(lambda: Rig(Handler()), body)


def test_a_quiet_mapping_stops_looking_and_begins_again_with_the_next_message() -> None:
    async def body(rig: Rig) -> None:
        await rig.advance(120)
        assert rig.mapping._rescale_timer is None
        assert rig.mapping.stats().concurrency == 2
        await rig.advance(3_600)
        await rig.house.send("a")
        await rig.settle()
        assert rig.mapping._rescale_timer is not None
        await rig.advance(1)
        assert rig.mapping.stats().concurrency <= 8  # an hour without traffic is no hour of growth
        assert rig.handler.bodies() == [["a"]]

    run(lambda: Rig(Handler()), body)


def test_a_queue_that_is_dropped_and_made_again_is_polled_again() -> None:
    async def body(rig: Rig) -> None:
        await rig.settle()
        rig.house.engine.queues.drop("orders")
        rig.house.queues.dropped("orders")
        await rig.advance(1)
        assert "orders" in rig.mapping.stats().problem
        rig.house.engine.queues.create(QueueSettings(name="orders"))
        await rig.advance(2)
        assert await rig.house.send("a")
        await rig.advance(1)
        assert rig.handler.bodies() == [["a"]]
        assert rig.mapping.stats().problem == ""

    run(lambda: Rig(Handler()), body)
