"""A handler at work makes exactly the calls that its role allows: each call is in a statement, and each action is called.

On ministack, which checks no permission itself: every call of boto3 is noted with its IAM actions and resources and held
against the plan's statements. Receiving and deleting for the batch is the event source mapping's part.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import boto3
import msgspec
import pytest
from botocore.client import BaseClient

import onefold
from onefold.cli.stack_options import declared_in
from onefold.deploy import cloudformation, names
from onefold.deploy.iam import GRANTS, Statement
from onefold.deploy.plan import plan
from onefold.deploy.stack import stack_of
from onefold.runtime.outgoing import Outgoing
from onefold.schedules.schedule import Tick
from tests.emulators import servers

pytestmark = pytest.mark.slow

REGION, ACCOUNT = "eu-west-1", "000000000000"
NOT_BY_BOTO3 = {*GRANTS["bucket"].actions, *GRANTS["logs"].actions, *GRANTS["key"].actions, *GRANTS["network"].actions}
_BATCHES = {"SendMessageBatch": "SendMessage", "DeleteMessageBatch": "DeleteMessage"}
_BATCHES["ChangeMessageVisibilityBatch"] = "ChangeMessageVisibility"
_PARTIQL = {"INSERT": "PartiQLInsert", "UPDATE": "PartiQLUpdate", "DELETE": "PartiQLDelete", "SELECT": "PartiQLSelect"}
_IN_TRANSACTION = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}

Need = tuple[str, str]
"""An IAM action and the ARN of what it is done to."""


def needs(service: str, operation: str, asked: dict[str, Any]) -> list[Need]:
    """What a call of boto3 needs, by the service authorization reference of its service."""
    if operation == "ListQueues":
        return [("sqs:ListQueues", f"arn:aws:sqs:{REGION}:{ACCOUNT}:*")]
    if service == "sqs":
        name = asked["QueueName"] if "QueueName" in asked else asked["QueueUrl"].rpartition("/")[2]
        return [(f"sqs:{_BATCHES.get(operation, operation)}", f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")]
    if service == "s3":
        action = operation.replace("DeleteObjects", "DeleteObject")
        keys = [asked["Key"]] if "Key" in asked else [one["Key"] for one in asked["Delete"]["Objects"]]
        return [(f"s3:{action}", f"arn:aws:s3:::{asked['Bucket']}/{key}") for key in keys]
    assert service == "dynamodb", (service, operation)

    def table(name: str) -> str:
        return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}"

    if "Statements" in asked:
        said = [
            re.match(r'\s*(\w+)\s+(?:INTO\s+|FROM\s+)?"?([\w.-]+)"?', one["Statement"]) for one in asked["Statements"]
        ]
        return [(f"dynamodb:{_PARTIQL[one[1].upper()]}", table(one[2])) for one in said if one is not None]
    if "TransactItems" in asked:
        return [
            (f"dynamodb:{_IN_TRANSACTION[kind]}", table(body["TableName"]))
            for one in asked["TransactItems"]
            for kind, body in one.items()
        ]
    tables = asked["RequestItems"] if "RequestItems" in asked else [asked["TableName"]]
    return [(f"dynamodb:{operation}", table(one)) for one in tables]


def allows(statement: Statement, need: Need) -> bool:
    """Whether a statement allows it."""
    action, arn = need
    places = {"partition": "aws", "region": REGION, "account": ACCOUNT}
    patterns = [names.filled(one, places.__getitem__) for one in statement.resources]
    return action in statement.actions and any(
        arn.startswith(pattern[:-1]) if pattern.endswith("*") else arn == pattern for pattern in patterns
    )


@contextmanager
def noted() -> Iterator[list[Need]]:
    """What all calls of boto3 in the block need."""
    found: list[Need] = []
    real = BaseClient._make_api_call

    def note(self: Any, operation: str, asked: dict[str, Any]) -> Any:
        found.extend(needs(self.meta.service_model.service_name, operation, asked))
        return real(self, operation, asked)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", note)
        yield found


class Rig:
    """A deployed app on an emulator: sends from outside, and hands batches to the handler as the mapping does.

    Args:
        tables: of the jobs' own, with the key `id`.
    """

    def __init__(self, endpoint: str, app: onefold.App, *tables: str) -> None:
        self.app = app
        self.handler = app.lambda_handler()
        self.plan = plan(app.name, "shop:app", declared_in(app), stack_of(app.url))
        credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        self._clients = {
            name: boto3.client(name, region_name=REGION, endpoint_url=endpoint, **credentials)
            for name in ("sqs", "s3", "cloudformation")
        }
        bucket = str(self.plan.stack.payloads).partition("/")[0]
        self._clients["s3"].create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        template = cloudformation.template(self.plan)
        kinds = ("AWS::SQS::Queue", "AWS::DynamoDB::Table")  # the function runs here, not there
        template["Resources"] = {key: one for key, one in template["Resources"].items() if one["Type"] in kinds}
        template.pop("Outputs")
        template["Parameters"] = {"AlarmTopic": {"Type": "String", "Default": ""}}
        for table in tables:
            template["Resources"][table.title()] = {
                "Type": "AWS::DynamoDB::Table",
                "Properties": {
                    "TableName": table,
                    "BillingMode": "PAY_PER_REQUEST",
                    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
                    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
                },
            }
        self._clients["cloudformation"].create_stack(StackName=str(self.plan.table), TemplateBody=json.dumps(template))
        waiter = self._clients["cloudformation"].get_waiter("stack_create_complete")
        waiter.wait(StackName=str(self.plan.table), WaiterConfig={"Delay": 1, "MaxAttempts": 60})

    def poll(self, queue: str) -> list[Need]:
        """One batch through the handler; what its calls need."""
        sqs = self._clients["sqs"]
        url = sqs.get_queue_url(QueueName=self.plan.stack.prefix + queue)["QueueUrl"]
        got = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
            WaitTimeSeconds=20,
        )["Messages"]
        event = {"Records": [record(one, self.plan.stack.prefix + queue) for one in got]}
        with noted() as found:
            answer = self.handler(event, Context())
        stays = {one["itemIdentifier"] for one in answer["batchItemFailures"]}
        for one in got:
            if one["MessageId"] not in stays:
                with suppress(sqs.exceptions.ReceiptHandleIsInvalid):  # deleted with its payload; AWS says yes again
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return found


class Context:
    """What Lambda hands over beside the event."""

    aws_request_id = "1"

    def get_remaining_time_in_millis(self) -> int:
        return 120_000


def record(message: dict[str, Any], queue: str) -> dict[str, Any]:
    """A received message as Lambda puts it into an event."""
    attributes = {
        name: {
            "dataType": one["DataType"],
            "stringListValues": [],
            "binaryListValues": [],
            **({"stringValue": one["StringValue"]} if "StringValue" in one else {}),
            **({"binaryValue": base64.b64encode(one["BinaryValue"]).decode()} if "BinaryValue" in one else {}),
        }
        for name, one in message.get("MessageAttributes", {}).items()
    }
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": attributes,
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}",
        "awsRegion": REGION,
    }


class Outcomes:
    """An app whose jobs end in every way there is."""

    def __init__(self, url: str) -> None:
        self.app = app = onefold.App("outcomes", url=url, history="full")
        self.orders = app.queue("orders", max_bytes=2_048)
        self.mails = app.queue("mails")

        @app.job(self.mails, key="{id}")
        def mail(payload: dict[str, Any]) -> None:
            """Nothing."""

        @app.job(self.orders, key="{id}", on_unknown="hold", timeout="30s", throttle=onefold.Throttle(rate="100/s"))
        def limited(payload: dict[str, Any]) -> None:
            """Nothing."""

        @app.job(self.orders, key="{id}", effect="transactional", timeout="30s")
        def book(payload: dict[str, Any], ctx: onefold.Context) -> None:
            ctx.transact({"Put": {"TableName": "books", "Item": {"id": payload["id"]}}})

        @app.job(self.orders, key="{id}", on_unknown="hold", timeout="30s")
        def order(payload: dict[str, Any]) -> None:
            match payload["do"]:
                case "send":
                    mail.send({"id": payload["id"]})
                case "large":
                    mail.send({"id": payload["id"], "text": "x" * 4_000})
                    order.send({"id": f"{payload['id']}-next", "do": "", "text": "x" * 4_000})
                case "fail":
                    raise onefold.TransientError("not now")
                case "refuse":
                    raise onefold.PermanentError("never")
                case "unknown":
                    raise onefold.OutcomeUnknown("no answer")

        self.order, self.limited, self.book = order, limited, book


@pytest.fixture
def rig(endpoint: str) -> Iterator[tuple[Rig, Outcomes]]:
    """The deployed app, and another process's view of it, from which messages come."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in servers.CREDENTIALS.items():
            patched.setenv(name, value)
        url = f"aws://{REGION}?table=outcomes&prefix=p-&payloads=bodies/p&endpoint={endpoint}"
        made, outside = Rig(endpoint, Outcomes(url).app, "books"), Outcomes(url)
        yield made, outside
        made.app.close()
        outside.app.close()


