"""Buses, rules, archives and pipes as EventBridge is told them; and on ministack, where the whole template is created.

ministack delivers events by rules, with their transformation. It asks no queue policy, knows no retry or dead-letter queue
of a target nor the parameters of a pipe, and makes no archive of a template: these stand on the documentation; the archive
is made there by its API.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

import onefold
from onefold import errors
from onefold.deploy import cloudformation, key_policy
from onefold.deploy.eventbridge import EventsPlan
from onefold.deploy.plan import AppDeclarations, DeployPlan, plan
from onefold.deploy.stack import Stack
from tests.deploy import timed
from tests.deploy.declared import KEY
from tests.emulators import servers

REGION = "eu-west-1"
STAGE = Stack(prefix="ev-", disposable=True, alarms="few")
BUS_ARN = f"arn:aws:events:{REGION}:000000000000:event-bus/ev-orders"
Json = dict[str, Any]


def events(stack: Stack | None = None) -> EventsPlan:
    """Of the timed app."""
    return timed.planned(stack).events


def properties(logical: str, stack: Stack | None = None) -> Json:
    """Of a resource of the timed app's template."""
    found: Json = cloudformation.template(timed.planned(stack))["Resources"][logical]["Properties"]
    return found


def planned(app: onefold.App, prefix: str = "") -> DeployPlan:
    """The plan of an app with buses and pipes."""
    declares = AppDeclarations(
        queues=app.queues.values(), jobs=app.jobs.values(), buses=app.buses.values(), pipes=app.pipes.values()
    )
    return plan(app.name, "shop:app", declares, Stack(prefix=prefix))


# -- rules ---------------------------------------------------------------------------------------------------------------


def test_a_rule_has_pattern_targets_transformation_retry_and_dead_letter_queue() -> None:
    rule = properties("OrdersPlacedRule", STAGE)
    assert rule["Name"] == "ev-placed"
    assert rule["EventBusName"] == {"Ref": "OrdersBus"}
    assert rule["EventPattern"] == json.loads(timed.bus.rules["placed"].pattern)
    assert [one["Id"] for one in rule["Targets"]] == ["Customers", "Audit"]
    for target in rule["Targets"]:
        assert target["RetryPolicy"] == {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}
        assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["OrdersUndeliveredQueue", "Arn"]}}
        assert target["InputTransformer"] == {
            "InputPathsMap": {"id": "$.detail.id"},
            "InputTemplate": '{"id": <id>, "sign": "${x}"}',
        }


def test_a_fifo_target_has_its_group_and_a_path_is_passed_on() -> None:
    (target,) = properties("OrdersInOrderRule")["Targets"]
    assert target["SqsParameters"] == {"MessageGroupId": "$.detail.customer"}
    assert target["InputPath"] == "$.detail"


def test_a_rule_of_the_default_bus_names_no_bus_and_its_constant_is_json() -> None:
    rule = properties("DefaultAnythingRule")
    assert "EventBusName" not in rule
    assert rule["State"] == "DISABLED"
    assert json.loads(rule["Targets"][0]["Input"]) == {"said": "so"}
    assert not any(bus.name == "default" for bus in events().buses)


def test_a_queue_lets_in_the_rules_that_target_it_and_no_other() -> None:
    here = "arn:{partition}:events:{region}:{account}:rule/"
    assert events(STAGE).senders == {
        "Audit": (f"{here}ev-anything", f"{here}ev-orders/ev-placed"),
        "Customers": (f"{here}ev-orders/ev-placed",),
        "DefaultUndelivered": (f"{here}ev-anything",),
        "OrdersUndelivered": (f"{here}ev-orders/ev-in-order", f"{here}ev-orders/ev-placed"),
        "StatementsFIFO": (f"{here}ev-orders/ev-in-order",),
    }


def test_an_archive_keeps_whole_days() -> None:
    archive = properties("OrdersKeptArchive")
    assert archive["RetentionDays"] == 2  # 36 hours
    assert archive["EventPattern"] == {"source": ["shop"]}
    assert archive["SourceArn"] == {"Fn::GetAtt": ["OrdersBus", "Arn"]}


def test_functions_may_put_on_the_apps_buses_and_on_no_other() -> None:
    for function in timed.planned(STAGE).functions:
        (grant,) = [one for one in function.statements if one.sid == "PutEvents"]
        here = "arn:{partition}:events:{region}:{account}:event-bus/"
        assert grant.resources == (f"{here}default", f"{here}ev-orders")


