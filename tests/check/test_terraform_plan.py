"""Plans of Terraform: the rules find in them what they find in templates, and say nothing about what is known after apply.

Terraform 1.11.4 and provider 5.100.0 made the plans (`terraform plan`, `terraform show -json`); null and empty values are
left out. Those in `wrong` and `right` are of the templates of the same names in `corpus`, for resources that exist: with
ARNs instead of references, and with the ARNs that AWS would have given.
"""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from onefold.check.checking import check
from onefold.check.inputs import read_input
from onefold.check.rules import RULES
from onefold.check.terraform_sources import written_in
from tests.check.test_check import CORPUS, run
from tools.check_figures import expected

PLANS = Path(__file__).parent / "terraform"
WRONG = sorted((PLANS / "wrong").glob("*.json"))
RIGHT = sorted((PLANS / "right").glob("*.json"))
SHOP = PLANS / "shop"
TODAY = date(2026, 11, 23)

OF_PROVIDER = "LOS015 warning"  # the provider sets max_message_size to 262,144 where nothing is written
LESS = {  # what the function's role may do is not in the plan; SAM writes it
    "CLG002": ["CLG002 info"], "CLG002-days": ["CLG002 warning"],
}  # fmt: skip

Json = dict[str, Any]


def found(file: Path) -> list[str]:
    checked = check([file], RULES, TODAY)
    assert checked.unread == ()
    return sorted(f"{one.rule} {one.severity}" for one in checked.open)


def without(words: list[str], *others: str) -> list[str]:
    return [one for one in words if one not in others]


@pytest.mark.parametrize("file", WRONG, ids=lambda one: one.stem)
def test_a_wrong_plan_has_the_findings_of_its_template(file: Path) -> None:
    wanted = without(expected(CORPUS / "wrong" / file.name), *LESS.get(file.stem, ()))
    assert without(found(file), *({OF_PROVIDER} - set(wanted))) == wanted


@pytest.mark.parametrize("file", RIGHT, ids=lambda one: one.stem)
def test_a_right_plan_has_none(file: Path) -> None:
    assert without(found(file), OF_PROVIDER) == []


def shop(tmp_path: Path, change: Json | None = None) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**json.loads((SHOP / "plan.json").read_text()), **(change or {})}))
    return file


def test_references_lead_through_modules_and_regions_are_apart(tmp_path: Path) -> None:
    """`module.queue["orders"].arn` is the queue in the module; the queue of the same name in us-west-2 is another one."""
    file = shop(tmp_path)
    document = json.loads(run(str(file), "--format", "json").output)
    assert [one["rule"] for one in document["findings"]] == ["DUP002", "DUP003"]
    first = document["findings"][0]
    assert first["resource"] == 'module.queue["orders"].aws_sqs_queue.this'
    assert first["arithmetic"] == [
        "6 x 30 s timeout + 0 s batching window = 180 s",
        "the visibility timeout is 30 s",
    ]
    assert first["fix"]["description"].endswith(" Here VisibilityTimeout is visibility_timeout_seconds.")
    assert first["fix"]["edits"] == []
    assert run(str(file), "--fix", "--unsafe").exit_code == 1
    assert "--fix would change 0 files" in run(str(file), "--diff", "--unsafe").output


def test_findings_are_where_terraform_has_them_written(tmp_path: Path) -> None:
    shutil.copytree(SHOP, tmp_path, dirs_exist_ok=True)
    output = run(str(tmp_path / "plan.json"), "--select", "DUP002").output
    assert f"--> {tmp_path}/modules/q/main.tf:13:32 " in output
    assert "13 |   visibility_timeout_seconds = var.timeout" in output
    assert f"--> {tmp_path}/main.tf:60:19  aws_lambda_function.ship" in output
    module = tmp_path / "modules" / "q" / "main.tf"
    module.write_text(module.read_text().replace("= var.timeout", "= var.timeout # onefold: ignore[DUP002] bounded"))
    assert "1 suppressed" in run(str(tmp_path / "plan.json"), "--select", "DUP002").output


