"""Two regions on one server are two namespaces: URLs, ARNs, queues, dead letters, mappings; old files stay as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

import onefold
import onefold.testing
from onefold.clock import SystemClock
from onefold.entropy import SystemEntropy
from onefold.local.serving import ServeSettings, Serving
from onefold.testing import Endpoint
from onefold.testing.endpoint import _Thread

HANDLER = """
import json

def keep(event, context):
    with open("seen", "a") as file:
        for record in event["Records"]:
            print(json.dumps([record["body"], record["eventSourceARN"], record["awsRegion"]]), file=file)
"""


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    (tmp_path / "shop.py").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    with onefold.testing.sqs(clock="virtual", functions={"keep": "shop:keep"}) as served:
        yield served


@contextmanager
def served(data: Path) -> Iterator[Endpoint]:
    """A server on a file, in a thread."""
    settings = ServeSettings(port=0, data=str(data))
    thread = _Thread(Serving(settings, clock=SystemClock(), entropy=SystemEntropy()))
    loop = thread.start()
    try:
        yield Endpoint(thread.serving, loop, None)
    finally:
        thread.stop()


def client(endpoint: Endpoint, region: str, service: str = "sqs") -> Any:
    return endpoint.boto3(service, region_name=region)


def code_of(call: Any, **params: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**params)
    return str(caught.value.response["Error"]["Code"])


def conformance(operation: str, case: str) -> pytest.MarkDecorator:
    return pytest.mark.conformance(operation=operation, case=case, source="1.1")


@conformance("CreateQueue", "a queue is its region's: URL, ARN, messages and list are apart")
def test_two_regions_are_two_namespaces(endpoint: Endpoint) -> None:
    here, there = client(endpoint, "us-east-1"), client(endpoint, "eu-west-1")
    first = here.create_queue(QueueName="orders")["QueueUrl"]
    second = there.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "7"})["QueueUrl"]
    assert first == f"{endpoint.url}/000000000000/orders"
    assert second == f"{endpoint.url}/queue/eu-west-1/000000000000/orders"
    for sqs, url, region in ((here, first, "us-east-1"), (there, second, "eu-west-1")):
        assert sqs.list_queues()["QueueUrls"] == [url]
        assert sqs.get_queue_url(QueueName="orders")["QueueUrl"] == url
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
        assert found["QueueArn"] == f"arn:aws:sqs:{region}:000000000000:orders"
        sqs.send_message(QueueUrl=url, MessageBody=region)
    for sqs, name, region in (
        (here, "orders", "us-east-1"),
        (there, f"{endpoint.url}/000000000000/orders", "eu-west-1"),
    ):
        (got,) = sqs.receive_message(QueueUrl=name, MaxNumberOfMessages=10)["Messages"]
        assert got["Body"] == region
        sqs.delete_message(QueueUrl=name, ReceiptHandle=got["ReceiptHandle"])
    here.delete_queue(QueueUrl=first)
    assert there.list_queues()["QueueUrls"] == [second]
    assert code_of(here.get_queue_url, QueueName="orders") == "AWS.SimpleQueueService.NonExistentQueue"
    third = client(endpoint, "ap-southeast-2")
    assert code_of(third.send_message, QueueUrl="orders", MessageBody="x") == "AWS.SimpleQueueService.NonExistentQueue"
    assert "QueueUrls" not in third.list_queues()


@conformance("SendMessage", "a queue's URL of another region than the client's: InvalidAddress")
def test_a_url_of_another_region(endpoint: Endpoint) -> None:
    url = client(endpoint, "eu-west-1").create_queue(QueueName="orders")["QueueUrl"]
    for region in ("us-east-1", "eu-west-2"):
        assert code_of(client(endpoint, region).send_message, QueueUrl=url, MessageBody="x") == "InvalidAddress"


@conformance("CreateQueue", "a dead-letter queue is one of the same region")
def test_dead_letters_stay_in_their_region(endpoint: Endpoint) -> None:
    here, there = client(endpoint, "us-east-1"), client(endpoint, "eu-west-1")
    for sqs in (here, there):
        sqs.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})

    def policy(region: str) -> dict[str, str]:
        arn = f"arn:aws:sqs:{region}:000000000000:dead.fifo"
        return {"FifoQueue": "true", "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})}

    assert code_of(there.create_queue, QueueName="a.fifo", Attributes=policy("us-east-1")) == "InvalidParameterValue"
    url = there.create_queue(QueueName="a.fifo", Attributes=policy("eu-west-1"))["QueueUrl"]
    sources = there.list_dead_letter_source_queues(QueueUrl="dead.fifo")
    assert sources["queueUrls"] == [url]
    assert here.list_dead_letter_source_queues(QueueUrl="dead.fifo")["queueUrls"] == []
    there.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    assert there.receive_message(QueueUrl=url)["Messages"]
    endpoint.advance("31s")
    assert "Messages" not in there.receive_message(QueueUrl=url)
    assert "Messages" not in here.receive_message(QueueUrl="dead.fifo")
    (dead,) = there.receive_message(QueueUrl="dead.fifo", MessageSystemAttributeNames=["All"])["Messages"]
    assert dead["Attributes"]["DeadLetterQueueSourceArn"] == "arn:aws:sqs:eu-west-1:000000000000:a.fifo"
    endpoint.advance("31s")
    there.start_message_move_task(SourceArn="arn:aws:sqs:eu-west-1:000000000000:dead.fifo")
    endpoint.advance("2s")
    assert there.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"


@conformance("CreateEventSourceMapping", "a mapping is of its queue's region, and so are its records")
def test_mappings_of_two_regions(endpoint: Endpoint, tmp_path: Path) -> None:
    for region in ("us-east-1", "eu-west-1"):
        sqs, functions = client(endpoint, region), client(endpoint, region, "lambda")
        sqs.create_queue(QueueName="orders")
        arn = f"arn:aws:sqs:{region}:000000000000:orders"
        made = functions.create_event_source_mapping(EventSourceArn=arn, FunctionName="keep")
        assert made["EventSourceArn"] == arn
        assert [one["EventSourceArn"] for one in functions.list_event_source_mappings()["EventSourceMappings"]] == [arn]
        sqs.send_message(QueueUrl="orders", MessageBody=f"of {region}")
    endpoint.advance("2s")
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert sorted(seen) == [
        [f"of {region}", f"arn:aws:sqs:{region}:000000000000:orders", region] for region in ("eu-west-1", "us-east-1")
    ]
    other = "arn:aws:sqs:us-east-1:000000000000:orders"
    refused = code_of(
        client(endpoint, "eu-west-1", "lambda").create_event_source_mapping, EventSourceArn=other, FunctionName="keep"
    )
    assert refused == "InvalidParameterValueException"


def test_an_unsigned_request_is_of_the_servers_region_or_of_the_one_its_url_names(endpoint: Endpoint) -> None:
    url = client(endpoint, "eu-west-1").create_queue(QueueName="orders")["QueueUrl"]
    with urlopen(f"{url}?Action=SendMessage&MessageBody=x") as answer:
        assert b"<MessageId>" in answer.read()
    with urlopen(f"{endpoint.url}/?Action=ListQueues") as answer:
        assert b"<ListQueuesResult/>" in answer.read()
    assert client(endpoint, "eu-west-1").receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"
    with urlopen(f"{endpoint.url}/?Action=CreateQueue&QueueName=all") as answer:
        assert b"/000000000000/all<" in answer.read()
    for region in ("us-east-1", "eu-west-1"):  # nobody's in particular
        assert client(endpoint, region).get_queue_url(QueueName="all")["QueueUrl"] == f"{endpoint.url}/000000000000/all"


def test_what_an_app_or_the_version_before_made_is_in_every_region(tmp_path: Path) -> None:
    data = tmp_path / "sqs.db"
    app = onefold.App("shop", url=f"sqlite:///{data}")
    queue = app.queue("orders")

    @app.job(queue=queue, key="{id}")
    def ship(order: dict[str, str]) -> None:
        pass

    ship.send({"id": "o-1"})
    app.close()
    with served(data) as endpoint:
        for region in ("eu-west-1", "us-east-1"):
            sqs = client(endpoint, region)
            url = sqs.create_queue(QueueName="orders")["QueueUrl"]
            assert url == f"{endpoint.url}/000000000000/orders"
            assert url in sqs.list_queues()["QueueUrls"]
            found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn", "ApproximateNumberOfMessages"])
            assert found["Attributes"] == {
                "QueueArn": f"arn:aws:sqs:{region}:000000000000:orders", "ApproximateNumberOfMessages": "1",
            }  # fmt: skip
        client(endpoint, "eu-west-1").create_queue(QueueName="more")
    with served(data) as endpoint:  # and after a restart
        assert (
            client(endpoint, "eu-west-1")
            .get_queue_url(QueueName="more")["QueueUrl"]
            .endswith("/queue/eu-west-1/000000000000/more")
        )
        assert code_of(client(endpoint, "us-east-1").get_queue_url, QueueName="more").endswith("NonExistentQueue")
