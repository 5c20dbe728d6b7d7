"""The CloudFormation template: exact for the demo, the same bytes at every run, and clean by the linters of others.

Renew the files in `golden` with:  .venv/bin/python -m tests.deploy.golden
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

import onefold
from onefold.cli.stack_options import declared_in
from onefold.deploy import cloudformation, terraform
from onefold.deploy import plan as plans
from onefold.deploy.plan import DeployPlan
from onefold.deploy.stack import Stack
from onefold.maps.rules import MapSpec
from tests.deploy import timed
from tests.deploy.declared import KEY, WIDE, declared, demo, planned, wide
from tests.deploy.golden import GOLDEN, WRITTEN

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-tools" / "bin"
ARGUED = ROOT / "docs" / "decisions" / "0009-synthesised-infrastructure.md"

PLANS = {
    "demo": planned(demo),
    "wide": planned(wide, WIDE),
    "own-key": planned(demo, Stack(kms_key=KEY)),
    "throw-away": planned(demo, Stack(disposable=True)),
    "records-elsewhere": planned(declared(), Stack(records="postgresql://app@db.example/shop")),
    "workers-only": planned(declared(function=None)),
    "timed": timed.planned(Stack(prefix="prod-")),
    "timed-later": timed.planned(Stack(kms_key=KEY, later=True)),
    "job-alarms": timed.planned(Stack(prefix="prod-", alarms="jobs", slack="T0123ABCD/C0456EFGH")),
}


def tool(name: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of `.venv-tools`; its absence is a failure."""
    path = TOOLS / name
    assert path.exists(), f"{path} is not there. Run: make setup"
    return subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


# -- exact and the same ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_for_the_demo(name: str) -> None:
    assert WRITTEN[name]() == (GOLDEN / name).read_text(encoding="utf-8"), "renew: see the head of this file"


@pytest.mark.slow
def test_the_same_app_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    code = (
        "from onefold.deploy import cloudformation as c, terraform as t; from tests.deploy import timed;"
        "from tests.deploy.declared import *;"
        "print([(c.to_json(p), c.to_yaml(p), t.to_json(p))"
        " for p in (planned(wide, WIDE), timed.planned(Stack(kms_key=KEY, later=True)))])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711", "random")
    }
    assert len(found) == 1


@pytest.mark.parametrize("name", PLANS)
def test_json_keys_are_sorted_and_yaml_says_the_same_without_aliases(name: str) -> None:
    text = cloudformation.to_json(PLANS[name])
    template = json.loads(text)
    assert text == json.dumps(template, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    in_yaml = cloudformation.to_yaml(PLANS[name])
    assert yaml.safe_load(in_yaml) == template
    assert not re.search(r"[&*]id\d", in_yaml)


def test_names_that_look_alike_keep_everything_apart() -> None:
    app = onefold.App("shop")
    for name in ("scheduler", "emails", "e-mails", "pack-map", "copy-pipe", "orders", "big-orders", "copies"):
        app.job(app.queue(name), key="{id}", name=f"do-{name}")(lambda payload: None)
    app.schedule("rate(1 hour)", name="hourly", queue=app.queues["copies"])(lambda tick: None)
    app.pipe(app.queue("mirror"), app.queues["copies"], name="copy")
    app.bus("shop").rule("new", {"source": ["a"]}, to=app.queues["big-orders"])
    app.bus("shop").rule("new-big", {"source": ["b"]}, to=app.queues["orders"])
    pack = MapSpec(name="pack", queue="orders", source="s3://files/in.jsonl")
    found = plans.plan(app.name, "shop:app", replace(declared_in(app), maps=[pack]), Stack(slack="T0/C0"))
    assert found.scheduling is not None

    template = cloudformation.template(found)["Resources"]
    roles = {key: one["Properties"] for key, one in template.items() if one["Type"] == "AWS::IAM::Role"}
    assert len(roles) == len(found.functions) + 4  # of the schedules, of the state machine, of the pipe, of the channel
    for function in found.functions:
        role = roles[template[f"{function.id}Function"]["Properties"]["Role"]["Fn::GetAtt"][0]]
        assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "lambda.amazonaws.com"}

    written = terraform.module(found)["resource"]
    queues = {one["name"] for one in written["aws_sqs_queue"].values()}
    assert queues == {one.settings.name for one in found.queues}
    assert len(written["aws_iam_role"]) == len(written["aws_iam_role_policy"]) == len(roles)
    assert len(written["aws_cloudwatch_event_target"]) == 2


def test_a_new_queue_renames_nothing() -> None:
    before = cloudformation.template(planned(declared()))["Resources"]
    app = declared()
    app.queue("mails")
    after = cloudformation.template(planned(app))["Resources"]
    assert (
        before.items() <= {**after, **{name: before[name] for name in ("OrdersFunctionRole", "Dashboard")}}.items()
    )  # it may send there now, and it is drawn
    assert after.keys() - before.keys() == {
        f"Mails{part}"
        for part in (
            "Queue",
            "QueuePolicy",
            "OldestAlarm",
            "StalledAlarm",
            "DrainAlarm",
            "InFlightCapAlarm",
            "DeadQueue",
            "DeadQueuePolicy",
            "DeadNotEmptyAlarm",
            "DeadExpiringAlarm",
            "HeldQueue",
            "HeldQueuePolicy",
            "HeldNotEmptyAlarm",
            "HeldOldAlarm",
        )
    }