def test_a_redrive_policy_of_new_queues_is_read_where_it_is_written(tmp_path: Path) -> None:
    """The plan does not know it, as AWS has given the dead-letter queue no ARN yet."""
    shutil.copytree(SHOP, tmp_path, dirs_exist_ok=True)
    plan, module = tmp_path / "plan.json", tmp_path / "modules" / "q" / "main.tf"
    written = module.read_text()
    lost = ["LOS002 error", "LOS002 error", "LOS002 error", "LOS003 warning", "LOS003 warning"]
    assert [one for one in found(plan) if one.startswith("LOS")] == lost
    for unsure in (
        "maxReceiveCount     = var.count",
        "maxReceiveCount     = 2 + 1",
        "maxReceiveCount     = 2\n    other = 1",
        "maxReceiveCount     = {}",
    ):
        module.write_text(written.replace("maxReceiveCount     = 2", unsure))
        assert [one for one in found(plan) if one.startswith("LOS")] == []
    module.write_text(written.replace("aws_sqs_queue.dead.arn", "aws_sqs_queue.other.arn"))
    assert [one for one in found(plan) if one.startswith("LOS")] == []


@pytest.mark.parametrize(("index", "is_known"), [("[each.key]", True), ('["a"]', True), ("[local.other]", False)])
def test_each_key_is_that_of_the_queue_itself(tmp_path: Path, index: str, is_known: bool) -> None:
    (tmp_path / "plan.json").write_text((PLANS / "each" / "plan.json").read_text())
    (tmp_path / "main.tf").write_text(
        'resource "aws_sqs_queue" "orders" {\n  redrive_policy = jsonencode({ deadLetterTargetArn = '
        f"aws_sqs_queue.dead{index}.arn, maxReceiveCount = 5 }})\n}}\n"
    )
    [one] = read_input(tmp_path / "plan.json")
    properties = one.document.data["Resources"]['aws_sqs_queue.orders["a"]']["Properties"]["RedrivePolicy"]
    arn = {"Fn::GetAtt": ['aws_sqs_queue.dead["a"]', "Arn"]}
    assert (properties == {"deadLetterTargetArn": arn, "maxReceiveCount": 5}) is is_known


def test_files_of_terraform_are_read_in_all_their_forms(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(
        """# resource "aws_sqs_queue" "commented" { visibility_timeout_seconds = 1 }
/* resource "aws_sqs_queue" "commented" {
} */
locals { text = <<-EOT
  resource "aws_sqs_queue" "heredoc" {
  }
  EOT
}
resource "aws_sqs_queue" "orders" {
  name = "a-${lookup(var.names, "x")}-}"
  visibility_timeout_seconds = (
    30
  )
  lifecycle {
    ignore_changes = [tags]
  }
  tags = { a = 1 == 2 ? "b" : "c" } // the last
}
resource "aws_sqs_queue" "one" { fifo_queue = true }
"""
    )
    found = written_in(tmp_path)
    assert found.keys() == {"aws_sqs_queue.orders", "aws_sqs_queue.one"}
    assert found["aws_sqs_queue.orders"].keys() == {"", "name", "visibility_timeout_seconds", "tags"}
    timeout = found["aws_sqs_queue.orders"]["visibility_timeout_seconds"].span
    assert (timeout.line, timeout.column, timeout.end_line) == (11, 32, 13)
    assert found["aws_sqs_queue.one"]["fifo_queue"].text == "true"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b'resource "a" "b" {' * 20_000,
        b'x = "',
        b"<<EOT\n" * 9_000,
        b"}" * 9_000,
        b"/*" * 100_000,
        b"".join(b"<<A%d\n" % number for number in range(50_000)),
    ],
)
def test_odd_files_of_terraform_are_no_error(tmp_path: Path, content: bytes) -> None:
    shop(tmp_path)
    (tmp_path / "main.tf").write_bytes(content)
    assert found(tmp_path / "plan.json") == ["DUP002 error", "DUP003 error"]


def test_a_plan_without_its_configuration_is_read_as_far_as_values_are_known(tmp_path: Path) -> None:
    file = shop(tmp_path, {"configuration": {}})
    assert found(file) == []
    state = json.loads(file.read_text())
    file.write_text(
        json.dumps({"terraform_version": "1.11.4", "format_version": "1.0", "values": state["planned_values"]})
    )
    assert found(file) == []


