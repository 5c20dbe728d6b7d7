"""AWS JSON 1.0: what botocore sends is read, what is written botocore reads, and bad bytes get AWS's answers."""

from __future__ import annotations

import json

import pytest

from onefold.local import aws_errors, json_protocol, sqs_model
from onefold.local.aws_errors import AwsError
from tests.wire import aws_side

MODEL = sqs_model.load()
SEND = MODEL["SendMessage"]


@pytest.mark.conformance(
    operation="Protocol",
    case="a request of botocore in JSON is read member by member",
    source="1.1 protocol",
    protocol="json",
)
def test_reads_what_a_client_sends():
    target, body = aws_side.json_request(
        "SendMessage",
        {
            "QueueUrl": "http://localhost:9324/000000000000/q",
            "MessageBody": 'grün "🐘"\n',
            "DelaySeconds": 5,
            "MessageAttributes": {"picture": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}},
        },
    )
    operation = json_protocol.operation_of(MODEL, target)
    ask = json_protocol.decode(operation, body)
    assert operation is SEND
    assert (ask.QueueUrl, ask.MessageBody, ask.DelaySeconds) == (
        "http://localhost:9324/000000000000/q",
        'grün "🐘"\n',
        5,
    )
    assert ask.MessageAttributes["picture"].BinaryValue == b"\x00\xff"
    assert ask.MessageGroupId is None


def test_ignores_what_the_model_does_not_know_and_takes_null_for_absent():
    ask = json_protocol.decode(SEND, b'{"QueueUrl":"q","MessageBody":"x","New":{"a":[1]},"DelaySeconds":null}')
    assert (ask.MessageBody, ask.DelaySeconds) == ("x", None)


def test_of_a_repeated_member_the_last_counts():
    assert json_protocol.decode(SEND, b'{"QueueUrl":"q","MessageBody":"x","MessageBody":"y"}').MessageBody == "y"


@pytest.mark.parametrize("target", ["", "AmazonSQS.Bogus", "AmazonSQS.", "SendMessage", "DynamoDB_20120810.ListTables"])
@pytest.mark.conformance(
    operation="Errors",
    case="unknown operation or none: UnknownOperationException, InvalidAction",
    source="1.2 errors [O]",
    protocol="json",
)
def test_unknown_operations(target):
    with pytest.raises(AwsError) as caught:
        json_protocol.operation_of(MODEL, target)
    status, headers, _ = json_protocol.encode_error(caught.value, "r-1")
    assert status == 400
    assert (b"x-amzn-query-error", b"InvalidAction;Sender") in headers
    assert caught.value.type == "com.amazon.coral.service#UnknownOperationException"


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b"Action=SendMessage",
        b'{"MessageBody": NaN}',
        b'{"DelaySeconds": 01}',
        b'{"MessageBody": "\\ud800"}',
        b'{"MessageBody": "\\udfff\\ud800"}',
        b'{"MessageBody": "\xed\xa0\x80"}',
        b'{"MessageBody": "\xff"}',
        b'{"MessageBody": "\x00"}',
        b'{"MessageAttributes": {"\xff": {}}}',
        b'{"Deep": ' + b"[" * 100_000,
        b'{"Deep": ' + b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:30]),
)
@pytest.mark.conformance(
    operation="Errors",
    case="a body that is not JSON: SerializationException, MalformedInput",
    source="1.2 errors [O]",
    protocol="json",
)
def test_what_is_not_json(body):
    with pytest.raises(AwsError) as caught:
        json_protocol.decode(SEND, body)
    error = caught.value
    assert (error.shape, error.code, error.status) == ("SerializationException", "MalformedInput", 400)
    assert error.message == "The request body is not valid JSON."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "Start of list found where not expected."),
        (b'"x"', "STRING_VALUE can not be converted to a Structure"),
        (b"null", "NULL_VALUE can not be converted to a Structure"),
        (b'{"MessageBody": {}}', "Start of structure or map found where not expected. (MessageBody)"),
        (b'{"MessageBody": ["x"]}', "Start of list found where not expected. (MessageBody)"),
        (b'{"MessageBody": 1}', "NUMBER_VALUE can not be converted to a String (MessageBody)"),
        (b'{"DelaySeconds": "10"}', "STRING_VALUE can not be converted to an Integer (DelaySeconds)"),
        (b'{"DelaySeconds": 1.0}', "DECIMAL_VALUE can not be converted to an Integer (DelaySeconds)"),
        (b'{"DelaySeconds": true}', "BOOLEAN_VALUE can not be converted to an Integer (DelaySeconds)"),
        (b'{"DelaySeconds": 2147483648}', "NUMBER_VALUE is out of range (DelaySeconds)"),
        (b'{"DelaySeconds": -2147483649}', "NUMBER_VALUE is out of range (DelaySeconds)"),
        (b'{"DelaySeconds": 1e999}', "NUMBER_VALUE is out of range (DelaySeconds)"),
        (b'{"DelaySeconds": ' + b"9" * 10_000 + b"}", "NUMBER_VALUE is out of range (DelaySeconds)"),
        (b'{"MessageAttributes": []}', "Start of list found where not expected. (MessageAttributes)"),
        (
            b'{"MessageAttributes": {"a": null}}',
            "NULL_VALUE can not be converted to a Structure (MessageAttributes[...])",
        ),
        (
            b'{"MessageAttributes": {"a": {"BinaryValue": "?"}}}',
            "Invalid base64 encoded string (MessageAttributes[...].BinaryValue)",
        ),
    ],
    ids=lambda value: repr(value[:40]),
)
@pytest.mark.conformance(
    operation="Errors",
    case="a member of another type: SerializationException, AWS's words and the member",
    source="1.2 errors [O]",
    protocol="json",
)
def test_a_member_of_another_type_is_named(body, text):
    with pytest.raises(AwsError) as caught:
        json_protocol.decode(SEND, body)
    assert (caught.value.shape, caught.value.message) == ("SerializationException", text)


