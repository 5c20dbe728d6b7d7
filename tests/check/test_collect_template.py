"""Templates as people write them become facts with places; what cannot be known is said, never guessed and never a crash."""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.check.collect_template import collect_template
from onefold.check.documents import read_document
from onefold.check.facts import InlineCode, LocalCode, TemplateFacts, Unresolved, ZippedCode
from onefold.errors import NotFoundError, UsageError
from tests.check.test_intrinsics import VALUES

SAM = """\
AWSTemplateFormatVersion: 2010-09-09
Transform: AWS::Serverless-2016-10-31
Parameters:
  Stage: {Type: String, Default: dev, AllowedValues: [dev, prod]}
  Owner: {Type: String}
Conditions:
  IsProd: !Equals [!Ref Stage, prod]
Mappings:
  Sizes:
    dev: {Batch: 3}
    prod: {Batch: 10}
Globals:
  Function:
    Runtime: python3.12
    Timeout: 20
    Environment:
      Variables: {STAGE: !Ref Stage, LEVEL: INFO}
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: !Sub orders-${Stage}
      VisibilityTimeout: 120
      RedrivePolicy:
        deadLetterTargetArn: !GetAtt OrdersDead.Arn
        maxReceiveCount: !If [IsProd, 10, 5]
      Tags:
        - {Key: owner, Value: !Ref Owner}
        - {Key: stage, Value: !Ref Stage}
  OrdersDead:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: !Join ["-", [orders, !Ref Stage, dead]]
      MessageRetentionPeriod: "1209600"
  Access:
    Type: AWS::SQS::QueuePolicy
    Properties:
      Queues: [!Ref Orders]
      PolicyDocument: {Statement: [{Effect: Allow, Condition: {ArnEquals: {"aws:SourceArn": !Ref Topic}}}]}
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src/
      Handler: app.handler
      MemorySize: 256
      Layers: [!Sub "arn:aws:lambda:${AWS::Region}:017000801446:layer:Powertools:1"]
      Environment:
        Variables:
          LEVEL: DEBUG
          QUEUE_URL: !Ref Orders
          TABLE: !Ref Table
      Events:
        Incoming:
          Type: SQS
          Properties:
            Queue: !GetAtt Orders.Arn
            BatchSize: !FindInMap [Sizes, !Ref Stage, Batch]
            MaximumBatchingWindowInSeconds: 2
            FunctionResponseTypes: [ReportBatchItemFailures]
            ScalingConfig: {MaximumConcurrency: 4}
            FilterCriteria: {Filters: [{Pattern: '{"body": {"kind": ["order"]}}'}]}
        Web: {Type: Api, Properties: {Path: /, Method: get}}
  Table:
    Type: AWS::DynamoDB::Table
  Archive:
    Type: AWS::SQS::Queue
    Condition: IsProd
"""


def collect(folder: Path, text: str, name: str = "template.yaml", **parameters: str) -> TemplateFacts:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return collect_template(
        file, parameters=parameters, account="123456789012", region="eu-west-1", endpoint="http://127.0.0.1:9324"
    )


def resources(folder: Path, resources: dict[str, Any], **sections: Any) -> TemplateFacts:
    return collect(folder, json.dumps({"Resources": resources, **sections}), "template.json")


@pytest.fixture
def sam(tmp_path: Path) -> TemplateFacts:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("def handler(event, context): ...\n")
    return collect(tmp_path, SAM)


def why(facts: TemplateFacts, logical_id: str) -> dict[str, str]:
    return {one.location.path: one.why for one in facts.left_out if one.location.logical_id == logical_id}


