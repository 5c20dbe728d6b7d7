"""`onefold check` on Python code: every rule of application code on right and wrong handlers, alone and with a template."""

from __future__ import annotations

import gc
import io
import json
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from datetime import date
from pathlib import Path

import pytest

from onefold.check import collect_python as collecting
from onefold.check.call_graph import STEPS_MAX
from onefold.check.checking import CheckedInput, check
from onefold.check.collect_python import collect_python
from onefold.check.documents import read_document
from onefold.check.python_modules import Module
from onefold.check.rules import RULES, CheckRule
from onefold.cli import main
from tools.check_figures import expected

CODE = Path(__file__).parent / "code"
WRONG = sorted((CODE / "wrong").iterdir())
RIGHT = sorted((CODE / "right").iterdir())
TODAY = date(2026, 11, 23)
OF_CODE = [one for one in RULES if one.joined is not None or one.in_code is not None]


def looked(*paths: Path) -> CheckedInput:
    return check(paths, RULES, TODAY, preview=True)


def found(path: Path) -> list[str]:
    """What is found, a word or two each."""
    checked = looked(path)
    assert checked.unread == ()
    return sorted(f"{one.rule} {one.severity}{' preview' if one.is_preview else ''}" for one in checked.open)


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main.run(["check", *words])
    return code, out.getvalue()


@pytest.mark.parametrize("path", WRONG, ids=lambda one: one.name)
def test_wrong_code_has_exactly_the_findings_that_it_says(path: Path) -> None:
    assert found(path) == expected(path) != []


@pytest.mark.parametrize("path", RIGHT, ids=lambda one: one.name)
def test_right_code_has_none(path: Path) -> None:
    assert expected(path) == []
    assert found(path) == []


@pytest.mark.parametrize("rule", OF_CODE, ids=lambda one: one.id)
def test_each_rule_of_code_has_two_wrong_ones(rule: CheckRule) -> None:
    wrong = [one for one in WRONG if any(each.startswith(rule.id) for each in expected(one))]
    assert len(wrong) >= 2, wrong


@pytest.mark.parametrize("path", [one for one in WRONG if one.is_dir()], ids=lambda one: one.name)
def test_a_template_in_json_has_the_same(path: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.json"
    template.write_text(json.dumps(read_document(path / "template.yaml").data, indent=2))
    for file in path.glob("src/*"):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / file.name).write_text(file.read_text())
    assert found(template) == expected(path)


@pytest.mark.parametrize("path", WRONG, ids=lambda one: one.name)
def test_a_finding_is_where_it_says(path: Path) -> None:
    for one in looked(path).open:
        for place in (one.source, *(related.source for related in one.related)):
            lines = Path(place.file).read_text().splitlines()
            assert 1 <= place.start_line <= len(lines)
            assert 1 <= place.start_column < place.end_column <= len(lines[place.start_line - 1]) + 1
        assert one.fix is not None
        assert one.message.endswith(".")


def test_preview_is_reported_only_when_asked_for() -> None:
    race = CODE / "wrong" / "DUP010-race.py"
    assert check([race], RULES, TODAY).open == []
    assert run(str(race), "--fail-on", "warning")[0] == 0
    assert run(str(race), "--fail-on", "warning", "--preview")[0] == 1


def test_a_comment_in_python_suppresses(tmp_path: Path) -> None:
    file = tmp_path / "work.py"
    text = (CODE / "wrong" / "LOS016-swallows.py").read_text()
    line = "        except Exception as error:"
    file.write_text(text.replace(line, f"{line}  # onefold: ignore[LOS016] best effort by contract"))
    checked = check([file], RULES, TODAY)
    assert checked.open == []
    assert [one.suppressed for one in checked.findings] == ["best effort by contract"]
    file.write_text(text.replace(line, f"{line}  # onefold: ignore[LOS016]"))
    assert [one.rule for one in check([file], RULES, TODAY).open] == ["LOS016", "SUP001"]


def test_a_directory_has_templates_and_python_and_not_what_git_ignores_or_tests_do(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    wrong = (CODE / "wrong" / "DUP014-no-name.py").read_text()
    for name in ("src/start.py", "build/start.py", "tests/start.py", "src/test_start.py", "src/plain.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" if name.endswith("plain.py") else wrong)
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "template.yaml").write_text((CODE / "right" / "t-absent" / "template.yaml").read_text())
    code, output = run(str(tmp_path), "--format", "json")
    document = json.loads(output)
    assert code == 1
    assert [Path(one).name for one in document["files"]] == ["template.yaml"]
    assert [Path(one).parts[-2:] for one in document["python_files"]] == [("src", "start.py")]
    assert [one["rule"] for one in document["findings"]] == ["DUP014"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"import boto3\ndef handler(event, context)\n    pass\n", "bad.py:2 is not Python"),
        (b"import boto3\nx = '\xff\xfe'\n", "bad.py:2 is not text in the encoding"),
        (b"# coding: nonsense\nimport boto3\n", "bad.py:1 is not text in the encoding"),
        (b"import boto3\n\x00\x01\x02", "is not Python"),
        (b"import boto3\n" + b"#" * 2_000_000, "larger than 1,048,576 bytes"),
        (b"import boto3\nx = " + b"(" * 500 + b")" * 500, "is not Python"),
        (b"import boto3\nx = " + b"-" * 50_000 + b"1\n", "is not Python"),
    ],
    ids=["syntax", "bytes", "encoding", "null", "large", "brackets", "deep"],
)
def test_broken_python_is_said_with_its_line_and_the_rest_goes_on(tmp_path: Path, content: bytes, said: str) -> None:
    bad, wrong = tmp_path / "bad.py", CODE / "wrong" / "DUP014-no-name.py"
    bad.write_bytes(content)
    (tmp_path / "good.py").write_text(wrong.read_text())
    code, output = run(str(bad), str(wrong))
    assert code == 2
    assert said in " ".join(output.split())
    assert "DUP014" in output
    assert "Traceback" not in output
    code, output = run(str(tmp_path))
    assert code == 1  # it was found there, and not named
    assert said in " ".join(output.split())
    assert "DUP014" in output


