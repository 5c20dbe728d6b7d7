"""The older query protocol: what its clients send is read, what is written they read, and bad bytes get AWS's answers."""

from __future__ import annotations

import tracemalloc
from urllib.parse import parse_qsl, quote_plus, urlencode
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onefold import limits
from onefold.local import aws_errors, query_protocol, sqs_model
from onefold.local.aws_errors import AwsError
from tests.wire import aws_side

MODEL = sqs_model.load()
URL = "http://localhost:9324/000000000000/q"
DELAY = {"DelaySeconds": "5"}


def read(form: str, *, path: str = "/", query: str = ""):
    return query_protocol.decode(MODEL, form.encode(), path, query.encode())


def refused(form: str, *, path: str = "/", query: str = "") -> AwsError:
    with pytest.raises(AwsError) as caught:
        read(form, path=path, query=query)
    return caught.value


# ---------------------------------------------------------------------------------------------------- requests


@pytest.mark.conformance(
    operation="Protocol",
    case="a request of botocore's query serializer is read member by member",
    source="1.1 protocol",
    protocol="query",
)
def test_reads_what_a_client_sends():
    form = aws_side.query_request(
        "SendMessageBatch",
        {
            "QueueUrl": URL,
            "Entries": [
                {
                    "Id": "1",
                    "MessageBody": "a&b=c +\r\n\t🐘",
                    "DelaySeconds": 5,
                    "MessageAttributes": {
                        "picture": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
                        "list": {"DataType": "String", "StringListValues": ["x", "y"], "BinaryListValues": [b"\x01"]},
                    },
                    "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
                },
                {"Id": "2", "MessageBody": "second", "MessageGroupId": "g", "MessageDeduplicationId": "d"},
            ],
        },
    )
    assert b"SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.BinaryValue=AP8%3D" in form
    operation, ask = query_protocol.decode(MODEL, form, "/", b"")
    first, second = ask.Entries
    assert operation.name == "SendMessageBatch"
    assert (ask.QueueUrl, first.Id, first.MessageBody, first.DelaySeconds) == (URL, "1", "a&b=c +\r\n\t🐘", 5)
    assert first.MessageAttributes["picture"].BinaryValue == b"\x00\xff"
    assert first.MessageAttributes["list"].StringListValues == ["x", "y"]
    assert first.MessageAttributes["list"].BinaryListValues == [b"\x01"]
    assert first.MessageSystemAttributes["AWSTraceHeader"].StringValue == "Root=1"
    assert (second.MessageBody, second.MessageGroupId, second.MessageDeduplicationId) == ("second", "g", "d")
    assert second.DelaySeconds is None


