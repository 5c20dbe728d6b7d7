"""Lambda's calls through boto3 on a running server: a mapping is set up as code for AWS does, and refused as there."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import onefold.testing
from onefold.local import lambda_api
from onefold.testing.endpoint import Endpoint

HANDLER = """
def echo(event, context):
    print("seen", len(event.get("Records", [])))
    return event

def count(event, context):
    return len(event)

def keep(event, context):
    import json
    with open("seen", "a") as file:
        for record in event["Records"]:
            print(json.dumps([record["body"], record["attributes"].get("AWSTraceHeader")]), file=file)

def fail(event, context):
    raise ValueError("no")

def hold(event, context):
    open("gate").read()  # until somebody opens it for writing

def poison(event, context):
    return {"batchItemFailures": [{"itemIdentifier": r["messageId"]} for r in event["Records"] if r["body"] == "bad"]}
"""


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    (tmp_path / "shop.py").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    functions = {
        "echo": "shop:echo",
        "count": "shop:count",
        "keep": "shop:keep",
        "fail": "shop.fail",
        "poison": "shop:poison",
        "hold": "shop:hold",
    }
    with onefold.testing.sqs(clock="virtual", functions=functions) as served:
        yield served


@pytest.fixture
def functions(endpoint: Endpoint) -> Any:
    return endpoint.boto3("lambda")


def arn(endpoint: Endpoint, name: str = "orders", **attributes: str) -> str:
    endpoint.boto3("sqs").create_queue(QueueName=name, Attributes=attributes)
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def refused(call: Any, **params: Any) -> tuple[str, int, str]:
    """Code, HTTP status and text of an error."""
    with pytest.raises(ClientError) as caught:
        call(**params)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Message"]


@pytest.mark.conformance(
    operation="CreateEventSourceMapping", case="202 Creating, then Enabled; the settings come back", source="2.1 [O]"
)
def test_create(endpoint: Endpoint, functions: Any) -> None:
    made = functions.create_event_source_mapping(
        EventSourceArn=arn(endpoint), FunctionName="echo", BatchSize=7, FunctionResponseTypes=["ReportBatchItemFailures"],
        ScalingConfig={"MaximumConcurrency": 3}, FilterCriteria={"Filters": [{"Pattern": '{"body": ["x"]}'}]},
    )  # fmt: skip
    assert made["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert made["State"] == "Creating"
    found = functions.get_event_source_mapping(UUID=made["UUID"])
    assert found["State"] == "Enabled"
    assert (found["BatchSize"], found["MaximumBatchingWindowInSeconds"]) == (7, 0)
    assert found["FunctionArn"] == "arn:aws:lambda:us-east-1:000000000000:function:echo"
    assert found["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert found["ScalingConfig"] == {"MaximumConcurrency": 3}
    assert found["FilterCriteria"] == {"Filters": [{"Pattern": '{"body": ["x"]}'}]}


@pytest.mark.conformance(
    operation="CreateEventSourceMapping",
    case="visibility below the function's timeout is refused, equal is not",
    source="2.1 [O]",
)
def test_visibility_and_timeout(endpoint: Endpoint, functions: Any) -> None:
    code, status, text = refused(
        functions.create_event_source_mapping, EventSourceArn=arn(endpoint, VisibilityTimeout="2"), FunctionName="echo"
    )
    assert (code, status) == ("InvalidParameterValueException", 400)
    assert text == "Queue visibility timeout: 2 seconds is less than Function timeout: 3 seconds"
    endpoint.boto3("sqs").set_queue_attributes(QueueUrl="orders", Attributes={"VisibilityTimeout": "3"})
    functions.create_event_source_mapping(
        EventSourceArn="arn:aws:sqs:us-east-1:000000000000:orders", FunctionName="echo"
    )


@pytest.mark.conformance(
    operation="CreateEventSourceMapping",
    case="twice: 409 names the existing UUID; another function may",
    source="2.1 [O]",
)
def test_twice(endpoint: Endpoint, functions: Any) -> None:
    source = arn(endpoint)
    made = functions.create_event_source_mapping(EventSourceArn=source, FunctionName="echo")
    code, status, text = refused(functions.create_event_source_mapping, EventSourceArn=source, FunctionName="echo")
    assert (code, status) == ("ResourceConflictException", 409)
    assert made["UUID"] in text
    functions.create_event_source_mapping(EventSourceArn=source, FunctionName="fail")


@pytest.mark.conformance(operation="CreateEventSourceMapping", case="an unknown queue or function", source="2.1 [O]")
def test_unknown(endpoint: Endpoint, functions: Any) -> None:
    none = "arn:aws:sqs:us-east-1:000000000000:none"
    code, _, text = refused(functions.create_event_source_mapping, EventSourceArn=none, FunctionName="echo")
    assert code == "InvalidParameterValueException"
    assert text.startswith(
        "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue"
    )
    assert refused(functions.create_event_source_mapping, EventSourceArn=arn(endpoint), FunctionName="none") == (
        "InvalidParameterValueException", 400, "Function does not exist",
    )  # fmt: skip


@pytest.mark.conformance(
    operation="CreateEventSourceMapping",
    case="batch size and window: ranges, above 10 needs a window, no window on FIFO",
    source="2.1 [O]",
)
def test_batches(endpoint: Endpoint, functions: Any) -> None:
    standard, fifo = arn(endpoint), arn(endpoint, "steps.fifo", FifoQueue="true")
    create = functions.create_event_source_mapping
    _, _, text = refused(create, EventSourceArn=standard, FunctionName="echo", BatchSize=11)
    assert text == "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10"
    for settings in (
        {"BatchSize": 10_001, "MaximumBatchingWindowInSeconds": 1},
        {"MaximumBatchingWindowInSeconds": 301},
        {"BatchSize": 10**400},
        {"MaximumBatchingWindowInSeconds": 10**400},
        {"FilterCriteria": {"Filters": [{"Pattern": '{"messageId": ["x"]}'}]}},
    ):
        assert refused(create, EventSourceArn=standard, FunctionName="echo", **settings)[1] == 400
    for settings in ({"BatchSize": 11}, {"MaximumBatchingWindowInSeconds": 1}):
        refused(create, EventSourceArn=fifo, FunctionName="echo", **settings)
    assert functions.list_event_source_mappings()["EventSourceMappings"] == []
    create(EventSourceArn=standard, FunctionName="echo", BatchSize=10_000, MaximumBatchingWindowInSeconds=1)
    create(EventSourceArn=fifo, FunctionName="echo", BatchSize=10)


@pytest.mark.conformance(
    operation="UpdateEventSourceMapping", case="disable, enable, change; the function is checked again", source="2.1"
)
def test_update(endpoint: Endpoint, functions: Any) -> None:
    made = functions.create_event_source_mapping(EventSourceArn=arn(endpoint), FunctionName="echo")
    uuid = made["UUID"]
    assert functions.update_event_source_mapping(UUID=uuid, Enabled=False)["State"] == "Disabling"
    endpoint.advance("1s")
    assert functions.get_event_source_mapping(UUID=uuid)["State"] == "Disabled"
    endpoint.boto3("sqs").send_message(QueueUrl="orders", MessageBody="waits")
    endpoint.advance("1m")
    assert [one.state for one in endpoint.peek("orders")] == ["visible"]
    functions.update_event_source_mapping(UUID=uuid, Enabled=True, BatchSize=1)
    endpoint.advance("1m")
    assert endpoint.peek("orders") == []
    assert functions.get_event_source_mapping(UUID=uuid)["BatchSize"] == 1
    code, status, _ = refused(functions.update_event_source_mapping, UUID=uuid, FunctionName="none")
    assert (code, status) == ("InvalidParameterValueException", 400)


@pytest.mark.conformance(
    operation="DeleteEventSourceMapping", case="202 Deleting; then it is gone and polls no more", source="2.1"
)
def test_delete(endpoint: Endpoint, functions: Any) -> None:
    made = functions.create_event_source_mapping(EventSourceArn=arn(endpoint), FunctionName="echo")
    assert functions.delete_event_source_mapping(UUID=made["UUID"])["State"] == "Deleting"
    code, status, _ = refused(functions.get_event_source_mapping, UUID=made["UUID"])
    assert (code, status) == ("ResourceNotFoundException", 404)
    endpoint.boto3("sqs").send_message(QueueUrl="orders", MessageBody="stays")
    endpoint.advance("1m")
    assert len(endpoint.peek("orders")) == 1


@pytest.mark.conformance(operation="ListEventSourceMappings", case="by queue, by function, in pages", source="2.1")
def test_list(endpoint: Endpoint, functions: Any) -> None:
    sources = [arn(endpoint, f"q-{number}") for number in range(3)]
    for source in sources:
        functions.create_event_source_mapping(EventSourceArn=source, FunctionName="echo")
    functions.create_event_source_mapping(EventSourceArn=sources[0], FunctionName="fail")
    listed = functions.list_event_source_mappings
    assert len(listed(EventSourceArn=sources[0])["EventSourceMappings"]) == 2
    assert len(listed(FunctionName="fail")["EventSourceMappings"]) == 1
    pages = functions.get_paginator("list_event_source_mappings").paginate(PaginationConfig={"PageSize": 3})
    assert [len(page["EventSourceMappings"]) for page in pages] == [3, 1]


def test_a_mapping_works_and_a_poison_message_ends_in_the_dead_letter_queue(endpoint: Endpoint, functions: Any) -> None:
    sqs = endpoint.boto3("sqs")
    dead = arn(endpoint, "dead")
    source = arn(endpoint, RedrivePolicy=json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 2}))
    functions.create_event_source_mapping(
        EventSourceArn=source, FunctionName="poison", FunctionResponseTypes=["ReportBatchItemFailures"]
    )
    for body in ("good", "bad"):
        sqs.send_message(QueueUrl="orders", MessageBody=body)
    endpoint.advance("3m")
    assert endpoint.peek("orders") == []
    assert [one.body for one in endpoint.peek("dead")] == ["bad"]


def test_events_that_wait_are_bounded_together(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lambda_api, "WAITING_BYTES_MAX", 1_000)
    os.mkfifo(tmp_path / "gate")
    event, asynchronous = b'"' + b"x" * 498 + b'"', {"X-Amz-Invocation-Type": "Event"}
    answers = [asked(endpoint, "POST", "functions/hold/invocations", event, **asynchronous) for _ in range(3)]
    assert [status for status, _, _ in answers] == [202, 202, 429]
    assert answers[2][2] == "TooManyRequestsException"
    assert "events that wait" in str(answers[2][1])
    with open(tmp_path / "gate", "w"):  # opens when the first one reads
        pass


@pytest.mark.conformance(
    operation="Invoke", case="answer, log tail, function error, dry run, unknown name", source="2.7"
)
def test_invoke(functions: Any) -> None:
    answer = functions.invoke(FunctionName="echo", Payload=b'{"a": 1}', LogType="Tail")
    assert json.loads(answer["Payload"].read()) == {"a": 1}
    assert answer["StatusCode"] == 200
    assert "FunctionError" not in answer
    assert answer["LogResult"]
    failed = functions.invoke(FunctionName="arn:aws:lambda:us-east-1:000000000000:function:fail", Payload=b"{}")
    assert failed["FunctionError"] == "Unhandled"
    assert json.loads(failed["Payload"].read())["errorType"] == "ValueError"
    assert functions.invoke(FunctionName="echo", InvocationType="DryRun")["StatusCode"] == 204
    assert functions.invoke(FunctionName="echo", InvocationType="Event", Payload=b"{}")["StatusCode"] == 202
    assert refused(functions.invoke, FunctionName="none")[:2] == ("ResourceNotFoundException", 404)
    assert refused(functions.invoke, FunctionName="echo", Payload=b"no json")[0] == "InvalidRequestContentException"


@pytest.mark.conformance(
    operation="GetFunction", case="configuration of a registered function, by name, ARN and list", source="2.7"
)
def test_functions(functions: Any) -> None:
    found = [one["FunctionName"] for one in functions.list_functions()["Functions"]]
    assert found == ["count", "echo", "fail", "hold", "keep", "poison"]
    found = functions.get_function(FunctionName="echo:$LATEST")["Configuration"]
    assert (found["Handler"], found["Timeout"], found["MemorySize"]) == ("shop:echo", 3, 128)
    assert functions.get_function_configuration(FunctionName="000000000000:function:echo")["FunctionName"] == "echo"
    assert refused(functions.get_function, FunctionName="none")[:2] == ("ResourceNotFoundException", 404)


def test_mappings_go_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from onefold.clock import SystemClock
    from onefold.entropy import SystemEntropy
    from onefold.local.serving import ServeSettings, Serving

    (tmp_path / "shop.py").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    settings = ServeSettings(port=0, data=str(tmp_path / "sqs.db"), functions=(("echo", "shop:echo"),))

    async def create() -> None:
        serving = Serving(settings, clock=SystemClock(), entropy=SystemEntropy())
        await serving.start()
        from onefold.contracts.settings import QueueSettings

        await serving.queues.call(lambda: serving.queues.engine.queues.create(QueueSettings(name="orders")))
        assert serving._registry is not None
        await serving._registry.create("echo", "orders", batch_size=4)
        await serving.stop()

    async def look() -> list[int]:
        serving = Serving(settings, clock=SystemClock(), entropy=SystemEntropy())
        await serving.start()
        assert serving._registry is not None
        found = [one.settings.batch_size for one in serving._registry.entries() if one.state == "Enabled"]
        await serving.stop()
        return found

    asyncio.run(create())
    assert asyncio.run(look()) == [4]


def asked(endpoint: Endpoint, method: str, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any], str]:
    """Status, body and error type of a request that no SDK would send."""
    host = endpoint.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, f"/2015-03-31/{path}", body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}"), answer.getheader("x-amzn-errortype", "")
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "wanted"),
    [
        ("POST", "event-source-mappings", b"\xff", (400, "InvalidRequestContentException")),
        ("POST", "event-source-mappings", b'{"FunctionName": "\xff"}', (400, "InvalidRequestContentException")),
        ("POST", "event-source-mappings", b"[]", (400, "InvalidRequestContentException")),
        ("POST", "event-source-mappings", b"[" * 100_000, (400, "InvalidRequestContentException")),
        ("POST", "event-source-mappings", b"{}", (400, "ValidationException")),
        ("POST", "event-source-mappings", b'{"FunctionName": "echo"}', (400, "InvalidParameterValueException")),
        ("POST", "event-source-mappings", b'{"FunctionName": 7}', (400, "ValidationException")),
        ("POST", "functions/echo/invocations", b'"\xff"', (400, "InvalidRequestContentException")),
        ("POST", "functions/echo/invocations", b"{", (400, "InvalidRequestContentException")),
        ("POST", "functions/none/invocations", b"{}", (404, "ResourceNotFoundException")),
        ("GET", "functions/%ff%fe", b"", (404, "ResourceNotFoundException")),
        ("GET", "event-source-mappings/none", b"", (404, "ResourceNotFoundException")),
        ("PUT", "event-source-mappings/none", b"{}", (404, "ResourceNotFoundException")),
        ("DELETE", "event-source-mappings/none", b"", (404, "ResourceNotFoundException")),
        ("POST", "layers", b"", (404, "UnknownOperationException")),
        ("PATCH", "functions", b"", (404, "UnknownOperationException")),
        ("GET", "", b"", (404, "UnknownOperationException")),
    ],
)
def test_what_no_sdk_sends_is_refused_in_lambdas_form(
    endpoint: Endpoint, method: str, path: str, body: bytes, wanted: tuple[int, str]
) -> None:
    status, answer, kind = asked(endpoint, method, path, body)
    assert (status, kind) == wanted
    assert answer["Type"] == "User"
    assert answer["Message"]


@pytest.mark.parametrize(
    "settings",
    [
        {"Enabled": "false"},
        {"BatchSize": "7"},
        {"BatchSize": True},
        {"FilterCriteria": {"Filters": [{}]}},
        {"FilterCriteria": {"Filters": ["x"]}},
        {"FilterCriteria": []},
        {"ScalingConfig": {"MaximumConcurrency": 1}},
        {"ScalingConfig": {"MaximumConcurrency": 1_001}},
        {"FunctionResponseTypes": ["Other"]},
    ],
)
def test_settings_of_another_form_make_no_mapping(endpoint: Endpoint, functions: Any, settings: dict[str, Any]) -> None:
    given = {"FunctionName": "echo", "EventSourceArn": arn(endpoint), **settings}
    status, _, _ = asked(endpoint, "POST", "event-source-mappings", json.dumps(given).encode())
    assert status == 400
    assert functions.list_event_source_mappings()["EventSourceMappings"] == []


@pytest.mark.conformance(
    operation="Invoke", case="a name, a partial ARN or an ARN, with or without $LATEST", source="API"
)
@pytest.mark.parametrize(
    "name",
    [
        "echo",
        "echo:$LATEST",
        "000000000000:function:echo",
        "arn:aws:lambda:us-east-1:000000000000:function:echo",
        "arn:aws:lambda:us-east-1:000000000000:function:echo:$LATEST",
    ],
)
def test_forms_of_a_functions_name(functions: Any, name: str) -> None:
    assert functions.get_function(FunctionName=name)["Configuration"]["FunctionName"] == "echo"
    assert functions.invoke(FunctionName=name, InvocationType="DryRun")["StatusCode"] == 204


@pytest.mark.conformance(operation="Invoke", case="6 MiB pass, one byte more does not", source="2.7")
def test_the_limit_of_an_event(endpoint: Endpoint) -> None:
    event = b'"' + b"x" * (6 * 1_048_576 - 2) + b'"'
    status, _, kind = asked(endpoint, "POST", "functions/count/invocations", event + b" ")
    assert (status, kind) == (413, "RequestTooLargeException")
    assert asked(endpoint, "POST", "functions/count/invocations", event)[:2] == (200, 6 * 1_048_576 - 2)


@pytest.mark.conformance(operation="Invoke", case="an event above 1 MB is refused asynchronously only", source="2.7")
def test_the_limit_of_an_asynchronous_event(endpoint: Endpoint) -> None:
    event = b'"' + b"x" * 1_048_576 + b'"'
    asynchronous = {"X-Amz-Invocation-Type": "Event"}
    status, _, kind = asked(endpoint, "POST", "functions/echo/invocations", event, **asynchronous)
    assert (status, kind) == (413, "RequestTooLargeException")
    assert asked(endpoint, "POST", "functions/echo/invocations", b'"x"', **asynchronous)[0] == 202


@pytest.mark.conformance(
    operation="UpdateEventSourceMapping",
    case="to a function that has the queue: 409, nothing changed",
    source="2.1 [D]",
)
def test_an_update_that_would_make_two_alike(endpoint: Endpoint, functions: Any) -> None:
    source = arn(endpoint)
    first, second = (
        functions.create_event_source_mapping(EventSourceArn=source, FunctionName=name)["UUID"]
        for name in ("echo", "fail")
    )
    code, status, text = refused(functions.update_event_source_mapping, UUID=second, FunctionName="echo")
    assert (code, status) == ("ResourceConflictException", 409)
    assert first in text
    assert functions.get_event_source_mapping(UUID=second)["FunctionArn"].endswith(":fail")


def esm(case: str, source: str, operation: str = "CreateEventSourceMapping") -> pytest.MarkDecorator:
    return pytest.mark.conformance(operation=operation, case=case, source=source)


@esm("made with Enabled=False it answers Disabled", "2.1")
def test_made_disabled(endpoint: Endpoint, functions: Any) -> None:
    made = functions.create_event_source_mapping(EventSourceArn=arn(endpoint), FunctionName="echo", Enabled=False)
    assert made["State"] == "Disabled"
    assert functions.get_event_source_mapping(UUID=made["UUID"])["State"] == "Disabled"


@esm("ProvisionedPollerConfig: ranges; MaximumConcurrency beside it is refused, now and in an update", "2.2")
def test_provisioned_pollers(endpoint: Endpoint, functions: Any) -> None:
    source = arn(endpoint)
    wanted: dict[str, Any] = {"EventSourceArn": source, "FunctionName": "echo"}
    for settings in (
        {"ProvisionedPollerConfig": {"MinimumPollers": 2}, "ScalingConfig": {"MaximumConcurrency": 2}},
        {"ProvisionedPollerConfig": {"MinimumPollers": 1}},
        {"ProvisionedPollerConfig": {"MinimumPollers": 201}},
        {"ProvisionedPollerConfig": {"MaximumPollers": 10_001}},
        {"ProvisionedPollerConfig": {"MinimumPollers": 9, "MaximumPollers": 8}},
    ):
        status, _, kind = asked(endpoint, "POST", "event-source-mappings", json.dumps({**wanted, **settings}).encode())
        assert (status, kind) in {(400, "InvalidParameterValueException"), (400, "ValidationException")}, settings
    assert functions.list_event_source_mappings()["EventSourceMappings"] == []
    pollers = {"MinimumPollers": 2, "MaximumPollers": 10}
    made = functions.create_event_source_mapping(**wanted, ProvisionedPollerConfig=pollers)
    assert made["ProvisionedPollerConfig"] == pollers
    code, status, _ = refused(
        functions.update_event_source_mapping, UUID=made["UUID"], ScalingConfig={"MaximumConcurrency": 2}
    )
    assert (code, status) == ("InvalidParameterValueException", 400)
    changed = functions.update_event_source_mapping(
        UUID=made["UUID"], ProvisionedPollerConfig={}, ScalingConfig={"MaximumConcurrency": 2}
    )
    assert "ProvisionedPollerConfig" not in changed
    assert changed["ScalingConfig"] == {"MaximumConcurrency": 2}


@esm("without an event source: Unrecognized event source.", "2.1 [O]")
def test_no_event_source(functions: Any) -> None:
    code, status, text = refused(functions.create_event_source_mapping, FunctionName="echo")
    assert (code, status, text) == ("InvalidParameterValueException", 400, "Unrecognized event source.")


@esm("what other sources have, and unknown parameters, are refused", "2.1 [O]")
def test_unknown_parameters(endpoint: Endpoint, functions: Any) -> None:
    given = {"FunctionName": "echo", "EventSourceArn": arn(endpoint)}
    for settings, named in (
        ({"DestinationConfig": {"OnFailure": {"Destination": "x"}}}, "Unsupported DestinationConfig parameter"),
        ({"StartingPosition": "LATEST"}, "Unsupported StartingPosition parameter"),
        ({"BatchSIze": 3}, "'BatchSIze' is not a parameter"),
        ({"ScalingConfig": {"MaximumConcurency": 3}}, "scalingConfig"),
        ({"FilterCriteria": {"Filter": []}}, "filterCriteria"),
    ):
        status, answer, kind = asked(
            endpoint, "POST", "event-source-mappings", json.dumps({**given, **settings}).encode()
        )
        assert status == 400
        assert kind in {"InvalidParameterValueException", "ValidationException"}
        assert named in answer["Message"]
    assert functions.list_event_source_mappings()["EventSourceMappings"] == []
    functions.create_event_source_mapping(
        **given, Tags={"a": "b"}, MetricsConfig={"Metrics": ["EventCount"]}, KMSKeyArn="arn:aws:kms:us-east-1:1:key/a"
    )


@pytest.mark.parametrize("text", ["%C2%B2", "0", "-1", "1_0", "x", "%D9%A1", "1" * 5_000])
def test_a_page_size_that_is_no_number_is_refused(endpoint: Endpoint, text: str) -> None:
    assert asked(endpoint, "GET", f"event-source-mappings?MaxItems={text}", b"")[::2] == (400, "ValidationException")
    assert asked(endpoint, "GET", "event-source-mappings?MaxItems=10000", b"")[0] == 200


@pytest.mark.conformance(
    operation="SendMessage",
    case="the header X-Amzn-Trace-Id becomes AWSTraceHeader, and reaches a mapping's record",
    source="1.6 [O]",
)
def test_the_trace_of_a_request(endpoint: Endpoint, functions: Any, tmp_path: Path) -> None:
    root = "Root=1-3152b799-8954dae64eda91bc9a23a7e8;Parent=7fa8c0f79203be72;Sampled=1"
    own = "Root=1-00000000-000000000000000000000001"
    sqs = endpoint.boto3("sqs")

    def traced(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = root

    source = arn(endpoint)
    sqs.meta.events.register("before-send.sqs", traced)
    sent = sqs.send_message(
        QueueUrl="orders", MessageBody="a", MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}}
    )
    assert "MD5OfMessageSystemAttributes" not in sent
    named = {"AWSTraceHeader": {"DataType": "String", "StringValue": own}}
    entries = [{"Id": "b", "MessageBody": "b"}, {"Id": "c", "MessageBody": "c", "MessageSystemAttributes": named}]
    answers = sqs.send_message_batch(QueueUrl="orders", Entries=entries)["Successful"]
    assert [one["Id"] for one in answers if "MD5OfMessageSystemAttributes" in one] == ["c"]
    found = sqs.receive_message(
        QueueUrl="orders", MaxNumberOfMessages=10, MessageSystemAttributeNames=["AWSTraceHeader"], VisibilityTimeout=0
    )["Messages"]
    wanted = {"a": root, "b": root, "c": own}
    assert {one["Body"]: one["Attributes"]["AWSTraceHeader"] for one in found} == wanted
    functions.create_event_source_mapping(EventSourceArn=source, FunctionName="keep")
    endpoint.advance("2s")
    assert dict(json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()) == wanted


def test_a_trace_that_cannot_be_an_attribute_is_left_out(endpoint: Endpoint) -> None:
    sqs = endpoint.boto3("sqs")
    sqs.create_queue(QueueName="orders")
    for number, value in enumerate((b"", b"Root=" + b"a" * 2_000, "Root=é".encode("latin-1"))):
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=30)
        body = json.dumps({"QueueUrl": "orders", "MessageBody": str(number)})
        headers = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
        connection.request("POST", "/", body, {**headers, "X-Amzn-Trace-Id": value})
        assert connection.getresponse().status == 200
        connection.close()
    found = sqs.receive_message(QueueUrl="orders", MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"])[
        "Messages"
    ]
    assert [one["Body"] for one in found if "AWSTraceHeader" not in one["Attributes"]] == ["0", "1", "2"]
