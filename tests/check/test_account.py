"""A live account: read by calls that only read, page by page, and as far as they are allowed."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from onefold.check import account
from onefold.check.account import read_account
from onefold.check.checking import check
from onefold.check.inputs import Input
from onefold.check.rules import chosen
from onefold.engines.aws.session import Session
from tests.check.test_check import TODAY, run
from tests.clients.serving import serving
from tests.docs.test_pages import blocks
from tests.emulators import servers

REGION = "eu-west-1"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.moto() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in servers.CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        seed(lambda service: boto3.client(service, endpoint_url=url, region_name=REGION))
        yield url


def seed(client: Any) -> None:
    """Five faults: see the test below. The queue `spare` is as it should be."""
    sqs, functions = client("sqs"), client("lambda")

    def queue(name: str, **attributes: str) -> str:
        url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])

    dead = queue("dead", MessageRetentionPeriod="86400")
    redrive = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 5})
    orders = queue("orders", VisibilityTimeout="30", MessageRetentionPeriod="86400", RedrivePolicy=redrive)
    mails = queue("mails", VisibilityTimeout="180")
    queue("spare")
    trust = {
        "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "lambda.amazonaws.com"}}]
    }
    role = client("iam").create_role(RoleName="runs", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("index.py", "def handler(event, context): return {'batchItemFailures': []}")
    for name, source in (("ship", orders), ("mail", mails)):
        functions.create_function(
            FunctionName=name, Runtime="python3.12", Role=role, Handler="index.handler", Timeout=30,
            Code={"ZipFile": code.getvalue()}, Environment={"Variables": {"SECRET": "s3cret-value"}},
        )  # fmt: skip
        functions.create_event_source_mapping(
            EventSourceArn=source, FunctionName=name, BatchSize=1, FunctionResponseTypes=["ReportBatchItemFailures"]
        )
    topic = client("sns").create_topic(Name="people")["TopicArn"]
    client("cloudwatch").put_metric_alarm(
        AlarmName="dead-letters", Namespace="AWS/SQS", MetricName="NumberOfMessagesSent", Statistic="Maximum", Period=60,
        Dimensions=[{"Name": "QueueName", "Value": "dead"}], EvaluationPeriods=1, Threshold=1,
        ComparisonOperator="GreaterThanOrEqualToThreshold", TreatMissingData="notBreaching",
        AlarmActions=[topic], OKActions=[topic],
    )  # fmt: skip
    events = client("events")
    events.put_rule(Name="placed", EventPattern='{"source": ["shop"]}')
    machine = f"arn:aws:states:{REGION}:123456789012:stateMachine:book"
    events.put_targets(Rule="placed", Targets=[{"Id": "book", "Arn": machine, "RoleArn": role}])


def found(endpoint: str, *words: str) -> Json:
    answer = run(f"aws://{REGION}?endpoint={endpoint}", "--format", "json", *words)
    document: Json = json.loads(answer.output)
    return document | {"code": answer.exit_code}


def test_five_faults_of_an_account_are_found_and_nothing_else(endpoint: str) -> None:
    document = found(endpoint)
    assert document["accounts"] == [f"aws://{REGION}"]
    assert document["code"] == 1
    findings = {(one["rule"], one["resource"].rpartition(":")[2].rpartition("/")[2]) for one in document["findings"]}
    assert findings == {
        ("DUP002", "orders"), ("LOS002", "dead"), ("LOS001", "mails"), ("BLD002", "dead-letters"), ("BLD001", "dead"),
        ("LOS007", "placed"),
    }  # fmt: skip
    assert {one["source"]["file"] for one in document["findings"]} == {f"aws://{REGION}"}
    assert "s3cret-value" not in json.dumps(document)
    shown = run(f"aws://{REGION}?endpoint={endpoint}")
    assert "1 account checked: " in shown.output
    assert "s3cret-value" not in shown.output
    sarif = json.loads(run(f"aws://{REGION}?endpoint={endpoint}", "--format", "sarif").output)
    [place] = {
        one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in sarif["runs"][0]["results"]
    }
    assert place == f"aws://{REGION}"


def test_a_tag_of_a_queue_suppresses(endpoint: str) -> None:
    sqs = boto3.client("sqs", endpoint_url=endpoint, region_name=REGION)
    url = sqs.get_queue_url(QueueName="mails")["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"onefold:ignore": "LOS001: mails are worth nothing until=2999-01-01"})
    try:
        [lost] = [one for one in found(endpoint)["findings"] if one["rule"] == "LOS001"]
        assert lost["suppressed"] == "mails are worth nothing"
    finally:
        sqs.untag_queue(QueueUrl=url, TagKeys=["onefold:ignore"])


class Refusing(Session):
    """A session in which some calls are refused, and lists have two items a page; it notes what is called."""

    def __init__(self, endpoint: str, *refused: str) -> None:
        super().__init__(REGION, {"*": endpoint})
        self.refused = refused
        self.called: list[str] = []

    def _make(self, service: str, waits_s: float) -> Any:
        client = super()._make(service, waits_s)
        client.meta.events.register("before-parameter-build", self._noted)
        return client

    def _noted(self, params: Json, model: Any, **_: object) -> None:
        self.called.append(f"{model.service_model.service_name}:{model.name}")
        if model.name in self.refused:
            said = {"Error": {"Code": "AccessDenied", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise ClientError(said, model.name)
        for size in {"MaxResults", "MaxItems"} & set(model.input_shape.members if model.input_shape else ()):
            if model.name in {"ListQueues", "ListFunctions", "ListEventSourceMappings"}:
                params[size] = 2


def test_lists_are_read_to_their_end_and_only_what_reads_is_called(endpoint: str) -> None:
    session = Refusing(endpoint)
    resources = read_account(session, "aws://here").document.data["Resources"]
    names = [one["Properties"]["QueueName"] for one in resources.values() if one["Type"] == "AWS::SQS::Queue"]
    assert sorted(names) == ["dead", "mails", "orders", "spare"]
    assert session.called.count("sqs:ListQueues") > 1
    assert all(re.fullmatch(r"[a-z0-9]+:(List|Get|Describe)\w+", one) for one in session.called)
    [policy] = [text for language, title, text in blocks("docs/check.md") if title == "onefold-check-policy.json"]
    [statement] = json.loads(policy)["Statement"]
    prefixes = {"stepfunctions": "states", "eventbridge": "events", "eventbridgev2": "events"}
    calls = [one.partition(":") for one in session.called]
    renamed = {f"{prefixes.get(service, service)}:{name}" for service, _, name in calls}
    assert renamed <= set(statement["Action"])
    code = Path(account.__file__).read_text()
    operations = set(re.findall(r'"((?:list|get|describe)_[a-z_]+)"', code))
    in_code = {"".join(word.capitalize() for word in one.split("_")) for one in operations}
    assert in_code == {one.partition(":")[2] for one in statement["Action"]}


@pytest.mark.parametrize(
    ("refused", "lost"),
    [
        ("GetQueueAttributes", {"DUP002", "LOS002", "LOS001", "BLD001", "BLD002"}),
        ("DescribeAlarms", {"BLD001", "BLD002"}),
        ("ListTargetsByRule", {"LOS007"}),
        ("ListEventSourceMappings", {"DUP002", "LOS001"}),
        ("ListFunctions", {"DUP002"}),
        ("ListSubscriptions", set()),
        ("GetFunctionConcurrency", set()),
    ],
)
def test_a_call_that_is_refused_takes_only_what_it_says(endpoint: str, refused: str, lost: set[str]) -> None:
    one = read_account(Refusing(endpoint, refused), "aws://here")
    assert refused in {each.call.partition(":")[2] for each in one.denied}
    document = Input(document=one.document, account=one.account, region=one.region)
    checked = check([], chosen((), ()), TODAY, documents={"aws://here": document})
    everything = {"DUP002", "LOS001", "LOS002", "BLD001", "BLD002", "LOS007"}
    assert {each.rule for each in checked.open} == everything - lost


def test_without_any_answer_the_exit_code_is_2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    answer = run(f"aws://{REGION}")
    assert answer.exit_code == 2
    assert "There are no AWS credentials" in answer.output
    assert "AWS_PROFILE" in answer.output


SERVED = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Dead: {Type: AWS::SQS::Queue, Properties: {MessageRetentionPeriod: 86400}}
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 30
      MessageRetentionPeriod: 86400
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 2}
  Mails: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 180}}
  Ship:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src/
      Handler: index.handler
      Runtime: python3.12
      Timeout: 30
      Events:
        Orders: {Type: SQS, Properties: {Queue: !GetAtt Orders.Arn, BatchSize: 1}}
        Mails: {Type: SQS, Properties: {Queue: !GetAtt Mails.Arn, BatchSize: 10}}
"""