def test_queues_come_with_names_attributes_and_the_dead_letter_queue_first(sam: TemplateFacts) -> None:
    dead, orders = sam.queues
    assert dead.name == "orders-dev-dead"
    assert dead.attributes == {"MessageRetentionPeriod": "1209600"}
    assert orders.name == "orders-dev"
    assert orders.attributes["VisibilityTimeout"] == "120"
    arn = "arn:aws:sqs:eu-west-1:123456789012:orders-dev-dead"
    assert json.loads(orders.attributes["RedrivePolicy"]) == {"deadLetterTargetArn": arn, "maxReceiveCount": 5}
    assert orders.redrive is not None
    assert (orders.redrive.target, orders.redrive.receives_max) == ("orders-dev-dead", 5)
    assert orders.tags == {"stage": "dev"}
    assert orders.unresolved == {"Tags.0": Unresolved("parameter Owner has no default and was not given")}
    assert not orders.fifo


def test_each_fact_says_where_it_stands(sam: TemplateFacts) -> None:
    lines = SAM.splitlines()
    orders = sam.queues[1]
    assert orders.redrive is not None
    assert lines[orders.redrive.location.line - 1] == "        deadLetterTargetArn: !GetAtt OrdersDead.Arn"
    assert orders.redrive.location.path == "Resources.Orders.Properties.RedrivePolicy"
    assert str(orders.redrive.location) == f"{sam.file}:{orders.redrive.location.line}"
    [owner] = [one for one in sam.left_out if one.location.path == "Resources.Orders.Properties.Tags.0"]
    assert "Key: owner" in lines[owner.location.line - 1]


def test_a_sam_function_has_its_globals_code_and_environment(sam: TemplateFacts) -> None:
    [worker] = sam.functions
    assert (worker.name, worker.runtime, worker.timeout_ms, worker.memory_mib) == ("Worker", "python3.12", 20_000, 256)
    folder = Path(sam.file).parent / "src"
    assert worker.code == LocalCode(folder.resolve(), folder.resolve() / "app.py")
    url = "http://127.0.0.1:9324/123456789012/orders-dev"
    assert worker.environment == {"STAGE": "dev", "LEVEL": "DEBUG", "QUEUE_URL": url}
    said = why(sam, "Worker")
    assert "does not exist here" in said["Resources.Worker.Properties.Environment.Variables.TABLE"]
    assert "not loaded" in said["Resources.Worker.Properties.Layers"]
    assert "only events of type SQS" in said["Resources.Worker.Properties.Events.Web"]


def test_a_sam_event_is_a_mapping(sam: TemplateFacts) -> None:
    [mapping] = sam.mappings_that_run
    assert (mapping.queue, mapping.function, mapping.logical_id) == ("orders-dev", "Worker", "WorkerIncoming")
    assert (mapping.batch_size, mapping.window_ms, mapping.concurrency_max) == (3, 2_000, 4)
    assert mapping.filters == ('{"body": {"kind": ["order"]}}',)
    assert mapping.reports_failures
    assert mapping.enabled


def test_everything_else_is_listed_with_a_reason(sam: TemplateFacts) -> None:
    assert why(sam, "Table") == {"Resources.Table": "only queues, topics, functions and their mappings are served"}
    assert why(sam, "Archive") == {"Resources.Archive": "its condition IsProd is false"}
    [policy] = sam.policies
    assert policy.queues == ("orders-dev",)
    assert [one.location.line for one in sam.left_out] == sorted(one.location.line for one in sam.left_out)


def test_parts_of_a_function_may_hang_on_a_condition(tmp_path: Path) -> None:
    none = {"Ref": "AWS::NoValue"}
    event = {"Type": "SQS", "Properties": {"Queue": {"Fn::GetAtt": ["Q", "Arn"]}}}
    function = {
        "Type": "AWS::Serverless::Function",
        "Properties": {
            "InlineCode": "def main(event, context): ...",
            "Handler": "index.main",
            "Runtime": "python3.12",
            "Environment": {"Fn::If": ["No", {"Variables": {"A": "1"}}, none]},
            "Events": {"On": {"Fn::If": ["No", none, event]}, "Off": {"Fn::If": ["No", event, none]}},
        },
    }
    facts = resources(
        tmp_path,
        {"Q": {"Type": "AWS::SQS::Queue"}, "F": function},
        Conditions={"No": {"Fn::Equals": ["a", "b"]}},
    )
    assert [mapping.logical_id for mapping in facts.mappings_that_run] == ["FOn"]
    assert facts.functions[0].environment == {}
    assert facts.left_out == ()


