"""What a project decides about a run: configuration, baseline, suppressions there; and the forms for other programs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from onefold.check import configuration
from onefold.check.baseline import write_baseline
from onefold.check.configuration import schema
from onefold.check.findings import Finding, FindingSource
from tests.check import sarif_parts
from tests.check.test_check import CORPUS, run

SCHEMA_FILE = Path(configuration.__file__).with_name("configuration.schema.json")
WRONG = CORPUS / "wrong" / "published.yaml"

TABLE = """
select = ["DUP", "LOS"]
extend-select = ["BLD001"]
preview = true
fail-on = "warning"
baseline = "known.json"
report-unused = true
parameters = {Stage = "prod"}
ignore = ["LOS002", {rule = "DUP002", resource = "Document*", reason = "bounded to 2 s", until = 2999-01-01}]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "template.yaml").write_text(WRONG.read_text())
    return tmp_path


def rules(*words: str) -> list[str]:
    document = json.loads(run("template.yaml", "--format", "json", *words).output)
    return [one["rule"] for one in document["findings"] if one["status"] == "new"]


@pytest.mark.parametrize("file", ["pyproject.toml", ".onefold.toml"])
def test_the_nearest_configuration_counts(here: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "[tool.onefold.check]" if file == "pyproject.toml" else "[check]"
    (here / file).write_text(f'{head}\nselect = ["DUP"]\nignore = ["DUP003"]\n')
    assert rules() == ["DUP002"]
    (here / "infra").mkdir()
    monkeypatch.chdir(here / "infra")
    assert "LOS004" not in run("../template.yaml").output
    (here / "infra" / "pyproject.toml").write_text("[tool.other]\n")
    assert "LOS004" not in run("../template.yaml").output
    (here / "infra" / ".onefold.toml").write_text('[check]\nselect = ["LOS"]\n')
    assert "LOS004" in run("../template.yaml").output
    assert "LOS004" not in run("../template.yaml", "--config", f"../{file}").output
    (here / "infra" / ".git").mkdir()
    (here / "infra" / ".onefold.toml").unlink()
    assert "LOS004" in run("../template.yaml").output


def test_the_command_line_is_over_the_configuration(here: Path) -> None:
    (here / ".onefold.toml").write_text('[check]\nselect = ["DUP002"]\nfail-on = "info"\nextend-select = ["LOS004"]\n')
    assert rules() == ["DUP002", "LOS004"]
    assert rules("--select", "DUP003") == ["LOS004", "DUP003"]
    assert rules("--ignore", "DUP002") == ["LOS004"]
    assert rules("--extend-select", "DUP003") == ["DUP002", "LOS004", "DUP003"]
    (here / ".onefold.toml").write_text('[check]\nselect = ["LOS003"]\nfail-on = "warning"\n')
    (here / "template.yaml").write_text((CORPUS / "wrong" / "LOS003.yaml").read_text())
    assert run("template.yaml").exit_code == 1
    assert run("template.yaml", "--fail-on", "error").exit_code == 0


def test_a_parameter_has_its_default_or_the_value_that_is_given(here: Path) -> None:
    (here / "template.yaml").write_text(
        "Parameters: {Hidden: {Type: Number, Default: 30}}\n"
        "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: !Ref Hidden}}}\n"
    )
    assert rules() == []
    assert rules("--parameter", "Hidden=50000") == ["CLG003"]
    (here / ".onefold.toml").write_text('[check]\nparameters = {Hidden = "50000"}\n')
    assert rules() == ["CLG003"]
    assert rules("--parameter", "Hidden=60") == []


def test_findings_that_the_configuration_calls_right_are_suppressed(here: Path) -> None:
    (here / ".onefold.toml").write_text(
        '[[check.ignore]]\nrule = "DUP002"\nresource = "Document*"\nreason = "bounded to 2 s"\nuntil = 2999-01-01\n'
    )
    assert rules() == ["LOS004", "DUP003"]
    assert run("template.yaml", "--fix").exit_code == 0
    text = (here / "template.yaml").read_text()
    assert "VisibilityTimeout: 30" in text  # a suppressed finding is not fixed
    (here / "template.yaml").write_text(WRONG.read_text())
    (here / ".onefold.toml").write_text('[[check.ignore]]\nrule = "DUP002"\nreason = "x"\nuntil = 2001-01-01\n')
    assert rules() == ["DUP002", "LOS004", "DUP003", "SUP001"]
    (here / ".onefold.toml").write_text('[[check.ignore]]\nrule = "DUP001"\nreason = "x"\n')
    assert rules("--report-unused") == ["DUP002", "LOS004", "DUP003", "SUP002"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[check]\nslect = []\n", "slect"),
        ('[check]\nfail-on = "never"\n', "never"),
        ('[check]\nselect = ["dup"]\n', "select"),
        ('[check]\nselect = ["XYZ"]\n', "XYZ"),
        ('[[check.ignore]]\nrule = "DUP002"\n', "reason"),
        ('[[check.ignore]]\nrule = "DUP002"\nreason = ""\n', "reason"),
        ("[check\n", "is not TOML"),
        ("check = 7\n", "object"),
        ("[check]\n" + "#" * 2_000_000, "larger"),
    ],
)
def test_a_wrong_configuration_is_refused_and_nothing_checked(here: Path, text: str, says: str) -> None:
    (here / ".onefold.toml").write_text(text)
    answer = run("template.yaml")
    assert answer.exit_code == 2
    assert says in answer.output
    assert "DUP002 " not in answer.output
    assert "Traceback" not in answer.output


