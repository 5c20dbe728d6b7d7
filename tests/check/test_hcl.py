"""Terraform's own files, without a plan: the rules find in them what they find in templates, and guess nothing.

`tools/check_figures.py` says how the cases in `hcl` are written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import cycle, pairwise, repeat
from pathlib import Path

import pytest
from lark import Token, Tree

from onefold.check import hcl_expressions, hcl_modules
from onefold.check.checking import check
from onefold.check.hcl_expressions import Evaluator, Scope
from onefold.check.hcl_files import expression_of
from onefold.check.hcl_values import unknown
from onefold.check.rules import RULES, CheckRule
from onefold.check.terraform_plan import Perhaps
from tests.check import test_odd_templates as odd
from tests.check.test_check import run
from tools.check_figures import expected, terraform_cases

FILES = Path(__file__).parent / "hcl"
TODAY = date(2026, 11, 23)
NOT_IN_TERRAFORM = {
    "CLG006": "how much comes in is written in a template's metadata",
    **dict.fromkeys(
        ("CLG011", "DUP017", "LOS013", "LOS014"), "no resource for buses of the second generation is known"
    ),
}


WRONG = list(terraform_cases(FILES))


def found(folder: Path) -> list[str]:
    checked = check([folder], RULES, TODAY, report_unused=True)
    assert checked.unread == ()
    assert len(checked.files) == 1
    return sorted(f"{one.rule} {one.severity}" for one in checked.open)


@pytest.mark.parametrize(("name", "finds", "text"), WRONG, ids=[f"{one[1]} {one[0]}" for one in WRONG])
def test_a_wrong_configuration_has_exactly_the_findings_that_it_says(
    tmp_path: Path, name: str, finds: str, text: str
) -> None:
    (tmp_path / "main.tf").write_text(text)
    assert found(tmp_path) == sorted(finds.split(", "))


@pytest.mark.parametrize("rule", [one for one in RULES if one.find is not None], ids=lambda one: one.id)
def test_each_rule_has_two_wrong_configurations_of_terraform(rule: CheckRule) -> None:
    found = [finds for _, finds, _ in WRONG if rule.id in finds]
    assert len(found) >= 2 or rule.id in NOT_IN_TERRAFORM


RIGHT = sorted((FILES / "right").iterdir())


def copied(name: str, to: Path, *changes: tuple[str, str]) -> Path:
    """A directory of `right` with changes in its files."""
    shutil.copytree(FILES / "right" / name, to, dirs_exist_ok=True)
    for old, new in changes:
        files = [one for one in to.rglob("*") if one.is_file() and old in one.read_text()]
        assert files, old
        for one in files:
            one.write_text(one.read_text().replace(old, new))
    return to


@pytest.mark.parametrize("folder", RIGHT, ids=lambda one: one.name)
def test_a_right_configuration_has_none(folder: Path) -> None:
    assert found(folder) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "finds"),
    [
        ("count-none", "legacy = false", "legacy = true", "DUP002 error, DUP003 error, DUP004 warning, LOS001 error"),
        ("count-unknown", "type = bool", "default = true",
         "DUP002 error, DUP003 error, DUP004 warning, LOS002 warning, LOS003 error"),
        ("data-sources", "data.aws_sqs_queue.orders.arn", "aws_sqs_queue.refunds.arn",
         "DUP001 error, DUP003 error, DUP004 warning"),
        ("dynamic", "visibility_timeout_seconds = 60", "visibility_timeout_seconds = 10", "DUP002 error, DUP003 error"),
        ("dynamic", "type = list(string)", 'default = ["eu-west-1"]', "DUP012 warning"),
        ("dynamic", "default = null", "default = 30", "LOS010 warning"),
        ("expressions", "local.longest * 6", "local.longest * 5", "DUP002 warning"),
        ("expressions", "-(-5)", "-(-5) - 2", "LOS003 warning"),
        ("for-each", "= 6 * each.value.timeout", "= 5 * each.value.timeout", "DUP002 warning, DUP002 warning"),
        ("for-each", "QueueName = each.value.name", 'QueueName = "orders-dead"', "BLD001 warning"),
        ("for-each-unknown", "each.value.timeout", "60 + 0 * length(each.key)", ""),
        ("heredoc", "data.aws_caller_identity.me.account_id, service = \"sns\"", '1, service = "s3"', "LOS008 error"),
        ("json", '"maxReceiveCount\\": 5', '"maxReceiveCount\\": 2', "LOS003 warning"),
        ("json", "var.timeout * 6", "var.timeout * 5", "DUP002 warning"),
        ("modules", "var.timeout * 6", "var.timeout * 5", "DUP002 warning"),
        ("modules", "module.orders.dead_name", 'module.orders.arns["queue"]', "BLD001 warning"),
        ("modules", "= 1209600", "= 60", "LOS002 error"),
        ("override", "= 180", "= 60", "DUP002 warning"),
        ("perhaps", "type = bool", "default = true", "LOS003 error, LOS007 warning"),
        ("regions", "var.timeout * 6", "var.timeout * 5", "DUP002 warning, DUP002 warning"),
        ("types", '"false"', '"true"', "LOS003 error, LOS003 error, LOS003 error"),
        ("types", "default = 6", "default = 5", "DUP002 error, DUP002 error, DUP002 warning" + ", DUP003 error" * 3),
        ("schedule", "aws_sqs_queue.jobs, aws_sqs_queue.missed]", "aws_sqs_queue.jobs]", "LOS008 error"),
    ],
)  # fmt: skip
def test_a_change_in_a_right_configuration_is_seen(tmp_path: Path, name: str, old: str, new: str, finds: str) -> None:
    """So that nothing is right only because it is not understood."""
    assert ", ".join(found(copied(name, tmp_path, (old, new)))) == finds


_ARGUMENT = re.compile(r"^(\s*(?!source|version|type|default|backend)\w+\s*=\s*)(?!.*<<)([^\n]*[^\s{\[(,])$")
ODD = (
    "null", "[]", "{}", '""', "-1", "1e99", '"${nothing}"', "each.value", "count.index", '"%{ if true }x%{ endif }"',
    "99999999999999999999", "true", 'toset(["a", "b"])', "aws_sqs_queue.orders", "[aws_sqs_queue.dead]", "{ a = local.a }",
)  # fmt: skip


def changed(folder: Path, to: Path, values: Iterator[str]) -> Iterator[list[str]]:
    """What is found when one argument after the other has another value; so many arguments are there."""
    for file in sorted(folder.rglob("*.tf")):
        lines = file.read_text().split("\n")
        shutil.copytree(folder, to, dirs_exist_ok=True)
        for at, line in enumerate(lines):
            if (match := _ARGUMENT.match(line)) is not None:
                other = [*lines[:at], match[1] + next(values), *lines[at + 1 :]]
                (to / file.relative_to(folder)).write_text("\n".join(other))
                checked = check([to], RULES, TODAY)
                yield [] if checked.unread else [f"{file}:{at + 1} {one.rule}" for one in checked.open]


@pytest.mark.parametrize("folder", RIGHT, ids=lambda one: one.name)
def test_a_value_that_becomes_unknown_in_a_right_configuration_is_no_finding(tmp_path: Path, folder: Path) -> None:
    found = list(changed(folder, tmp_path, repeat("var.not_declared")))
    assert found == [[]] * len(found)


@pytest.mark.parametrize("folder", RIGHT, ids=lambda one: one.name)
def test_an_odd_value_in_any_place_is_no_error(tmp_path: Path, folder: Path) -> None:
    assert all(len(one) < 20 for one in changed(folder, tmp_path, cycle(ODD)))


@pytest.mark.parametrize("value", [5, None, True, "a b", [], {}, [[1]]], ids=repr)
def test_an_odd_value_in_any_place_of_json_is_no_error(tmp_path: Path, value: object) -> None:
    written = json.loads((FILES / "right" / "json" / "main.tf.json").read_text())
    written["variable"]["timeout"]["type"] = "number"
    written["resource"]["aws_sqs_queue"]["dead"]["lifecycle"] = {"ignore_changes": ["tags"]}
    for path in [one for one in odd.places(written) if one]:
        (tmp_path / "main.tf.json").write_text(json.dumps(odd.changed(written, path, value)))
        check([tmp_path], RULES, TODAY)


@pytest.mark.parametrize(
    "constraint", ["object([1])", "map(object(5))", 'object("a")', "object({ for k in [1] : k => k })", "object(a.*.b)",
                   "object({ a = optional(object(!true)) })", "object()", "set()", "[1]", "5"],
)  # fmt: skip
def test_a_type_that_is_none_is_no_error(tmp_path: Path, constraint: str) -> None:
    (tmp_path / "main.tf").write_text(
        f'variable "x" {{\n  type = {constraint}\n  default = {{ a = {{ b = 1 }} }}\n}}\n'
        'resource "aws_sqs_queue" "q" {\n  visibility_timeout_seconds = var.x\n}\n'
    )
    assert found(tmp_path) == []


# -- what is written badly, too large, or not there ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'resource "aws_sqs_queue" "a" {\n  name = \n}\n', "main.tf:2 is not HCL"),
        (b'\nresource "aws_sqs_queue" "a" {\n', "main.tf:3 is not HCL: it ends in the middle"),
        (b"\x00\x01\x02 aws_sqs_queue", "main.tf:1 is not HCL"),
        (b'a = "\xe9"\n', "main.tf:1 is not UTF-8"),
        (b"a = " + b"[" * 500 + b"]" * 500 + b"\n", "nested deeper than 200"),
        (b"a = " + b"[" * 20_000 + b"\n", "main.tf:2 is not HCL"),
        (b"a = <<EOT\n" + b"\n" * 100_000 + b"\n", "main.tf:1 begins more than 500 spaces or empty lines"),
        (b"# aws_sqs_queue\n" * 70_000, "larger than 1,048,576 bytes"),
        (b'a = "${b"\n', "main.tf:1 is not HCL"),
    ],
    ids=["no value", "no end", "binary", "not UTF-8", "deep", "very deep", "blank", "large", "template"],
)
def test_a_bad_file_is_said_with_its_line_and_the_rest_is_checked(tmp_path: Path, content: bytes, says: str) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    for folder in (bad, good):
        copied("override", folder, ("= 180", "= 60"))
    (bad / "main.tf").write_bytes(content)
    answer = run(str(bad / "main.tf"), str(good), "--format", "concise")
    assert answer.exit_code == 2
    assert answer.output.count("DUP002") == 1
    document = json.loads(run(str(tmp_path), "--format", "json").output)
    [unread] = document["unread"]
    assert says in unread["why"]
    assert unread["todo"]
    assert unread["is_named"] is False
    assert len(document["findings"]) == 1


def test_blanks_and_line_ends_of_windows_are_no_error(tmp_path: Path) -> None:
    copied("heredoc", tmp_path, ("POLICY\n}", "POLICY  \n}"), ("  EOT\n", "\tEOT\t\n"))
    assert found(tmp_path) == []
    text = (tmp_path / "main.tf").read_text().replace('account_id, service = "sns"', 'account_id, service = "s3"')
    text = text.replace("data.aws_caller_identity.me.account_id", "1")
    (tmp_path / "main.tf").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert found(tmp_path) == ["LOS008 error"]


@pytest.mark.parametrize("text", [r"\ue000999\ue001", r"\uE0000\uE001", "\ue000999\ue001", r"\u${local.e}000999\ue001"])
def test_json_with_the_characters_that_mark_its_gaps_is_not_known(tmp_path: Path, text: str) -> None:
    policy = f'{{"deadLetterTargetArn": "${{aws_sqs_queue.dead.arn}}", "maxReceiveCount": 2, "a": "{text}"}}'
    (tmp_path / "main.tf").write_text(
        'locals {\n  e = "e"\n}\nresource "aws_sqs_queue" "dead" {\n  message_retention_seconds = 1209600\n}\n'
        f'resource "aws_sqs_queue" "orders" {{\n  redrive_policy = <<-JSON\n    {policy}\n  JSON\n}}\n'
    )
    assert found(tmp_path) == []


def test_json_that_is_bad_is_said_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "main.tf.json").write_text('{"resource": {\n"aws_sqs_queue": }')
    answer = run(str(tmp_path / "main.tf.json"))
    assert answer.exit_code == 2
    assert "main.tf.json:2" in answer.output


@pytest.mark.parametrize(
    "text",
    [
        "locals {\n  timeout = local.other\n  other = local.timeout\n}\n",
        "locals {\n  timeout = nowhere(30)\n}\n",
        "locals {\n  timeout = provider::aws::of(30)\n}\n",
        'locals {\n  timeout = "${local.timeout}"\n}\n',
        "locals {\n  timeout = aws_sqs_queue.orders.visibility_timeout_seconds\n}\n",
        "locals {\n  timeout = file(\"/etc/hostname\")\n}\n",
        "locals {\n  timeout = file(\"../secret\")\n}\n",
        "locals {\n  timeout = 1 / 0\n}\n",
        "locals {\n  timeout = {}.a.b[0]\n}\n",
        "locals {\n  timeout = [for x in nothing : x]\n}\n",
        'locals {\n  timeout = "%{ if true }30%{ endif }"\n}\n',
        "locals {\n  timeout = module.no.output\n}\n",
        "locals {\n  timeout = local.a0\n  a300 = 1\n" + "".join(f"  a{at} = local.a{at + 1}\n" for at in range(300))
        + "}\n",
        "locals {\n  timeout = local.a0\n" + "".join(f"  a{at} = [local.a{at + 1}, local.a{at + 1}]\n" for at in range(60))
        + "}\n",
        'locals {\n  a = "xxxxxxxxxxxxxxxx"\n' + "".join(
            f'  {b} = "${{local.{a}}}${{local.{a}}}"\n' for a, b in pairwise("abcdefghijklmnopqrstuvwxyz")
        ) + "  timeout = local.z\n}\n",
        "locals {\n  a = 999999999\n  timeout = local.j\n" + "".join(
            f"  {b} = local.{a} * local.{a}\n" for a, b in pairwise("abcdefghij")
        ) + "}\n",
        f'locals {{\n  timeout = jsondecode("{"[" * 900}{"]" * 900}")\n}}\n',
        'locals {\n  timeout = replace(join("a", range(9000)), "a", join("b", range(9000)))\n}\n',
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_not_known(tmp_path: Path, text: str) -> None:
    """A loop through itself, unknown functions, files elsewhere, and what grows without end."""
    shared = (
        'resource "aws_sqs_queue" "orders" {\n  visibility_timeout_seconds = local.timeout\n}\n'
        'resource "aws_lambda_function" "book" {\n  timeout = local.timeout\n}\n'
        'resource "aws_lambda_event_source_mapping" "orders" {\n  event_source_arn = aws_sqs_queue.orders.arn\n'
        "  function_name = aws_lambda_function.book.arn\n  batch_size = local.timeout\n}\n"
    )
    (tmp_path / "main.tf").write_text(shared + text)
    (tmp_path.parent / "secret").write_text("30")
    assert found(tmp_path) == ["LOS001 error"]


def test_a_module_with_too_long_a_name_is_not_read(tmp_path: Path) -> None:
    text = 'resource "aws_sqs_queue" "q" {\n}\nmodule "m" {\n  source = "./%s"\n}\n'
    (tmp_path / "main.tf").write_text(text % ("a" * 5_000))
    assert found(tmp_path) == []


def test_what_is_named_like_a_file_and_is_none_is_passed_over(tmp_path: Path) -> None:
    copied("override", tmp_path, ("= 180", "= 60"))
    (tmp_path / "a.tf").mkdir()
    os.mkfifo(tmp_path / "b.tf")  # reading one waits for a writer
    assert found(tmp_path) == ["DUP002 warning"]
    shutil.copy(Path(__file__).parent / "terraform" / "shop" / "plan.json", tmp_path)
    assert "DUP002" in run(str(tmp_path / "plan.json")).output


def test_too_much_to_evaluate_is_said(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(
        "locals {\n  a = [for x in range(1000) : [for y in range(1000) : [for z in range(1000) : z]]]\n}\n"
        'resource "aws_sqs_queue" "q" {\n  name = length(local.a)\n}\n'
    )
    answer = run(str(tmp_path / "main.tf"))
    assert answer.exit_code == 2
    assert "300,000 expressions" in " ".join(answer.output.split())
    (tmp_path / "main.tf").write_text(
        'resource "aws_sqs_queue" "q" {\n  count = 1000\n}\n'
        + "".join(f'resource "aws_sqs_queue" "q{at}" {{\n  count = 1000\n}}\n' for at in range(5))
    )
    assert "5,000 resources" in run(str(tmp_path / "main.tf")).output


def test_a_file_that_a_link_leads_to_is_not_quoted(tmp_path: Path) -> None:
    """A stranger's repository may lead to a file with secrets of the machine that checks."""
    (tmp_path / "secrets").write_text("machine example.org login ci password hunter2pass\n")
    folder = tmp_path / "infra"
    folder.mkdir()
    (folder / "main.tf").write_text('resource "aws_sqs_queue" "a" {\n  name = file("leak.txt")\n}\n')
    (folder / "leak.txt").symlink_to(tmp_path / "secrets")
    assert not any("hunter2" in str(one) for one in check([folder], RULES, TODAY).open)
    (folder / "name.txt").write_text("orders")
    (folder / "here.txt").symlink_to("name.txt")
    (folder / "out.tf").write_text(
        'output "in" {\n  value = file("here.txt")\n}\noutput "out" {\n  value = file("leak.txt")\n}\n'
    )
    module = hcl_modules._Module(hcl_modules._Tree(folder), "", folder, ".")
    assert (module.output("in"), type(module.output("out"))) == ("orders", Perhaps)
    (folder / "leak.tf").symlink_to(tmp_path / "secrets")
    answer = run(str(folder))
    assert "leak.tf:1 is not HCL: column 16 is not expected there." in " ".join(answer.output.split())
    assert "hunter2" not in answer.output


