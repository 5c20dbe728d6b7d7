"""Conditions of templates: each combination that is possible is looked at, and a finding says in which of them it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onefold.check import intrinsics
from onefold.check.checking import check
from onefold.check.documents import read_document
from onefold.check.fixing import fixed
from onefold.check.rules import RULES
from onefold.check.worlds import RESOURCES_MAX, TRIED_MAX, WORLDS_MAX, Worlds, worlds_of
from tests.check import sarif_parts
from tests.check.test_check import CORPUS, TODAY, run

SCENARIOS = {
    "both": "Blues is true and Greens is true, as when Green is on",
    "condition": "Production is true, as when Stage is prod",
    "no-default": "Production is false",
    "place": "Far is true, as when AWS::Region is ap-southeast-2",
    "table": "Stage is test",
    "two": "Hidden is false and Long is true, as when Hides is briefly and Run is long",
}
QUEUE = """
  Orders: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: VISIBLE}}
  Book:
    Type: AWS::Lambda::Function
    Properties: {Handler: index.handler, Runtime: python3.12, Timeout: 10, Role: r, Code: {S3Bucket: b, S3Key: k}}
  FromOrders:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {EventSourceArn: !GetAtt Orders.Arn, FunctionName: !Ref Book, BatchSize: 1}
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "template.yaml"
    file.write_text(text)
    return file


def worlds(file: Path, **given: str) -> Worlds:
    return worlds_of(read_document(file), given, account="123456789012", region="us-east-1")


def scenarios(file: Path, **given: str) -> list[str]:
    """In which worlds DUP002 is found."""
    rules = [one for one in RULES if one.id == "DUP002"]
    return [one.condition_scenario for one in check([file], rules, TODAY, given).open]


@pytest.mark.parametrize(
    ("name", "text"), [("AccountId", '"111111111111"'), ("AccountId", '"123456789012"'), ("StackName", "local")]
)
def test_a_stack_may_be_in_another_account_and_have_another_name(tmp_path: Path, name: str, text: str) -> None:
    condition = f"Conditions: {{Own: !Equals [!Ref AWS::{name}, {text}]}}\nResources:"
    file = written(tmp_path, condition + QUEUE.replace("VISIBLE", "!If [Own, 10, 60]"))
    assert scenarios(file) == [f"Own is true, as when AWS::{name} is {text.strip(chr(34))}"]
    file = written(tmp_path, condition + QUEUE.replace("VISIBLE", "!If [Own, 60, 10]"))
    assert scenarios(file) == ["Own is false"]
    file = written(tmp_path, condition + QUEUE.replace("VISIBLE", "!If [Own, 60, 70]"))
    assert scenarios(file) == []
    assert worlds(file).not_looked_at == ()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_finding_says_in_which_worlds_it_holds(name: str) -> None:
    for suffix in (".yaml", ".json"):
        found = check([CORPUS / "wrong" / f"worlds-{name}{suffix}"], RULES, TODAY).open
        assert {one.condition_scenario for one in found} == {SCENARIOS[name]}
        assert all(one.message.startswith(f"If {SCENARIOS[name]}: ") for one in found)


def test_a_scenario_is_a_field_for_programs_and_the_first_words_for_people() -> None:
    file = str(CORPUS / "wrong" / "worlds-condition.yaml")
    [found] = json.loads(run(file, "--format", "json").output)["findings"]
    assert found["condition_scenario"] == SCENARIOS["condition"]
    assert "error[DUP002] If Production is true, as when Stage is prod: Orders has a " in run(file).output
    log = json.loads(run(file, "--format", "sarif").output)
    sarif_parts.validate(log)
    assert log["runs"][0]["results"][0]["message"]["text"].startswith("If Production is true")


def test_what_holds_in_all_worlds_says_nothing_of_them(tmp_path: Path) -> None:
    text = (CORPUS / "wrong" / "worlds-condition.yaml").read_text()
    file = written(
        tmp_path,
        text.replace("Timeout: 60", "Timeout: 30", 1).replace("!If [Production, 60, 10]", "!If [Production, 20, 10]"),
    )
    assert scenarios(file) == ["Production is false", "Production is true, as when Stage is prod"]  # 60 s and 120 s
    file.write_text(text.replace("!If [Production, 60, 10]", "60"))
    assert scenarios(file) == [""]


