"""The templates create on emulators, and what is there then is what was planned.

Each test names the emulators on which what it looks at is true. moto gives a queue no policy and a role no readable one, and
knows no alarms and metric filters of a template. On neither a template's time to live and point-in-time recovery reach the
table, nor do MaximumMessageSize and RedriveAllowPolicy mean a thing; these stand on the resource reference and cfn-lint.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import boto3
import pytest

from onefold.deploy import cloudformation
from onefold.deploy.functions import FunctionPlan
from onefold.deploy.plan import DeployPlan
from onefold.deploy.stack import Stack
from onefold.engines.aws import queue_attributes
from tests.deploy.declared import demo, planned, wide
from tests.emulators import servers

REGION = "eu-west-1"
STAGE = Stack(prefix="stage-", disposable=True, alarms="few")  # ministack knows no metric math
PLANS = [planned(demo, STAGE), planned(wide, STAGE)]

pytestmark = pytest.mark.slow


class Aws:
    """Clients of one emulator, and the stacks that were made on it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._outputs: dict[str, dict[str, str]] = {}
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("handler.py", "def handler(event, context): return {}\n")
        s3 = self.client("s3")
        s3.create_bucket(Bucket="planned-code", CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket="planned-code", Key="app.zip", Body=code.getvalue())

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self._endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def create(self, plan: DeployPlan) -> dict[str, str]:
        """Create the plan's stack unless it is there; its outputs."""
        if plan.name not in self._outputs:
            client = self.client("cloudformation")
            client.create_stack(
                StackName=plan.name,
                TemplateBody=cloudformation.to_json(plan, indent=False),
                Parameters=[
                    {"ParameterKey": "CodeBucket", "ParameterValue": "planned-code"},
                    {"ParameterKey": "CodeKey", "ParameterValue": "app.zip"},
                ],
                Capabilities=["CAPABILITY_IAM"],
            )
            waiter = client.get_waiter("stack_create_complete")
            waiter.wait(StackName=plan.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
            (stack,) = client.describe_stacks(StackName=plan.name)["Stacks"]
            assert stack["StackStatus"] == "CREATE_COMPLETE"
            self._outputs[plan.name] = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
        return self._outputs[plan.name]

    def configuration(self, function: FunctionPlan) -> dict[str, Any]:
        """Of a function."""
        found: dict[str, Any] = self.client("lambda").get_function_configuration(FunctionName=function.name)
        return found


@pytest.fixture(scope="module")
def emulators(endpoint: str) -> Iterator[dict[str, Callable[[], Aws]]]:
    """Each emulator, started when it is first asked for."""
    made: dict[str, Aws] = {}
    with ExitStack() as running:

        def start(name: str) -> Aws:
            if name not in made:
                made[name] = Aws(endpoint if name == "ministack" else running.enter_context(servers.moto()))
            return made[name]

        yield {name: lambda name=name: start(name) for name in ("ministack", "moto")}  # type: ignore[misc]


@pytest.fixture
def aws(request: pytest.FixtureRequest, emulators: dict[str, Callable[[], Aws]]) -> Aws:
    return emulators[request.param]()


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on these emulators."""
    return pytest.mark.parametrize("aws", names, indirect=True)


both_plans = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.app))


@on("ministack", "moto")
@both_plans
def test_queues_are_as_planned(aws: Aws, plan: DeployPlan) -> None:
    outputs = aws.create(plan)
    sqs = aws.client("sqs")
    for queue in plan.queues:
        url = sqs.get_queue_url(QueueName=queue.settings.name)["QueueUrl"]
        assert outputs[f"{queue.id}QueueUrl"].rpartition("/")[2] == queue.settings.name
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        found = queue_attributes.read(queue.settings.name, attributes, lambda arn: arn.rpartition(":")[2])
        for name in (
            "fifo",
            "visibility_ms",
            "retention_ms",
            "delay_ms",
            "dead_letter",
            "receives_max",
            "content_dedup",
        ):
            assert getattr(found, name) == getattr(queue.settings, name), (queue.settings.name, name)
        tags = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
        assert tags.get(queue_attributes.HELD_TAG) == queue.settings.held
        assert tags["onefold:app"] == plan.app


@on("ministack")
@both_plans
def test_queues_have_their_policy(aws: Aws, plan: DeployPlan) -> None:
    aws.create(plan)
    sqs = aws.client("sqs")
    for queue in plan.queues:
        url = sqs.get_queue_url(QueueName=queue.settings.name)["QueueUrl"]
        policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
        assert json.loads(policy)["Statement"][0]["Sid"] == "DenyWithoutTls"


@on("ministack", "moto")
@both_plans
def test_functions_are_as_planned(aws: Aws, plan: DeployPlan) -> None:
    outputs = aws.create(plan)
    assert outputs["EngineUrl"] == plan.url.replace("{region}", REGION)
    for function in plan.functions:
        there = aws.configuration(function)
        assert there["Handler"] == function.settings.handler
        assert (there["Runtime"], there["Timeout"] * 1000) == (function.runtime, function.settings.timeout_ms)
        assert there["MemorySize"] == function.settings.memory_mib
        variables = there["Environment"]["Variables"]
        assert variables == {**function.settings.env, "ONEFOLD_URL": outputs["EngineUrl"]}


@on("ministack", "moto")
@both_plans
def test_mappings_are_as_planned(aws: Aws, plan: DeployPlan) -> None:
    aws.create(plan)
    for function in plan.functions:
        found = aws.client("lambda").list_event_source_mappings(FunctionName=function.name)["EventSourceMappings"]
        assert [one["EventSourceArn"].rpartition(":")[2] for one in found] == [function.mapping.queue]
        assert found[0]["BatchSize"] == function.mapping.batch_size
        assert found[0]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert found[0]["ScalingConfig"] == {"MaximumConcurrency": function.mapping.concurrency_max}
        assert found[0].get("MaximumBatchingWindowInSeconds", 0) * 1000 == function.mapping.window_ms


@on("ministack")
@both_plans
def test_roles_have_their_statements(aws: Aws, plan: DeployPlan) -> None:
    aws.create(plan)
    for function in plan.functions:
        role = aws.configuration(function)["Role"].rpartition("/")[2]
        policy = aws.client("iam").get_role_policy(RoleName=role, PolicyName="onefold")["PolicyDocument"]
        assert {one["Sid"] for one in policy["Statement"]} == {one.sid for one in function.statements}
        attached = aws.client("iam").list_attached_role_policies(RoleName=role)["AttachedPolicies"]
        assert sorted(one["PolicyArn"] for one in attached) == list(function.policies)


@on("ministack", "moto")
@both_plans
def test_the_table_has_its_keys(aws: Aws, plan: DeployPlan) -> None:
    aws.create(plan)
    table = aws.client("dynamodb").describe_table(TableName=plan.table)["Table"]
    assert [(one["AttributeName"], one["KeyType"]) for one in table["KeySchema"]] == [("pk", "HASH"), ("sk", "RANGE")]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


@on("ministack", "moto")
@both_plans
def test_logs_are_kept_as_long_as_planned(aws: Aws, plan: DeployPlan) -> None:
    aws.create(plan)
    for function in plan.functions:
        groups = aws.client("logs").describe_log_groups(logGroupNamePrefix=function.log_group)["logGroups"]
        assert [one["retentionInDays"] for one in groups] == [30]


@on("ministack")
@both_plans
def test_lines_are_counted(aws: Aws, plan: DeployPlan) -> None:
    aws.create(plan)
    for function in plan.functions:
        found = aws.client("logs").describe_metric_filters(logGroupName=function.log_group)["metricFilters"]
        assert {one["filterPattern"] for one in found} == {'"completion-failed"', '"lease-lost"'}


@on("ministack")
@both_plans
def test_alarms_are_there(aws: Aws, plan: DeployPlan) -> None:
    aws.create(plan)
    found = {one["AlarmName"]: one for one in aws.client("cloudwatch").describe_alarms()["MetricAlarms"]}
    for alarm in plan.alarms:
        there = found[alarm.name]
        (measure,) = alarm.measures
        assert (there["Namespace"], there["MetricName"]) == (measure.namespace, measure.metric)
        assert {one["Name"]: one["Value"] for one in there["Dimensions"]} == dict(measure.dimensions)
        assert (there["Threshold"], there["Period"] * 1000) == (alarm.threshold, alarm.period_ms)
        assert there["TreatMissingData"] == "notBreaching"
        assert there["AlarmActions"] == []


@on("ministack")
def test_the_same_template_again_changes_nothing(aws: Aws) -> None:
    plan = planned(demo, Stack(prefix="again-", disposable=True, alarms="few"))
    aws.create(plan)
    client = aws.client("cloudformation")
    client.create_change_set(
        StackName=plan.name,
        ChangeSetName="again",
        TemplateBody=cloudformation.to_json(planned(demo, plan.stack), indent=False),
        Parameters=[{"ParameterKey": name, "UsePreviousValue": True} for name in ("CodeBucket", "CodeKey")],
        Capabilities=["CAPABILITY_IAM"],
    )
    assert client.describe_change_set(StackName=plan.name, ChangeSetName="again").get("Changes", []) == []