def test_a_handler_calls_what_its_role_allows_and_needs_all_of_it(
    rig: tuple[Rig, Outcomes], caplog: pytest.LogCaptureFixture
) -> None:
    made, outside = rig
    words = ("plain", "send", "large", "fail", "refuse", "unknown")
    outside.order.send_many([{"id": word, "do": word} for word in words])
    outside.limited.send({"id": "l"})
    outside.book.send({"id": "b"})
    found = made.poll("orders")
    found += made.poll("orders")  # what it sent to itself, its body in S3
    outside.order.send({"id": "alone", "do": ""})
    found += made.poll("orders")

    (orders,) = [one for one in made.plan.functions if one.mapping.queue == "p-orders"]
    own_table = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/books"  # the job's own; its owner grants it
    asked = {need for need in found if need[1] != own_table}
    assert ("dynamodb:PutItem", own_table) in found
    assert sorted(need for need in asked if not any(allows(one, need) for one in orders.statements)) == []

    needless = {
        (one.sid, action)
        for one in orders.statements
        for action in {*one.actions} - NOT_BY_BOTO3
        if not any(need[0] == action and allows(one, need) for need in asked)
    }
    assert needless == {
        ("TakeFromItsQueue", "sqs:ReceiveMessage"),  # the mapping's own
        ("KeepRecords", "dynamodb:Query"),  # for messages of runs: their tally, and which are open
    }
    untouched = {
        (one.sid, arn)
        for one in orders.statements
        for arn in one.resources
        if not {*one.actions} <= NOT_BY_BOTO3
        and not any(allows(msgspec.structs.replace(one, resources=(arn,)), need) for need in asked)
    }
    assert untouched == set()
    assert any('"event":"dead-letter"' in line for line in caplog.messages), "an app without sinks must not be silent"