def test_more_resources_than_a_stack_may_have_are_refused_with_what_to_do() -> None:
    app = onefold.App("shop")
    for number in range(20):
        app.job(app.queue(f"queue-{number}"), key="{id}", name=f"job-{number}")(lambda payload: None)
    with pytest.raises(onefold.errors.UsageError, match=r"has \d{3} resources.*--alarms few"):
        cloudformation.template(plans.plan("shop", "shop:app", declared_in(app), Stack()))
    cloudformation.template(plans.plan("shop", "shop:app", declared_in(app), Stack(alarms="few")))
    terraform.module(plans.plan("shop", "shop:app", declared_in(app), Stack()))


def test_a_prefix_changes_names_and_no_logical_id() -> None:
    plain, prefixed = planned(declared()), planned(declared(), Stack(prefix="prod-"))
    assert cloudformation.template(plain)["Resources"].keys() == cloudformation.template(prefixed)["Resources"].keys()
    assert {queue.settings.name for queue in prefixed.queues} == {f"prod-{q.settings.name}" for q in plain.queues}


# -- what must be in it ----------------------------------------------------------------------------------------------


def resources(plan: DeployPlan, kind: str) -> dict[str, Any]:
    """The resources of a type, by logical id."""
    found: dict[str, Any] = cloudformation.template(plan)["Resources"]
    return {name: one for name, one in found.items() if one["Type"] == kind}


@pytest.mark.parametrize("name", PLANS)
def test_every_queue_is_encrypted_and_refuses_who_comes_without_tls(name: str) -> None:
    plan = PLANS[name]
    queues = resources(plan, "AWS::SQS::Queue")
    policies = resources(plan, "AWS::SQS::QueuePolicy")
    assert {name.removesuffix("Policy") for name in policies} == queues.keys()
    for queue in queues.values():
        assert ("KmsMasterKeyId" in queue["Properties"]) != ("SqsManagedSseEnabled" in queue["Properties"])
    for policy in policies.values():
        statement, *others = policy["Properties"]["PolicyDocument"]["Statement"]
        assert statement["Effect"] == "Deny"
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        assert all(one["Condition"]["ArnEquals"]["aws:SourceArn"] for one in others)


def test_what_holds_something_is_kept_unless_the_stack_is_disposable() -> None:
    for plan, kept in ((PLANS["timed"], "RetainExceptOnCreate"), (PLANS["throw-away"], "Delete")):
        holders = resources(plan, "AWS::SQS::Queue") | resources(plan, "AWS::DynamoDB::Table")
        holders |= resources(plan, "AWS::Events::Archive")
        assert {one["DeletionPolicy"] for one in holders.values()} == {kept}


def test_the_held_queue_is_named_where_the_adapter_looks() -> None:
    (queue,) = [one for name, one in resources(PLANS["demo"], "AWS::SQS::Queue").items() if name == "InvoicesQueue"]
    assert {"Key": "onefold:held", "Value": "demo-invoices-held"} in queue["Properties"]["Tags"]


def test_the_table_is_the_one_that_the_store_makes_for_itself() -> None:
    from onefold.engines.aws.dynamodb import items, schema

    (table,) = resources(PLANS["demo"], "AWS::DynamoDB::Table").values()
    own = schema.definition("shop")
    assert {name: table["Properties"][name] for name in own} == own
    assert table["Properties"]["TimeToLiveSpecification"] == {"AttributeName": items.TTL_ATTRIBUTE, "Enabled": True}
    assert table["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def test_a_users_own_text_is_not_read_as_an_expression() -> None:
    variables = resources(PLANS["wide"], "AWS::Lambda::Function")["OrdersFIFOFunction"]["Properties"]["Environment"]
    assert variables["Variables"]["GREETING"] == "Hello ${name}, {region} %{x}"
    found = terraform.module(PLANS["wide"])["resource"]["aws_lambda_function"]["orders__fifo"]["environment"]
    assert found["variables"]["GREETING"] == "Hello $${name}, {region} %%{x}"


# -- by the linters of others ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_cfn_lint_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    (tmp_path / "template.json").write_text(cloudformation.to_json(PLANS[name]))
    (tmp_path / "template.yaml").write_text(cloudformation.to_yaml(PLANS[name]))
    files = (tmp_path / "template.json", tmp_path / "template.yaml")
    found = tool("cfn-lint", "--non-zero-exit-code", "informational", "--include-checks", "I", "--", *files)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def argued() -> dict[str, bool]:
    """Checks that the decision argues: id to whether a key of one's own makes it pass."""
    rows = re.findall(r"^\| (CKV\w+) \| .* \| (yes|no) \|", ARGUED.read_text(encoding="utf-8"), re.MULTILINE)
    return {check: passes == "yes" for check, passes in rows}
