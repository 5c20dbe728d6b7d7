"""Topics of a served template, as boto3's client of SNS uses them: who gets what, in which form, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.clients.serving import CREDENTIALS, environment, serving

pytestmark = pytest.mark.slow  # a server process

TEMPLATE = """
Resources:
  Orders:
    Type: AWS::SNS::Topic
    Properties:
      TopicName: orders
      Subscription: [{Protocol: sqs, Endpoint: !GetAtt All.Arn}]
      Tags: [{Key: team, Value: shop}]
  InOrder:
    Type: AWS::SNS::Topic
    Properties: {TopicName: in-order.fifo, FifoTopic: true, ContentBasedDeduplication: true}
  All: {Type: AWS::SQS::Queue, Properties: {QueueName: all}}
  Bare: {Type: AWS::SQS::Queue, Properties: {QueueName: bare}}
  Big: {Type: AWS::SQS::Queue, Properties: {QueueName: big}}
  Paid: {Type: AWS::SQS::Queue, Properties: {QueueName: paid}}
  Small: {Type: AWS::SQS::Queue, Properties: {QueueName: small, MaximumMessageSize: 1024}}
  Refused: {Type: AWS::SQS::Queue, Properties: {QueueName: refused}}
  Fifo: {Type: AWS::SQS::Queue, Properties: {QueueName: queue.fifo, FifoQueue: true}}
  ToBare:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !Ref Orders, Protocol: sqs, Endpoint: !GetAtt Bare.Arn, RawMessageDelivery: true}
  ToBig:
    Type: AWS::SNS::Subscription
    Properties:
      TopicArn: !Ref Orders
      Protocol: sqs
      Endpoint: !GetAtt Big.Arn
      RawMessageDelivery: true
      FilterPolicy: {pence: [{numeric: [">=", 1000]}], kind: [order], tags: [urgent], test: [{exists: false}]}
  ToPaid:
    Type: AWS::SNS::Subscription
    Properties:
      TopicArn: !Ref Orders
      Protocol: sqs
      Endpoint: !GetAtt Paid.Arn
      RawMessageDelivery: true
      FilterPolicyScope: MessageBody
      FilterPolicy: {payment: {state: [{anything-but: [open]}]}}
  ToSmall:
    Type: AWS::SNS::Subscription
    Properties:
      TopicArn: !Ref Orders
      Protocol: sqs
      Endpoint: !GetAtt Small.Arn
      RawMessageDelivery: true
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Refused.Arn}
  ToFifo:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !GetAtt InOrder.TopicArn, Protocol: sqs, Endpoint: !GetAtt Fifo.Arn, DeliveryPolicy: {}}
  ByMail:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !Ref Orders, Protocol: email, Endpoint: ops@example.com}
  Elsewhere:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !Ref Orders, Protocol: sqs, Endpoint: "arn:aws:sqs:us-east-1:000000000000:nowhere"}
  Unclear:
    Type: AWS::SNS::Subscription
    Properties:
      TopicArn: !Ref Orders
      Protocol: sqs
      Endpoint: !GetAtt All.Arn
      FilterPolicy: {kind: [{sounds-like: order}]}
  Wrong:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !Ref Orders, Protocol: sqs, Endpoint: !GetAtt Fifo.Arn}