def nested(levels: int) -> str:
    """Dynamic blocks in dynamic blocks, a thousand in each."""
    opened = "".join(f'dynamic "x{at}" {{\n for_each = range(1000)\n content {{\n' for at in range(levels))
    return f'resource "aws_sqs_queue" "q" {{\n{opened}' + "}\n}\n" * levels + "}\n"


LONG = 'locals {\n  t = join("", [for a in range(9000) : "aaaaaaaaaaaaaaaaaaaaaaaaaa"])\n  x = %s\n}\n'
INSTANCES = 'resource "aws_sqs_queue" "a" {\n  count = 1000\n  tags = %s\n}\nlocals {\n  x = %s\n}\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (nested(3), "expressions"),
        (INSTANCES % (1, "[for n in range(1000) : aws_sqs_queue.a[*].delay_seconds]"), "expressions"),
        (INSTANCES % ("range(9990)", "aws_sqs_queue.a[*].tags[*]"), "values"),
        ("locals {\n  x = [for a in range(9999) : range(9999)]\n}\n", "values"),
        (LONG % '[for a in range(9999) : "${local.t}x"]', "values"),
        (LONG % "jsonencode([for a in range(9999) : local.t])", "values"),
        (LONG % ("[for a in range(9999) : <<A\n" + ("b" * 99 + "\n") * 900 + "A\n]"), "values"),
        ("locals {\n  t = range(9999)\n  x = concat(" + ", ".join(["local.t"] * 1000) + ")\n}\n", "values"),
    ],
)
def test_what_a_few_lines_make_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    """Each of these took hours, or all memory; the bounds are lowered so that the test is quick."""
    monkeypatch.setattr(hcl_expressions, "STEPS_MAX", 40_000)
    monkeypatch.setattr(hcl_expressions, "VALUES_MAX", 150_000)
    (tmp_path / "main.tf").write_text(f'{text}output "x" {{\n  value = local.x\n}}\n')
    answer = run(str(tmp_path / "main.tf"))
    assert answer.exit_code == 2
    assert f"0,000 {says}" in " ".join(answer.output.split())


