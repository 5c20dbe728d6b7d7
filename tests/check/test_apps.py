"""`onefold check module:app`: what an app declares, by the rules for templates, at the lines of its declarations."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import onefold.demo
from onefold.cli import main

SHOP = '''"""A shop."""

import uuid

import onefold
from onefold import DeadLetter
from onefold.aws import Function

app = onefold.App("shop")
orders = app.queue(
    "orders", retention="14d", dead_letter=DeadLetter(after=3), function=Function(timeout="30s", batch=5)
)
mails = app.queue("mails", fifo=True, retention="1h", visibility="30m", dead_letter=DeadLetter(after=5))


@app.job(orders, key="{id}", timeout="20s", retry=onefold.Retry(attempts=2))
def ship(order: dict[str, str]) -> None:
    print(order)


@app.job(mails, key=lambda mail: str(uuid.uuid4()), group="{to}", retry=onefold.Retry(attempts=2))
def mail(mail: dict[str, str]) -> None:
    print(mail)


handler = app.lambda_handler()
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main.run(["check", *words])
    return code, out.getvalue()


def test_declarations_are_checked_where_they_are_written(here: Path) -> None:
    (here / "checked_shop.py").write_text(SHOP)
    code, output = run("checked_shop:app", "--format", "json")
    assert code == 1, output
    document = json.loads(output)
    assert (document["files"], document["apps"]) == ([], ["checked_shop:app"])
    assert [Path(one).name for one in document["python_files"]] == ["checked_shop.py"]
    found = {one["rule"]: one for one in document["findings"]}
    assert {(one["rule"], one["severity"]) for one in document["findings"]} >= {
        ("LOS003", "warning"), ("LOS004", "error"), ("DUP007", "error"),
    }  # fmt: skip
    assert {rule: found[rule]["source"]["start_line"] for rule in ("LOS003", "LOS004", "DUP007")} == {
        "LOS003": 10, "LOS004": 13, "DUP007": 21,
    }  # fmt: skip
    assert found["LOS003"]["fix"]["description"].endswith("Here maxReceiveCount is DeadLetter(after=...).")
    assert found["LOS003"]["fix"]["edits"] == []


def test_the_fix_of_an_app_is_said_and_not_written(here: Path) -> None:
    (here / "fixed_shop.py").write_text(SHOP)
    code, output = run("fixed_shop:app", "--fix", "--unsafe")
    assert code == 1
    assert "fixed_shop.py:10:10" in output
    assert (here / "fixed_shop.py").read_text() == SHOP


def test_what_is_suppressed_beside_a_declaration(here: Path) -> None:
    quiet = SHOP.replace("mails = app", "# onefold: ignore[LOS004] mails of the last hour only\nmails = app")
    (here / "quiet_shop.py").write_text(quiet)
    document = json.loads(run("quiet_shop:app", "--format", "json")[1])
    reasons = {one["rule"]: one["suppressed"] for one in document["findings"]}
    assert reasons["LOS004"] == "mails of the last hour only"
    assert reasons["LOS003"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import onefold\nraise ValueError('no settings')\n", "cannot be imported: ValueError: no settings"),
        ("def broken(\n", "cannot be imported: SyntaxError"),
        ("import onefold\napp = onefold.App('empty')\n", "declares no queue"),
        ("import onefold\nother = onefold.App('empty')\n", "has no attribute 'app'"),
    ],
    ids=["raises", "syntax", "no queue", "no app"],
)
def test_an_app_that_cannot_be_read_is_an_error_and_the_rest_is_checked(
    here: Path, text: str, said: str, request: pytest.FixtureRequest
) -> None:
    name = f"unread_{request.node.callspec.id.replace(' ', '_')}"
    (here / f"{name}.py").write_text(text)
    wrong = Path(__file__).parent / "code" / "wrong" / "DUP014-no-name.py"
    code, output = run(f"{name}:app", str(wrong))
    assert code == 2
    assert f"{name}:app was not checked: " in " ".join(output.split())
    assert said in " ".join(output.split())
    assert "DUP014" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("shop", ["billing_shop", "enrich_shop", "web_shop"])
def test_the_apps_of_the_demo_are_clean(shop: str) -> None:
    code, output = run(f"onefold.demo.{shop}:app", "--preview", "--fail-on", "info")
    assert code == 0, output
    assert "1 app and" in output


@pytest.mark.parametrize("form", ["cloudformation", "yaml"])
def test_the_shop_of_the_demo_on_aws_is_clean_and_so_is_what_synth_writes_for_it(here: Path, form: str) -> None:
    source = Path(onefold.demo.__file__).parent / "data" / "shop_on_aws.py"
    (here / f"demo_{form}.py").write_text(source.read_text())
    template = "template.json" if form == "cloudformation" else "template.yaml"
    assert main.run(["synth", f"demo_{form}:app", "--format", form, "--output", template]) == 0
    code, output = run(template, f"demo_{form}:app", f"demo_{form}.py", "--preview", "--fail-on", "info")
    assert code == 0, output
    assert output.startswith("1 template and 1 app and 1 Python file checked: nothing found.")


def test_what_synth_writes_is_clean(here: Path) -> None:
    text = SHOP.replace("DeadLetter(after=3)", "DeadLetter(after=5)")
    text = text.replace('retention="1h"', 'retention="4d"').replace("lambda mail: str(uuid.uuid4())", '"{id}"')
    (here / "clean_shop.py").write_text(text)
    out = io.StringIO()
    with redirect_stdout(out):
        assert main.run(["synth", "clean_shop:app"]) == 0
    (here / "template.json").write_text(out.getvalue())
    code, output = run("template.json", "clean_shop:app", "--preview", "--fail-on", "info")
    assert code == 0, output
    assert output.startswith("1 template and 1 app and 1 Python file checked: nothing found.")