"""
ORDERS, IN_ORDER = (f"arn:aws:sns:us-east-1:000000000000:{name}" for name in ("orders", "in-order.fifo"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("topics")
    (folder / "template.yaml").write_text(TEMPLATE, encoding="utf-8")
    with serving("template.yaml", "--memory", folder=folder) as found:
        yield found


@pytest.fixture
def sns(url: str) -> Any:
    return boto3.client("sns", endpoint_url=url, **CREDENTIALS)


@pytest.fixture
def received(url: str) -> Callable[[str], list[dict[str, Any]]]:
    """The messages of a queue, which are deleted; the queues are empty after each test."""
    sqs = boto3.client("sqs", endpoint_url=url, **CREDENTIALS)

    def take(queue: str) -> list[dict[str, Any]]:
        found = sqs.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        ).get("Messages", [])
        for one in found:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=one["ReceiptHandle"])
        return list(found)

    for queue in ("all", "bare", "big", "paid", "small", "refused", "queue.fifo"):
        take(queue)
    return take


def text(value: str, kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


def attributed(value: str, kind: str) -> dict[str, Any]:
    return {"TopicArn": ORDERS, "Message": "o-1", "MessageAttributes": {"a": text(value, kind)}}


def test_a_subscriber_gets_the_envelope_and_one_with_raw_delivery_the_message(sns: Any, received: Any) -> None:
    attributes = {"kind": text("order & <more>"), "photo": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
    answer = sns.publish(TopicArn=ORDERS, Message="o-1 \u00fc", Subject="new", MessageAttributes=attributes)
    (envelope,) = [json.loads(one["Body"]) for one in received("all")]
    assert (envelope["Type"], envelope["TopicArn"], envelope["Subject"]) == ("Notification", ORDERS, "new")
    assert (envelope["Message"], envelope["MessageId"]) == ("o-1 \u00fc", answer["MessageId"])
    assert envelope["MessageAttributes"] == {
        "kind": {"Type": "String", "Value": "order & <more>"},
        "photo": {"Type": "Binary", "Value": "AP8="},
    }
    assert envelope["Timestamp"].endswith("Z")
    (bare,) = received("bare")
    assert bare["Body"] == "o-1 \u00fc"
    assert bare["MessageAttributes"]["kind"]["StringValue"] == "order & <more>"
    assert bare["MessageAttributes"]["photo"]["BinaryValue"] == b"\x00\xff"


@pytest.mark.parametrize(
    ("changed", "arrives"),
    [
        ({}, True),
        ({"pence": text("999.5", "Number")}, False),
        ({"pence": text("1000")}, False),  # a text is no number
        ({"kind": text("refund")}, False),
        ({"tags": text('["gift", "slow"]', "String.Array")}, False),
        ({"test": text("yes")}, False),
        ({"more": text("does not matter")}, True),
    ],
)
def test_a_filter_policy_on_attributes(sns: Any, received: Any, changed: dict[str, Any], arrives: bool) -> None:
    matching = {
        "pence": text("1000", "Number"), "kind": text("order"), "tags": text('["gift", "urgent"]', "String.Array"),
    }  # fmt: skip
    sns.publish(TopicArn=ORDERS, Message="o-1", MessageAttributes=matching | changed)
    assert [one["Body"] for one in received("big")] == (["o-1"] if arrives else [])


@pytest.mark.parametrize(
    ("body", "arrives"),
    [
        ('{"payment": {"state": "paid"}}', True),
        ('{"payment": {"state": "open"}}', False),
        ('{"payment": {}}', False),
        ('["paid"]', False),
        ("no JSON", False),
    ],
)
def test_a_filter_policy_on_the_body(sns: Any, received: Any, body: str, arrives: bool) -> None:
    sns.publish(TopicArn=ORDERS, Message=body)
    assert [one["Body"] for one in received("paid")] == ([body] if arrives else [])


def test_what_a_queue_refuses_goes_to_the_subscriptions_dead_letter_queue(sns: Any, received: Any) -> None:
    sns.publish(TopicArn=ORDERS, Message="x" * 2_000)
    assert received("small") == []
    assert [len(one["Body"]) for one in received("refused")] == [2_000]
    assert len(received("bare")) == 1, "no other subscriber misses it"


def test_a_batch_tells_what_became_of_each(sns: Any, received: Any) -> None:
    entries = [{"Id": str(number), "Message": f"o-{number}"} for number in range(10)]
    answer = sns.publish_batch(TopicArn=ORDERS, PublishBatchRequestEntries=entries)
    assert [one["Id"] for one in answer["Successful"]] == [str(number) for number in range(10)]
    assert answer["Failed"] == []
    assert sorted(one["Body"] for one in received("bare")) == [f"o-{number}" for number in range(10)]
    entries = [{"Id": "good", "Message": "o-1"}, {"Id": "bad", "Message": "o-2", "Subject": "x" * 101}]
    answer = sns.publish_batch(TopicArn=ORDERS, PublishBatchRequestEntries=entries)
    assert [one["Id"] for one in answer["Successful"]] == ["good"]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]] == [
        ("bad", "InvalidParameter", True)
    ]


def test_a_fifo_topic_keeps_order_and_takes_a_message_once(sns: Any, received: Any) -> None:
    first = sns.publish(TopicArn=IN_ORDER, Message="o-1", MessageGroupId="a")
    again = sns.publish(TopicArn=IN_ORDER, Message="o-1", MessageGroupId="a")
    second = sns.publish(TopicArn=IN_ORDER, Message="o-1", MessageGroupId="a", MessageDeduplicationId="other")
    assert again["MessageId"] == first["MessageId"]
    assert int(second["SequenceNumber"]) > int(first["SequenceNumber"])
    found = received("queue.fifo")
    assert [json.loads(one["Body"])["MessageId"] for one in found] == [first["MessageId"], second["MessageId"]]
    assert {one["Attributes"]["MessageGroupId"] for one in found} == {"a"}


def test_each_protocol_can_have_a_text_of_its_own(sns: Any, received: Any) -> None:
    texts = json.dumps({"default": "for all", "sqs": "for queues", "email": "for people"})
    sns.publish(TopicArn=ORDERS, Message=texts, MessageStructure="json")
    assert [one["Body"] for one in received("bare")] == ["for queues"]
    sns.publish(TopicArn=ORDERS, Message=json.dumps({"default": "for all"}), MessageStructure="json")
    assert [one["Body"] for one in received("bare")] == ["for all"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"TopicArn": ORDERS + "-not", "Message": "o-1"}, "NotFound"),
        ({"TopicArn": ORDERS, "Message": ""}, "InvalidParameter"),
        ({"TopicArn": ORDERS, "Message": "x" * 262_145}, "InvalidParameter"),
        ({"TopicArn": ORDERS, "Message": "o-1", "Subject": "two\nlines"}, "InvalidParameter"),
        ({"TopicArn": ORDERS, "Message": "o-1", "MessageStructure": "json"}, "InvalidParameter"),
        ({"TopicArn": ORDERS, "Message": '{"sqs": "a"}', "MessageStructure": "json"}, "InvalidParameter"),
        ({"TopicArn": ORDERS, "Message": "o-1", "MessageDeduplicationId": "d"}, "InvalidParameter"),
        ({"TopicArn": IN_ORDER, "Message": "o-1"}, "InvalidParameter"),
        ({"PhoneNumber": "+441632960000", "Message": "o-1"}, "InvalidParameter"),
        ({"Message": "o-1"}, "InvalidParameter"),
        (attributed("b", "Date"), "ParameterValueInvalid"),
        (attributed("no", "Number"), "ParameterValueInvalid"),
        (attributed("", "String"), "ParameterValueInvalid"),
        (attributed("x", "String.Array"), "ParameterValueInvalid"),
    ],
)
def test_what_sns_would_refuse_is_refused_and_nobody_gets_it(
    sns: Any, received: Any, arguments: dict[str, Any], code: str
) -> None:
    with pytest.raises(ClientError) as caught:
        sns.publish(**arguments)
    assert caught.value.response["Error"]["Code"] == code
    assert received("all") == received("bare") == received("queue.fifo") == []


ATTRIBUTE = "MessageAttributes.entry.1"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("", "no value for required parameter"),
        (f"TopicArn={ORDERS}", "no value for required parameter"),
        (f"TopicArn={ORDERS}&Message.a=b", "no value for required parameter"),
        (f"TopicArn={ORDERS}&Message=a&MessageAttributes.entry.1.Value=b", "must contain non-empty"),
        (f"TopicArn={ORDERS}&Message=a&MessageAttributes.entry.1.Name=%00", "must contain non-empty"),
        (f"TopicArn={ORDERS}&Message=a&{ATTRIBUTE}.Name=b&{ATTRIBUTE}.Value.BinaryValue=%21", "is not base64"),
        (f"TopicArn={ORDERS}&Message=%ff", "percent-encoded UTF-8"),
        ("Action=Elsewhere%00%3Ctag%3E", "InvalidAction"),
    ],
)
def test_a_form_that_no_client_would_send_is_refused(url: str, received: Any, form: str, said: str) -> None:
    body = f"{form}&Version=2010-03-31{'' if 'Action=' in form else '&Action=Publish'}"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, body.encode(), method="POST"))
    answer = caught.value.read()
    assert caught.value.code == 400
    assert said in "".join(ET.fromstring(answer).itertext())
    assert b"http://sns.amazonaws.com/doc/2010-03-31/" in answer
    assert received("bare") == []


def entry(entry_id: str) -> dict[str, str]:
    return {"Id": entry_id, "Message": "o-1"}


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([entry(str(number)) for number in range(11)], "TooManyEntriesInBatchRequest"),
        ([entry("a"), entry("a")], "BatchEntryIdsNotDistinct"),
        ([entry("a b")], "InvalidBatchEntryId"),
        ([{"Id": str(number), "Message": "x" * 100_000} for number in range(3)], "BatchRequestTooLong"),
    ],
)
def test_a_batch_that_is_refused_as_a_whole(sns: Any, received: Any, entries: list[Any], code: str) -> None:
    with pytest.raises(ClientError) as caught:
        sns.publish_batch(TopicArn=ORDERS, PublishBatchRequestEntries=entries)
    assert caught.value.response["Error"]["Code"] == code
    assert received("bare") == []


def test_topics_and_subscriptions_are_listed_and_none_is_made_by_a_call(sns: Any) -> None:
    assert [one["TopicArn"] for one in sns.list_topics()["Topics"]] == [ORDERS, IN_ORDER]
    found = sns.list_subscriptions_by_topic(TopicArn=ORDERS)["Subscriptions"]
    assert [one["Endpoint"].rpartition(":")[2] for one in found] == ["all", "bare", "big", "paid", "small"]
    assert len(sns.list_subscriptions()["Subscriptions"]) == 6
    assert sns.get_topic_attributes(TopicArn=IN_ORDER)["Attributes"]["FifoTopic"] == "true"
    assert sns.create_topic(Name="orders")["TopicArn"] == ORDERS
    with pytest.raises(ClientError, match="topics come from the template, which has none that is called other"):
        sns.create_topic(Name="other")
    with pytest.raises(ClientError, match="The action Subscribe is not served"):
        sns.subscribe(TopicArn=ORDERS, Protocol="sqs", Endpoint="arn:aws:sqs:us-east-1:000000000000:all")


def test_a_signed_server_takes_signed_publishers_only(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(TEMPLATE, encoding="utf-8")
    keys = ("--access-key", "key", "--secret-key", "secret")
    with serving("template.yaml", "--memory", *keys, folder=tmp_path) as url:
        assert boto3.client("sns", endpoint_url=url, **CREDENTIALS).publish(TopicArn=ORDERS, Message="o-1")["MessageId"]
        wrong = {**CREDENTIALS, "aws_secret_access_key": "other"}
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            boto3.client("sns", endpoint_url=url, **wrong).publish(TopicArn=ORDERS, Message="o-1")


def test_what_is_not_honoured_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(TEMPLATE, encoding="utf-8")
    command = [sys.executable, "-m", "onefold", "serve", "--port", "0", "template.yaml", "--memory"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            said = "".join(iter(process.stdout.readline, "Ctrl-C stops it.\n"))
        finally:
            process.terminate()
    assert "subscriptions: orders -> all, orders -> bare, orders -> big, orders -> paid, orders -> small" in said
    line = TEMPLATE.splitlines().index("  ByMail:") + 3
    assert f"template.yaml:{line}: AWS::SNS::Subscription ByMail: its protocol is email; only queues are" in said
    assert "AWS::SNS::Subscription Elsewhere: its queue nowhere is not in this template" in said
    assert "AWS::SNS::Subscription Unclear: its filter policy cannot be used: " in said
    assert "Unrecognized match type sounds-like" in said
    assert "AWS::SNS::Subscription Wrong: a FIFO queue cannot be subscribed to orders, which is a standard" in said
    assert "AWS::SNS::Topic Orders: without effect here" in said, "its tags"
    assert "AWS::SNS::Subscription ToFifo: without effect here" in said, "its delivery policy"