def test_the_local_sqs_is_an_account_with_queues_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers for SQS, Lambda and SNS, with five faults; of the other services it says that it does not know them."""
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "index.py").write_text("def handler(event, context): return {}")
    (tmp_path / "template.yaml").write_text(SERVED)
    with serving("template.yaml", "--memory", folder=tmp_path) as url:
        document = json.loads(run(f"aws://us-east-1?endpoint={url}", "--format", "json").output)
        shown = run(f"aws://us-east-1?endpoint={url}").output
    found = {(one["rule"], one["resource"].split(":")[5]) for one in document["findings"]}
    assert found == {
        ("DUP002", "Orders"), ("LOS002", "Dead"), ("LOS003", "Orders"), ("LOS001", "Mails"),
        ("DUP004", "event-source-mapping"),
    }  # fmt: skip
    assert "aws://us-east-1 was checked without an answer: cloudwatch:DescribeAlarms on us-east-1" in shown


def test_roles_and_keys_say_whether_dead_letters_arrive(endpoint: str) -> None:
    """A schedule's role that may send to the target only, and a key that the topic may not use."""
    sqs, iam, kms, sns, scheduler = (
        boto3.client(service, endpoint_url=endpoint, region_name=REGION)
        for service in ("sqs", "iam", "kms", "sns", "scheduler")
    )

    def queue(name: str, **attributes: str) -> str:
        url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])

    def allowed(action: str, resource: str, **more: object) -> str:
        return json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": action, "Resource": resource, **more}],
            }
        )

    key = kms.create_key(Policy=allowed("kms:*", "*", Principal={"AWS": "arn:aws:iam::123456789012:root"}))[
        "KeyMetadata"
    ]["KeyId"]
    kms.create_alias(AliasName="alias/queues", TargetKeyId=key)
    jobs, missed = queue("jobs"), queue("missed", MessageRetentionPeriod="1209600")
    topic = sns.create_topic(Name="news")["TopicArn"]
    policy = allowed("sqs:SendMessage", "*", Principal={"Service": "sns.amazonaws.com"})
    mailed = queue("mailed", KmsMasterKeyId="alias/queues", Policy=policy)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=mailed, Attributes={"RawMessageDelivery": "true"})
    trust = allowed("sts:AssumeRole", "*", Principal={"Service": "scheduler.amazonaws.com"}).replace(
        ', "Resource": "*"', ""
    )
    role = iam.create_role(RoleName="sends", Path="/jobs/", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    managed = iam.create_policy(PolicyName="to-jobs", PolicyDocument=allowed("sqs:SendMessage", jobs))["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="sends", PolicyArn=managed)
    scheduler.create_schedule(
        Name="nightly", ScheduleExpression="rate(1 day)", FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": jobs, "RoleArn": role, "Input": "<aws.scheduler.execution-id>", "DeadLetterConfig": {"Arn": missed}},
    )  # fmt: skip

    def lost(*refused: str) -> set[str]:
        one = read_account(Refusing(endpoint, *refused), "aws://here")
        document = Input(document=one.document, account=one.account, region=one.region)
        checked = check([], chosen(("LOS008",), ()), TODAY, documents={"aws://here": document})
        return {each.resource.rpartition(":")[2].rpartition("/")[2] for each in checked.open}

    assert lost() == {"missed", "mailed"}
    assert lost("GetAccountAuthorizationDetails") == {"mailed"}
    assert lost("GetKeyPolicy") == {"missed"}
    assert lost("ListAliases") == {"missed"}
    iam.put_role_policy(RoleName="sends", PolicyName="too", PolicyDocument=allowed("sqs:SendMessage", missed))
    both = {"Service": ["sns.amazonaws.com"]}
    kms.put_key_policy(KeyId=key, PolicyName="default", Policy=allowed("kms:*", "*", Principal=both))
    assert lost() == set()


class Subscribers:
    """A client of the buses of the second generation, for which there is no emulator."""

    meta = None

    def can_paginate(self, operation: str) -> bool:
        return False

    def list_event_buses(self, **_: object) -> Json:
        return {
            "EventBuses": [{"Name": "shop", "EventBusArn": f"arn:aws:events:{REGION}:123456789012:event-busv2/shop/x"}]
        }

    def list_subscribers(self, NextToken: str = "") -> Json:  # noqa: N803 - AWS's name
        ending = {"": "a", "more": "b"}[NextToken]
        arn = f"arn:aws:events:{REGION}:123456789012:subscriber/{ending}/x"
        return {"Subscribers": [{"SubscriberArn": arn}], **({} if NextToken else {"NextToken": "more"})}

    def describe_subscriber(self, SubscriberArn: str) -> Json:  # noqa: N803 - AWS's name
        failed = {"OnFailureConfiguration": {"Arn": f"arn:aws:sqs:{REGION}:123456789012:dead"}}
        return {
            "SubscriberArn": SubscriberArn, "Name": SubscriberArn[-3], "Type": "UNORDERED", "State": "RUNNING",
            "InvokeConfiguration": {"TargetArn": f"arn:aws:sqs:{REGION}:123456789012:spare"},
            **(failed if "/a/" in SubscriberArn else {}),
        }  # fmt: skip


def test_subscribers_of_buses_of_the_second_generation_are_read(endpoint: str) -> None:
    class WithSubscribers(Refusing):
        def _make(self, service: str, waits_s: float) -> Any:
            return Subscribers() if service == "eventbridgev2" else super()._make(service, waits_s)

    one = read_account(WithSubscribers(endpoint), "aws://here")
    document = Input(document=one.document, account=one.account, region=one.region)
    checked = check([], chosen(("LOS013",), ()), TODAY, documents={"aws://here": document})
    assert [each.resource for each in checked.open] == [f"arn:aws:events:{REGION}:123456789012:subscriber/b/x"]


def test_buses_are_not_asked_for_where_there_are_none(endpoint: str) -> None:
    session = Refusing(endpoint)
    session.region = "eu-west-3"
    read_account(session, "aws://here")
    assert not any(one.startswith("eventbridgev2:") for one in session.called)
