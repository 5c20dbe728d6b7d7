"""Messages of other senders: each envelope opened, each mistake named. Bodies are shaped as AWS documents them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.celery import TaskCall
from onefold.codec import PayloadCodec, payload_type
from onefold.contracts.queue import Attribute
from onefold.errors import PayloadError, UsageError
from onefold.runner.sources import (
    SOURCES,
    EnvelopeMeta,
    NotAJob,
    Unwrapped,
    check_source,
    recognise,
    unwrap,
)


def s3_record(key: str = "in/a+b%281%29.csv") -> dict[str, Any]:
    return {
        "eventVersion": "2.5",
        "eventSource": "aws:s3",
        "awsRegion": "eu-west-1",
        "eventTime": "2026-03-01T03:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "AWS:X"},
        "requestParameters": {"sourceIPAddress": "10.0.0.1"},
        "responseElements": {"x-amz-request-id": "R", "x-amz-id-2": "H"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "c",
            "bucket": {
                "name": "invoices",
                "ownerIdentity": {"principalId": "P"},
                "arn": "arn:aws:s3:::invoices",
            },
            "object": {"key": key, "size": 3, "eTag": "e", "sequencer": "0055AED6DCD90281E5"},
        },
    }


def s3(*records: dict[str, Any]) -> str:
    return json.dumps({"Records": list(records) or [s3_record()]})


S3_TEST = json.dumps(
    {
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": "t",
        "Bucket": "b",
        "RequestId": "r",
        "HostId": "h",
    }
)


def sns(message: str, **more: Any) -> str:
    return json.dumps(
        {
            "Type": "Notification",
            "MessageId": "m-1",
            "TopicArn": "arn:aws:sns:eu-west-1:1:orders",
            "Subject": "an order",
            "Message": message,
            "Timestamp": "2026-03-01T03:00:00.000Z",
            "SignatureVersion": "1",
            "Signature": "s",
            "SigningCertURL": "https://x",
            "UnsubscribeURL": "https://y",
            "MessageAttributes": {"tenant": {"Type": "String", "Value": "acme"}},
            **more,
        }
    )


def event(detail: Any = None, **more: Any) -> str:
    return json.dumps(
        {
            "version": "0",
            "id": "e-1",
            "detail-type": "OrderPlaced",
            "source": "shop",
            "account": "1",
            "time": "2026-03-01T03:00:00Z",
            "region": "eu-west-1",
            "resources": [],
            "detail": {"order_id": "A-1"} if detail is None else detail,
            **more,
        }
    )


RULE_TICK = event({}, **{"detail-type": "Scheduled Event", "source": "aws.events", "resources": ["arn:aws:events:r"]})
# EventBridge Scheduler without an input: the detail is a text.
SCHEDULE_TICK = event(
    "{}", **{"detail-type": "Scheduled Event", "source": "aws.scheduler", "resources": ["arn:schedule"]}
)
ORDER = '{"order_id":"A-1"}'


@pytest.mark.parametrize(
    ("source", "body", "payload"),
    [
        ("json", ORDER, {"order_id": "A-1"}),
        ("text", "any \"text\"\n", 'any "text"\n'),
        ("text", "", ""),
        ("s3", s3(), [s3_record()]),
        ("s3", s3(s3_record("1"), s3_record("2")), [s3_record("1"), s3_record("2")]),
        ("s3-record", s3(), s3_record()),
        ("sns", sns(ORDER), {"order_id": "A-1"}),
        ("sns>json", sns(ORDER), {"order_id": "A-1"}),
        ("sns>text", sns("hello"), "hello"),
        ("sns>s3", sns(s3()), [s3_record()]),
        ("sns>s3-record", sns(s3()), s3_record()),
        ("sns>eventbridge", sns(event()), {"order_id": "A-1"}),
        ("eventbridge", event(), {"order_id": "A-1"}),
        ("eventbridge", RULE_TICK, {"resources": ["arn:aws:events:r"], "time": "2026-03-01T03:00:00Z"}),
        ("scheduler", '{"month":"2026-03"}', {"month": "2026-03"}),
        ("scheduler", "3", 3),
        ("scheduler", SCHEDULE_TICK, {"resources": ["arn:schedule"], "time": "2026-03-01T03:00:00Z"}),
        ("auto", ORDER, {"order_id": "A-1"}),
        ("auto", "[1]", [1]),
        ("auto", "no json", "no json"),
        ("auto", s3(), [s3_record()]),
        ("auto", sns(ORDER), {"order_id": "A-1"}),
        ("auto", sns("hello"), "hello"),
        ("auto", sns(sns(ORDER)), {"order_id": "A-1"}),
        ("sns>auto", sns(s3()), [s3_record()]),
        ("auto", sns(s3()), [s3_record()]),
        ("auto", event(), {"order_id": "A-1"}),
        ("auto", SCHEDULE_TICK, {"resources": ["arn:schedule"], "time": "2026-03-01T03:00:00Z"}),
    ],
)  # fmt: skip
def test_each_source_gives_the_payload(source: str, body: str, payload: Any) -> None:
    assert payload_type(Any).decode(payload_text(source, body, {})) == payload


def payload_text(source: str, body: str, attributes: dict[str, Attribute]) -> str:
    found = unwrap(source, body, attributes)
    assert isinstance(found, Unwrapped)
    return found.payload


def test_json_is_handed_on_untouched() -> None:
    assert unwrap("json", " not looked at ", {}) == Unwrapped(" not looked at ")


@pytest.mark.parametrize(
    ("source", "body", "attributes", "meta"),
    [
        (
            "sns",
            sns(ORDER),
            {"beside": Attribute("b"), "blob": Attribute(b"x", "Binary")},
            [
                EnvelopeMeta(
                    source="sns",
                    id="m-1",
                    kind="an order",
                    origin="arn:aws:sns:eu-west-1:1:orders",
                    at="2026-03-01T03:00:00.000Z",
                    attributes={"tenant": "acme", "beside": "b"},
                )
            ],
        ),
        (
            "s3",
            s3(),
            {},
            [EnvelopeMeta(source="s3", kind="ObjectCreated:Put", origin="invoices", at="2026-03-01T03:00:00.000Z")],
        ),
        (
            "eventbridge",
            event(),
            {},
            [
                EnvelopeMeta(
                    source="eventbridge",
                    id="e-1",
                    kind="OrderPlaced",
                    origin="shop",
                    at="2026-03-01T03:00:00Z",
                )
            ],
        ),
        (
            "scheduler",
            "{}",
            {
                "SCHEDULE_ARN": Attribute("arn:s"),
                "EXECUTION_ID": Attribute("x"),
                "SCHEDULED_TIME": Attribute("t"),
            },
            [
                EnvelopeMeta(
                    source="scheduler",
                    id="x",
                    origin="arn:s",
                    at="t",
                    attributes={"SCHEDULE_ARN": "arn:s", "EXECUTION_ID": "x", "SCHEDULED_TIME": "t"},
                )
            ],
        ),
    ],
    ids=["sns", "s3", "eventbridge", "scheduler"],
)
def test_the_envelope_is_kept_for_people(
    source: str, body: str, attributes: dict[str, Attribute], meta: list[EnvelopeMeta]
) -> None:
    found = unwrap(source, body, attributes)
    assert isinstance(found, Unwrapped)
    assert list(found.meta) == meta


def test_nested_envelopes_are_kept_outermost_first() -> None:
    found = unwrap("sns>s3", sns(s3()), {"beside": Attribute("b")})
    assert isinstance(found, Unwrapped)
    assert [(one.source, one.attributes.get("beside")) for one in found.meta] == [("sns", "b"), ("s3", None)]


def test_what_differs_between_two_deliveries_stays_out_of_the_fingerprint() -> None:
    for source, one, other in (
        ("sns", sns(ORDER), sns(ORDER, MessageId="m-2", Timestamp="later", Signature="z")),
        ("eventbridge", event(), event(id="e-2", time="2026-03-01T03:00:09Z")),
        ("scheduler", SCHEDULE_TICK, SCHEDULE_TICK.replace("e-1", "e-2")),
    ):
        prints = {PayloadCodec.fingerprint(payload_text(source, body, {})) for body in (one, other)}
        assert len(prints) == 1
    assert PayloadCodec.fingerprint(payload_text("eventbridge", event(), {})) == PayloadCodec.fingerprint(ORDER)


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("s3", S3_TEST),
        ("s3-record", S3_TEST),
        ("auto", S3_TEST),
        ("sns>s3", sns(S3_TEST)),
        ("auto", sns(S3_TEST)),
    ],
)
def test_s3s_test_event_is_no_job(source: str, body: str) -> None:
    found = unwrap(source, body, {})
    assert isinstance(found, NotAJob)
    assert "test event" in found.why


@pytest.mark.parametrize(
    ("source", "body", "said"),
    [
        (
            "s3",
            event(),
            'is not an S3 event notification: it is an EventBridge event. Declare source="eventbridge"',
        ),
        ("s3", sns(s3()), 'it is an SNS envelope. Declare source="sns"'),
        ("s3", ORDER, "it is a JSON object with the fields order_id."),
        ("s3", "{}", "it is an empty object"),
        ("s3", "[1]", "it is a JSON list"),
        ("s3", ' "x"', "it is a JSON text"),
        ("s3", "5", "it is a number"),
        ("s3", "null", "it is null"),
        ("s3", '{"Records":[]}', "with the fields Records"),
        ("s3", '{"Records":5}', "with the fields Records"),
        ("s3", '{"Records":[{"eventSource":"aws:ses"}]}', "with the fields Records"),
        (
            "s3",
            json.dumps(dict.fromkeys("abcdefghij", 1)),
            "with the fields a, b, c, d, e, f, g, h and 2 more.",
        ),
        ("s3", "", "not JSON"),
        ("s3", '{"Records":', "not JSON"),
        ("s3", '{"Records": [}', "not JSON"),
        ("s3", '{"a":' * 3000, "nested too deeply"),
        ("s3-record", s3(s3_record(), s3_record()), "has 2 records, and the job takes one"),
        ("sns", ORDER, 'raw message delivery, declare source="json"'),
        ("sns", s3(), 'it is an S3 event notification. Declare source="s3"'),
        ("sns", '{"Type":"Notification"}', "is not an SNS envelope"),
        ("sns", '{"Type":"Notification","Message":5}', "is not an SNS envelope"),
        ("sns", '{"Type":"Other","Message":"x"}', "is not an SNS envelope"),
        ("sns", "[]", "it is a JSON list"),
        ("sns", sns("x", Type="SubscriptionConfirmation"), "SNS SubscriptionConfirmation of arn:aws:sns"),
        ("sns", sns("x", Type="UnsubscribeConfirmation"), "not a notification"),
        ("sns>s3", sns("no json"), "not JSON"),
        ("sns>s3", sns(ORDER), "is not an S3 event notification"),
        ("eventbridge", '{"detail":1}', "input transformer"),
        ("eventbridge", sns(ORDER), 'it is an SNS envelope. Declare source="sns"'),
        ("eventbridge", '{"detail-type":"a","source":"b","detail":{bad}}', "not JSON"),
        ("eventbridge", "true", "it is true"),
    ],
)
def test_a_body_that_is_something_else_is_named(source: str, body: str, said: str) -> None:
    with pytest.raises(PayloadError) as caught:
        unwrap(source, body, {})
    assert said in str(caught.value)
    assert caught.value.todo


def test_an_input_that_the_scheduler_cut_is_refused() -> None:
    attributes = {"IS_PAYLOAD_TRUNCATED": Attribute("true"), "SCHEDULE_ARN": Attribute("arn:s")}
    with pytest.raises(PayloadError, match="The scheduler cut this message") as caught:
        unwrap("scheduler", '{"mon', attributes)
    assert "arn:s" in str(caught.value)
    assert payload_text("scheduler", ORDER, {"IS_PAYLOAD_TRUNCATED": Attribute("false")}) == ORDER


@pytest.mark.parametrize(
    ("body", "source"),
    [
        (ORDER, "json"),
        ("[1]", "json"),
        ("5", "json"),
        ("text", "text"),
        ("", "text"),
        ("[" * 3000, "json"),
        ('{"a":' * 3000, "text"),
        (s3(), "s3"),
        (S3_TEST, "s3"),
        (sns("x"), "sns"),
        (sns("x", Type="SubscriptionConfirmation"), "sns"),
        (event(), "eventbridge"),
        (RULE_TICK, "eventbridge"),
        (SCHEDULE_TICK, "scheduler"),
        ('{"Type":"Notification"}', "json"),
        ('{"Event":5,"Records":"x"}', "json"),
        ('{"detail-type":1,"source":2}', "json"),
    ],
)
def test_what_a_body_looks_like(body: str, source: str) -> None:
    assert recognise(body) == source


@given(
    st.sampled_from(SOURCES),
    st.text(max_size=30)
    | st.recursive(
        st.none() | st.integers() | st.sampled_from(["Notification", "s3:TestEvent", "aws:s3", "aws.scheduler"]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "Records",
                        "Event",
                        "Type",
                        "TopicArn",
                        "Message",
                        "detail-type",
                        "source",
                        "detail",
                        "eventSource",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    ).map(json.dumps),
)
def test_any_body_gives_a_payload_or_a_payload_error(source: str, body: str) -> None:
    try:
        found = unwrap(source, body, {})
    except PayloadError:
        return
    assert isinstance(found, Unwrapped | NotAJob)


def celery_message(
    args: object = ("o-1", 995), kwargs: object = None, embedded: object = None, **headers: object
) -> dict[str, Any]:
    """Celery's protocol 2 as kombu 5.7 puts it on SQS, before the outer base64; seen in tests/clients/test_celery.py too."""
    body = json.dumps([args, kwargs or {}, embedded or dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))])
    return {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": "shop.charge",
            "id": "d7c2",
            "eta": None,
            "expires": None,
            "retries": 0,
            **headers,
        },
        "properties": {"correlation_id": "d7c2", "body_encoding": "base64", "priority": 0},
    }