def test_what_is_nested_too_deep_is_not_known(tmp_path: Path) -> None:
    deep = "jsondecode(" + json.dumps("[" * 900 + "]" * 900) + ")"
    (tmp_path / "main.tf").write_text(
        f'resource "aws_sqs_queue" "q" {{\n  policy = {deep}\n}}\noutput "x" {{\n  value = {deep}\n}}\n'
    )
    assert set(found(tmp_path)) <= {"BLD001 warning"}


def test_modules_that_call_one_another_in_a_circle_end(tmp_path: Path) -> None:
    copied("modules", tmp_path)
    (tmp_path / "dead" / "more.tf").write_text(
        'module "again" {\n  source = "../queue"\n  name = var.name\n  timeout = 1\n}\n'
    )
    assert set(found(tmp_path)) <= {"BLD001 warning"}
    (tmp_path / "dead" / "more.tf").write_text(
        'module "again" {\n  source = "./"\n  for_each = toset([for a in range(10) : "k${a}"])\n  name = var.name\n}\n'
    )
    assert "500 modules" in run(str(tmp_path / "main.tf")).output


def test_without_the_extra_one_line_says_what_was_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        copied("plain", tmp_path / name)
    (tmp_path / "template.yaml").write_text("Resources: {Orders: {Type: AWS::SQS::Queue}}\n")
    monkeypatch.setitem(sys.modules, "hcl2", None)
    answer = run(str(tmp_path))
    assert answer.exit_code == 0
    assert answer.output.count("was not checked") == 1
    said = " ".join(answer.output.split())
    assert "a and 2 more with Terraform's files was not checked" in said
    assert "pip install 'onefold[check-hcl]'" in said
    assert "1 template checked" in said
    named = run(str(tmp_path / "a" / "main.tf"))
    assert named.exit_code == 2
    assert "check-hcl" in named.output