def test_parameters_given_change_what_is_read(tmp_path: Path) -> None:
    facts = collect(tmp_path, SAM, Stage="prod", Owner="ada")
    assert [queue.name for queue in facts.queues] == ["orders-prod-dead", "orders-prod", "Archive"]
    assert facts.queues[1].tags == {"owner": "ada", "stage": "prod"}
    assert facts.mappings[0].batch_size == 10
    assert facts.mappings_that_run == ()
    assert any("there is no directory" in one.why for one in facts.left_out)


@pytest.mark.parametrize(
    ("given", "says"),
    [({"Stag": "dev"}, "has no parameter Stag"), ({"Stage": "x"}, "one of"), ({"Owner": "x" * 5_000}, "4096")],
)
def test_parameters_that_do_not_fit_are_refused(tmp_path: Path, given: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        collect(tmp_path, SAM, **given)


def test_plain_cloudformation_in_json(tmp_path: Path) -> None:
    facts = resources(
        tmp_path,
        {
            "Q": {"Type": "AWS::SQS::Queue", "Properties": {"FifoQueue": True, "ContentBasedDeduplication": "true"}},
            "F": {
                "Type": "AWS::Lambda::Function",
                "Properties": {
                    "FunctionName": "crunch",
                    "Runtime": "python3.13",
                    "Handler": "index.main",
                    "Code": {"ZipFile": "def main(event, context): return 1\n"},
                    "ReservedConcurrentExecutions": "7",
                },
            },
            "M": {
                "Type": "AWS::Lambda::EventSourceMapping",
                "Properties": {
                    "EventSourceArn": {"Fn::GetAtt": "Q.Arn"},
                    "FunctionName": {"Fn::GetAtt": ["F", "Arn"]},
                    "Enabled": "false",
                    "BatchSize": "4",
                },
            },
        },
    )
    [queue], [function], [mapping] = facts.queues, facts.functions, facts.mappings_that_run
    assert queue.name == "Q.fifo"
    assert queue.fifo
    assert not queue.named
    assert function.code == InlineCode("def main(event, context): return 1\n", "index.py")
    assert (function.timeout_ms, function.memory_mib, function.reserved_concurrency) == (3_000, 128, 7)
    assert (mapping.queue, mapping.function, mapping.batch_size, mapping.enabled) == ("Q.fifo", "crunch", 4, False)
    assert facts.left_out == ()


@pytest.mark.parametrize(
    "text",
    [
        "crunch",
        "crunch:live",
        "123456789012:function:crunch",
        "arn:aws:lambda:eu-west-1:123456789012:function:crunch:7",
    ],
)
def test_a_mapping_names_its_function_in_any_form(tmp_path: Path, text: str) -> None:
    properties = {"EventSourceArn": "arn:aws:sqs:eu-west-1:123456789012:q", "FunctionName": text}
    facts = resources(tmp_path, {"M": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": properties}})
    assert facts.mappings[0].function == "crunch"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"Runtime": "nodejs22.x"}, "only Python"),
        ({"Runtime": {"Ref": "Nothing"}}, "neither a parameter nor a resource"),
        ({"Handler": "handler"}, "not file.function"),
        ({"Handler": "other.handler"}, "there is no other.py"),
        ({"PackageType": "Image"}, "image"),
        ({"Code": {"S3Bucket": "b", "S3Key": "k"}}, "not in a local directory"),
        ({"Code": "s3://b/k"}, "s3"),
        ({"Code": "./nowhere"}, "there is no directory"),
        ({"Code": "sr\0c"}, "cannot be read|no directory"),
        ({"Code": {"ZipFile": "x"}}, "inline code"),
        ({"Code": {"Fn::ImportValue": "bucket"}}, "another stack, bucket"),
    ],
)
def test_a_function_that_cannot_run_here_says_why(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("")
    properties = {"Runtime": "python3.12", "Handler": "app.handler", "Code": "src", **changed}
    facts = resources(tmp_path, {"F": {"Type": "AWS::Lambda::Function", "Properties": properties}})
    assert facts.functions_that_run == ()
    assert any(one.why.startswith("it does not run here") for one in facts.left_out)
    assert any(re.search(says, one.why) for one in facts.left_out)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_code_that_is_a_device_or_a_fifo_is_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    properties = {"Runtime": "python3.12", "Handler": "app.handler", "Code": name}
    facts = resources(tmp_path, {"F": {"Type": "AWS::Lambda::Function", "Properties": properties}})
    assert any("there is no directory" in one.why for one in facts.left_out)


def test_code_the_cdk_put_beside_the_template_is_found(tmp_path: Path) -> None:
    (tmp_path / "asset.1" / "pkg").mkdir(parents=True)
    (tmp_path / "asset.1" / "pkg" / "app.py").write_text("")
    function = {
        "Type": "AWS::Lambda::Function",
        "Metadata": {"aws:asset:path": "asset.1", "aws:asset:property": "Code"},
        "Properties": {
            "Runtime": "python3.12",
            "Handler": "pkg/app.handler",
            "Code": {"S3Bucket": {"Fn::Sub": "b-${AWS::Region}"}},
        },
    }
    [found] = resources(tmp_path, {"F": function}).functions_that_run
    assert isinstance(found.code, LocalCode)
    assert found.code.file.name == "app.py"


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"EventSourceArn": "arn:aws:kinesis:eu-west-1:1:stream/s", "FunctionName": "F"}, "of kinesis"),
        ({"EventSourceArn": "arn:aws:sqs:eu-west-1:1:elsewhere", "FunctionName": "F"}, "queue elsewhere is not in"),
        ({"EventSourceArn": {"Fn::GetAtt": ["Q", "Arn"]}, "FunctionName": "G"}, "function G is not in"),
        ({"EventSourceArn": {"Fn::GetAtt": ["Q", "Arn"]}, "FunctionName": "F"}, "function F does not run here"),
        ({"EventSourceArn": {"Fn::ImportValue": "Arn"}, "FunctionName": "F"}, "another stack, Arn"),
        ({"EventSourceArn": {"Fn::GetAtt": ["Q", "Arn"]}, "FunctionName": "F", "BatchSize": {"Ref": "N"}}, "N is neither"),
        ({"EventSourceArn": "arn:aws:sqs:r:1:Q", "FunctionName": "F", "FilterCriteria": {"Filters": [{}]}}, "Pattern"),
        ({"FunctionName": "F"}, "not the ARN"),
    ],
)  # fmt: skip
def test_a_mapping_that_cannot_run_says_why_and_once(tmp_path: Path, mapping: dict[str, Any], says: str) -> None:
    facts = resources(
        tmp_path,
        {
            "Q": {"Type": "AWS::SQS::Queue"},
            "F": {"Type": "AWS::Lambda::Function", "Properties": {"Runtime": "go1.x"}},
            "M": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": mapping},
        },
    )
    assert facts.mappings_that_run == ()
    [reason] = why(facts, "M").values()
    assert says in reason


