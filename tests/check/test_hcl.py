"""Terraform's own files, without a plan: the rules find in them what they find in templates, and guess nothing.

A file in `hcl` has many cases, each below a line with what it finds; what is above the first belongs to all of them.
"""

from __future__ import annotations

import re
import shutil
from datetime import date
from pathlib import Path

import pytest

from onefold.check.checking import check
from onefold.check.rules import RULES, CheckRule

FILES = Path(__file__).parent / "hcl"
TODAY = date(2026, 11, 23)
_CASE = re.compile(r"^# finds: (.*)$", re.MULTILINE)
_BLOCK = re.compile(r'^(?:resource|data) "[^"]+" "[^"]+"', re.MULTILINE)
NOT_IN_TERRAFORM = {
    "CLG006": "how much comes in is written in a template's metadata",
    **dict.fromkeys(
        ("CLG011", "DUP017", "LOS013", "LOS014"), "no resource for buses of the second generation is known"
    ),
}


def blocks(text: str) -> dict[str, str]:
    """The text of a case by its blocks; what is above them is under ""."""
    starts = [match.start() for match in _BLOCK.finditer(text)]
    found = {"": text[: starts[0]] if starts else text}
    for begins, ends in zip(starts, [*starts[1:], len(text)], strict=True):
        match = _BLOCK.match(text, begins)
        assert match is not None
        found[match[0]] = text[begins:ends]
    return found


def cases(file: Path) -> list[tuple[str, str]]:
    """What each case finds, and its text."""
    shared, *rest = _CASE.split(file.read_text())
    made = zip(rest[::2], rest[1::2], strict=True)
    return [(finds, "".join({**blocks(shared), **blocks(text)}.values())) for finds, text in made]


WRONG = [(file.stem, at, *case) for file in sorted(FILES.glob("*.tf")) for at, case in enumerate(cases(file))]


def found(folder: Path) -> list[str]:
    checked = check([folder], RULES, TODAY, report_unused=True)
    assert checked.unread == ()
    assert len(checked.files) == 1
    return sorted(f"{one.rule} {one.severity}" for one in checked.open)


@pytest.mark.parametrize(("stem", "at", "finds", "text"), WRONG, ids=[f"{one[2]} {one[0]}-{one[1]}" for one in WRONG])
def test_a_wrong_configuration_has_exactly_the_findings_that_it_says(
    tmp_path: Path, stem: str, at: int, finds: str, text: str
) -> None:
    (tmp_path / "main.tf").write_text(text)
    assert found(tmp_path) == sorted(finds.split(", "))


@pytest.mark.parametrize("rule", [one for one in RULES if one.find is not None], ids=lambda one: one.id)
def test_each_rule_has_two_wrong_configurations_of_terraform(rule: CheckRule) -> None:
    found = [finds for _, _, finds, _ in WRONG if rule.id in finds]
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
        ("schedule", "aws_sqs_queue.jobs, aws_sqs_queue.missed]", "aws_sqs_queue.jobs]", "LOS008 error"),
    ],
)  # fmt: skip
def test_a_change_in_a_right_configuration_is_seen(tmp_path: Path, name: str, old: str, new: str, finds: str) -> None:
    """So that nothing is right only because it is not understood."""
    assert ", ".join(found(copied(name, tmp_path, (old, new)))) == finds
