"""The faulty wire itself: each fault does what its name says to a real client, and nothing reaches the server twice."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import botocore.exceptions as failures
import pytest
from botocore.config import Config

import onefold.testing
from onefold import errors
from onefold.testing.wire_faults import FAULTS, Wire, wire_faults


def sqs(url: str):
    config = Config(retries={"total_max_attempts": 1}, region_name="eu-west-1")
    return boto3.client("sqs", endpoint_url=url, config=config, aws_access_key_id="any", aws_secret_access_key="any")


@pytest.fixture
def server() -> Iterator[str]:
    with onefold.testing.sqs() as endpoint:
        sqs(endpoint.url).create_queue(QueueName="orders")
        yield endpoint.url


def waiting(server: str) -> int:
    attributes = sqs(server).get_queue_attributes(QueueUrl="orders", AttributeNames=["ApproximateNumberOfMessages"])
    return int(attributes["Attributes"]["ApproximateNumberOfMessages"])


def send(wire: Wire):
    return sqs(wire.url).send_message(QueueUrl="orders", MessageBody="o-1")


def test_without_faults_everything_passes_through(server: str) -> None:
    with wire_faults(server) as wire:
        assert send(wire)["MessageId"]
        assert sqs(wire.url).receive_message(QueueUrl="orders")["Messages"][0]["Body"] == "o-1"
        assert wire.calls == {"SendMessage": 1, "ReceiveMessage": 1}
        assert not wire.met


@pytest.mark.parametrize(
    ("fault", "raised", "applied"),
    [
        ("error", failures.ClientError, 0),
        ("throttle", failures.ClientError, 0),
        ("before", failures.ConnectionClosedError, 0),
        ("after", failures.ConnectionClosedError, 1),
        ("reset", failures.ConnectionClosedError, 1),
    ],
)
def test_each_fault(server: str, fault, raised, applied: int) -> None:
    with wire_faults(server, rate=1, faults=[fault]) as wire:
        with pytest.raises(raised):
            send(wire)
        assert wire.met == {fault: 1}
    assert waiting(server) == applied


def test_the_same_seed_draws_the_same_faults(server: str) -> None:
    def drawn(seed: int) -> list[str | None]:
        with wire_faults(server, rate=0.5, seed=seed) as wire:
            return [wire.draw("any") for _ in range(200)]

    first = drawn(7)
    assert first == drawn(7) != drawn(8)
    assert {*FAULTS, None} == set(first)
    assert 60 < sum(one is not None for one in first) < 140


@pytest.mark.parametrize(("options", "said"), [({"rate": 1.1}, "0 to 1"), ({"faults": ["boom"]}, "boom")])
def test_what_does_not_exist_is_refused(options, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said), wire_faults("http://127.0.0.1:1", **options):
        pass