@pytest.mark.parametrize("encoded", [True, False])
def test_a_celery_task_gives_its_name_and_arguments(encoded: bool) -> None:
    text = json.dumps(celery_message(kwargs={"big": 12345678901234567890}))
    found = unwrap("celery", base64.b64encode(text.encode()).decode() if encoded else text, {})
    assert isinstance(found, Unwrapped)
    call: TaskCall = PayloadCodec(TaskCall).decode(found.payload)
    assert call == TaskCall(task="shop.charge", args=["o-1", 995], kwargs={"big": 12345678901234567890})
    assert found.meta == (EnvelopeMeta(source="celery", id="d7c2", kind="shop.charge"),)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (celery_message(eta="2026-11-28T04:33:26+00:00"), "was sent with eta"),
        (celery_message(expires="2026-11-28T04:33:26+00:00"), "was sent with expires"),
        (celery_message(embedded={"callbacks": [{"task": "x"}], "chain": None}), "was sent with callbacks"),
        (celery_message() | {"content-type": "application/x-python-serialize"}, "not as plain JSON"),
        (celery_message(compression="application/x-gzip"), "written as application/x-gzip"),
        (celery_message() | {"body": base64.b64encode(b'{"task": "a"}').decode()}, "not a list of args, kwargs"),
        (celery_message() | {"body": "%%%"}, "neither JSON nor base64"),
        ({"task": "shop.charge", "args": []}, "it is a JSON object with the fields task, args"),
    ],
)
def test_a_celery_task_that_only_celery_can_run_is_refused(message: dict[str, Any], said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        unwrap("celery", base64.b64encode(json.dumps(message).encode()).decode(), {})


@pytest.mark.parametrize(
    "source", [*SOURCES, "sns>s3", "sns>text", "sns>eventbridge", "eventbridge>sns>s3", "sns>auto"]
)
def test_these_sources_can_be_declared(source: str) -> None:
    check_source(source, "book")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("sn", "Did you mean 'sns'"),
        ("S3", "Did you mean 's3'"),
        ("event-bridge", "Did you mean 'eventbridge'"),
        ("kafka", "It is one of json, text, s3"),
        ("", "It is one of"),
        ("sns>", "It is one of"),
        ("sns>kafka", "It is one of"),
        ("json>s3", "has nothing to open"),
        ("auto>s3", "has nothing to open"),
    ],
)
def test_other_sources_are_refused_at_declaration(source: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        check_source(source, "book")
    assert "book" in str(caught.value)
