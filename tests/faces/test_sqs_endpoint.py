"""`onefold.testing.sqs` and its fixture, as the tests of others use them."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onefold import errors
from onefold.testing import Endpoint, sqs
from onefold.testing.pytest_plugin import sqs_endpoint

__all__ = ["sqs_endpoint"]  # a fixture, which is used by its name

PATIENCE_S = 60.0


def call(endpoint: Endpoint, operation: str, **members: object) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE_S)
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    try:
        connection.request("POST", "/", json.dumps(members), headers)
        answer = connection.getresponse()
        return {"status": answer.status, **json.loads(answer.read() or b"{}")}
    finally:
        connection.close()


def test_a_client_of_boto3_on_virtual_time() -> None:
    with sqs(clock="virtual") as endpoint:
        client = endpoint.boto3()
        url = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "1800"})["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="o-1")
        first = client.receive_message(QueueUrl=url)["Messages"][0]
        start_ms = endpoint.now_ms
        endpoint.advance("29m")
        assert "Messages" not in client.receive_message(QueueUrl=url)
        endpoint.advance(timedelta(minutes=2))
        assert endpoint.now_ms == start_ms + 31 * 60_000
        again = client.receive_message(QueueUrl=url)["Messages"][0]
        assert again["MessageId"] == first["MessageId"]
        assert [one.receive_count for one in endpoint.peek("orders")] == [2]
        client.close()


def test_the_fixture_runs_on_real_time(sqs_endpoint: Endpoint) -> None:
    assert call(sqs_endpoint, "ListQueues") == {"status": 200}
    with pytest.raises(RuntimeError, match="real time"):
        sqs_endpoint.advance("1s")


def test_two_at_a_time_do_not_meet() -> None:
    with sqs() as one, sqs() as two:
        assert one.port != two.port
        call(one, "CreateQueue", QueueName="orders")
        assert call(two, "ListQueues") == {"status": 200}


def test_advance_answers_a_poll_whose_message_came_due() -> None:
    with sqs(clock="virtual") as endpoint:
        call(endpoint, "CreateQueue", QueueName="orders")
        call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="late", DelaySeconds=5)
        answers: list[Any] = []
        poll = threading.Thread(
            target=lambda: answers.append(call(endpoint, "ReceiveMessage", QueueUrl="orders", WaitTimeSeconds=20))
        )
        poll.start()
        while endpoint.waiting("orders") == 0:
            assert poll.is_alive()
        endpoint.advance("4s")
        assert endpoint.waiting("orders") == 1
        endpoint.advance("2s")
        poll.join(PATIENCE_S)
        assert answers[0]["Messages"][0]["Body"] == "late"


def test_weeks_pass_in_no_time() -> None:
    with sqs(clock="virtual") as endpoint:
        call(endpoint, "CreateQueue", QueueName="orders")
        call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="x")
        endpoint.advance("5d")
        assert endpoint.peek("orders") == []
        assert "Messages" not in call(endpoint, "ReceiveMessage", QueueUrl="orders")


def test_it_ends_with_polls_that_wait() -> None:
    answers: list[Any] = []
    with sqs() as endpoint:
        call(endpoint, "CreateQueue", QueueName="orders")
        polls = [
            threading.Thread(
                target=lambda: answers.append(call(endpoint, "ReceiveMessage", QueueUrl="orders", WaitTimeSeconds=20))
            )
            for _ in range(5)
        ]
        for poll in polls:
            poll.start()
        while endpoint.waiting("orders") < 5:
            assert all(poll.is_alive() for poll in polls)
    for poll in polls:
        poll.join(PATIENCE_S)
    assert answers == [{"status": 200}] * 5
    with pytest.raises(OSError, match="refused"):
        call(endpoint, "ListQueues")


def test_a_queue_that_is_deleted_under_a_poll() -> None:
    with sqs() as endpoint:
        call(endpoint, "CreateQueue", QueueName="orders")
        answers: list[Any] = []
        poll = threading.Thread(
            target=lambda: answers.append(call(endpoint, "ReceiveMessage", QueueUrl="orders", WaitTimeSeconds=20))
        )
        poll.start()
        while endpoint.waiting("orders") == 0:
            assert poll.is_alive()
        call(endpoint, "DeleteQueue", QueueUrl="orders")
        poll.join(PATIENCE_S)
        assert (answers[0]["status"], answers[0]["__type"]) == (400, "com.amazonaws.sqs#QueueDoesNotExist")


def test_a_client_that_hangs_up_receives_nothing() -> None:
    with sqs() as endpoint:
        call(endpoint, "CreateQueue", QueueName="orders")
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE_S)
        headers = {"X-Amz-Target": "AmazonSQS.ReceiveMessage", "Content-Type": "application/x-amz-json-1.0"}
        connection.request("POST", "/", json.dumps({"QueueUrl": "orders", "WaitTimeSeconds": 20}), headers)
        while endpoint.waiting("orders") == 0:
            assert connection.sock is not None
        connection.close()
        while endpoint.waiting("orders"):
            assert endpoint.peek("orders") == []
        call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="x")
        assert [(one.state, one.receive_count) for one in endpoint.peek("orders")] == [("visible", 0)]


@pytest.mark.slow
def test_two_thousand_receivers_wait_and_each_gets_its_message() -> None:
    count = 2_000
    ask = json.dumps({"QueueUrl": "orders", "WaitTimeSeconds": 20}).encode()
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
    head += b"Content-Type: application/x-amz-json-1.0\r\n"

    async def receive(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(ask) + ask)
        said = await reader.read()
        writer.close()
        return said

    async def story(endpoint: Endpoint) -> list[bytes]:
        polls = [asyncio.create_task(receive(endpoint.port)) for _ in range(count)]
        while await asyncio.to_thread(endpoint.waiting, "orders") < count:
            assert not any(poll.done() for poll in polls)
        entries = [{"Id": str(place), "MessageBody": "x"} for place in range(10)]
        for _ in range(count // 10):
            await asyncio.to_thread(call, endpoint, "SendMessageBatch", QueueUrl="orders", Entries=entries)
        return await asyncio.gather(*polls)

    with sqs() as endpoint:
        call(endpoint, "CreateQueue", QueueName="orders")
        answers = asyncio.run(story(endpoint))
        assert sum(b'"Body":"x"' in one for one in answers) == count
        assert len(endpoint.peek("orders", limit=count)) == count


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[str]:
        with sqs(clock="virtual", seed=3, faults=["deliver=2", "lose-ack=50%"]) as endpoint:
            call(endpoint, "CreateQueue", QueueName="orders")
            for place in range(10):
                call(endpoint, "SendMessage", QueueUrl="orders", MessageBody=str(place))
            for _ in range(10):
                for one in call(endpoint, "ReceiveMessage", QueueUrl="orders").get("Messages", []):
                    call(endpoint, "DeleteMessage", QueueUrl="orders", ReceiptHandle=one["ReceiptHandle"])
                endpoint.advance("10s")
            return [f"{event.at_ms} {event.message_id} {event.what} {event.told}" for event in endpoint.history()]

    assert run() == run()


def test_faults_and_reset() -> None:
    with sqs() as endpoint:
        assert endpoint.faults(throttle=1)["faults"] == []
        assert call(endpoint, "ListQueues")["status"] == 403
        with pytest.raises(errors.UsageError, match="not known"):
            endpoint.faults("thrttle=1")
        assert endpoint.faults()["injected"] == [1]
        call(endpoint, "CreateQueue", QueueName="orders")
        call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="x")
        (sent,) = endpoint.history("orders")
        assert endpoint.history(message=endpoint.peek("orders")[0].message_id) == [sent]
        endpoint.reset()
        assert call(endpoint, "ListQueues") == {"status": 200}
        assert endpoint.history() == []
        with pytest.raises(errors.NotFoundError):
            endpoint.peek("orders")


def test_what_cannot_start_says_so_in_the_tests_own_thread() -> None:
    with pytest.raises(errors.UsageError, match="not an address of this machine"), sqs(host="192.0.2.1"):
        raise AssertionError("it cannot have started")
    with pytest.raises(errors.UsageError, match="not known"), sqs(faults=["looose-ack=1"]):
        raise AssertionError("it cannot have started")


HANDLER = """
import json