def test_a_parameter_that_is_given_has_that_value_in_all_worlds() -> None:
    file = CORPUS / "wrong" / "worlds-condition.yaml"
    assert scenarios(file, Stage="dev") == []
    assert scenarios(file, Stage="prod") == [""]
    assert len(worlds(file).looked_at) == 2
    assert len(worlds(file, Stage="dev").looked_at) == 1


def test_a_fix_changes_the_case_that_is_wrong(tmp_path: Path) -> None:
    text = (CORPUS / "right" / "worlds-rules.yaml").read_text()
    file = written(tmp_path, text.replace("!If [Hidden, 5400, 60]", "!If [Hidden, 5400, 40]"))
    after = fixed(file, RULES, TODAY, unsafe=False)
    assert [line for line in after.diff.splitlines() if line.startswith("+ ")] == [
        "+      VisibilityTimeout: !If [Hidden, 5400, 60]"
    ]
    assert after.left == ()


def test_no_line_is_put_beside_a_function_or_into_another_case(tmp_path: Path) -> None:
    text = """
Parameters: {Stage: {Type: String, Default: dev}}
Conditions: {Big: !Equals [!Ref Stage, prod]}
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      Fn::If:
        - Big
        - VisibilityTimeout: 60
        - QueueName: orders
"""
    others = QUEUE.split("\n", 2)[2]
    file = written(tmp_path, text + others)
    assert scenarios(file) == ["Big is false"]
    after = fixed(file, [one for one in RULES if one.id == "DUP002"], TODAY, unsafe=True)
    assert after.diff == ""


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ("{Type: String}", [None, "prod"]),
        ("{Type: String, Default: prod}", ["prod", None]),
        ("{Type: String, Default: dev}", ["dev", "prod"]),
        ("{Type: String, AllowedValues: [dev, prod, test]}", ["prod", "dev"]),  # test is as dev
        ("{Type: String, AllowedValues: [dev, test]}", ["dev"]),
        ("{Type: String, MinLength: 5}", [None]),
        ("{Type: String, AllowedPattern: 'p.*', Default: dev}", ["dev"]),
        ("{Type: 'AWS::SSM::Parameter::Value<String>', Default: /shop/stage}", [None, "prod"]),
        ("{Type: CommaDelimitedList, Default: prod}", [None]),
    ],
)
def test_the_values_of_a_parameter_that_are_looked_at(
    tmp_path: Path, parameter: str, values: list[str | None]
) -> None:  # fmt: skip
    file = written(
        tmp_path,
        f"Parameters: {{Stage: {parameter}}}\nConditions: {{Big: !Equals [!Ref Stage, prod]}}\n"
        f"Resources:{QUEUE.replace('VISIBLE', '!If [Big, 60, 30]')}",
    )
    assert [one.shown.get("Stage") for one in worlds(file).looked_at] == values


def test_numbers_have_bounds_too(tmp_path: Path) -> None:
    text = (
        "Parameters: {Size: {Type: Number, Default: 5, MinValue: 1, MaxValue: BOUND}}\n"
        f"Conditions: {{Big: !Equals [!Ref Size, 9]}}\nResources:{QUEUE.replace('VISIBLE', '!If [Big, 30, 60]')}"
    )
    assert scenarios(written(tmp_path, text.replace("BOUND", "9"))) == ["Big is true, as when Size is 9"]
    assert scenarios(written(tmp_path, text.replace("BOUND", "8"))) == []
    assert scenarios(written(tmp_path, text.replace("BOUND", "many"))) == []


def many(conditions: int, resources: str = "") -> str:
    """A template with so many parameters that are on or off, and a queue that is wrong if the first two are on."""
    numbers = range(conditions)
    parameters = "".join(f"  P{at}: {{Type: String, Default: 'off', AllowedValues: ['on', 'off']}}\n" for at in numbers)
    named = "".join(f"  C{at}: !Equals [!Ref P{at}, 'on']\n" for at in numbers)
    used = "".join(f"  Q{at}: {{Type: AWS::SQS::Queue, Condition: C{at}}}\n" for at in numbers)
    both = "!If [C0, !If [C1, 10, 60], 60]"
    return f"Parameters:\n{parameters}Conditions:\n{named}Resources:{QUEUE.replace('VISIBLE', both)}{used}{resources}"