@pytest.mark.parametrize("ignored", ["visibility_timeout_seconds, redrive_policy", "all"])
def test_what_terraform_leaves_to_others_is_not_known(tmp_path: Path, ignored: str) -> None:
    text = (
        'resource "aws_sqs_queue" "q" {\n  visibility_timeout_seconds = 30\n  redrive_policy = null\n'
        "  lifecycle {\n    ignore_changes = LISTED\n  }\n}\n"
        'resource "aws_lambda_function" "f" {\n  timeout = 60\n  function_name = "f"\n}\n'
        'resource "aws_lambda_event_source_mapping" "m" {\n  event_source_arn = aws_sqs_queue.q.arn\n'
        '  function_name = "f"\n  batch_size = 1\n}\n'
    )
    (tmp_path / "main.tf").write_text(text.replace("LISTED", "[tags]"))
    assert found(tmp_path) == ["DUP001 error", "LOS001 error"]
    (tmp_path / "main.tf").write_text(
        text.replace("LISTED", ignored if ignored == "all" else f'[tags["a"], {ignored}]')
    )
    assert found(tmp_path) == []
    queue: dict[str, object] = {"visibility_timeout_seconds": 30}
    mapping = {"event_source_arn": "${aws_sqs_queue.q.arn}", "function_name": "f", "batch_size": 1}
    resources = {
        "aws_sqs_queue": {"q": queue},
        "aws_lambda_function": {"f": {"function_name": "f", "timeout": 60}},
        "aws_lambda_event_source_mapping": {"m": mapping},
    }
    (tmp_path / "main.tf").unlink()
    (tmp_path / "main.tf.json").write_text(json.dumps({"resource": resources}))
    assert found(tmp_path) == ["DUP001 error", "LOS001 error"]
    queue["lifecycle"] = {"ignore_changes": ignored if ignored == "all" else ignored.split(", ")}
    (tmp_path / "main.tf.json").write_text(json.dumps({"resource": resources}))
    assert found(tmp_path) == []


