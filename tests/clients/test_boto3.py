"""boto3, client and resource, as programs use it: round trips, order, batches, polls, dead letters, errors by name."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.clients.serving import CREDENTIALS, receive_until, unique

Make = Callable[..., str]
SOURCE = "clients: boto3"


def shown(operation: str, case: str) -> pytest.MarkDecorator:
    return pytest.mark.conformance(operation=operation, case=case, source=SOURCE, protocol="json")


def arn(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def digest(attributes: dict[str, Any]) -> str:
    """MD5 of message attributes by SQS's rule, written here once more to check the server by."""
    buffer = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        binary = value["DataType"].startswith("Binary")
        content = value["BinaryValue"] if binary else value["StringValue"].encode()
        for part in (name.encode(), value["DataType"].encode()):
            buffer.update(struct.pack("!I", len(part)) + part)
        buffer.update((b"\x02" if binary else b"\x01") + struct.pack("!I", len(content)) + content)
    return buffer.hexdigest()


@shown("SendMessage", "body, attributes of all three types and their MD5 come back as sent")
def test_a_message_comes_back_as_it_was_sent(sqs: Any, make_queue: Make) -> None:
    url = make_queue()
    body = "grüße \U0001f600 \t\r\n <&>\"'"
    attributes = {
        "name": {"DataType": "String", "StringValue": "ädä"},
        "weight.kg": {"DataType": "Number", "StringValue": "12.5"},
        "label": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff\x89PNG"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-67fd09cf-7d47"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageSystemAttributes=trace)
    md5 = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
    assert (sent["MD5OfMessageBody"], sent["MD5OfMessageAttributes"]) == (md5, digest(attributes))
    assert sent["MD5OfMessageSystemAttributes"] == digest(trace)
    [message] = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])[
        "Messages"
    ]
    assert (message["Body"], message["MD5OfBody"], message["MessageId"]) == (body, md5, sent["MessageId"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == digest(attributes)
    system = message["Attributes"]
    assert system["AWSTraceHeader"] == "Root=1-67fd09cf-7d47"
    assert system["ApproximateReceiveCount"] == "1"
    assert int(system["ApproximateFirstReceiveTimestamp"]) >= int(system["SentTimestamp"])
    assert system["SenderId"]


@shown("ReceiveMessage", "only the attributes asked for come back, with the MD5 of those")
def test_attributes_are_filtered_by_name_and_prefix(sqs: Any, make_queue: Make) -> None:
    url = make_queue(VisibilityTimeout="0")
    attributes = {name: {"DataType": "String", "StringValue": name} for name in ("a.x", "a.y", "b")}
    sqs.send_message(QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    for asked, found in ((["b"], ["b"]), (["a.*"], ["a.x", "a.y"]), (["none"], []), ([], [])):
        [message] = sqs.receive_message(QueueUrl=url, MessageAttributeNames=asked)["Messages"]
        assert sorted(message.get("MessageAttributes", {})) == found
        chosen = {name: attributes[name] for name in found}
        assert message.get("MD5OfMessageAttributes") == (digest(chosen) if found else None)


@shown("ReceiveMessage", "an empty queue answers without the key Messages")
def test_nothing_is_no_list(sqs: Any, make_queue: Make) -> None:
    assert "Messages" not in sqs.receive_message(QueueUrl=make_queue())


@shown(
    "SendMessage",
    "FIFO: order in a group, growing sequence numbers, a repeated deduplication id is not delivered again",
)
def test_fifo_keeps_order_and_drops_duplicates(sqs: Any, make_queue: Make) -> None:
    url = make_queue("orders.fifo")
    sent = [
        sqs.send_message(
            QueueUrl=url, MessageBody=f"{group}{n}", MessageGroupId=group, MessageDeduplicationId=f"{group}{n}"
        )
        for n in range(5)
        for group in "ab"
    ]
    again = sqs.send_message(QueueUrl=url, MessageBody="other", MessageGroupId="a", MessageDeduplicationId="a0")
    assert again["MessageId"] == sent[0]["MessageId"]
    numbers = [int(one["SequenceNumber"]) for one in sent]
    assert numbers == sorted(set(numbers))
    bodies = [message["Body"] for message in receive_until(sqs, url, 10)]
    assert [body for body in bodies if body[0] == "a"] == [f"a{n}" for n in range(5)]
    assert [body for body in bodies if body[0] == "b"] == [f"b{n}" for n in range(5)]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


@shown("SendMessage", "FIFO: content-based deduplication")
def test_the_same_body_is_delivered_once_with_content_based_deduplication(sqs: Any, make_queue: Make) -> None:
    url = make_queue("orders.fifo", ContentBasedDeduplication="true")
    ids = {sqs.send_message(QueueUrl=url, MessageBody="same", MessageGroupId="g")["MessageId"] for _ in range(3)}
    assert len(ids) == 1
    [message] = receive_until(sqs, url, 1)
    assert message["MessageId"] in ids
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


@shown("ReceiveMessage", "FIFO: a group is locked while one of its messages is in flight")
def test_a_group_waits_for_its_message_in_flight(sqs: Any, make_queue: Make) -> None:
    url = make_queue("orders.fifo", ContentBasedDeduplication="true")
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group)
    [first] = sqs.receive_message(QueueUrl=url)["Messages"]
    rest = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [first["Body"], *(message["Body"] for message in rest)] == ["a1", "b1"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert [message["Body"] for message in sqs.receive_message(QueueUrl=url)["Messages"]] == ["a2"]


@shown("SendMessageBatch", "entries succeed and fail one by one")
def test_a_batch_reports_entry_by_entry(sqs: Any, make_queue: Make) -> None:
    url = make_queue(MaximumMessageSize="1024")
    answer = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": "small", "MessageBody": "x"}, {"Id": "large", "MessageBody": "x" * 1_025}],
    )
    assert [one["Id"] for one in answer["Successful"]] == ["small"]
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["SenderFault"], failed["Code"]) == ("large", True, "InvalidParameterValue")
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    handles = {"good": message["ReceiptHandle"], "bad": "garbage"}
    changes = [{"Id": name, "ReceiptHandle": handle, "VisibilityTimeout": 60} for name, handle in handles.items()]
    changed = sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)
    deleted = sqs.delete_message_batch(
        QueueUrl=url, Entries=[{"Id": n, "ReceiptHandle": h} for n, h in handles.items()]
    )
    for answer in (changed, deleted):
        assert [one["Id"] for one in answer["Successful"]] == ["good"]
        assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [("bad", "ReceiptHandleIsInvalid")]


