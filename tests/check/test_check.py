"""`onefold check`: every rule on right and wrong templates, fixes, suppressions, formats, bad input."""

from __future__ import annotations

import io
import json
import re
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest

from onefold.check.checking import check
from onefold.check.fixing import fixed
from onefold.check.rules import RULES, CheckRule
from onefold.cli import main
from tests.check import sarif_parts
from tools.check_figures import expected

CORPUS = Path(__file__).parent / "corpus"
WRONG = sorted((CORPUS / "wrong").iterdir())
RIGHT = sorted((CORPUS / "right").iterdir())
TODAY = date(2026, 11, 23)


def found(file: Path) -> list[str]:
    checked = check([file], RULES, TODAY, report_unused=True)
    assert checked.unread == ()
    return sorted(f"{one.rule} {one.severity}" for one in checked.open)


class Ran(NamedTuple):
    exit_code: int
    output: str


def run(*words: str) -> Ran:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main.run(["check", *words])
    return Ran(code, out.getvalue())


@pytest.mark.parametrize("file", WRONG, ids=lambda one: one.name)
def test_a_wrong_template_has_exactly_the_findings_that_it_says(file: Path) -> None:
    assert found(file) == expected(file) != []


@pytest.mark.parametrize("file", RIGHT, ids=lambda one: one.name)
def test_a_right_template_has_none(file: Path) -> None:
    assert expected(file) == []
    assert found(file) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda one: one.id)
def test_each_rule_has_two_wrong_templates_in_two_languages_and_a_page(rule: CheckRule) -> None:
    rule_id = rule.id
    wrong = [one for one in WRONG if any(each.startswith(rule_id) for each in expected(one))]
    cases = {language: {one.stem for one in wrong if one.suffix == language} for language in (".yaml", ".json")}
    assert all(len(one) >= 2 for one in cases.values()) or rule.find is None  # those of code: test_python.py
    page = rule.page
    assert page.startswith(f"# {rule_id}: ")
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## What it does", "## Why it hurts", "## Example", "## Use instead", "## What happens", "## Fix",
        "## When to ignore it", "## References",
    ]  # fmt: skip


def test_every_page_is_of_a_rule() -> None:
    pages = Path(check.__code__.co_filename).parent / "pages"
    assert sorted(one.stem for one in pages.iterdir()) == sorted(one.id for one in RULES)


@pytest.mark.parametrize("file", WRONG, ids=lambda one: one.name)
def test_fixes_remove_what_they_are_of_and_change_only_their_lines(file: Path) -> None:
    before = check([file], RULES, TODAY).open
    after = fixed(file, RULES, TODAY, unsafe=True)
    fixable = [one for one in before if one.fix is not None and one.fix.edits]
    left = {one.fingerprint for one in after.left}
    assert left == {one.fingerprint for one in before} - {one.fingerprint for one in fixable}
    changed = [line for line in after.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) <= 4 * len(fixable)