@pytest.mark.parametrize("file", ["prod.tfvars", "env/prod.tfvars", "env/prod.tfvars.json"])
def test_a_variable_that_files_of_values_give_different_ones_is_not_known(tmp_path: Path, file: str) -> None:
    """Which of them `-var-file` names is not known."""
    copied("expressions", tmp_path, ("local.longest * 6", "local.longest * var.factor"))
    (tmp_path / "variables.tf").write_text('variable "factor" {\n  type = number\n  default = 5\n}\n')
    (tmp_path / "env").mkdir()
    form = '{{"factor": "{}"}}' if file.endswith(".json") else 'factor = "{}"\n'
    (tmp_path / file).write_text(form.format(5))
    assert found(tmp_path) == ["DUP002 warning"]
    (tmp_path / file).write_text(form.format(6))
    assert found(tmp_path) == []
    (tmp_path / file).write_text("{{ not a file of values }}")
    assert found(tmp_path) == ["DUP002 warning"]
    (tmp_path / file).write_text(form.format(6))
    (tmp_path / "env" / "main.tf").write_text("")  # the files in it are those of another directory
    assert found(tmp_path) == ([] if file == "prod.tfvars" else ["DUP002 warning"])


def test_json_gives_providers_to_modules(tmp_path: Path) -> None:
    copied("regions", tmp_path, ("var.timeout * 6", "var.timeout * 5"))
    (tmp_path / "main.tf").unlink()
    modules = {
        "here": {"source": "./queue", "timeout": 20},
        "there": {"source": "./queue", "timeout": 100, "providers": {"aws": "aws.us-east"}},
    }
    providers = [{"region": "eu-west-1"}, {"alias": "us-east", "region": "us-east-1"}]
    (tmp_path / "main.tf.json").write_text(json.dumps({"provider": {"aws": providers}, "module": modules}, indent=1))
    assert found(tmp_path) == ["DUP002 warning", "DUP002 warning"]