def test_a_dead_letter_chain_is_created_from_its_end_and_a_circle_is_not_followed_for_ever(tmp_path: Path) -> None:
    def queue(target: str) -> dict[str, Any]:
        arn = {"Fn::Sub": f"arn:aws:sqs:${{AWS::Region}}:${{AWS::AccountId}}:{target}"}
        return {
            "Type": "AWS::SQS::Queue",
            "Properties": {"RedrivePolicy": {"deadLetterTargetArn": arn, "maxReceiveCount": "3"}},
        }

    facts = resources(
        tmp_path, {"A": queue("B"), "B": queue("C"), "C": {"Type": "AWS::SQS::Queue"}, "X": queue("Y"), "Y": queue("X")}
    )
    names = [one.name for one in facts.queues]
    assert names[:3] == ["C", "B", "A"]
    assert sorted(names[3:]) == ["X", "Y"]
    assert resources(tmp_path, {"Self": queue("Self")}).queues[0].name == "Self"


def test_the_second_of_two_queues_with_one_name_is_left_out(tmp_path: Path) -> None:
    queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "q"}}
    facts = resources(tmp_path, {"A": queue, "B": queue})
    assert [one.logical_id for one in facts.queues] == ["A"]
    assert "is that of A" in why(facts, "B")["Resources.B.Properties"]