def test_the_published_case_is_clean_after_two_lines(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    file.write_text((CORPUS / "wrong" / "published.yaml").read_text())
    first = run(str(file))
    assert first.exit_code == 1
    assert "6 x 30 s timeout + 1 s batching window = 181 s" in first.output
    assert "all 50 messages of its batch come back" in first.output
    assert "1,000 receives x 181 s" in first.output
    assert "messages are kept for 86,400 s" in first.output
    shown = run(str(file), "--diff")
    assert [line for line in shown.output.splitlines() if line.startswith("+ ")] == [
        "+      VisibilityTimeout: 181",
        "+        maxReceiveCount: 477 # up to 8 hours of retries (1000 x 30 s)",
    ]
    assert file.read_text() == (CORPUS / "wrong" / "published.yaml").read_text()
    assert run(str(file), "--fix").exit_code == 0
    assert run(str(file)).output.endswith("1 template checked: nothing found.\n")


def test_line_ends_a_byte_order_mark_and_the_mode_of_a_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    text = (CORPUS / "wrong" / "DUP002.yaml").read_text().replace("\n", "\r\n")
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    file.chmod(0o640)
    assert run(str(file), "--fix").exit_code == 0
    now = file.read_bytes()
    assert now.startswith(b"\xef\xbb\xbf#")
    assert b"VisibilityTimeout: 120\r\n" in now
    assert now.count(b"\n") == now.count(b"\r\n")
    assert file.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["template.yaml"]


QUEUE_WITHOUT_PROPERTIES = """\
Resources:
  Dead:
    Type: AWS::SQS::Queue
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 30
      RedrivePolicy:
        deadLetterTargetArn: !GetAtt Dead.Arn
        maxReceiveCount: 5
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_resource_without_properties_gets_them_with_the_first_one(tmp_path: Path, end: str) -> None:
    file = tmp_path / "template.yaml"
    file.write_text(QUEUE_WITHOUT_PROPERTIES, newline=end)
    assert "fix: Set MessageRetentionPeriod of Dead to 1209600.\n" in run(str(file)).output
    assert run(str(file), "--fix").exit_code == 0
    lines = "    Type: AWS::SQS::Queue\n", "    Properties:\n      MessageRetentionPeriod: 1209600\n  Orders:\n"
    assert (
        file.read_bytes()
        == QUEUE_WITHOUT_PROPERTIES.replace(f"{lines[0]}  Orders:\n", "".join(lines)).replace("\n", end).encode()
    )


def test_a_type_at_the_very_end_of_a_file_keeps_its_line(tmp_path: Path) -> None:
    first, _, rest = QUEUE_WITHOUT_PROPERTIES.partition("  Dead:\n    Type: AWS::SQS::Queue\n")
    file = tmp_path / "template.yaml"
    file.write_text(f"{first}{rest}  Dead:\n    Type: AWS::SQS::Queue")
    assert run(str(file), "--fix").exit_code == 0
    assert file.read_text().endswith(
        "  Dead:\n    Properties:\n      MessageRetentionPeriod: 1209600\n    Type: AWS::SQS::Queue"
    )


@pytest.mark.parametrize("written", ["Properties: {}", "Properties:"])
def test_a_fix_that_has_to_be_made_by_hand_is_called_so(tmp_path: Path, written: str) -> None:
    file = tmp_path / "template.yaml"
    text = QUEUE_WITHOUT_PROPERTIES.replace("Queue\n  Orders", f"Queue\n    {written}\n  Orders")
    file.write_text(text)
    assert "fix: Set MessageRetentionPeriod of Dead to 1209600. (by hand)\n" in run(str(file)).output
    assert "(by hand)" in run(str(file), "--fix").output
    assert file.read_text() == text


def test_a_suppression_needs_a_reason_and_ends_with_its_day(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    text = (CORPUS / "right" / "suppressed.yaml").read_text()
    file.write_text(text.replace("no run takes longer than 1 s, ", ""))
    assert found(file) == ["DUP002 error", "SUP001 warning"]
    file.write_text(text.replace("2999-01-01", "2026-11-22"))
    assert found(file) == ["DUP002 error", "SUP001 warning"]
    file.write_text(text.replace("2999-01-01", "the 3rd of May"))
    assert found(file) == ["DUP002 error", "SUP001 warning"]
    file.write_text(text.replace("2999-01-01", "2026-11-23"))
    assert found(file) == []
    file.write_text(text.replace("reason: a second run is worse than none", "reason: ''"))
    assert found(file) == ["LOS003 warning", "SUP001 warning"]


def test_a_suppression_of_nothing_is_reported_on_request(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    text = (CORPUS / "right" / "suppressed.yaml").read_text()
    file.write_text(text)
    assert "SUP002" not in run(str(file), "--report-unused").output
    file.write_text(re.sub(r"VisibilityTimeout: \d+", "VisibilityTimeout: 3600", text))
    assert "SUP002" not in run(str(file)).output
    assert (
        "info[SUP002] The suppression of DUP002 suppresses nothing any more."
        in run(str(file), "--report-unused").output
    )
    assert "SUP002" not in run(str(file), "--report-unused", "--ignore", "DUP002").output


def test_what_is_written_for_programs(tmp_path: Path) -> None:
    wrong, right = CORPUS / "wrong" / "published.yaml", CORPUS / "right" / "suppressed.yaml"
    log = json.loads(run(str(wrong), str(right), "--format", "sarif").output)
    sarif_parts.validate(log)
    results = log["runs"][0]["results"]
    assert {one["ruleId"] for one in results} == {"DUP002", "DUP003", "LOS003", "LOS004"}
    assert [one["suppressions"][0]["kind"] for one in results if "suppressions" in one] == ["inSource", "inSource"]
    for one in results:
        assert log["runs"][0]["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"]
    assert run(str(wrong), "--format", "github").output.startswith("::error file=")
    concise = run(str(wrong), "--format", "concise").output.splitlines()
    assert len(concise) == 3
    assert ":18:26: DUP002 error: " in concise[0]
    document = json.loads(run(str(wrong), "--format", "json").output)
    assert [one["rule"] for one in document["findings"]] == ["DUP002", "LOS004", "DUP003"]
    assert json.loads(run(str(wrong), "--json").output)["findings"][0]["rule"] == "DUP002"


def test_the_corpus_has_sixty_right_configurations() -> None:
    assert len({one.stem for one in RIGHT}) >= 60


def test_rules_in_preview_look_when_they_are_asked_to() -> None:
    file = str(CORPUS / "wrong" / "DUP015.yaml")
    assert "DUP015" not in run(file).output
    assert "DUP015 " not in run(file, "--select", "DUP").output
    assert "warning[DUP015]" in run(file, "--preview").output
    assert "warning[DUP015]" in run(file, "--select", "DUP015").output
    assert "DUP015" not in run(file, "--preview", "--ignore", "DUP015").output
    assert "(preview)" in run("--list-rules").output


def test_rules_are_chosen_by_prefix_and_listed_and_explained() -> None:
    wrong = str(CORPUS / "wrong" / "published.yaml")
    assert "LOS004" not in run(wrong, "--select", "DUP").output
    assert run(wrong, "--ignore", "DUP", "--ignore", "LOS004").exit_code == 0
    unknown = run(wrong, "--select", "XYZ")
    assert unknown.exit_code == 2
    assert all(one.id in run("--list-rules").output for one in RULES)
    assert run("--explain", "dup002").output.startswith("# DUP002: ")
    assert run(str(CORPUS / "wrong" / "DUP004.yaml")).exit_code == 0
    assert run(str(CORPUS / "wrong" / "DUP004.yaml"), "--fail-on", "warning").exit_code == 1


def test_directories_are_searched_and_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    text = (CORPUS / "wrong" / "published.yaml").read_text()
    for name in ("infra/template.yaml", "build/template.yaml", "infra/values.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text if name.endswith("template.yaml") else "Resources: none\n")
    (tmp_path / ".gitignore").write_text("build/\n")
    document = json.loads(run(str(tmp_path), "--format", "json").output)
    assert [Path(one).name for one in document["files"]] == ["template.yaml"]
    assert "build" not in document["files"][0]


@pytest.mark.parametrize("known_to_git", [False, True])
def test_a_link_that_leads_out_of_a_directory_is_not_followed(tmp_path: Path, *, known_to_git: bool) -> None:
    text = (CORPUS / "wrong" / "published.yaml").read_text()
    (tmp_path / "other").mkdir()
    (tmp_path / "repo").mkdir()
    (tmp_path / "other" / "prod.yaml").write_text(text)
    (tmp_path / "repo" / "own.yaml").write_text(text)
    (tmp_path / "repo" / "link.yaml").symlink_to("../other/prod.yaml")
    (tmp_path / "repo" / "same.yaml").symlink_to("own.yaml")
    if known_to_git:
        subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    run(str(tmp_path / "repo"), "--fix")
    assert (tmp_path / "other" / "prod.yaml").read_text() == text
    assert (tmp_path / "repo" / "own.yaml").read_text() != text
    assert "DUP002" in run(str(tmp_path / "repo" / "link.yaml")).output  # it was named


@pytest.mark.parametrize("where", ["a folder like a bare repository", "its own repository"])
def test_no_program_that_a_repository_names_is_run(tmp_path: Path, where: str) -> None:
    """A clone carries a folder that git takes for a bare repository, and the configuration in it may name programs."""
    infra, ran = tmp_path / "infra", tmp_path / "ran"
    infra.mkdir()
    (infra / "template.yaml").write_text((CORPUS / "wrong" / "published.yaml").read_text())
    config = (
        f'[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = "."\n\tfsmonitor = "touch {ran}; false"\n'
    )
    if where == "its own repository":
        subprocess.run(["git", "init", "-q", str(infra)], check=True)
        (infra / ".git" / "config").write_text(config.replace('\tworktree = "."\n', ""))
    else:
        (infra / "config").write_text(config)
        (infra / "HEAD").write_text("ref: refs/heads/main\n")
        (infra / "objects").mkdir()
        (infra / "refs").mkdir()
    assert "DUP002" in run(str(infra)).output
    assert not ran.exists()


@pytest.mark.parametrize("written", ["!Nope 10", "!Nope [10, {a: 1}]", "{Fn::Nope: 10}"])
def test_an_unknown_function_makes_one_value_unknown_and_is_said_with_its_line(tmp_path: Path, written: str) -> None:
    file = tmp_path / "template.yaml"
    text = (CORPUS / "wrong" / "published.yaml").read_text()
    file.write_text(text.replace("MessageRetentionPeriod: 86400", f"MessageRetentionPeriod: {written}"))
    answer = run(str(file))
    assert answer.exit_code == 1
    assert "DUP002" in answer.output
    assert "LOS004" not in answer.output
    line = file.read_text()[: file.read_text().index("Nope")].count("\n") + 1
    assert f"Not looked at: the unknown function Fn::Nope in line {line}." in " ".join(answer.output.split())
    assert "--parameter" not in answer.output
    assert run(str(CORPUS / "wrong" / "published.yaml")).output.count("Not looked at") == 0


@pytest.mark.parametrize(
    "content",
    [b"\x00\x01binary", b"a: &x [*x]\n", b"{" * 5_000, b"- only\n- a list\n", "Res\xe9: 1".encode("latin-1"),
     b"Resources: {A: {Type: AWS::SQS::Queue}}\n" + b"#" * 2_000_000],
    ids=["binary", "circle", "deep", "a list", "not UTF-8", "too large"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_said_and_others_are_checked(tmp_path: Path, content: bytes) -> None:
    bad, wrong = tmp_path / "bad.yaml", CORPUS / "wrong" / "published.yaml"
    bad.write_bytes(content)
    answer = run(str(bad), str(wrong))
    assert answer.exit_code == 2
    assert "bad.yaml was not checked: " in answer.output
    assert "DUP002" in answer.output
    assert "Traceback" not in answer.output


def test_a_circle_of_names_and_odd_types_are_no_findings(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(
        "Resources:\n"
        "  A: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref B, VisibilityTimeout: [1], RedrivePolicy: x}}\n"
        "  B: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref A, MessageRetentionPeriod: -1}}\n"
        "  M: {Type: AWS::Lambda::EventSourceMapping, Properties: {EventSourceArn: !GetAtt A.Arn, BatchSize: many}}\n"
        "  Unheard: {Type: Custom::Of, Properties: {A: !Ref Nowhere}}\n"
    )
    assert found(file) == []


def test_a_line_end_in_a_files_name_begins_no_line_of_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "d\n::error::x"
    folder.mkdir()
    (folder / "u.yaml").write_text(
        "Resources:\n"
        "  Q: {Type: AWS::SQS::Queue}\n"
        "  F:\n"
        "    Type: AWS::Lambda::Function\n"
        "    Properties: {Handler: i.h, Runtime: python3.12, Timeout: 30, Code: {ZipFile: x}}\n"
        "  M:\n"
        "    Type: AWS::Lambda::EventSourceMapping\n"
        "    Properties: {EventSourceArn: !GetAtt Q.Arn, FunctionName: !Ref F, BatchSize: 10}\n"
    )
    main.run(["check", str(tmp_path), "--format", "concise"])
    lines = capsys.readouterr().out.split("\n")
    assert any("u.yaml" in line for line in lines)
    assert not [line for line in lines if line.startswith("::")]


def test_a_broken_template_in_a_directory_is_said_and_what_is_none_is_not(tmp_path: Path) -> None:
    wrong = (CORPUS / "wrong" / "published.yaml").read_text()
    twice = "Resources:\n  A: {Type: AWS::SQS::Queue}\n  A: {Type: AWS::SQS::Queue}\n"
    for name, text in {
        "right.yaml": wrong, "twice.yaml": twice, "open.json": '{"Resources": {"A": {"Type": "AWS::SQS::Queue"}',
        "chart.yaml": "Resources: {{ .Values.resources }}\n", "policy.json": '{"Resources": "AWS::SQS::Queue"}',
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    ran = run(str(tmp_path), "--format", "json")
    unread = json.loads(ran.output)["unread"]
    assert {Path(one["file"]).name: one["is_named"] for one in unread} == {"open.json": False, "twice.yaml": False}
    assert ran.exit_code == 1  # for what was found in the others
    assert "has the key 'A' again (first: line 2)" in run(str(tmp_path)).output