def test_worlds_are_bounded_nearest_first_and_what_is_left_is_said(tmp_path: Path) -> None:
    file = written(tmp_path, many(6))
    found = worlds(file)
    assert len(found.looked_at) == WORLDS_MAX
    assert found.not_looked_at == (f"{64 - WORLDS_MAX} more combinations of its conditions",)
    assert scenarios(file) == ["C0 is true and C1 is true, as when P0 is on and P1 is on"]
    said = f"Not looked at: {64 - WORLDS_MAX} more combinations of its conditions."
    assert said in run(str(file)).output
    assert "--parameter NAME=VALUE" in run(str(file)).output
    assert list(json.loads(run(str(file), "--format", "json").output)["not_looked_at"].values()) == [
        [f"{64 - WORLDS_MAX} more combinations of its conditions"]
    ]
    log = json.loads(run(str(file), "--format", "sarif").output)
    sarif_parts.validate(log)
    assert [one["message"]["text"] for one in log["runs"][0]["invocations"][0]["toolExecutionNotifications"]] == [said]


def test_combinations_that_are_tried_are_bounded_too(tmp_path: Path) -> None:
    found = worlds(written(tmp_path, many(40)))
    assert len(found.looked_at) == WORLDS_MAX
    left, untried = (int(one.split()[0].replace(",", "")) for one in found.not_looked_at)
    assert WORLDS_MAX + left == 2**40 - untried <= TRIED_MAX


@pytest.mark.parametrize("shape", ["conditions", "parameters", "one with all", "texts"])
def test_a_template_that_is_all_conditions_takes_no_longer(tmp_path: Path, shape: str) -> None:
    number = 6_000
    parameters, conditions, value = "  P: {Type: String}\n", "", "60"
    if shape == "conditions":
        conditions = "".join(f"  C{at}: !Equals [!Ref P, 'x{at % 9}']\n" for at in range(number))
        value = "".join(f"!If [C{at}, {20 + at % 20}, " for at in range(40)) + "60" + "]" * 40
    elif shape == "parameters":
        parameters = "".join(f"  P{at}: {{Type: String, Default: a}}\n" for at in range(number))
        conditions = "".join(f"  C{at}: !Equals [!Ref P{at}, b]\n" for at in range(number))
        value = "".join(f"!If [C{at}, {20 + at % 20}, " for at in range(40)) + "60" + "]" * 40
    elif shape == "one with all":
        conditions = f"  C0: !Or [{', '.join(f'!Equals [!Ref P, x{at}]' for at in range(number))}]\n"
        value = "!If [C0, 20, 60]"
    else:
        conditions = "".join(f"  C{at}: !Equals [!Ref P, 'x{at}']\n" for at in range(20))
        value = "!If [C0, 20, 60]"
    used = "".join(f"  Q{at}: {{Type: AWS::SQS::Queue, Condition: C{at % 20}}}\n" for at in range(20))
    long = f"  Dead: {{Type: AWS::SQS::Queue, Metadata: {{Text: {'x' * 900_000}}}}}\n" if shape == "texts" else ""
    file = written(
        tmp_path,
        f"Parameters:\n{parameters}Conditions:\n{conditions}Resources:{QUEUE.replace('VISIBLE', value)}{used}{long}",
    )
    found = scenarios(file)  # the time limit of tests is the net
    assert found
    assert max(map(len, worlds(file).not_looked_at), default=0) < 100
    assert max(map(len, found)) < 200


def test_a_large_template_has_fewer_worlds(tmp_path: Path) -> None:
    others = "".join(f"  Other{at}: {{Type: AWS::S3::Bucket}}\n" for at in range(490))
    assert len(worlds(written(tmp_path, many(6, others))).looked_at) == RESOURCES_MAX // (490 + 3 + 6)