def test_the_schema_that_ships_is_that_of_the_table_and_takes_what_the_table_takes(here: Path) -> None:
    shipped = json.loads(SCHEMA_FILE.read_text())
    assert shipped == schema()
    jsonschema.Draft202012Validator.check_schema(shipped)
    table = json.loads(json.dumps(tomllib.loads(TABLE), default=str))
    jsonschema.validate(table, shipped)
    assert set(table) == set(shipped["$defs"]["Configuration"]["properties"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"slect": []}, shipped)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"ignore": [{"rule": "DUP002"}]}, shipped)
    (here / ".onefold.toml").write_text(f"[check]\n{TABLE}")
    configured = configuration.configured(here)
    assert configured.options.fail_on == "warning"
    assert configured.baseline == here / "known.json"


def test_only_what_is_not_in_the_baseline_fails_a_run(here: Path) -> None:
    answer = run("template.yaml", "--select", "DUP", "--write-baseline", "known.json")
    assert answer.exit_code == 0
    assert "2 findings written to known.json" in answer.output
    text = (here / "known.json").read_text()
    known = json.loads(text)
    assert known["version"] == 1
    assert [(one["rule"], one["file"]) for one in known["findings"]] == [
        ("DUP002", "template.yaml"), ("DUP003", "template.yaml"),
    ]  # fmt: skip
    assert rules("--baseline", "known.json") == ["LOS004"]
    (here / "template.yaml").write_text("# a line above\n" + WRONG.read_text())
    assert rules("--baseline", "known.json") == ["LOS004"]
    assert run("template.yaml", "--select", "DUP", "--baseline", "known.json").exit_code == 0
    assert "2 in the baseline" in run("template.yaml", "--baseline", "known.json").output
    sarif = json.loads(run("template.yaml", "--baseline", "known.json", "--format", "sarif").output)
    states = {one["ruleId"]: one.get("baselineState") for one in sarif["runs"][0]["results"]}
    assert states == {"DUP002": "unchanged", "DUP003": "unchanged", "LOS004": None}
    (here / ".onefold.toml").write_text('[check]\nbaseline = "known.json"\n')
    assert rules() == ["LOS004"]
    run("template.yaml", "--select", "DUP", "--write-baseline", "known.json")
    assert (here / "known.json").read_text() == text


def test_a_baseline_names_files_from_the_directory_and_accounts_as_they_are_called(here: Path) -> None:
    files = (str(here / "infra" / "a.yaml"), "aws://eu-west-1", "../elsewhere.yaml")
    found = [
        Finding(rule="DUP002", severity="error", message="", source=FindingSource(one, 1, 1, 1, 1), resource="q")
        for one in files
    ]
    assert write_baseline(here / "known.json", found, here) == 3
    known = json.loads((here / "known.json").read_text())
    assert [one["file"] for one in known["findings"]] == ["../elsewhere.yaml", "aws://eu-west-1", "infra/a.yaml"]


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"version": 2, "findings": []}', b"[" * 90_000, b"\xff"])
def test_a_baseline_that_is_none_is_refused(here: Path, content: bytes | None) -> None:
    if content is not None:
        (here / "known.json").write_bytes(content)
    answer = run("template.yaml", "--baseline", "known.json")
    assert answer.exit_code == 2
    assert "known.json" in answer.output
    assert "--write-baseline" in answer.output
    assert "Traceback" not in answer.output