def test_json_alone_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = ("${var.timeout * 6}", "${var.timeouts[0]}"), ('{"timeout"', '{"timeouts": {"default": [60]}, "timeout"')
    copied("json", tmp_path / "a", *change)
    copied("json", tmp_path / "b", *change, ("[60]", "[50]"))
    copied("json", tmp_path / "computes")
    monkeypatch.setitem(sys.modules, "hcl2", None)
    assert found(tmp_path / "a") == []
    assert found(tmp_path / "b") == ["DUP002 warning"]
    said = run(str(tmp_path / "computes"))
    assert said.exit_code == 0
    assert "check-hcl" in said.output
    assert "Nothing was checked" in said.output


# -- which directories are read --------------------------------------------------------------------------------------------


def test_directories_that_others_call_are_read_with_them(tmp_path: Path) -> None:
    copied("modules", tmp_path / "live", ("var.timeout * 6", "var.timeout * 5"))
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "unrelated" / "main.tf").write_text('resource "google_pubsub_topic" "a" {\n')
    document = json.loads(run(str(tmp_path), "--format", "json").output)
    assert document["files"] == [str(tmp_path / "live")]
    [one] = document["findings"]
    assert one["resource"] == "module.orders.aws_sqs_queue.this"
    assert one["source"]["file"] == str(tmp_path / "live" / "queue" / "main.tf")
    assert (one["source"]["start_line"], one["source"]["start_column"]) == (7, 32)
    assert one["fix"]["edits"] == []
    assert (
        run(str(tmp_path / "live" / "main.tf"), str(tmp_path / "live" / "queue"), "--format", "concise").output.count(
            "DUP002"
        )
        == 1
    )