def test_a_condition_of_another_form_is_said_to_be_left(tmp_path: Path) -> None:
    file = CORPUS / "right" / "worlds-by-pattern.yaml"
    assert set(worlds(file).not_looked_at) == {
        "the other case of condition Large",
        "the other case of condition Production",
    }
    assert worlds(file, Size="small", Stages="prod").not_looked_at == ()


def test_conditions_of_what_no_rule_looks_at_make_no_worlds(tmp_path: Path) -> None:
    """The CDK writes one that compares the region with thirty others."""
    regions = ", ".join(f'!Equals [!Ref "AWS::Region", r-{at}]' for at in range(30))
    file = written(
        tmp_path,
        f"Conditions: {{CDKMetadataAvailable: !Or [{regions}]}}\nResources:{QUEUE.replace('VISIBLE', '60')}"
        "  CDKMetadata: {Type: AWS::CDK::Metadata, Condition: CDKMetadataAvailable}\n",
    )
    assert worlds(file) == Worlds(looked_at=worlds(file).looked_at[:1])


def test_a_combination_that_cannot_be_read_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intrinsics, "TOTAL_CHARS_MAX", 20_000)
    file = written(
        tmp_path,
        "Parameters: {Stage: {Type: String, Default: dev}}\nConditions: {Big: !Equals [!Ref Stage, prod]}\n"
        f"Resources:{QUEUE.replace('VISIBLE', '20')}"
        f"  Long: {{Type: AWS::SQS::Queue, Properties: {{QueueName: !If [Big, !Sub '{'x' * 15_000}', a]}}}}\n",
    )
    assert scenarios(file) == [""]
    assert "1 combination of its conditions with which it cannot be read" in run(str(file)).output
    refused = run(str(file), "--parameter", "Stage=prod")
    assert refused.exit_code == 2
    assert "produce more than 20000 characters" in refused.output


def test_a_handler_that_is_there_in_one_world_is_read_with_it(tmp_path: Path) -> None:
    case = CORPUS.parent / "code" / "wrong" / "DUP005"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text((case / "src" / "app.py").read_text())
    conditions = (
        "Parameters: {Stage: {Type: String, Default: dev}}\nConditions: {Big: !Equals [!Ref Stage, prod]}\nResources:"
    )
    text = (case / "template.yaml").read_text().replace("Resources:", conditions, 1)
    function = "Type: AWS::Serverless::Function\n"
    file = written(tmp_path, text.replace(function, f"{function}    Condition: Big\n"))
    [found] = check([file], RULES, TODAY).open
    assert (found.rule, found.condition_scenario) == ("DUP005", "Big is true, as when Stage is prod")
    assert check([file], RULES, TODAY, {"Stage": "dev"}).open == []


ODD: list[Any] = [
    "Conditions: {A: !Condition A}", "Conditions: {A: !Not [!Condition B], B: !Not [!Condition A]}",
    "Conditions: {A: !Equals [!Ref Nothing, 1]}", "Conditions: {A: !Equals [!Ref Stage]}", "Conditions: {A: 5}",
    "Conditions: {A: !Equals [!Ref Stage, [prod]]}",
    "Conditions: {A: !Equals [!FindInMap [T, !Ref Stage, x], '1']}\nMappings: {T: 5}",
    "Conditions: {A: !Equals [!Ref Stage, prod]}\nRules: {R: 5, S: {Assertions: [5, {Assert: !Equals [!Ref Stage, x]}]}}",
    "Conditions: {A: !Equals [!Ref Stage, prod]}\nRules: [5]",
    "Conditions:\n" + "".join(f"  C{at}: !Not [!Condition C{at + 1}]\n" for at in range(3_000)) + "  A: !Condition C0",
]  # fmt: skip


@pytest.mark.parametrize("section", ODD, ids=lambda one: str(one)[:40])
def test_odd_conditions_are_no_findings_and_no_failure(tmp_path: Path, section: str) -> None:
    resources = QUEUE.replace("VISIBLE", "!If [A, 60, 60]")
    file = written(tmp_path, f"Parameters: {{Stage: {{Type: String, Default: dev}}}}\n{section}\nResources:{resources}")
    assert scenarios(file) == []
    assert run(str(file)).exit_code in {0, 1}
