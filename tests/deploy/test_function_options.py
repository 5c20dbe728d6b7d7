"""The rarer options of a function, and what an owner merges into single resources: in both templates, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

import onefold
from onefold.deploy import cloudformation, terraform
from onefold.deploy.stack import Stack
from onefold.observe.log_fields import fields_of, json_line
from onefold.options import Function
from onefold.runtime.events import Event
from tests.deploy import timed
from tests.deploy.cloudwatch import counts
from tests.deploy.declared import declared, planned

LAYER = "arn:aws:lambda:eu-west-1:901920570463:layer:aws-otel-python-amd64-ver-1-32-0:2"
MAY = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::mine/*"}
ALL = Function(
    tracing=True, layers=[LAYER], reserved=20, alias="live", provisioned=2, ephemeral_mb=1_024, json_logs=True,
    statements=[MAY],
)  # fmt: skip


def resources(function: Function, stack: Stack | None = None) -> dict[str, Any]:
    found: dict[str, Any] = cloudformation.template(planned(declared(function), stack))["Resources"]
    return found


def module(function: Function, stack: Stack | None = None) -> dict[str, Any]:
    found: dict[str, Any] = terraform.module(planned(declared(function), stack))["resource"]
    return found


def test_each_is_written_in_cloudformation() -> None:
    found = resources(ALL)
    written = found["OrdersFunction"]["Properties"]
    assert written["TracingConfig"] == {"Mode": "Active"}
    assert written["Layers"] == [LAYER]
    assert written["ReservedConcurrentExecutions"] == 20
    assert written["EphemeralStorage"] == {"Size": 1_024}
    assert written["LoggingConfig"]["LogFormat"] == "JSON"
    alias = found["OrdersAlias"]["Properties"]
    assert alias["Name"] == "live"
    assert alias["ProvisionedConcurrencyConfig"] == {"ProvisionedConcurrentExecutions": 2}
    assert found["OrdersMapping"]["Properties"]["FunctionName"] == {"Ref": "OrdersAlias"}
    onefolds, own = found["OrdersFunctionRole"]["Properties"]["Policies"]
    assert own["PolicyDocument"]["Statement"] == [MAY]
    assert "SendTraces" in {one["Sid"] for one in onefolds["PolicyDocument"]["Statement"]}


def test_each_is_written_in_terraform() -> None:
    found = module(ALL)
    written = found["aws_lambda_function"]["orders"]
    assert written["tracing_config"] == {"mode": "Active"}
    assert (written["layers"], written["reserved_concurrent_executions"], written["publish"]) == ([LAYER], 20, True)
    assert (written["ephemeral_storage"], written["logging_config"]["log_format"]) == ({"size": 1_024}, "JSON")
    assert found["aws_lambda_alias"]["orders"]["function_version"] == "${aws_lambda_function.orders.version}"
    warm = found["aws_lambda_provisioned_concurrency_config"]["orders"]
    assert (warm["qualifier"], warm["provisioned_concurrent_executions"]) == ("${aws_lambda_alias.orders.name}", 2)
    assert found["aws_lambda_event_source_mapping"]["orders"]["function_name"] == "${aws_lambda_alias.orders.arn}"
    own = found["aws_iam_role_policy"]["orders_function_own"]
    assert json.loads(own["policy"])["Statement"] == [MAY]


def test_a_function_without_them_is_as_it_was() -> None:
    found = resources(Function())
    assert not {"OrdersAlias", "OrdersVersion"} & found.keys()
    rare = {"TracingConfig", "Layers", "ReservedConcurrentExecutions", "EphemeralStorage"}
    assert not rare & found["OrdersFunction"]["Properties"].keys()
    assert "publish" not in module(Function())["aws_lambda_function"]["orders"]


def test_a_version_is_made_for_new_code_and_for_new_settings_and_old_ones_stay() -> None:
    def version(**options: Any) -> dict[str, Any]:
        found: dict[str, Any] = resources(Function(alias="live", **options))["OrdersVersion"]
        return found

    said = version()["Properties"]["Description"]["Fn::Sub"]
    assert said.startswith("${CodeKey} ")
    assert version() == version()
    assert version(memory_mb=1_024)["Properties"]["Description"]["Fn::Sub"] != said
    assert version()["UpdateReplacePolicy"] == version()["DeletionPolicy"] == "Retain"


def test_a_map_run_calls_the_alias_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = timed.app.queues["customers"]
    for alias, place in (("live", "alias_arn"), (None, "function_arn")):
        assert queue.function is not None
        function = replace(queue.function, alias=alias)
        monkeypatch.setitem(timed.app.registry.queues, "customers", replace(queue, function=function))
        (machine,) = timed.planned(None, (timed.spec,)).machines
        assert f"{{{place}.Customers}}" in machine.definition
        assert machine.role.statements[0].resources == (f"{{{place}.Customers}}",)


def test_what_lambda_reports_as_json_is_counted() -> None:
    patterns = {one.metric: one.pattern for one in planned(declared(Function(json_logs=True))).log_counts}
    line = json_line(fields_of(Event(at_ms=0, name="paused", queue="orders")))
    assert counts(patterns["Paused"], json.dumps({"level": "ERROR", "message": line}))
    assert counts(patterns["Paused"], line)
    lost = json_line(fields_of(Event(at_ms=0, name="completion-failed", queue="orders")))
    assert not counts(patterns["Paused"], json.dumps({"level": "ERROR", "message": lost}))
    assert counts(patterns["RecordLost"], json.dumps({"message": lost}))
    report = '{"time":"2026-01-01T00:00:00Z","type":"platform.report","record":{"requestId":"8f2f","status":"timeout"}}'
    assert counts(patterns["TimedOut"], report)
    assert not counts(patterns["TimedOut"], report.replace("timeout", "success"))


@pytest.mark.parametrize("verdict", [0, 2])
def test_a_look_in_json_counts_what_is_missing_only_where_something_is(verdict: int) -> None:
    app = onefold.App("shop")
    app.reconcile("billing", queue=app.queue("looks", function=Function(json_logs=True)))
    from onefold.cli.stack_options import declared_in
    from onefold.deploy.plan import plan

    patterns = {one.metric: one.pattern for one in plan("shop", "shop:app", declared_in(app), Stack()).log_counts}
    event = Event(at_ms=0, name="reconcile-failed", run="r/1", detail={"missing": verdict, "twice": 0})
    line = json.dumps({"message": json_line(fields_of(event))})
    assert counts(patterns["Missing"], line) == bool(verdict)
    assert not counts(patterns["Duplicates"], line)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reserved": 9}, "reserves 9 invocations, and its queue's mapping may start 10"),
        ({"provisioned": 2}, "provisioned concurrency without an alias"),
        ({"alias": "42"}, "alias='42' cannot be one"),
        ({"ephemeral_mb": 100}, "ephemeral_mb=100 is out of range"),
        ({"layers": [LAYER] * 6}, "6 layers"),
        ({"layers": ["otel"]}, "layers has 'otel'"),
        ({"tracing": "Active"}, "tracing='Active'"),
        ({"statements": [{"Action": "s3:*"}]}, "statements has"),
    ],
)
def test_what_lambda_would_refuse_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(onefold.errors.UsageError) as refused:
        planned(declared(Function(**options)))
    assert said in str(refused.value)


def test_a_map_needs_room_beside_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = timed.app.queues["customers"]
    assert queue.function is not None
    tight = replace(queue, function=replace(queue.function, reserved=12))
    monkeypatch.setitem(timed.app.registry.queues, "customers", tight)
    with pytest.raises(
        onefold.errors.UsageError, match="10 children and its queue 10 invocations, but 12 are reserved"
    ):
        timed.planned(None, (timed.spec,))


def test_an_owners_values_are_merged_and_a_name_that_is_not_there_is_refused() -> None:
    change = {"Properties": {"KmsDataKeyReusePeriodSeconds": 900, "DelaySeconds": None}, "Metadata": {"team": "shop"}}
    address = "aws_sqs_queue.orders"
    stack = Stack(overrides={"OrdersQueue": change, address: {"visibility_timeout_seconds": 900}})
    before, after = resources(Function()), resources(Function(), stack)
    assert after["OrdersQueue"]["Properties"]["KmsDataKeyReusePeriodSeconds"] == 900
    assert "DelaySeconds" not in after["OrdersQueue"]["Properties"]
    assert after["OrdersQueue"]["Metadata"] == {"team": "shop"}
    assert {name for name in after if after[name] != before[name]} == {"OrdersQueue"}
    assert module(Function(), stack)["aws_sqs_queue"]["orders"]["visibility_timeout_seconds"] == 900
    with pytest.raises(onefold.errors.UsageError, match=r"no resource OrderQueue.*Did you mean OrdersQueue"):
        resources(Function(), Stack(overrides={"OrderQueue": {}}))


def test_no_account_has_to_be_named_in_python() -> None:
    may = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:{partition}:s3:::files-{account}-{region}/*"}
    function = Function(policies=["arn:{partition}:iam::{account}:policy/team"], statements=[may])
    role = resources(function)["OrdersFunctionRole"]["Properties"]
    assert role["ManagedPolicyArns"] == [{"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:policy/team"}]
    (statement,) = role["Policies"][1]["PolicyDocument"]["Statement"]
    assert statement["Resource"] == {"Fn::Sub": "arn:${AWS::Partition}:s3:::files-${AWS::AccountId}-${AWS::Region}/*"}
    written = module(function)
    (attached,) = written["aws_iam_role_policy_attachment"].values()
    account = "${data.aws_caller_identity.current.account_id}"
    assert attached["policy_arn"] == f"arn:${{data.aws_partition.current.partition}}:iam::{account}:policy/team"
    assert f"files-{account}-" in written["aws_iam_role_policy"]["orders_function_own"]["policy"]