@pytest.mark.parametrize(
    ("action", "form", "member", "value"),
    [
        ("SetQueueAttributes", "Attribute.1.Name=DelaySeconds&Attribute.1.Value=5", "Attributes", DELAY),
        ("SetQueueAttributes", "Attribute.Name=DelaySeconds&Attribute.Value=5", "Attributes", DELAY),
        ("SetQueueAttributes", "Attribute.entry.1.key=DelaySeconds&Attribute.entry.1.value=5", "Attributes", DELAY),
        ("SetQueueAttributes", "Attributes.entry.1.Name=DelaySeconds&Attributes.entry.1.Value=5", "Attributes", DELAY),
        ("SetQueueAttributes", "Attributes.1.Name=Policy&Attributes.1.Value=", "Attributes", {"Policy": ""}),
        ("GetQueueAttributes", "AttributeName.1=All", "AttributeNames", ["All"]),
        ("GetQueueAttributes", "AttributeName=All", "AttributeNames", ["All"]),
        ("GetQueueAttributes", "AttributeNames.1=All", "AttributeNames", ["All"]),
        ("GetQueueAttributes", "AttributeNames.member.1=a&AttributeNames.member.2=b", "AttributeNames", ["a", "b"]),
        ("GetQueueAttributes", "AttributeName.member=All", "AttributeNames", ["All"]),
        ("GetQueueAttributes", "AttributeNames.AttributeName.1=All", "AttributeNames", ["All"]),
        ("GetQueueAttributes", "AttributeName.10=j&AttributeName.2=b&AttributeName.1=a", "AttributeNames", ["a", "b", "j"]),
        ("GetQueueAttributes", "AttributeNames=", "AttributeNames", []),
        ("GetQueueAttributes", "", "AttributeNames", None),
        ("ReceiveMessage", "MessageAttributeName.1=bar.*", "MessageAttributeNames", ["bar.*"]),
        ("ReceiveMessage", "MessageSystemAttributeName.1=All", "MessageSystemAttributeNames", ["All"]),
        ("ReceiveMessage", "WaitTimeSeconds=20", "WaitTimeSeconds", 20),
        ("ReceiveMessage", "VisibilityTimeout=-1", "VisibilityTimeout", -1),
        ("TagQueue", "Tag.1.Key=env&Tag.1.Value=test", "Tags", {"env": "test"}),
        ("TagQueue", "Tags.entry.1.key=env&Tags.entry.1.value=test", "Tags", {"env": "test"}),
        ("UntagQueue", "TagKey.1=env&TagKey.2=team", "TagKeys", ["env", "team"]),
        ("AddPermission", "Label=l&AWSAccountId.1=1&ActionName.1=*", "Actions", ["*"]),
        ("AddPermission", "Label=l&AWSAccountId.1=1&ActionName.1=*", "AWSAccountIds", ["1"]),
        ("ListQueues", "QueueNamePrefix=a", "QueueNamePrefix", "a"),
        ("CreateQueue", "QueueName=q&Tag.1.Key=env&Tag.1.Value=test", "tags", {"env": "test"}),
    ],
)  # fmt: skip
@pytest.mark.conformance(
    operation="Protocol",
    case="flattened names of parameters, and the other forms that SDKs send",
    source="1.1 protocol",
    protocol="query",
)
def test_names_of_parameters(action, form, member, value):
    _, ask = read(f"Action={action}&{form}&QueueUrl={quote_plus(URL)}&Version=2012-11-05")
    assert getattr(ask, member) == value


def test_parameters_may_stand_in_the_query_string_the_body_or_both():
    query = f"Action=SendMessage&MessageBody=query&QueueUrl={quote_plus(URL)}"
    assert read("", query=query)[1].MessageBody == "query"
    assert read("MessageBody=body", query=query)[1].MessageBody == "body"
    assert read("MessageBody=1&MessageBody=2", query=query)[1].MessageBody == "2"


@pytest.mark.parametrize("path", ["/000000000000/q", "/000000000000/q/", "/queue/q"])
@pytest.mark.conformance(
    operation="Protocol",
    case="the path names the queue when there is no QueueUrl",
    source="1.1 protocol",
    protocol="query",
)
def test_the_path_names_the_queue(path):
    assert read("Action=PurgeQueue", path=path)[1].QueueUrl == "q"


def test_a_queue_url_wins_over_the_path():
    assert read(f"Action=PurgeQueue&QueueUrl={quote_plus(URL)}", path="/000000000000/other")[1].QueueUrl == URL


def test_a_path_is_no_parameter_of_operations_without_a_queue():
    assert read("Action=ListQueues", path="/some/where")[0].name == "ListQueues"


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("form", ["", "Version=2012-11-05", "Action=", "Action.1=SendMessage", "nothing at all"])
def test_without_an_action(form):
    with pytest.raises(query_protocol.NoAction):
        query_protocol.decode(MODEL, form.encode(), "/", b"")


@pytest.mark.conformance(
    operation="Errors", case="unknown Action: InvalidAction", source="1.2 errors", protocol="query"
)
def test_an_unknown_action():
    error = refused("Action=Foo<Bar>")
    assert (error.code, error.status) == ("InvalidAction", 400)
    assert error.message == "The action Foo<Bar> is not valid for this endpoint."