@shown("ReceiveMessage", "a long poll answers when a message arrives")
def test_a_long_poll_is_answered_by_a_send(sqs: Any, make_queue: Make, server: str) -> None:
    url = make_queue()
    sender = boto3.client("sqs", endpoint_url=server, **CREDENTIALS)
    with closing(sender), ThreadPoolExecutor() as threads:
        poll = threads.submit(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=20)
        sent = sender.send_message(QueueUrl=url, MessageBody="now")
        assert poll.result(10)["Messages"][0]["MessageId"] == sent["MessageId"]


@shown("ChangeMessageVisibility", "0 gives a message back at once, counted; a longer time keeps it hidden")
def test_visibility_is_changed_in_both_directions(sqs: Any, make_queue: Make) -> None:
    url = make_queue(VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="m")
    first = sqs.receive_message(QueueUrl=url)["Messages"][0]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    second = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"])["Messages"][0]
    assert second["Attributes"] == {"ApproximateReceiveCount": "2"}
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=60)
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)


@shown("SendMessage", "DelaySeconds hides a message until then")
def test_a_delayed_message_arrives_later(sqs: Any, make_queue: Make) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesDelayed"] == "1"
    assert receive_until(sqs, url, 1)[0]["Body"] == "later"


@shown("StartMessageMoveTask", "a message that was received too often goes to the dead-letter queue and back")
def test_dead_letters_and_their_way_back(sqs: Any, make_queue: Make) -> None:
    dead = make_queue("dead")
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": 2})
    url = make_queue("work", RedrivePolicy=policy, VisibilityTimeout="0")
    sent = sqs.send_message(QueueUrl=url, MessageBody="poison")
    for _ in range(2):
        assert sqs.receive_message(QueueUrl=url)["Messages"][0]["MessageId"] == sent["MessageId"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    [letter] = sqs.receive_message(QueueUrl=dead, VisibilityTimeout=0, MessageSystemAttributeNames=["All"])["Messages"]
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn(sqs, url)
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    task = sqs.start_message_move_task(SourceArn=arn(sqs, dead))
    [back] = receive_until(sqs, url, 1)
    assert back["Body"] == "poison"
    [result] = sqs.list_message_move_tasks(SourceArn=arn(sqs, dead))["Results"]
    assert result["SourceArn"] == arn(sqs, dead)
    assert result["ApproximateNumberOfMessagesMoved"] == 1
    assert result["Status"] in {"RUNNING", "COMPLETED"}
    assert task["TaskHandle"]


@shown("ListQueues", "pages of queues by prefix, through boto3's paginator")
def test_queues_are_paged(sqs: Any) -> None:
    prefix = unique("page")
    urls = {sqs.create_queue(QueueName=f"{prefix}-{number}")["QueueUrl"] for number in range(5)}
    pages = list(sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}))
    assert [len(page["QueueUrls"]) for page in pages] == [2, 2, 1]
    assert {url for page in pages for url in page["QueueUrls"]} == urls
    assert not sqs.list_queues(QueueNamePrefix=unique("none")).get("QueueUrls")