def test_broken_code_of_a_template_is_said_and_the_template_checked(tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text((CODE / "wrong" / "DUP006" / "template.yaml").read_text())
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("def handler(event, context)\n")
    checked = looked(template)
    assert [one.rule for one in checked.open] == ["DUP004"]
    assert [(Path(one.file).name, one.is_named) for one in checked.unread] == [("app.py", False)]


def test_the_fix_of_a_template_whose_code_was_read(tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text((CODE / "wrong" / "DUP006" / "template.yaml").read_text())
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text((CODE / "wrong" / "DUP006" / "src" / "app.py").read_text())
    assert run(str(template))[0] == 1
    assert run(str(template), "--fix")[0] == 0
    assert 'FunctionResponseTypes: ["ReportBatchItemFailures"]' in template.read_text()
    assert looked(template).open == []


def test_loops_of_names_calls_and_imports_end(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from two import *\nfrom two import b as a\nimport boto3\nx = y\ny = x\n"
        "def f(a): return g(a)\ndef g(a): return f(a) or x\nclass C(C): pass\n"
        "def handler(event, context):\n    for r in event['Records']:\n        r = f(r)\n        x = f(x)\n"
        "        boto3.client('sqs').send_message(QueueUrl=f(x), MessageBody=g(r['body']), MessageDeduplicationId=f(y))\n"
        "    return handler(event, context)\n"
    )
    (tmp_path / "two.py").write_text("from one import *\nfrom one import a as b\n")
    assert looked(tmp_path / "one.py").open == []
    deep = "x0 = 'a'\n" + "".join(f"x{n} = x{n - 1} + x{n - 1}\n" for n in range(1, 200))
    (tmp_path / "deep.py").write_text(f"import boto3\n{deep}boto3.client('sqs').send_message(QueueUrl=x199)\n")
    assert looked(tmp_path / "deep.py").open == []


def test_imports_are_followed_beside_the_file_and_not_into_what_was_installed(tmp_path: Path) -> None:
    (tmp_path / "boto3").mkdir()
    (tmp_path / "boto3" / "__init__.py").write_text("def client(name): return None\n")
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored" / "__init__.py").write_text("syntax error here\n")
    (tmp_path / "vendored-1.0.dist-info").mkdir()
    (tmp_path / "clients.py").write_text("import boto3\nstates = boto3.client('stepfunctions')\n")
    (tmp_path / "app.py").write_text(
        "import vendored\nfrom clients import states as s\n\n"
        "def handler(event, context):\n    for r in event['Records']:\n"
        "        s.start_execution(stateMachineArn='arn', input=r['body'])\n"
    )
    checked = looked(tmp_path / "app.py")
    assert checked.unread == ()
    assert [one.rule for one in checked.open] == ["DUP014"]
    assert [Path(one).name for one in checked.python_files] == ["app.py", "clients.py"]


def test_what_is_known_of_a_handler() -> None:
    file = CODE / "right" / "partial.py"
    code = collect_python([(file, file.parent)]).code
    (handler,) = code.handlers
    assert (handler.name, handler.answer, handler.is_guarded) == ("handler", "reports", False)
    assert (handler.source.start_line, handler.source.start_column) == (13, 1)


def test_files_are_read_in_parts_and_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = looked(CODE / "wrong")
    monkeypatch.setattr(collecting, "PART_BYTES", 2_000)
    parts = looked(CODE / "wrong")
    assert [(one.rule, one.source) for one in parts.findings] == [(one.rule, one.source) for one in whole.findings]
    assert sorted(parts.python_files) == sorted(whole.python_files)


def test_nothing_of_what_was_read_is_kept(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import boto3\ndef\n")
    (tmp_path / "good.py").write_text((CODE / "wrong" / "LOS016-many.py").read_text())
    kept = collect_python([(one, tmp_path) for one in tmp_path.glob("*.py")])
    gc.collect()
    assert [one for one in gc.get_objects() if type(one) is Module] == []
    assert len(kept.broken) == 1


def test_what_a_handler_reaches_is_bounded_so_that_many_handlers_take_time_in_proportion(tmp_path: Path) -> None:
    file = tmp_path / "many.py"
    file.write_text(
        "".join(
            f"def f{number}(event, context):\n  for r in event['Records']:\n    r['body']; f{number + 1}(event, context)\n"
            for number in range(40)
        )
    )
    code = collect_python([(file, tmp_path)]).code
    reached = [len(one.functions) for one in code.handlers]
    assert len(reached) == 40
    assert max(reached) == STEPS_MAX + 1
