"""The pre-commit hook and the GitHub action, run as pre-commit and a runner would, in a repository of somebody else."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.check.sarif_parts import SARIF
from tests.check.test_check import CORPUS

ROOT = Path(__file__).parents[2]
ONEFOLD = Path(sys.executable).with_name("onefold")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    repository = tmp_path / "scratch"
    repository.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "template.yaml").write_text((CORPUS / "wrong" / "published.yaml").read_text())
    (repository / "package.json").write_text('{"name": "no template"}')
    (repository / "read me.md").write_text("no template")
    return repository


def test_the_hook_checks_the_whole_repository_when_a_file_of_its_kind_is_committed(scratch: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["language"] == "python"
    assert hook["additional_dependencies"] == [".[check-hcl]"]
    assert not hook["pass_filenames"]
    for name, is_of in (
        ("infra/template.yaml", True), ("a.yml", True), ("plan.json", True), ("app.template", True), ("h.py", True),
        ("main.tf", True), ("prod.auto.tfvars", True), ("README.md", False),
    ):  # fmt: skip
        assert bool(re.search(hook["files"], name)) is is_of
    program, *words = shlex.split(hook["entry"]) + hook["args"]
    command = [str(Path(sys.executable).with_name(program)), *words]
    ran = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert "1 template checked: 3 errors found." in ran.stdout
    assert subprocess.run([*command, "--fix"], cwd=scratch, capture_output=True, check=False).returncode == 0
    assert subprocess.run(command, cwd=scratch, capture_output=True, check=False).returncode == 0


ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]


def ran(scratch: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """The exit code of the check step, what it printed, and its outputs and files."""
    [step] = [one for one in STEPS if one.get("id") == "check"]
    runner = scratch.parent / "runner"
    program = runner / "onefold-check" / "bin" / "onefold"
    program.parent.mkdir(parents=True)
    program.symlink_to(ONEFOLD)
    given = {name: one["default"] for name, one in ACTION["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    variables = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: given[found[1]], value)
        for name, value in step["env"].items()
    }
    files = {name: runner / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
    variables |= {"RUNNER_TEMP": str(runner), **{name: str(file) for name, file in files.items()}}
    # as a runner starts it: https://docs.github.com/actions, "jobs.<job_id>.steps[*].shell"
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(
        shell, cwd=scratch, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    return done.returncode, done.stdout, {one.name: one.read_text() for one in runner.iterdir() if one.is_file()}


def test_the_action_writes_sarif_for_code_scanning_and_then_fails(scratch: Path) -> None:
    code, output, files = ran(scratch)
    assert (code, output) == (0, "")
    assert files["github_output"] == "code=1\n"
    log = json.loads(files["onefold-check.sarif"])
    jsonschema.validate(log, SARIF)
    assert {one["ruleId"] for one in log["runs"][0]["results"]} == {"DUP002", "DUP003", "LOS004"}
    [upload] = [one for one in STEPS if "upload-sarif" in one.get("uses", "")]
    assert upload["with"]["sarif_file"].endswith("/onefold-check.sarif")
    last = STEPS[-1]
    ended = subprocess.run(["bash", "-c", last["run"]], env={**os.environ, "CODE": "1"}, check=False)
    assert ended.returncode == 1


def test_the_action_takes_paths_a_form_and_a_level(scratch: Path) -> None:
    (scratch / "clean.yaml").write_text((CORPUS / "right" / "plain.yaml").read_text())
    code, output, files = ran(scratch, paths="clean.yaml template.yaml", format="github", fail_on="warning")
    assert code == 0
    assert output.count("::error file=template.yaml,") == 3
    assert files["github_output"] == "code=1\n"


def test_the_action_writes_a_summary_and_keeps_to_a_baseline(scratch: Path) -> None:
    subprocess.run([ONEFOLD, "check", ".", "--write-baseline", "known.json"], cwd=scratch, check=True)
    _, output, files = ran(scratch, format="markdown", baseline="known.json")
    assert output == ""
    assert files["github_step_summary"] == "**onefold check: nothing found.**\n"
    assert files["github_output"] == "code=0\n"


@pytest.mark.parametrize("words", ["$(touch here)", "; touch here", "--fix", "`touch here`"])
def test_an_input_is_never_run_or_an_option(scratch: Path, words: str) -> None:
    before = (scratch / "template.yaml").read_text()
    _, _, files = ran(scratch, paths=words, format="concise")
    assert files["github_output"] == "code=2\n"
    assert not (scratch / "here").exists()
    assert (scratch / "template.yaml").read_text() == before


def test_no_step_of_the_action_puts_an_input_into_its_script() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", "")
        assert ("run" in step) != ("uses" in step)
        assert "shell" in step or "uses" in step
    assert shutil.which("bash")
