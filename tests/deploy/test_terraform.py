"""The Terraform module: the provider knows every argument, every reference leads somewhere, and none in a circle.

Terraform itself cannot be had without a network (its provider is a download of its own), so the module is held against
`terraform_schema.json`: names, types and requirements of provider 6.25.0 for the resource types that are written.
"""

from __future__ import annotations

import json
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from onefold.deploy import cloudformation, terraform
from tests.deploy.test_templates import PLANS

SCHEMA: dict[str, Any] = json.loads(Path(__file__).with_name("terraform_schema.json").read_text(encoding="utf-8"))
RESOURCES: dict[str, Any] = SCHEMA["resources"]
META = {"depends_on", "lifecycle"}
PYTHON = {"string": str, "number": (int, float), "bool": bool, "list(string)": list, "map(string)": dict}
REFERENCE = re.compile(r"(?<!\$)\$\{([^}]*)\}")

Json = dict[str, Any]


def problems(body: Json, arguments: Json, where: str) -> list[str]:
    """What the provider would refuse of a block."""
    found = [
        f"{where}: {name} is required" for name, one in arguments.items() if one.get("required") and name not in body
    ]
    for name, value in body.items():
        if name in META:
            continue
        known = arguments.get(name)
        if known is None:
            found.append(f"{where}: there is no {name}")
        elif "block" in known:
            inner = value if isinstance(value, list) else [value]
            if len(inner) != 1 and not known["many"]:
                found.append(f"{where}: {name} stands once")
            for one in inner:
                found += problems(one, known["block"], f"{where}.{name}")
        elif isinstance(value, str) and REFERENCE.fullmatch(value):
            continue
        elif not isinstance(value, PYTHON[known["type"]]) or (isinstance(value, bool) and known["type"] != "bool"):
            found.append(f"{where}: {name}={value!r} is no {known['type']}")
    return found


def references(value: Any) -> list[str]:
    """The expressions in a value, without their signs."""
    if isinstance(value, dict):
        return [one for name, inner in value.items() for one in references(inner) + references(name)]
    if isinstance(value, list):
        return [one for inner in value for one in references(inner)]
    return REFERENCE.findall(value) if isinstance(value, str) else []


@pytest.mark.parametrize("name", PLANS)
def test_every_argument_is_one_that_the_provider_takes(name: str) -> None:
    found: list[str] = []
    for kind, bodies in terraform.module(PLANS[name])["resource"].items():
        for resource, body in bodies.items():
            assert re.fullmatch(r"[a-z_][a-z0-9_]*", resource)
            found += problems(body, RESOURCES[kind]["arguments"], f"{kind}.{resource}")
    assert found == []


@pytest.mark.parametrize("name", PLANS)
def test_every_reference_leads_somewhere_and_none_in_a_circle(name: str) -> None:
    module = terraform.module(PLANS[name])
    variables = set(module.get("variable", {}))
    needs: dict[str, set[str]] = {}
    for kind, bodies in module["resource"].items():
        for resource, body in bodies.items():
            needed = set(body.get("depends_on", ()))
            for expression in references(body):
                for word in re.findall(r"[a-z_][\w.]*\.\w+", expression):
                    first, second, *rest = word.split(".")
                    if first == "var":
                        assert second in variables
                    elif first == "data":
                        assert rest[-1] in SCHEMA["data"][second]
                        assert rest[0] in module["data"][second]
                    else:
                        assert second in module["resource"][first], word
                        assert rest[0] in RESOURCES[first]["attributes"], word
                        needed.add(f"{first}.{second}")
            needs[f"{kind}.{resource}"] = needed
    assert needs.keys() == set(TopologicalSorter(needs).static_order())
    for expression in references(module["output"]):
        if expression.startswith("aws_"):
            kind, resource, attribute = expression.split(".")
            assert resource in module["resource"][kind]
            assert attribute in RESOURCES[kind]["attributes"]


def test_the_check_notices_what_is_wrong() -> None:
    arguments = RESOURCES["aws_dynamodb_table"]["arguments"]
    body = terraform.module(PLANS["demo"])["resource"]["aws_dynamodb_table"]["records"]
    assert problems(body, arguments, "t") == []
    assert problems({**body, "colour": "red"}, arguments, "t") == ["t: there is no colour"]
    assert problems({**body, "ttl": [{}, {}]}, arguments, "t") == ["t: ttl stands once"]
    assert problems({**body, "attribute": [{"name": "pk"}]}, arguments, "t") == ["t.attribute: type is required"]
    assert problems({**body, "hash_key": 1}, arguments, "t") == ["t: hash_key=1 is no string"]
    assert references({"a": ["${b.c}", "$${d}"]}) == ["b.c"]


# -- both writers say the same ---------------------------------------------------------------------------------------

_KNOWN = {
    "data.aws_partition.current.partition": "aws",
    "data.aws_region.current.region": "eu-west-1",
    "data.aws_caller_identity.current.account_id": "111122223333",
}
_PSEUDO = {"AWS::Partition": "aws", "AWS::Region": "eu-west-1", "AWS::AccountId": "111122223333"}


def in_terraform(text: str) -> Any:
    """A policy as Terraform would send it."""
    return json.loads(REFERENCE.sub(lambda found: _KNOWN.get(found[1]) or f"<{found[1].split('.')[1]}>", text))


