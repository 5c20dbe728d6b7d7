"""Routes, wrong requests, faults and who may ask, on a whole server in memory. Operations are tested elsewhere."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

import onefold.testing
from onefold.local import request_handler
from onefold.testing import Endpoint

PATIENCE_S = 60
JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with onefold.testing.sqs(clock="virtual") as endpoint:
        yield endpoint


class Answer:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        self.body = answer.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(endpoint: Endpoint, method: str = "POST", path: str = "/", body: str | bytes = b"", **headers: str) -> Answer:
    """One request; header names have `_` for `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def call(endpoint: Endpoint, operation: str, **members: object) -> Answer:
    target = f"AmazonSQS.{operation}"
    return ask(endpoint, body=json.dumps(members), X_Amz_Target=target, Content_Type=JSON)


# ------------------------------------------------------------------------------------------------------------- routes


def test_json_and_query_reach_the_same_queue(endpoint: Endpoint) -> None:
    made = call(endpoint, "CreateQueue", QueueName="orders")
    assert made.json == {"QueueUrl": f"{endpoint.url}/000000000000/orders"}
    assert made.headers["content-type"] == JSON
    assert len(made.headers["x-amzn-requestid"]) == 36
    form = "Action=SendMessage&MessageBody=o-1"
    sent = ask(endpoint, path="/000000000000/orders", body=form, Content_Type=FORM)
    assert (sent.status, sent.headers["content-type"]) == (200, "text/xml")
    assert sent.headers["x-amzn-requestid"].encode() in sent.body
    found = ask(endpoint, "GET", "/000000000000/orders?Action=ReceiveMessage")
    assert b"<Body>o-1</Body>" in found.body


def test_queue_urls_name_the_host_that_was_called(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    target = "AmazonSQS.GetQueueUrl"
    body = json.dumps({"QueueName": "orders"})
    answer = ask(endpoint, body=body, X_Amz_Target=target, Content_Type=JSON, Host="sqs.docker.internal:9324")
    assert answer.json["QueueUrl"] == "http://sqs.docker.internal:9324/000000000000/orders"


def test_request_ids_differ(endpoint: Endpoint) -> None:
    assert len({call(endpoint, "ListQueues").headers["x-amzn-requestid"] for _ in range(5)}) == 5


# ------------------------------------------------------------------------------------------------------ wrong requests


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "shape"),
    [
        ("POST", "/", {"X_Amz_Target": "AmazonSQS.Explode", "Content_Type": JSON}, 400, "UnknownOperationException"),
        ("POST", "/", {"X_Amz_Target": "Elsewhere.Send", "Content_Type": JSON}, 400, "UnknownOperationException"),
        ("POST", "/", {"X_Amz_Target": "", "Content_Type": JSON}, 400, "UnknownOperationException"),
        (
            "POST",
            "/",
            {"X_Amz_Target": "AmazonSQS.ListQueues", "Content_Type": "text/plain"},
            400,
            "SerializationException",
        ),
        ("POST", "/", {"X_Amz_Target": "AmazonSQS.ListQueues", "Content_Type": JSON}, 400, "SerializationException"),
        ("GET", "/", {"X_Amz_Target": "AmazonSQS.ListQueues", "Content_Type": JSON}, 405, "MethodNotAllowed"),
    ],
)
def test_a_wrong_json_request_is_answered_in_json(
    endpoint: Endpoint, method: str, path: str, headers: dict[str, str], status: int, shape: str
) -> None:
    answer = ask(endpoint, method, path, b"", **headers)
    assert (answer.status, answer.json["__type"].rpartition("#")[2]) == (status, shape)
    assert answer.headers["x-amzn-query-error"].endswith(";Sender")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/?Action=Explode", "", 400, "InvalidAction"),
        ("POST", "/", "Action=Explode", 400, "InvalidAction"),
        ("POST", "/some/where/else", "\xff\xfe", 400, "MalformedQueryString"),
        ("PUT", "/", "", 405, "MethodNotAllowed"),
        ("DELETE", "/000000000000/orders", "", 405, "MethodNotAllowed"),
        ("OPTIONS", "/", "", 405, "MethodNotAllowed"),
    ],
)
def test_a_wrong_query_request_is_answered_in_xml(
    endpoint: Endpoint, method: str, path: str, body: str, status: int, code: str
) -> None:
    answer = ask(endpoint, method, path, body.encode("latin-1"), Content_Type=FORM)
    assert answer.status == status
    assert f"<Code>{code}</Code>".encode() in answer.body


def test_a_body_too_long_is_refused_as_aws_names_it(endpoint: Endpoint) -> None:
    answer = ask(endpoint, body=b"x" * (10 * 1024 * 1024 + 1), X_Amz_Target="AmazonSQS.SendMessage", Content_Type=JSON)
    assert (answer.status, answer.json["__type"].rpartition("#")[2]) == (413, "RequestEntityTooLarge")


def test_a_defect_is_an_internal_failure_with_its_traceback_in_the_log(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    async def broken(*_: object) -> None:
        raise KeyError("secret body")

    monkeypatch.setattr(request_handler, "OPERATIONS", {**request_handler.OPERATIONS, "ListQueues": broken})
    answer = call(endpoint, "ListQueues")
    assert (answer.status, answer.json["__type"].rpartition("#")[2]) == (500, "InternalFailure")
    assert answer.headers["x-amzn-query-error"] == "InternalFailure;Receiver"
    said = capsys.readouterr().err
    assert answer.headers["x-amzn-requestid"] in said
    assert "Traceback" in said
    assert call(endpoint, "CreateQueue", QueueName="after").status == 200


# -------------------------------------------------------------------------------------------------------- who may ask


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}]
)
def test_pages_of_other_sites_may_ask_for_nothing(endpoint: Endpoint, headers: dict[str, str]) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    answer = ask(endpoint, path="/000000000000/orders", body="Action=DeleteQueue", Content_Type=FORM, **headers)
    assert (answer.status, b"AccessDenied" in answer.body) == (403, True)
    assert call(endpoint, "GetQueueUrl", QueueName="orders").status == 200


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:1", "http://a.localhost"]
)
def test_pages_of_this_machine_may(endpoint: Endpoint, origin: str) -> None:
    answer = ask(endpoint, "GET", "/?Action=ListQueues", Origin=origin)
    assert answer.status == 200


# ------------------------------------------------------------------------------------------------------------- faults


def test_errors_and_throttling_before_anything_is_done(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    endpoint.faults("error=1,operation=SendMessage,times=1", "throttle=1,operation=ReceiveMessage,times=1")
    answer = call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="o-1")
    assert (answer.status, answer.json["__type"].rpartition("#")[2]) == (500, "InternalFailure")
    answer = call(endpoint, "ReceiveMessage", QueueUrl="orders")
    assert (answer.status, answer.json["__type"].rpartition("#")[2]) == (403, "RequestThrottled")
    assert endpoint.peek("orders") == []
    assert [event.what for event in endpoint.history("orders")] == ["fault", "fault"]
    assert call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="o-1").status == 200


@pytest.mark.parametrize("name", ["\u202eevil\x9b31m", "q" * 100_000, "orders.fifo/x"])
def test_a_fault_notes_no_name_that_no_queue_can_have(endpoint: Endpoint, name: str) -> None:
    endpoint.faults("error=1,operation=ReceiveMessage")
    assert call(endpoint, "ReceiveMessage", QueueUrl=f"http://x/000000000000/{name}").status == 500
    (event,) = [one for one in endpoint.history() if one.what == "fault"]
    assert len(event.queue) <= 80
    assert event.queue.isascii()


def test_an_error_after_it_was_done(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    endpoint.faults("error-after=1,times=1,queue=orders")
    assert call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="o-1").status == 500
    assert [one.body for one in endpoint.peek("orders")] == ["o-1"]


def test_a_lost_answer(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    endpoint.faults("lose-answer=1,times=1")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="o-1")
    assert [one.body for one in endpoint.peek("orders")] == ["o-1"]


def test_a_held_answer_leaves_when_its_time_has_come(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    endpoint.faults("hold=1:70s,operation=SendMessage")
    answers: list[Answer] = []
    thread = threading.Thread(
        target=lambda: answers.append(call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="o-1"))
    )
    thread.start()
    while not endpoint.peek("orders"):
        assert thread.is_alive()
    assert answers == []
    endpoint.advance("71s")
    thread.join(PATIENCE_S)
    assert [answer.status for answer in answers] == [200]


def test_a_held_answer_does_not_hold_the_end(endpoint: Endpoint) -> None:
    with onefold.testing.sqs(faults=["hold=1,operation=SendMessage"]) as other:
        call(other, "CreateQueue", QueueName="orders")
        answers: list[Answer] = []
        thread = threading.Thread(
            target=lambda: answers.append(call(other, "SendMessage", QueueUrl="orders", MessageBody="o-1"))
        )
        thread.start()
        while not other.peek("orders"):
            assert thread.is_alive()
    thread.join(PATIENCE_S)
    assert [answer.status for answer in answers] == [200]


# ------------------------------------------------------------------------------- the query protocol, as recorded from AWS


def conformance(operation: str, case: str, source: str = "1.1 protocol [O]") -> pytest.MarkDecorator:
    return pytest.mark.conformance(operation=operation, case=case, source=source, protocol="query")


@conformance("Errors", "no Action: 404 and one empty element, whatever is accepted")
def test_no_action(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    for method, path in (("GET", "/000000000000/orders"), ("GET", "/"), ("POST", "/000000000000/orders")):
        for accept in ("*/*", "application/json"):
            answer = ask(endpoint, method, path, Accept=accept)
            assert (answer.status, answer.body.strip()) == (404, b"<UnknownOperationException/>")


@conformance("Errors", "an account's action on a queue's URL: InvalidAction")
def test_actions_of_the_account(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    for action in ("ListQueues", "CreateQueue&QueueName=b"):
        answer = ask(endpoint, "GET", f"/000000000000/orders?Action={action}")
        assert answer.status == 400
        name = action.partition("&")[0].encode()
        assert b"<Code>InvalidAction</Code>" in answer.body
        assert b"<Message>The action " + name + b" is not valid for this endpoint.</Message>" in answer.body
        assert ask(endpoint, "GET", f"/?Action={action}").status == 200
    found = ask(endpoint, "GET", "/000000000000/orders?Action=GetQueueUrl&QueueName=b")
    assert f"<QueueUrl>{endpoint.url}/000000000000/b</QueueUrl>".encode() in found.body


@conformance("Errors", "Accept: application/json is answered in JSON, an error too")
def test_json_is_accepted(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    path = "/000000000000/orders?Action="
    sent = ask(endpoint, "GET", path + "SendMessage&MessageBody=o-1", Accept="application/json")
    assert (sent.status, sent.headers["content-type"]) == (200, "application/json")
    result = sent.json["SendMessageResponse"]["SendMessageResult"]
    assert (result["MD5OfMessageBody"], result["SequenceNumber"]) == ("ab8e7263ab3ab8220b9ada31fa9c435c", None)
    request_id = sent.json["SendMessageResponse"]["ResponseMetadata"]["RequestId"]
    assert request_id == sent.headers["x-amzn-requestid"]
    got = ask(endpoint, "GET", path + "ReceiveMessage&AttributeName=All", Accept="application/json; q=1, text/xml")
    (message,) = got.json["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert (message["Body"], message["MessageAttributes"]) == ("o-1", None)
    assert {"Name": "ApproximateReceiveCount", "Value": "1"} in message["Attributes"]
    listed = ask(endpoint, "GET", "/?Action=ListQueues", Accept="application/json").json["ListQueuesResponse"]
    assert listed["ListQueuesResult"] == {"queueUrls": [f"{endpoint.url}/000000000000/orders"], "NextToken": None}
    failed = ask(endpoint, "GET", path + "ListQueues", Accept="application/json")
    assert failed.status == 400
    assert failed.json["Error"] == {
        "Code": "InvalidAction", "Message": "The action ListQueues is not valid for this endpoint.", "Type": "Sender",
    }  # fmt: skip
    assert (
        b"<ListQueuesResponse" in ask(endpoint, "GET", "/?Action=ListQueues", Accept="text/xml, application/json").body
    )


@conformance("ReceiveMessage", "nothing there: a short, empty result element")
def test_an_empty_result_is_short(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    answer = ask(endpoint, "GET", "/000000000000/orders?Action=ReceiveMessage")
    assert b"<ReceiveMessageResult/><ResponseMetadata>" in answer.body


# ------------------------------------------------------------------------------------------------ how long a request may be

MIB = 1_048_576


@pytest.mark.conformance(
    operation="SendMessage", case="1 MiB in whatever way a client writes it", source="1.6", protocol="json, query"
)
@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("é" * (MIB // 2), "escaped"),  # 3 MiB
        ("\U0001f4b6" * (MIB // 4), "escaped"),  # 3 MiB
        ("a" * MIB, "each character escaped"),  # 6 MiB
        ("é" * (MIB // 2), "percent signs"),  # 3 MiB
        ('"' * MIB, "escaped"),
    ],
)
def test_any_message_of_a_mebibyte_passes(endpoint: Endpoint, body: str, written: str) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    if written == "percent signs":
        form = "Action=SendMessage&MessageBody=" + quote(body)
        sent = ask(endpoint, path="/000000000000/orders", body=form, Content_Type=FORM)
    else:
        text = json.dumps(body) if written == "escaped" else '"' + "".join(f"\\u{ord(one):04x}" for one in body) + '"'
        request = '{"QueueUrl": "orders", "MessageBody": ' + text + "}"
        sent = ask(endpoint, body=request, X_Amz_Target="AmazonSQS.SendMessage", Content_Type=JSON)
    assert sent.status == 200
    assert call(endpoint, "ReceiveMessage", QueueUrl="orders").json["Messages"][0]["Body"] == body
    one_more = json.dumps({"QueueUrl": "orders", "MessageBody": body + "b"})
    refused = ask(endpoint, body=one_more, X_Amz_Target="AmazonSQS.SendMessage", Content_Type=JSON)
    assert refused.status == 400
    assert refused.json["message"].endswith("Message must be shorter than 1048576 bytes.")


@pytest.mark.conformance(
    operation="SendMessageBatch",
    case="1 MiB together, not ASCII, or in binary attributes",
    source="1.9",
    protocol="json",
)
def test_any_batch_of_a_mebibyte_passes(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    entries: list[dict[str, Any]] = [{"Id": str(one), "MessageBody": "é" * 52_428} for one in range(10)]
    sent = call(endpoint, "SendMessageBatch", QueueUrl="orders", Entries=entries)
    assert (sent.status, len(sent.json["Successful"])) == (200, 10)
    value = base64.b64encode(b"x" * 1_048_000).decode()
    escaped = "".join(f"\\u{ord(one):04x}" for one in value)  # 8 MiB
    attribute = '{"DataType": "Binary", "BinaryValue": "' + escaped + '"}'
    entry = '{"Id": "a", "MessageBody": "x", "MessageAttributes": {"a": ' + attribute + "}}"
    request = '{"QueueUrl": "orders", "Entries": [' + entry + "]}"
    sent = ask(endpoint, body=request, X_Amz_Target="AmazonSQS.SendMessageBatch", Content_Type=JSON)
    assert (sent.status, len(sent.json.get("Successful", ()))) == (200, 1)