def test_a_redrive_policy_that_is_not_known_leaves_the_queue_without_one(tmp_path: Path) -> None:
    for policy in (
        {"deadLetterTargetArn": {"Fn::ImportValue": "Dead"}, "maxReceiveCount": 3},
        {"maxReceiveCount": 3},
        "{",
        7,
    ):
        facts = resources(tmp_path, {"Q": {"Type": "AWS::SQS::Queue", "Properties": {"RedrivePolicy": policy}}})
        assert facts.queues[0].redrive is None
        assert facts.queues[0].attributes == {}
        assert list(why(facts, "Q")) == ["Resources.Q.Properties.RedrivePolicy"]


@pytest.mark.parametrize(
    "resource",
    [None, 7, "x", [], {}, {"Type": 7}, {"Type": None}, {"Type": "AWS::SQS::Queue", "Properties": []},
     {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": [], "Tags": 3, "RedrivePolicy": []}},
     {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Ref": "R"}}},
     {"Type": "AWS::SQS::Queue", "Properties": {"Fn::Transform": {"Name": "AWS::Include"}}},
     {"Type": "AWS::SQS::Queue", "Condition": []},
     {"Type": "AWS::SQS::QueuePolicy", "Properties": {"Queues": 3}},
     {"Type": "AWS::Lambda::Function", "Properties": {"Environment": [], "Code": 3, "Runtime": "python3", "Handler": "a.b"}},
     {"Type": "AWS::Lambda::Function", "Properties": {"Environment": {"Variables": {"A": None, "B": []}}}},
     {"Type": "AWS::Serverless::Function", "Properties": {"Events": {"A": None, "B": {"Type": "SQS"}}}},
     {"Type": "AWS::Serverless::Function", "Properties": {"Events": 3}},
     {"Type": "AWS::Lambda::EventSourceMapping", "Properties": {"FilterCriteria": 3, "ScalingConfig": 4}}],
)  # fmt: skip
def test_a_malformed_resource_is_left_out_or_noted(tmp_path: Path, resource: object) -> None:
    facts = resources(tmp_path, {"R": resource, "Good": {"Type": "AWS::SQS::Queue"}})
    assert "Good" in [one.name for one in facts.queues]
    assert why(facts, "R")


def test_macros_and_loops_are_named(tmp_path: Path) -> None:
    facts = resources(
        tmp_path,
        {"Fn::ForEach::Queues": ["X", ["a"], {}], "Q": {"Type": "AWS::SQS::Queue"}},
        Transform=["AWS::LanguageExtensions", "MyMacro"],
    )
    assert sorted(one.type for one in facts.left_out) == ["ForEach", "macro"]


def test_no_file_and_no_resources(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no file"):
        collect_template(tmp_path / "none.yaml", parameters={}, account="1", region="r")
    with pytest.raises(UsageError, match="has no Resources"):
        collect(tmp_path, "Outputs: {}\n")
    with pytest.raises(UsageError, match="Resources is not a mapping"):
        collect(tmp_path, "Resources: [1]\n")


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in plain data."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in paths(item, (*path, key)))]


@given(st.data())
def test_no_value_in_any_place_makes_it_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "whole.yaml").write_text(SAM)
    template = json.loads(json.dumps(read_document(folder / "whole.yaml").data))
    for _ in range(3):
        *outer, last = data.draw(st.sampled_from(paths(template)[1:]))
        place = template
        for key in outer:
            place = place[key]
        place[last] = data.draw(VALUES)
    try:
        facts = resources(folder, template.pop("Resources", {}), **template)
    except UsageError:
        return
    taken = {fact.logical_id for fact in (*facts.queues, *facts.policies, *facts.functions, *facts.mappings)}
    assert set(read_document(Path(facts.file)).data["Resources"]) <= taken | {
        one.location.logical_id for one in facts.left_out
    }


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("main.tf", 'resource "aws_sqs_queue" "q" {}', r"Terraform file.*endpoints \{ sqs = URL"),
        ("main.tf.json", "{}", "Terraform file"),
        ("infra.json", '{"terraform": {}, "resource": {"aws_sqs_queue": {"q": {}}}}', "Terraform file"),
        (
            "serverless.yml",
            "service: shop\nprovider: {name: aws}\nfunctions: {}\n",
            "Serverless.*Run serverless package",
        ),
    ],
)
def test_files_of_other_tools_are_told_what_to_give_instead(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=says):
        collect_template(tmp_path / name, parameters={}, account="123456789012", region="eu-west-1")


