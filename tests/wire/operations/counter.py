"""Operations asked as a client would, in both protocols.

botocore's serializer, our decoder and operation, botocore's parser; time is a manual clock. A row is a coroutine that is
given a `Counter`; `row` makes it two tests, one for each protocol, and a line of the conformance table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from onefold import errors
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.local import json_protocol, query_protocol, sqs_model
from onefold.local.aws_errors import AwsError
from onefold.local.fault_rules import NO_FAULTS
from onefold.local.faults import FaultInjector
from onefold.local.history import MessageHistory
from onefold.local.identifiers import QueueAddresses
from onefold.local.queue_attributes import QueueMetadataStore
from onefold.local.queues import LocalQueues
from onefold.local.request_handler import OPERATIONS, aws_error
from onefold.local.sqs_service import SqsCaller, SqsService
from onefold.local.timers import Timers
from onefold.manual_clock import ManualClock
from tests.wire import aws_side

MODEL = sqs_model.load()
TEST_S = 60
REQUEST_ID = "11111111-2222-4333-8444-555555555555"


class Refused(Exception):
    """The error a client sees.

    Attributes:
        shape: the JSON protocol's name of it; legacy: the older code; status: HTTP's; text.
    """

    def __init__(self, shape: str, legacy: str, status: int, text: str) -> None:
        super().__init__(f"{status} {shape} ({legacy}): {text}")
        self.shape, self.legacy, self.status, self.text = shape, legacy, status, text


class Counter:
    """One local SQS, asked in one protocol."""

    def __init__(self, protocol: str, *, recreate_wait: bool = True) -> None:
        self.protocol = protocol
        self.clock = ManualClock()
        self.engine = SqliteEngine(
            ":memory:", clock=self.clock, entropy=SeededEntropy(1), owner="test", url="sqlite://:memory:"
        )
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.queues = LocalQueues(
            self.engine, self.timers, MessageHistory(), FaultInjector(NO_FAULTS, SeededEntropy(2))
        )
        self.sqs = SqsService(
            self.queues,
            QueueAddresses("000000000000", "us-east-1", "localhost:9324"),
            QueueMetadataStore(self.engine.state),
            recreate_wait=recreate_wait,
        )

    async def ask(self, operation: str, **params: Any) -> dict[str, Any]:
        """One request.

        Raises:
            Refused: the error that a client would see.
        """
        query = self.protocol == "query"
        caller = SqsCaller(query=query)
        try:
            if query:
                body = aws_side.query_request(operation, params)
                found, given = query_protocol.decode(MODEL, body, "/", b"")
            else:
                target, body = aws_side.json_request(operation, params)
                found = json_protocol.operation_of(MODEL, target)
                given = json_protocol.decode(found, body)
            try:
                result = await OPERATIONS[operation](self.sqs, given, caller)
            except errors.OnefoldError as error:
                raise aws_error(error, query=query) from error
        except AwsError as error:
            raise Refused(error.shape, error.code, error.status, error.message) from error
        if query:
            return aws_side.query_answer(operation, query_protocol.encode(found, result, REQUEST_ID))
        return aws_side.json_answer(operation, json_protocol.encode(result))

    async def refused(self, operation: str, **params: Any) -> Refused:
        """The error of a request that must not succeed."""
        with pytest.raises(Refused) as caught:
            await self.ask(operation, **params)
        return caught.value

    async def queue(self, name: str = "orders", **attributes: str) -> str:
        """A new queue's URL; a FIFO queue where the name says so."""
        if name.endswith(".fifo"):
            attributes = {"FifoQueue": "true", **attributes}
        return str((await self.ask("CreateQueue", QueueName=name, Attributes=attributes))["QueueUrl"])

    async def with_dead_letters(self, name: str = "orders", *, receives_max: int = 1, **more: str) -> tuple[str, str]:
        """A queue and its dead-letter queue."""
        suffix = ".fifo" if name.endswith(".fifo") else ""
        dead = name.removesuffix(suffix) + "-dead" + suffix
        policy = json.dumps({"deadLetterTargetArn": self.arn(dead), "maxReceiveCount": receives_max})
        dead_url = await self.queue(dead)
        return await self.queue(name, RedrivePolicy=policy, **more), dead_url

    def arn(self, name: str) -> str:
        return self.sqs.addresses.arn(name)

    async def send(self, url: str, body: str = "o-1", **more: Any) -> str:
        return str((await self.ask("SendMessage", QueueUrl=url, MessageBody=body, **more))["MessageId"])

    async def receive(self, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
        answer = await self.ask("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=count, **more)
        return list(answer.get("Messages", []))

    async def bodies(self, url: str, **more: Any) -> list[str]:
        return [one["Body"] for one in await self.receive(url, **more)]

    async def attribute(self, url: str, name: str) -> str | None:
        answer = await self.ask("GetQueueAttributes", QueueUrl=url, AttributeNames=[name])
        found: dict[str, str] = answer.get("Attributes", {})
        return found.get(name)

    async def turn(self) -> None:
        """Let the loop do what is ready, and what that makes ready."""
        for _ in range(5):
            turned = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turned.set_result, None)
            await turned

    def advance(self, seconds: float) -> None:
        """Move the clock, and fire what came due."""
        self.clock.advance(int(seconds * 1000))
        self.timers.moved()


def row(operation: str, case: str, source: str) -> Callable[[Callable[[Counter], Coroutine[Any, Any, None]]], Any]:
    """Make a coroutine on a `Counter` a row of the conformance table, run in both protocols."""

    def make(run: Callable[[Counter], Coroutine[Any, Any, None]]) -> Any:
        @pytest.mark.parametrize("protocol", ["json", "query"])
        @pytest.mark.conformance(operation=operation, case=case, source=source, protocol="json, query")
        def test(protocol: str) -> None:
            async def on_a_counter() -> None:
                counter = Counter(protocol)
                try:
                    await asyncio.wait_for(run(counter), TEST_S)
                finally:
                    counter.engine.close()

            asyncio.run(on_a_counter())

        test.__name__ = run.__name__
        test.__qualname__ = run.__qualname__
        test.__module__ = run.__module__
        test.__doc__ = run.__doc__
        return test

    return make