def test_what_an_output_gives_to_others_may_have_its_alarm_there(tmp_path: Path) -> None:
    plan = json.loads((PLANS / "wrong" / "BLD001-second.json").read_text())
    before = found(PLANS / "wrong" / "BLD001-second.json")
    named = {one["address"] for one in plan["resource_changes"] if one["type"] == "aws_sqs_queue"}
    plan["configuration"]["root_module"]["outputs"] = {
        address: {"expression": {"references": [f"{address}.arn", address]}} for address in named
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    assert "BLD001 warning" in before
    assert found(file) == without(before, "BLD001 warning")


def test_plans_are_found_in_directories(tmp_path: Path) -> None:
    shop(tmp_path)
    assert run(str(tmp_path), "--format", "concise").output.count("DUP002") == 1


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("terragrunt.hcl", b"inputs = {}", "terraform show -json"),
        ("infra.json", b'{"terraform": {}, "resource": {}}', "terraform show -json"),
        ("plan.json", b"PK\x03\x04 a zip", "terraform show -json plan.json > plan.json"),
        ("plan.json", b'{"terraform_version": "1.0", "planned_values": [1', "plan.json"),
        ("plan.json", b'{"terraform_version": "1.0", "planned_values": ' + b"[" * 50_000, "plan.json"),
    ],
)
def test_what_is_no_plan_in_json_is_refused_with_the_next_step(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    answer = run(str(tmp_path / name))
    assert answer.exit_code == 2
    assert says in " ".join(answer.output.split())
    assert "Traceback" not in answer.output


@pytest.mark.parametrize("odd", [None, [], "text", 7, {"root_module": 3}, {"root_module": {"resources": [1, {}]}}])
def test_odd_plans_are_no_error(tmp_path: Path, odd: object) -> None:
    for key in ("planned_values", "configuration", "resource_changes", "prior_state"):
        assert found(shop(tmp_path, {key: odd})) in ([], ["DUP002 error", "DUP003 error"])


def test_modules_that_call_one_another_in_a_circle_end(tmp_path: Path) -> None:
    file = shop(tmp_path)
    plan = json.loads(file.read_text())
    outputs = plan["configuration"]["root_module"]["module_calls"]["queue"]["module"]["outputs"]
    outputs["arn"]["expression"] = {"references": ["var.name"]}
    call = plan["configuration"]["root_module"]["module_calls"]["queue"]["expressions"]
    call["name"] = {"references": ['module.queue["orders"].arn']}
    file.write_text(json.dumps(plan))
    assert found(file) == []


def test_a_queue_of_a_data_source_has_no_defaults(tmp_path: Path) -> None:
    """A data source gives a queue's name and ARN; what it is like otherwise is not in the plan."""
    arn = "arn:aws:sqs:eu-west-1:111122223333:orders"
    queue: Json = {"address": "aws_sqs_queue.orders", "type": "aws_sqs_queue", "values": {"arn": arn, "name": "orders"}}
    function: Json = {
        "type": "aws_lambda_function",
        "values": {"region": "eu-west-1", "function_name": "book", "timeout": 60},
    }
    mapping: Json = {
        "address": "aws_lambda_event_source_mapping.orders", "type": "aws_lambda_event_source_mapping",
        "values": {"region": "eu-west-1", "event_source_arn": arn, "function_name": "book", "batch_size": 1},
    }  # fmt: skip
    managed = [{**function, "address": "aws_lambda_function.book"}, mapping]
    plan: Json = {
        "terraform_version": "1.11.4",
        "prior_state": {
            "values": {
                "root_module": {"resources": [{**queue, "mode": "data", "address": "data.aws_sqs_queue.orders"}]}
            }
        },
        "planned_values": {"root_module": {"resources": managed}},
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    assert found(file) == []
    managed.append(queue)
    file.write_text(json.dumps(plan))
    assert found(file) == ["DUP001 error", "LOS001 error"]