@pytest.mark.parametrize(
    ("form", "code", "text"),
    [
        ("Action=SendMessage&QueueUrl=q", "MissingParameter", "The request must contain the parameter MessageBody."),
        (
            "Action=SendMessage&MessageBody=x",
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist for this wsdl version.",
        ),
        (
            "Action=CreateQueue&FooBar=baz",
            "InvalidParameterValue",
            "Value for parameter QueueName is invalid. Reason: Must specify a queue name.",
        ),
        (
            "Action=SetQueueAttributes&QueueUrl=q",
            "MissingParameter",
            "The request must contain the parameter Attribute.Name.",
        ),
        (
            "Action=SendMessageBatch&QueueUrl=q",
            "AWS.SimpleQueueService.EmptyBatchRequest",
            "There should be at least one SendMessageBatchRequestEntry in the request.",
        ),
        (
            "Action=SetQueueAttributes&QueueUrl=q&Attribute.1.Value=5",
            "MissingParameter",
            "The request must contain the parameter Attribute.Name.",
        ),
        (
            "Action=SetQueueAttributes&QueueUrl=q&Attribute.1.Name=DelaySeconds",
            "MissingParameter",
            "The request must contain the parameter Attribute.Value.",
        ),
    ],
)
def test_what_is_required_is_asked_for(form, code, text):
    error = refused(form)
    assert (error.code, error.message) == (code, text)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("DelaySeconds=ten", "STRING_VALUE can not be converted to an Integer (DelaySeconds)"),
        ("DelaySeconds=", "STRING_VALUE can not be converted to an Integer (DelaySeconds)"),
        ("DelaySeconds=%D9%A1", "STRING_VALUE can not be converted to an Integer (DelaySeconds)"),
        ("DelaySeconds=2147483648", "NUMBER_VALUE is out of range (DelaySeconds)"),
        ("DelaySeconds=" + "9" * 10_000, "STRING_VALUE can not be converted to an Integer (DelaySeconds)"),
        ("DelaySeconds.1=5", "Start of structure or map found where not expected. (DelaySeconds)"),
        ("MessageAttribute=x", "STRING_VALUE can not be converted to a Map (MessageAttributes)"),
        ("MessageAttribute.1=x", "STRING_VALUE can not be converted to a Map (MessageAttributes)"),
        ("MessageAttribute.1.Name.x=x", "Start of structure or map found where not expected. (MessageAttributes)"),
        (
            "MessageAttribute.1.Name=x&MessageAttribute.1.Value=x",
            "STRING_VALUE can not be converted to a Structure (MessageAttributes)",
        ),
        (
            "MessageAttribute.1.Name=x&MessageAttribute.1.Value.BinaryValue=?",
            "Invalid base64 encoded string (BinaryValue)",
        ),
        (
            "MessageAttribute.1.Name=x&MessageAttribute.1.Value.BinaryValue=%F0%9F%90%98",
            "Invalid base64 encoded string (BinaryValue)",
        ),
    ],
    ids=lambda value: value[:50],
)
def test_a_parameter_of_another_type_is_named(parameters, text):
    error = refused(f"Action=SendMessage&QueueUrl=q&MessageBody=x&{parameters}")
    assert (error.shape, error.code, error.message) == ("SerializationException", "MalformedInput", text)


@pytest.mark.parametrize("form", [b"Action=%ff", b"Action=\xff", b"Action=%ED%A0%80", b"a&" * 5_000])
def test_what_is_no_form(form):
    with pytest.raises(AwsError) as caught:
        query_protocol.decode(MODEL, form, "/", b"")
    assert caught.value.code == "MalformedQueryString"


def test_a_form_of_percent_signs_is_refused_before_it_is_taken_apart():
    whole = "%41" * limits.MESSAGE_BYTES_MAX
    assert len(read(f"Action=SendMessage&QueueUrl=q&MessageBody={whole}")[1].MessageBody) == limits.MESSAGE_BYTES_MAX
    for form in ("%" * 1_400_000, f"Action=SendMessage&QueueUrl=q&MessageBody={whole}{whole}"):
        assert "percent signs" in refused(form).message