@pytest.mark.parametrize(
    "words",
    [
        ("template.yaml", "--write-baseline", "nowhere/known.json"),
        ("template.yaml", "--baseline", "."),
        ("template.yaml", "--config", "."),
        ("template.yaml", "--parameter", "Stage"),
        ("--explain", "DUP999"),
    ],
)
def test_what_was_asked_for_wrongly_does_not_end_as_a_finding_does(here: Path, words: tuple[str, ...]) -> None:
    assert run("template.yaml").exit_code == 1
    assert run(*words).exit_code == 2


def test_junit_has_a_case_for_each_finding_and_each_clean_file(here: Path) -> None:
    (here / "clean.yaml").write_text((CORPUS / "right" / "plain.yaml").read_text())
    (here / "bad.yaml").write_bytes(b"\x00")
    suite = ET.fromstring(run("template.yaml", "clean.yaml", "bad.yaml", "--format", "junit").output)[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "3", "1")
    cases = {(one.get("classname"), one.get("name")): [part.tag for part in one] for one in suite}
    assert cases["template.yaml", "DUP002 DocumentQueue"] == ["failure"]
    assert cases["clean.yaml", "no finding"] == []
    assert cases["bad.yaml", "readable"] == ["error"]
    [failure] = [one[0] for one in suite if one.get("name") == "DUP002 DocumentQueue"]
    assert "= 181 s" in (failure.text or "")


def test_markdown_is_a_table_in_which_nothing_of_a_template_is_markup(here: Path) -> None:
    name = 'Docu|`<img src="x">@all[x](y)'
    (here / "template.yaml").write_text(WRONG.read_text().replace("DocumentQueue:", f"{json.dumps(name)}:"))
    text = (here / "template.yaml").read_text().replace("DocumentQueue.Arn", f"{name}.Arn")
    (here / "template.yaml").write_text(text.replace(f"!GetAtt {name}.Arn", f"!GetAtt [{json.dumps(name)}, Arn]"))
    output = run("template.yaml", "--format", "markdown").output
    rows = [line for line in output.splitlines() if line.startswith("| error | ")]
    assert len(rows) == 3
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
    assert "<img" not in output
    assert "@all" not in output
    assert output.startswith("**onefold check: 3 errors found.**\n")
    assert "**Fix:** Set VisibilityTimeout" in output
    assert (
        run(str(CORPUS / "right" / "plain.yaml"), "--format", "markdown").output
        == "**onefold check: nothing found.**\n"
    )


def test_markdown_shows_the_first_hundred_findings(here: Path) -> None:
    queues = "".join(
        f"  Q{n}: {{Type: AWS::SQS::Queue, Properties: {{VisibilityTimeout: 50000}}}}\n" for n in range(101)
    )
    (here / "template.yaml").write_text(f"Resources:\n{queues}")
    output = run("template.yaml", "--format", "markdown").output
    assert output.startswith("**onefold check: 101 errors found.**\n")
    assert sum(line.startswith("| error | CLG003 |") for line in output.splitlines()) == 100
    assert output.endswith("\n1 more are not shown.\n")


def test_a_name_that_no_file_can_have_is_said(here: Path) -> None:
    answer = run("a" * 300, "template.yaml")
    assert answer.exit_code == 2
    assert "There is no such file or directory" in " ".join(answer.output.split())
    assert "DUP002" in answer.output


def test_every_form_says_what_could_not_be_read(here: Path) -> None:
    (here / "bad.yaml").write_bytes(b"\x00")
    words = ("bad.yaml", "missing.yaml", "template.yaml", "--format")
    for form in ("full", "concise", "github", "markdown", "junit", "json", "sarif"):
        answer = run(*words, form)
        assert answer.exit_code == 2, form
        assert "bad.yaml" in answer.output
        assert "missing.yaml" in answer.output
        assert "DUP002" in answer.output
    concise = run(*words, "concise").output.splitlines()
    assert concise[3:] == ["missing.yaml: not checked: There is no such file or directory.", concise[4]]
    github = run(*words, "github").output.splitlines()
    assert github[3].startswith("::error file=missing.yaml,title=not checked::There is no such file")
    log = json.loads(run(*words, "sarif").output)
    sarif_parts.validate(log)
    [invocation] = log["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]
    assert len(invocation["toolExecutionNotifications"]) == 2
    [clean] = json.loads(run("template.yaml", "--format", "sarif").output)["runs"][0]["invocations"]
    assert clean == {"executionSuccessful": True, "toolExecutionNotifications": []}
