"""Powertools' batch processors under an event source mapping that boto3 created: one poison message ends alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest

from tests.clients.serving import CREDENTIALS, Reports, receive_until, serving, unique

HANDLERS = Path(__file__).parent / "handlers"
SOURCE = "clients: Powertools"


class Clients(NamedTuple):
    sqs: Any
    functions: Any


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    names = ("standard", "fifo")
    functions = [word for name in names for word in ("--function", f"{name}=powertools_handlers:{name}")]
    with serving("--memory", *functions, folder=HANDLERS) as url:
        made = Clients(*(boto3.client(service, endpoint_url=url, **CREDENTIALS) for service in ("sqs", "lambda")))
        yield made
        for client in made:
            client.close()


def queues(sqs: Any, suffix: str = "") -> tuple[str, str, str]:
    """A queue whose messages may be received twice and its dead-letter queue: URL, ARN, URL."""
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if suffix else {}
    dead = sqs.create_queue(QueueName=unique(f"dead{suffix}"), Attributes=fifo)["QueueUrl"]
    arns = ["QueueArn"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=arns)["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 2})
    # 3 s is the function's timeout, and AWS refuses a mapping whose queue gives messages back before that.
    attributes = {**fifo, "RedrivePolicy": policy, "VisibilityTimeout": "3"}
    url = sqs.create_queue(QueueName=unique(f"work{suffix}"), Attributes=attributes)["QueueUrl"]
    return url, sqs.get_queue_attributes(QueueUrl=url, AttributeNames=arns)["Attributes"]["QueueArn"], dead


def mapped(functions: Any, arn: str, name: str, batch_size: int) -> str:
    answer = functions.create_event_source_mapping(
        EventSourceArn=arn,
        FunctionName=name,
        BatchSize=batch_size,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 202
    return str(answer["UUID"])


def body(reports: Reports, do: str) -> str:
    return json.dumps({"report": reports.port, "do": do})


@pytest.mark.slow
@pytest.mark.conformance(
    operation="CreateEventSourceMapping",
    case="BatchProcessor: the poison message alone is dead-lettered",
    source=SOURCE,
)
def test_a_poison_message_ends_alone(clients: Clients, reports: Reports) -> None:
    sqs, functions = clients
    url, arn, dead = queues(sqs)
    names = ["a", "b", "poison", "c", "d"]
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": name, "MessageBody": body(reports, name)} for name in names])
    uuid = mapped(functions, arn, "standard", 10)
    heard = reports.until(lambda lines: "poison 2" in lines)
    assert sorted(heard) == ["a 1", "b 1", "c 1", "d 1", "poison 1", "poison 2"]
    [letter] = receive_until(sqs, dead, 1)
    assert json.loads(letter["Body"])["do"] == "poison"
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert left["ApproximateNumberOfMessages"] == left["ApproximateNumberOfMessagesNotVisible"] == "0"
    functions.delete_event_source_mapping(UUID=uuid)


@pytest.mark.slow
@pytest.mark.conformance(
    operation="CreateEventSourceMapping",
    case="SqsFifoPartialProcessor: nothing overtakes the poison message, and its group goes on when it is dead-lettered",
    source=SOURCE,
)
def test_a_group_goes_on_in_order_after_its_poison_message(clients: Clients, reports: Reports) -> None:
    sqs, functions = clients
    url, arn, dead = queues(sqs, ".fifo")
    for name in ("a1", "poison", "a3"):
        sqs.send_message(QueueUrl=url, MessageBody=body(reports, name), MessageGroupId="a")
    uuid = mapped(functions, arn, "fifo", 2)
    heard = reports.until(lambda lines: any(line.startswith("a3") for line in lines))
    # a3 was received together with the second try of the poison message, and not run.
    assert heard == ["a1 1", "poison 1", "poison 2", "a3 2"]
    [letter] = receive_until(sqs, dead, 1)
    assert json.loads(letter["Body"])["do"] == "poison"
    functions.delete_event_source_mapping(UUID=uuid)