def test_archives_of_one_name_on_two_buses_are_two() -> None:
    app = onefold.App("shop")
    app.queue("work")
    for bus in ("orders", "bills"):
        app.bus(bus).archive("kept")
    assert [one.name for one in planned(app, "p-").events.archives] == ["p-bills-kept", "p-orders-kept"]


def test_a_bus_with_a_key_has_a_queue_for_what_the_key_does_not_open() -> None:
    for stack in (Stack(kms_key=KEY), Stack()):
        bus, archive = properties("OrdersBus", stack), properties("OrdersKeptArchive", stack)
        assert bus.get("KmsKeyIdentifier") == archive.get("KmsKeyIdentifier") == stack.kms_key
        assert ("DeadLetterConfig" in bus) == (stack.kms_key is not None)
    assert properties("OrdersBus", Stack(kms_key=KEY))["DeadLetterConfig"] == {
        "Arn": {"Fn::GetAtt": ["OrdersUndeliveredQueue", "Arn"]}
    }
    mine = "arn:{partition}:events:{region}:{account}:event-bus/orders"
    assert mine in events(Stack(kms_key=KEY)).senders["OrdersUndelivered"]
    assert mine not in events(Stack()).senders["OrdersUndelivered"]


def test_the_keys_own_policy_lets_in_the_services_that_come_without_a_role() -> None:
    found = key_policy.policy(timed.planned(Stack(kms_key=KEY, prefix="p-")))
    logs, bus = found["Statement"]
    assert logs["Principal"] == {"Service": "logs.eu-west-1.amazonaws.com"}
    assert logs["Condition"]["ArnEquals"]["kms:EncryptionContext:aws:logs:arn"][1] == (
        "arn:aws:logs:eu-west-1:111122223333:log-group:/aws/lambda/p-books-customers"
    )
    assert bus["Principal"] == {"Service": "events.amazonaws.com"}
    assert bus["Condition"] == {"StringEquals": {"aws:SourceAccount": "111122223333"}}
    assert {"kms:Decrypt", "kms:GenerateDataKey"} <= set(bus["Action"])
    with pytest.raises(errors.UsageError, match="--kms-key"):
        key_policy.policy(timed.planned())


# -- pipes ---------------------------------------------------------------------------------------------------------------


def test_a_pipe_without_enrichment_is_eventbridges_and_its_queue_has_no_function() -> None:
    found = timed.planned(Stack(kms_key=KEY))
    (pipe,) = found.events.pipes
    assert pipe.source_id not in {function.queue_id for function in found.functions}
    assert {one.sid: one.resources for one in pipe.role.statements} == {
        "TakeFromSource": ("arn:{partition}:sqs:{region}:{account}:mirror",),
        "SendToTarget": ("arn:{partition}:sqs:{region}:{account}:statements.fifo",),
        "UseKey": (KEY,),
    }
    written = properties("MirrorToStatementsPipe")
    assert written["SourceParameters"]["FilterCriteria"] == {"Filters": [{"Pattern": '{"body":{"kind":["order"]}}'}]}
    assert written["TargetParameters"] == {
        "InputTemplate": "<$.body>",
        "SqsQueueParameters": {"MessageGroupId": "$.body.customer", "MessageDeduplicationId": "$.messageId"},
    }


def test_a_pipe_with_an_enrichment_stays_a_job_in_the_function_of_its_queue() -> None:
    app = onefold.App("shop")
    app.pipe(app.queue("orders"), app.queue("billing"), enrich=lambda body: body)
    found = planned(app)
    assert found.events.pipes == ()
    assert [function.queue_id for function in found.functions] == ["Orders"]


def test_a_pipe_whose_queue_workers_run_is_theirs() -> None:
    app = onefold.App("shop")
    app.pipe(app.queue("orders", function=None), app.queue("billing"))
    assert planned(app).events.pipes == ()


# -- what is refused -----------------------------------------------------------------------------------------------------


def test_two_rules_that_lead_to_one_id_are_refused() -> None:
    app = onefold.App("shop")
    queue = app.queue("orders")
    for bus, rule in (("a", "b-c"), ("a-b", "c")):
        app.bus(bus).rule(rule, {"source": ["x"]}, to=queue)
    with pytest.raises(errors.UsageError, match="same id"):
        planned(app)