def test_entries_are_named_by_their_index():
    with pytest.raises(AwsError, match=r"an Integer \(Entries\[1\]\.DelaySeconds\)$"):
        json_protocol.decode(MODEL["SendMessageBatch"], b'{"Entries": [{"DelaySeconds": 1}, {"DelaySeconds": "1"}]}')


def test_what_is_required_is_asked_for():
    with pytest.raises(AwsError, match=r"^The request must contain the parameter MessageBody\.$"):
        json_protocol.decode(SEND, b'{"QueueUrl": "q"}')


# --------------------------------------------------------------------------------------------------- answers


def test_a_client_reads_the_result():
    result = {
        "Messages": [
            {
                "MessageId": "m",
                "Body": "grün null",
                "MD5OfMessageAttributes": None,
                "Attributes": {"SentTimestamp": "1"},
                "MessageAttributes": {"b": {"DataType": "Binary", "BinaryValue": b"\x00\xff", "StringValue": None}},
            }
        ]
    }
    body = json_protocol.encode(result)
    assert b'"StringValue"' not in body
    assert b"MD5OfMessageAttributes" not in body
    assert aws_side.json_answer("ReceiveMessage", body) == {
        "Messages": [
            {
                "MessageId": "m",
                "Body": "grün null",
                "Attributes": {"SentTimestamp": "1"},
                "MessageAttributes": {"b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}},
            }
        ]
    }


@pytest.mark.conformance(
    operation="Protocol",
    case="a success without output has an empty body, an empty result is {}",
    source="1.1 protocol [O]",
    protocol="json",
)
def test_nothing_to_say_is_an_empty_body_and_an_empty_result_an_empty_object():
    assert json_protocol.encode(None) == b""
    assert aws_side.json_answer("DeleteMessage", b"") == {}
    assert json_protocol.encode({}) == b"{}"
    assert aws_side.json_answer("ReceiveMessage", b"{}") == {}


def test_every_answer_has_a_request_id():
    assert json_protocol.headers("r-1") == [
        (b"content-type", b"application/x-amz-json-1.0"),
        (b"x-amzn-requestid", b"r-1"),
    ]


@pytest.mark.conformance(
    operation="Errors",
    case="__type and x-amzn-query-error: botocore shows both names",
    source="1.1 protocol",
    protocol="json",
)
def test_a_client_reads_an_error_under_both_names():
    status, headers, body = json_protocol.encode_error(aws_errors.queue_does_not_exist(), "r-1")
    assert json.loads(body) == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    parsed = aws_side.json_answer("SendMessage", body, status=status, headers=headers)
    assert parsed["Error"] == {
        "Code": "AWS.SimpleQueueService.NonExistentQueue",
        "QueryErrorCode": "QueueDoesNotExist",
        "Message": "The specified queue does not exist.",
        "Type": "Sender",
    }
    assert parsed["ResponseMetadata"]["RequestId"] == "r-1"
    assert parsed["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_a_failure_of_the_server_is_the_receivers():
    status, headers, body = json_protocol.encode_error(aws_errors.internal_failure(), "r-1")
    parsed = aws_side.json_answer("SendMessage", body, status=status, headers=headers)
    assert (status, parsed["Error"]["Code"], parsed["Error"]["Type"]) == (500, "InternalFailure", "Receiver")


def test_an_error_whose_text_has_anything_in_it():
    nasty = 'a"\r\nx-injected: 1\x00\u2028🐘'
    status, headers, body = json_protocol.encode_error(aws_errors.receipt_handle_is_invalid(nasty), "r-1")
    assert nasty in json.loads(body)["message"]
    assert all(b"\r" not in value and b"\n" not in value for _, value in headers)
    assert status == 404
