"""aiobotocore: many long polls at once on one loop, and none of them waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from tests.clients.serving import CREDENTIALS

POLLS = 60


def client(server: str) -> Any:
    config = AioConfig(max_pool_connections=POLLS + 5)
    return get_session().create_client("sqs", endpoint_url=server, config=config, **CREDENTIALS)


@pytest.mark.conformance(
    operation="ReceiveMessage",
    case="60 long polls on one queue, 60 messages: each gets one",
    source="clients: aiobotocore",
)
def test_each_of_many_polls_gets_one_message(server: str, make_queue: Callable[..., str]) -> None:
    url = make_queue()

    async def run() -> list[str]:
        async with client(server) as sqs:
            polls = [asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)) for _ in range(POLLS)]
            for first in range(0, POLLS, 10):
                entries = [{"Id": str(number), "MessageBody": str(first + number)} for number in range(10)]
                await sqs.send_message_batch(QueueUrl=url, Entries=entries)
            answers = await asyncio.wait_for(asyncio.gather(*polls), 15)
            for answer in answers:
                handle = answer["Messages"][0]["ReceiptHandle"]
                await sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
            return [message["Body"] for answer in answers for message in answer["Messages"]]

    assert sorted(asyncio.run(run()), key=int) == [str(number) for number in range(POLLS)]


@pytest.mark.conformance(
    operation="ReceiveMessage", case="polls of empty queues do not hold up another queue", source="clients: aiobotocore"
)
def test_waiting_polls_hold_up_nobody(server: str, make_queue: Callable[..., str]) -> None:
    empty = [make_queue("empty") for _ in range(5)]
    busy = make_queue("busy")

    async def run() -> str:
        async with client(server) as sqs:
            waiting = [
                asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
                for url in empty
                for _ in range(8)
            ]
            await sqs.send_message(QueueUrl=busy, MessageBody="m")
            answer = await asyncio.wait_for(sqs.receive_message(QueueUrl=busy), 5)
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return str(answer["Messages"][0]["Body"])

    assert asyncio.run(run()) == "m"


@pytest.mark.conformance(
    operation="ReceiveMessage",
    case="a poll whose client went away takes no message with it",
    source="clients: aiobotocore",
)
def test_a_cancelled_poll_receives_nothing(server: str, make_queue: Callable[..., str]) -> None:
    url = make_queue()

    async def run() -> dict[str, str]:
        async with client(server) as sqs:
            poll = asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(poll, 0.5)
        async with client(server) as sqs:
            await sqs.send_message(QueueUrl=url, MessageBody="m")
            wanted = ["ApproximateReceiveCount"]
            answer = await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, MessageSystemAttributeNames=wanted)
            return dict(answer["Messages"][0]["Attributes"])

    assert asyncio.run(run()) == {"ApproximateReceiveCount": "1"}


@pytest.mark.conformance(operation="Errors", case="exceptions of the async client", source="clients: aiobotocore")
def test_errors_have_their_class(server: str) -> None:
    async def run() -> None:
        async with client(server) as sqs:
            with pytest.raises(sqs.exceptions.QueueDoesNotExist):
                await sqs.get_queue_url(QueueName="nobody-made-it")

    asyncio.run(run())