def test_a_name_that_is_too_long_with_its_prefix_is_refused() -> None:
    app = onefold.App("shop")
    app.bus("b").rule("r" * 60, {"source": ["x"]}, to=app.queue("orders"))
    with pytest.raises(errors.UsageError, match="The rule r"):
        planned(app, "stage-")


# -- on ministack ----------------------------------------------------------------------------------------------------------


class Aws:
    """Clients of the emulator with the app deployed on it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client(service, region_name=REGION, endpoint_url=self._endpoint, **keys)

    def bodies(self, queue: str) -> list[Any]:
        """What arrives in a queue within ten seconds, as JSON."""
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=10).get("Messages", ())
        return [json.loads(one["Body"]) for one in got]


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    with servers.ministack() as endpoint:
        made = Aws(endpoint)
        s3 = made.client("s3")
        s3.create_bucket(Bucket="code", CreateBucketConfiguration={"LocationConstraint": REGION})
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("handler.py", "def handler(event, context): return {}\n")
        s3.put_object(Bucket="code", Key="app.zip", Body=code.getvalue())
        client = made.client("cloudformation")
        template = cloudformation.template(timed.planned(STAGE))
        del template["Resources"]["OrdersKeptArchive"]
        s3.put_object(Bucket="code", Key="template.json", Body=json.dumps(template).encode())
        client.create_stack(
            StackName="ev-books",
            TemplateURL=f"{endpoint}/code/template.json",
            Parameters=[
                {"ParameterKey": "CodeBucket", "ParameterValue": "code"},
                {"ParameterKey": "CodeKey", "ParameterValue": "app.zip"},
            ],
            Capabilities=["CAPABILITY_IAM"],
        )
        waiter = client.get_waiter("stack_create_complete")
        waiter.wait(StackName="ev-books", WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        yield made


@pytest.mark.slow
def test_rules_and_targets_are_as_planned(aws: Aws) -> None:
    client = aws.client("events")
    for rule in events(STAGE).rules:
        bus = "default" if rule.bus_id is None else "ev-orders"
        found = client.describe_rule(Name=rule.name, EventBusName=bus)
        assert json.loads(found["EventPattern"]) == json.loads(rule.pattern)
        assert found["State"] == ("ENABLED" if rule.enabled else "DISABLED")
        targets = client.list_targets_by_rule(Rule=rule.name, EventBusName=bus)["Targets"]
        assert {one["Id"] for one in targets} == set(rule.target_ids)
        written = {one["Id"]: one for one in properties(f"{rule.id}Rule", STAGE)["Targets"]}
        for one in targets:
            asked = written[one["Id"]]
            for name in ("Input", "InputPath", "InputTransformer", "SqsParameters", "RetryPolicy"):
                assert one.get(name) == asked.get(name), (rule.name, name)


@pytest.mark.slow
def test_an_event_arrives_where_it_matches_as_the_rule_makes_it(aws: Aws) -> None:
    for kind, total in (("Order placed", 5), ("Order placed", 0), ("Refund", 5)):
        entry = {"Source": "shop", "DetailType": kind, "Detail": json.dumps({"id": f"{kind}-{total}", "total": total})}
        answer = aws.client("events").put_events(Entries=[{**entry, "EventBusName": "ev-orders"}])
        assert answer["FailedEntryCount"] == 0
    assert aws.bodies("ev-audit") == [{"id": "Order placed-5", "sign": "${x}"}]


@pytest.mark.slow
def test_archive_and_pipe_are_there(aws: Aws) -> None:
    asked = properties("OrdersKeptArchive", STAGE)
    asked |= {"EventPattern": json.dumps(asked["EventPattern"]), "EventSourceArn": BUS_ARN}
    del asked["SourceArn"]
    client = aws.client("events")
    client.create_archive(**asked)
    found = client.describe_archive(ArchiveName="ev-orders-kept")
    assert {name: found[name] for name in asked} == asked
    pipe = aws.client("pipes").describe_pipe(Name="ev-mirror-to-statements")
    assert pipe["Source"].endswith(":ev-mirror")
    assert pipe["Target"].endswith(":ev-statements.fifo")
    assert pipe["DesiredState"] == "RUNNING"