@given(
    st.lists(
        st.sampled_from(
            ["%", "%41", "%c3%a9", "%zz", "%2", "%00", "%0d%0a", "=", "=3D", "&", "+", "a", "_", " ", "\r\n", "."]
        )
    )
)
@example(["%", "%", "4", "1", "="])
def test_a_form_is_read_as_the_standard_library_reads_it(parts):
    form = "".join(parts)
    wanted = parse_qsl(form, keep_blank_values=True, errors="strict")
    assert query_protocol._fields(form.encode()) == wanted


def test_a_form_of_many_percent_signs_takes_no_more_memory_than_its_text_a_few_times():
    assert "percent-encoded" in refused("Action=SendMessage&MessageBody=" + "%" * 1_300_000).message
    for piece in ("%41", "%41b", "%c3%a9"):
        value = (piece * (1_300_000 // piece.count("%")))[:4_000_000]
        tracemalloc.start()
        try:
            query_protocol._fields(f"MessageBody={value}".encode())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 40_000_000, "it was 250 MB and half a second"


def test_names_of_a_million_dots_cost_nothing():
    name = "." * 1_000_000
    _, ask = read(f"Action=ListQueues&{name}=x&" + "&".join(f"a.{number}.b.{number}=x" for number in range(1_000)))
    assert ask.QueueNamePrefix is None


# --------------------------------------------------------------------------------------------------- answers


def test_a_client_reads_the_result():
    messages = [
        {
            "MessageId": "m",
            "Body": "<a href=\"x\">&amp; 'ü' ]]> 🐘</a>\r\n\t end\r",
            "Attributes": {"SentTimestamp": "1", "SenderId": "AIDA"},
            "MessageAttributes": {"b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}},
        },
        {"MessageId": "n", "Body": "second"},
    ]
    body = query_protocol.encode(MODEL["ReceiveMessage"], {"Messages": messages}, "r-1")
    assert aws_side.query_answer("ReceiveMessage", body) == {"Messages": messages}


def test_none_is_left_out():
    sent = {"MessageId": "m", "MD5OfMessageBody": "d", "SequenceNumber": None}
    body = query_protocol.encode(MODEL["SendMessage"], sent, "r-1")
    assert aws_side.query_answer("SendMessage", body) == {"MessageId": "m", "MD5OfMessageBody": "d"}


def test_names_in_a_batch_result():
    result = {
        "Successful": [{"Id": "1", "MessageId": "m", "MD5OfMessageBody": "d"}],
        "Failed": [aws_errors.receipt_handle_expired().entry("2")],
    }
    body = query_protocol.encode(MODEL["SendMessageBatch"], result, "r-1")
    assert b"<BatchResultErrorEntry><Id>2</Id><SenderFault>true</SenderFault>" in body
    assert b"<SendMessageBatchResultEntry><Id>1</Id>" in body
    assert aws_side.query_answer("SendMessageBatch", body) == result


@pytest.mark.conformance(operation="ListQueues", case="the answer's XML", source="1.1 protocol", protocol="query")
def test_an_answer_in_full():
    body = query_protocol.encode(MODEL["ListQueues"], {"QueueUrls": [URL, URL + "2"]}, "r-1")
    assert body.decode() == (
        '<?xml version="1.0"?><ListQueuesResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
        f"<ListQueuesResult><QueueUrl>{URL}</QueueUrl><QueueUrl>{URL}2</QueueUrl></ListQueuesResult>"
        "<ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata></ListQueuesResponse>"
    )


@pytest.mark.conformance(
    operation="DeleteMessage", case="the answer's XML has no result element", source="1.1 protocol", protocol="query"
)
def test_an_operation_without_output_has_no_result():
    body = query_protocol.encode(MODEL["DeleteMessage"], None, "r-1")
    assert body.decode() == (
        '<?xml version="1.0"?><DeleteMessageResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
        "<ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata></DeleteMessageResponse>"
    )


def test_an_empty_result_is_an_empty_element():
    body = query_protocol.encode(MODEL["ReceiveMessage"], {}, "r-1")
    assert b"<ReceiveMessageResult/>" in body
    assert aws_side.query_answer("ReceiveMessage", body) == {}


def test_characters_that_xml_cannot_carry_are_replaced():
    body = query_protocol.encode(MODEL["GetQueueUrl"], {"QueueUrl": "a\x00\x1b\ufffe\ud800b"}, "r-1")
    assert aws_side.query_answer("GetQueueUrl", body) == {"QueueUrl": "a\ufffd\ufffd\ufffd\ufffdb"}


def test_a_client_reads_an_error():
    error = aws_errors.queue_does_not_exist(query=True)
    status, headers, body = query_protocol.encode_error(error, "r-1")
    parsed = aws_side.query_answer("SendMessage", body, status=status, headers=headers)
    assert (status, dict(headers)[b"content-type"]) == (400, b"text/xml")
    assert dict(headers)[b"x-amzn-requestid"] == b"r-1"
    assert parsed["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert parsed["Error"]["Message"] == "The specified queue does not exist for this wsdl version."
    assert parsed["Error"]["Type"] == "Sender"
    assert parsed["ResponseMetadata"]["RequestId"] == "r-1"


@pytest.mark.conformance(operation="Errors", case="the error's XML", source="1.1 protocol", protocol="query")
def test_an_error_in_full():
    _, _, body = query_protocol.encode_error(aws_errors.unknown_operation("<Foo>"), "r-1")
    assert body.decode() == (
        '<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        "<Type>Sender</Type><Code>InvalidAction</Code>"
        "<Message>The action &lt;Foo&gt; is not valid for this endpoint.</Message><Detail/></Error>"
        "<RequestId>r-1</RequestId></ErrorResponse>"
    )


def test_an_error_whose_text_has_anything_in_it():
    nasty = "</Message>\x00\ud800&#0;\r\n"
    _, _, body = query_protocol.encode_error(aws_errors.receipt_handle_is_invalid(nasty), "r-1")
    message = ET.fromstring(body).findtext(".//{*}Message")
    assert message is not None
    assert "</Message>\ufffd\ufffd&#0;\r\n" in message


# ------------------------------------------------------------------------------- requests as they were recorded


def test_a_request_of_boto_2():
    form = urlencode(
        {
            "Action": "SendMessage",
            "MessageBody": "aGVsbG8=",
            "AWSAccessKeyId": "AKID",
            "SignatureMethod": "HmacSHA256",
            "SignatureVersion": "2",
            "Timestamp": "2014-01-01T00:00:00Z",
            "Version": "2012-11-05",
            "MessageAttribute.1.Name": "name1",
            "MessageAttribute.1.Value.DataType": "String",
            "MessageAttribute.1.Value.StringValue": "foo",
        }
    )
    _, ask = read("", path="/000000000000/q", query=form)
    assert (ask.QueueUrl, ask.MessageBody) == ("q", "aGVsbG8=")
    assert ask.MessageAttributes["name1"].StringValue == "foo"


@pytest.mark.conformance(
    operation="ReceiveMessage", case="the request of the API reference", source="1.1 protocol", protocol="query"
)
def test_the_example_of_the_api_reference():
    operation, ask = read(
        "Action=ReceiveMessage&MaxNumberOfMessages=5&VisibilityTimeout=15&AttributeName=All&Version=2012-11-05",
        path="/123456789012/MyQueue/",
    )
    assert operation.name == "ReceiveMessage"
    assert (ask.QueueUrl, ask.MaxNumberOfMessages, ask.VisibilityTimeout) == ("MyQueue", 5, 15)
    assert ask.AttributeNames == ["All"]