DUE_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z


class Monthly:
    """A dispatcher over two customers, one of whom has no card; a look a second after."""

    def __init__(self, url: str) -> None:
        self.app = app = onefold.App("monthly", url=url)

        @app.job(app.queue("bills"), key="{id}", name="charge")
        def charge(bill: dict[str, str]) -> None:
            if bill["id"] == "bad":
                raise onefold.PermanentError("no such card")

        @app.schedule("cron(0 2 1 * ? *)")
        def monthly(tick: Tick) -> Iterator[Outgoing]:
            yield from (charge.message({"id": one}) for one in ("ada", "bad"))

        self.monthly = monthly
        self.look = app.reconcile(monthly, after="1s")


def test_a_look_at_a_run_calls_what_its_functions_role_allows(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = f"aws://{REGION}?table=monthly&prefix=m-&payloads=looks/m&endpoint={endpoint}"
    outside = Monthly(url)
    made, looks_app = Rig(endpoint, Monthly(url).app), Monthly(url).app
    try:
        outside.app.runtime().send([outside.monthly.outgoing(DUE_MS)])
        roles = {one.mapping.queue: one.statements for one in made.plan.functions}
        for queue in ("monthly-schedules", "bills", "onefold-reconcile"):
            if queue == "onefold-reconcile":
                made.handler = looks_app.lambda_handler()  # a container of its own, which knows no queue yet
            asked = set(made.poll(queue))
            refused = [need for need in asked if not any(allows(one, need) for one in roles[f"m-{queue}"])]
            assert sorted(refused) == [], queue
        for statement in roles["m-onefold-reconcile"]:
            if statement.sid in ("LookIntoDeadLetters", "LookAtQueues", "FindQueues"):
                assert {*statement.actions} <= {need[0] for need in asked if allows(statement, need)}, statement.sid
    finally:
        for app in (made.app, looks_app, outside.app):
            app.close()