def test_a_directory_with_its_plan_is_read_by_the_plan(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "terraform" / "shop", tmp_path, dirs_exist_ok=True)
    document = json.loads(run(str(tmp_path), "--format", "json").output)
    assert document["files"] == [str(tmp_path / "plan.json")]
    with_plan = {(one["rule"], one["resource"]) for one in document["findings"]}
    (tmp_path / "plan.json").unlink()
    document = json.loads(run(str(tmp_path), "--format", "json").output)
    assert {(one["rule"], one["resource"]) for one in document["findings"]} == with_plan


def test_a_module_that_terraform_has_installed_is_read(tmp_path: Path) -> None:
    elsewhere = (('"./queue"', '"example/queue/aws"'), ('"../dead"', '"example/dead/aws"'))
    copied("modules", tmp_path, *elsewhere, ("var.timeout * 6", "var.timeout * 5"))
    installed = tmp_path / ".terraform" / "modules"
    installed.mkdir(parents=True)
    shutil.move(tmp_path / "queue", installed / "orders")
    shutil.move(tmp_path / "dead", installed / "orders.dead")
    assert found(tmp_path) == []
    listed = [
        {"Key": "", "Source": "", "Dir": "."},
        {"Key": "orders", "Source": "example/queue/aws", "Dir": ".terraform/modules/orders"},
        {"Key": "orders.dead", "Source": "example/dead/aws", "Dir": ".terraform/modules/orders.dead"},
    ]
    (installed / "modules.json").write_text(json.dumps({"Modules": listed}))
    assert found(tmp_path) == ["DUP002 warning"]