def test_every_property_without_effect_is_said(tmp_path: Path) -> None:
    function = {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "Runtime": "python3.12", "Handler": "index.main", "Code": {"ZipFile": "def main(event, context): ..."},
            "Role": "arn:aws:iam::123456789012:role/r", "SnapStart": {"ApplyOn": "None"}, "Description": "nowhere",
        },
    }  # fmt: skip
    mapping = {
        "EventSourceArn": {"Fn::GetAtt": ["Q", "Arn"]},
        "FunctionName": {"Ref": "F"},
        "KmsKeyArn": "arn:aws:kms:x",
    }
    facts = resources(
        tmp_path,
        {
            "Q": {"Type": "AWS::SQS::Queue"}, "F": function,
            "M": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": mapping},
        },
    )  # fmt: skip
    assert {one.location.path.rpartition(".")[2]: one.why for one in facts.left_out} == {
        "Role": "nobody is asked for permissions here",
        "SnapStart": "without effect here",
        "KmsKeyArn": "without effect here",
    }


@pytest.mark.parametrize(("inside", "runs"), [("app.py", True), ("app/__init__.py", True), ("other.py", False)])
def test_code_in_a_zip_beside_the_template(tmp_path: Path, inside: str, runs: bool) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr(inside, "def main(event, context): ...")
    function = {"Runtime": "python3.12", "Handler": "app.main", "CodeUri": "code.zip"}
    facts = resources(tmp_path, {"F": {"Type": "AWS::Serverless::Function", "Properties": function}})
    expected = ZippedCode((tmp_path / "code.zip").resolve()) if runs else None
    assert [one.code for one in facts.functions_that_run] == ([expected] if runs else [])
    assert runs or "there is no app.py in" in facts.left_out[0].why


def test_a_topic_exists_in_a_local_sqs_and_a_function_is_told_its_arn(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(
        "Resources:\n"
        "  Placed: {Type: AWS::SNS::Topic, Properties: {TopicName: placed, KmsMasterKeyId: alias/aws/sns}}\n"
        "  Say:\n"
        "    Type: AWS::Lambda::Function\n"
        "    Properties:\n"
        "      Runtime: python3.12\n"
        "      Handler: index.handler\n"
        "      Code: {ZipFile: 'def handler(event, context): pass'}\n"
        "      Environment: {Variables: {REF: !Ref Placed, ARN: !GetAtt Placed.TopicArn, NAME: !GetAtt Placed.TopicName}}\n"
    )
    facts = collect_template(path, parameters={}, account="123456789012", region="eu-west-1")
    (function,) = facts.functions
    arn = "arn:aws:sns:eu-west-1:123456789012:placed"
    assert function.environment == {"REF": arn, "ARN": arn, "NAME": "placed"}
    assert why(facts, "Placed") == {"Resources.Placed.Properties.KmsMasterKeyId": "without effect here"}