@shown("ListDeadLetterSourceQueues", "pages of source queues, through boto3's paginator")
def test_source_queues_are_paged(sqs: Any, make_queue: Make) -> None:
    dead = make_queue("dead")
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": "3"})
    urls = {make_queue("source", RedrivePolicy=policy) for _ in range(3)}
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=dead, PaginationConfig={"PageSize": 2}
    )
    assert {url for page in pages for url in page["queueUrls"]} == urls


ERRORS: list[tuple[str, str, str, int | None, dict[str, Any]]] = [
    ("get_queue_url", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400, {"QueueName": "nobody-made-it"}),
    # Whether AWS says 400 or 404 here is not recorded.
    ("delete_message", "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", None, {"ReceiptHandle": "garbage"}),
    ("send_message_batch", "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400, {"Entries": []}),
    (
        "send_message_batch", "TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400,
        {"Entries": [{"Id": str(number), "MessageBody": "x"} for number in range(11)]},
    ),
    (
        "send_message_batch", "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400,
        {"Entries": [{"Id": "same", "MessageBody": "x"}] * 2},
    ),
    (
        "send_message_batch", "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400,
        {"Entries": [{"Id": "no space", "MessageBody": "x"}]},
    ),
    (
        "send_message_batch", "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400,
        {"Entries": [{"Id": str(number), "MessageBody": "x" * 600_000} for number in range(2)]},
    ),
    ("set_queue_attributes", "InvalidAttributeName", "InvalidAttributeName", 400, {"Attributes": {"Colour": "red"}}),
    ("set_queue_attributes", "InvalidAttributeValue", "InvalidAttributeValue", 400, {"Attributes": {"DelaySeconds": "901"}}),
    ("send_message", "InvalidMessageContents", "InvalidMessageContents", 400, {"MessageBody": "\x00"}),
    ("receive_message", "ClientError", "InvalidParameterValue", 400, {"MaxNumberOfMessages": 11}),
    ("send_message", "ClientError", "MissingParameter", 400, {"MessageBody": ""}),
    ("list_message_move_tasks", "ResourceNotFoundException", "ResourceNotFoundException", 404,
     {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:nobody-made-it"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "name", "code", "status", "asked"), ERRORS, ids=[f"{e[0]}-{e[1]}-{e[2]}" for e in ERRORS]
)
@shown("Errors", "boto3 raises the modelled exception class, with the code and status of AWS")
def test_errors_have_their_class_and_code(
    sqs: Any, make_queue: Make, call: str, name: str, code: str, status: int | None, asked: dict[str, Any]
) -> None:
    expected = ClientError if name == "ClientError" else getattr(sqs.exceptions, name)
    places = {} if call in {"get_queue_url", "list_message_move_tasks"} else {"QueueUrl": make_queue()}
    with pytest.raises(expected) as caught:
        getattr(sqs, call)(**places, **asked)
    assert caught.value.response["Error"]["Code"] == code
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] in ({400, 404} if status is None else {status})


@shown("CreateQueue", "the same attributes give the same URL, others QueueNameExists")
def test_creating_a_queue_again(sqs: Any) -> None:
    name = unique("again")
    url = sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "1"})["QueueUrl"]
    assert sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "1"})["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    with pytest.raises(sqs.exceptions.QueueNameExists, match="DelaySeconds"):
        sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "2"})