CODE = {  # for cases of tests/check/code whose template leads to Python: what it says, in the variables of hcl/code
    "right/t-content": {"environment": {"NEXT": "next_url"}, "next": {"fifo": True}},
    "right/t-instances": {"on_instances": True},
    "right/t-invoke": {"environment": {"REPORT": "report_arn"}},
    "right/t-loop-allowed": {"environment": {"QUEUE_URL": "orders_url"}, "loops": True},
    "right/t-one-a-batch": {},
    "right/t-other-queue": {"environment": {"QUEUE_URL": "dead_url"}},
    "right/t-package": {"batch_size": 10, "reports": True, "handler": "shop.orders.main.handler"},
    "right/t-partial": {"batch_size": 10, "reports": True},
    "right/t-powertools": {"batch_size": 10, "reports": True},
    "wrong/CLG008": {"batch_size": 10, "environment": {"QUEUE_URL": "orders_url"}},
    "wrong/CLG008-fan": {"batch_size": 10, "environment": {"QUEUE": "orders_name"}},
    "wrong/CLG010-instances": {"on_instances": True},
    "wrong/DUP005": {"batch_size": 10, "reports": True},
    "wrong/DUP005-hides": {"batch_size": 10, "reports": True},
    "wrong/DUP006": {"batch_size": 10},
    "wrong/DUP006-powertools": {"batch_size": 10},
    "wrong/DUP008": {"batch_size": 10, "reports": True},
    "wrong/DUP008-short": {"batch_size": 10, "reports": True},
    "wrong/DUP013-content": {"batch_size": 10, "environment": {"NEXT": "next_url"}, "next": {"fifo": True}},
    "wrong/DUP018-config": {"batch_size": 10, "environment": {"REPORT": "report_arn"}},
    "wrong/DUP018-invoke": {"batch_size": 10, "environment": {"REPORT": "report_name"}},
    "wrong/LOS015-queue": {"batch_size": 10, "environment": {"NEXT": "next_url"}, "next": {"max_message_size": 262144}},
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_code_that_terraform_leads_to_has_the_findings_of_its_template(tmp_path: Path, name: str) -> None:
    case = FILES.parent / "code" / name
    shutil.copytree(case / "src", tmp_path / "src")
    shutil.copy(FILES / "code" / "main.tf", tmp_path)
    (tmp_path / "case.auto.tfvars.json").write_text(json.dumps(CODE[name]))
    assert found(tmp_path) == expected(case)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a >= 30 && !(a % 7 == 0)", True), ("true || nothing", True), ("nothing && false", False),
        ("-a + 1 * 2 - 4 / 2", -30),
        ('a == 30 ? "b" : nothing', "b"), ('nothing ? "b" : "b"', "b"), ("1 == true", False), ("10 / 4", 2.5), ("l.1", 2),
        ("m.k[0].z", 3), ("m.k[*].z", [3]), ("m.k.*.z", [3]), ("m.k.*.z[0]", 3),
        ("m[*].k[0].z", [3]), ("null[*]", []), ("a[*]", [30]), ("nothing[*]", None),
        ('tolist(toset(["b", "a", "b"]))', ["a", "b"]), ('max("10", "9")', 10), ('min("a", 1)', None),
        ("[for k, x in { b = 1, a = 2 } : k]", ["a", "b"]), ('m["k"][0]["z"]', 3), ('"${l}"', [1, 2]),
        ('"x${a}y$${b}%%{c}"', "x30y${b}%{c}"),
        (r'"\"\n\u00e9\\"', '"\né\\'), ("[for i, x in l : i * x if x > 1]", [2]),
        ('{ for x in l : "k${x}" => x }', {"k1": 1, "k2": 2}),
        ('{ a = 1, "b" : 2, (upper("c")) = 3, in = 4 }', {"a": 1, "b": 2, "C": 3, "in": 4}), ("max(l...)", 2),
        ("<<-E\n    a\n      ${a}\n  E\n", "a\n  30\n"), ("merge({ a = 1 }, m)", {"a": 1, "k": [{"z": 3}]}),
        ('format("%s-%d%%", "a", 3)', "a-3%"), ('join("-", ["a", 1])', "a-1"), ('replace("a.b", ".", "-")', "a-b"),
        ("flatten([[1, [2]], []])", [1, 2]), ('lookup(m, "z", 5)', 5), ("element(l, 3)", 2),
        ("coalesce(null, \"\", 7)", 7),
        ('jsondecode("{\\"a\\": [1]}").a[0]', 1), ('jsonencode({ a = [true, null] })', '{"a": [true, null]}'),
        ("length(m)", 1),
        ('try(m.none, "x")', None), ("one([a])", 30), ("1 + nothing", None), ("l[5]", None), ("a.b", None), ("!a", None),
    ],
)  # fmt: skip
def test_expressions_are_worth_what_terraform_says(text: str, value: object) -> None:
    class Nothing:
        def named(self, root: str, steps: Sequence[object], scope: Scope) -> object:
            return unknown(f"there is no {root}")

        def read(self, path: str) -> None:
            return None

        def parsed(self, text: str) -> Tree[Token]:
            return expression_of(text, "x")

    names = {"a": 30, "l": [1, 2], "m": {"k": [{"z": 3}]}}
    made = Evaluator("x").value(expression_of(text, "x"), Scope(names), Nothing())
    assert isinstance(made, Perhaps) if value is None else (made == value and type(made) is type(value))