def handle(event, context):
    print("handling", [one["body"] for one in event["Records"]])
    if any(one["body"] == "bad" for one in event["Records"]):
        raise ValueError("bad")
"""


def test_a_mapping_on_virtual_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose handler fails twice is dead-lettered: an hour of redelivery in a moment."""
    (tmp_path / "shop.py").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    with sqs(clock="virtual", functions={"work": "shop:handle"}) as endpoint:
        client = endpoint.boto3()
        dead = client.create_queue(QueueName="dead")["QueueUrl"]
        policy = json.dumps({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead", "maxReceiveCount": "2"})
        attributes = {"VisibilityTimeout": "1200", "RedrivePolicy": policy}
        url = client.create_queue(QueueName="orders", Attributes=attributes)["QueueUrl"]
        functions = endpoint.boto3("lambda")
        functions.create_event_source_mapping(
            EventSourceArn="arn:aws:sqs:us-east-1:000000000000:orders", FunctionName="work", BatchSize=1
        )
        client.send_message(QueueUrl=url, MessageBody="good")
        client.send_message(QueueUrl=url, MessageBody="bad")
        endpoint.advance("1h")
        assert endpoint.peek("orders") == []
        assert [one.body for one in endpoint.peek("dead")] == ["bad"]
        assert "Messages" in client.receive_message(QueueUrl=dead)
        client.close()
        functions.close()