@shown("PurgeQueue", "everything goes; a second purge within a minute is PurgeQueueInProgress, 403")
def test_purging(sqs: Any, make_queue: Make) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="m")
    sqs.purge_queue(QueueUrl=url)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    with pytest.raises(sqs.exceptions.PurgeQueueInProgress) as caught:
        sqs.purge_queue(QueueUrl=url)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


@shown("TagQueue", "tags are set, listed and removed; permissions are accepted")
def test_tags_and_permissions(sqs: Any) -> None:
    url = sqs.create_queue(QueueName=unique("tagged"), tags={"owner": "ada"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"stage": "dev", "owner": "bob"})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"owner": "bob", "stage": "dev"}
    sqs.untag_queue(QueueUrl=url, TagKeys=["owner", "stage", "none"])
    assert not sqs.list_queue_tags(QueueUrl=url).get("Tags")
    sqs.add_permission(QueueUrl=url, Label="send", AWSAccountIds=["123456789012"], Actions=["SendMessage"])
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
    assert "123456789012" in attributes["Policy"]
    sqs.remove_permission(QueueUrl=url, Label="send")


@shown("DeleteQueue", "a deleted queue is gone, and its name is free after a minute only")
def test_deleting_a_queue(sqs: Any) -> None:
    name = unique("gone")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.send_message(QueueUrl=url, MessageBody="m")
    with pytest.raises(sqs.exceptions.QueueDeletedRecently):
        sqs.create_queue(QueueName=name)


@shown("Resource", "boto3's resource API: queues, messages, attributes, dead-letter sources")
def test_the_resource_api(server: str) -> None:
    sqs = boto3.resource("sqs", endpoint_url=server, **CREDENTIALS)
    dead = sqs.create_queue(QueueName=unique("dead"))
    policy = json.dumps({"deadLetterTargetArn": dead.attributes["QueueArn"], "maxReceiveCount": 3})
    name = unique("work")
    queue = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})
    assert sqs.get_queue_by_name(QueueName=name).url == queue.url
    assert [one.url for one in dead.dead_letter_source_queues.all()] == [queue.url]
    queue.send_messages(Entries=[{"Id": str(number), "MessageBody": f"m{number}"} for number in range(3)])
    messages = queue.receive_messages(MaxNumberOfMessages=10)
    assert sorted(message.body for message in messages) == ["m0", "m1", "m2"]
    messages[0].change_visibility(VisibilityTimeout=60)
    for message in messages:
        message.delete()
    queue.reload()
    assert queue.attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
    queue.set_attributes(Attributes={"VisibilityTimeout": "77"})
    queue.reload()
    assert queue.attributes["VisibilityTimeout"] == "77"
    sqs.meta.client.close()


@shown("ReceiveMessage", "six threads share a queue: every message once")
def test_threads_share_a_queue(server: str, sqs: Any, make_queue: Make) -> None:
    url = make_queue()
    config = Config(max_pool_connections=6)
    shared = boto3.client("sqs", endpoint_url=server, config=config, **CREDENTIALS)
    for first in range(0, 300, 10):
        entries = [{"Id": str(n), "MessageBody": str(first + n)} for n in range(10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)

    def drain() -> list[str]:
        bodies = []
        while messages := shared.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            bodies += [message["Body"] for message in messages]
            handles = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
            assert not shared.delete_message_batch(QueueUrl=url, Entries=handles).get("Failed")
        return bodies

    with ThreadPoolExecutor(6) as threads:
        found = [body for part in [threads.submit(drain) for _ in range(6)] for body in part.result(60)]
    assert sorted(found, key=int) == [str(n) for n in range(300)]
    shared.close()