def _meant(found: re.Match[str]) -> str:
    """What a place in a text stands for: a pseudo parameter, or a resource by its name in Terraform."""
    logical = re.sub("(Role|Function|Queue|Mapping|Topic)$", "", found[1])
    return _PSEUDO.get(found[1]) or f"<{terraform.resource_name(logical)}>"


def in_cloudformation(value: Any) -> Any:
    """A value as CloudFormation would send it."""
    if isinstance(value, dict):
        if "Fn::Sub" in value:
            return re.sub(r"\$\{([\w:]+)(?:\.Arn)?\}", _meant, value["Fn::Sub"])
        return {name: in_cloudformation(inner) for name, inner in value.items()}
    return [in_cloudformation(inner) for inner in value] if isinstance(value, list) else value


def as_metric(query: Json) -> Json:
    """The metric of a query as CloudFormation writes it."""
    if "metric" not in query:
        return {}
    metric = query["metric"]
    dimensions = [
        {
            "Name": name,
            "Value": REFERENCE.sub(lambda found: _KNOWN.get(found[1]) or f"<{found[1].split('.')[1]}>", value),
        }
        for name, value in metric["dimensions"].items()
    ]
    return {"Namespace": metric["namespace"], "MetricName": metric["metric_name"], "Dimensions": dimensions}


@pytest.mark.parametrize("name", PLANS)
def test_both_writers_give_the_same_permissions_and_sizes(name: str) -> None:
    plan = PLANS[name]
    written = terraform.module(plan)["resource"]
    template = cloudformation.template(plan)["Resources"]

    roles = [
        in_cloudformation(one["Properties"]["Policies"][0]["PolicyDocument"])
        for logical, one in sorted(template.items())
        if one["Type"] == "AWS::IAM::Role"
    ]
    assert roles == [in_terraform(one["policy"]) for _, one in sorted(written.get("aws_iam_role_policy", {}).items())]

    schedules = {
        one["Properties"]["Name"]: (
            in_cloudformation(one["Properties"]["Target"]["Input"]),
            one["Properties"]["ScheduleExpression"],
            one["Properties"]["ScheduleExpressionTimezone"],
            one["Properties"]["Target"]["RetryPolicy"]["MaximumRetryAttempts"],
            one["Properties"].get("StartDate"),
        )
        for one in template.values()
        if one["Type"] == "AWS::Scheduler::Schedule"
    }
    assert schedules == {
        one["name"]: (
            json.dumps(in_terraform(one["target"]["input"]), separators=(",", ":")),
            one["schedule_expression"],
            one["schedule_expression_timezone"],
            one["target"]["retry_policy"]["maximum_retry_attempts"],
            one.get("start_date"),
        )
        for one in written.get("aws_scheduler_schedule", {}).values()
    }
    definitions = {
        one["Properties"]["StateMachineName"]: json.loads(in_cloudformation(one["Properties"]["DefinitionString"]))
        for one in template.values()
        if one["Type"] == "AWS::StepFunctions::StateMachine"
    }
    machines = written.get("aws_sfn_state_machine", {}).values()
    assert definitions == {one["name"]: in_terraform(one["definition"]) for one in machines}

    def sizes(properties: Json, names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(properties.get(one) for one in names)

    queues = {
        sizes(
            one["Properties"], ("QueueName", "VisibilityTimeout", "MessageRetentionPeriod", "DelaySeconds", "FifoQueue")
        )
        for one in template.values()
        if one["Type"] == "AWS::SQS::Queue"
    }
    there = ("name", "visibility_timeout_seconds", "message_retention_seconds", "delay_seconds", "fifo_queue")
    assert queues == {sizes(one, there) for one in written["aws_sqs_queue"].values()}

    alarms = {
        sizes(
            one["Properties"],
            (
                "AlarmName",
                "MetricName",
                "Threshold",
                "Period",
                "TreatMissingData",
                "EvaluationPeriods",
                "DatapointsToAlarm",
            ),
        )
        for one in template.values()
        if one["Type"] == "AWS::CloudWatch::Alarm"
    }
    there = (
        "alarm_name", "metric_name", "threshold", "period", "treat_missing_data", "evaluation_periods",
        "datapoints_to_alarm",
    )  # fmt: skip
    assert alarms == {sizes(one, there) for one in written["aws_cloudwatch_metric_alarm"].values()}
    math = {
        one["Properties"]["AlarmName"]: [
            (query["Id"], query.get("Expression"), in_cloudformation(query.get("MetricStat", {}).get("Metric", {})))
            for query in one["Properties"]["Metrics"]
        ]
        for one in template.values()
        if one["Type"] == "AWS::CloudWatch::Alarm" and "Metrics" in one["Properties"]
    }
    assert math == {
        one["alarm_name"]: [(query["id"], query.get("expression"), as_metric(query)) for query in one["metric_query"]]
        for one in written["aws_cloudwatch_metric_alarm"].values()
        if "metric_query" in one
    }


def test_things_with_contents_are_not_destroyed_by_a_plan() -> None:
    for name, kept in (("demo", True), ("throw-away", False)):
        written = terraform.module(PLANS[name])["resource"]
        holders = [*written["aws_sqs_queue"].values(), *written["aws_dynamodb_table"].values()]
        assert {one.get("lifecycle", {}).get("prevent_destroy", False) for one in holders} == {kept}
