"""The hook and the action, installed: `pre-commit` clones this repository and builds the hook, the action its program.

Both run without a network: pip finds what onefold needs in a folder of wheels that are made of what is installed here. The
repository that they are of is a copy of this one's files in one commit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.check.test_check import CORPUS
from tests.check.test_where_people_are import ACTION, ROOT, STEPS
from tests.deploy.wheelhouse import offline, repack

pytestmark = pytest.mark.slow  # each builds a wheel and an environment

PRE_COMMIT = ROOT / ".venv-tools" / "bin" / "pre-commit"
NEEDED = (
    *(
        "click",
        "jmespath",
        "lark",
        "markdown-it-py",
        "mdurl",
        "msgspec",
        "pygments",
        "python-hcl2",
        "pyyaml",
        "regex",
        "rich",
    ),
    "setuptools",
)
OF_PACKAGE = ("src", "pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml", "action.yml")


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDED:
        repack(name, tmp_path / "wheels")
    offline(monkeypatch, tmp_path / "wheels")
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "cache"))
    for name in [one for one in os.environ if one.startswith("GIT_")]:
        monkeypatch.delenv(name)


def git(directory: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(directory), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A repository with the files that the hook and the action are made of."""
    copy = tmp_path / "onefold"
    copy.mkdir()
    for name in OF_PACKAGE:
        if (ROOT / name).is_dir():
            leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, copy / name)
    git(copy, "init", "-q")
    git(copy, "add", "--all")
    git(copy, "commit", "-q", "-m", "a release")
    git(copy, "tag", "v0.1.0")
    return copy


@pytest.fixture
def scratch(tmp_path: Path, published: Path) -> Path:
    """A repository of somebody else, with a wrong template and the configuration that the documentation gives."""
    repository = tmp_path / "scratch"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "template.yaml").write_text((CORPUS / "wrong" / "published.yaml").read_text())
    page = (ROOT / "docs" / "check.md").read_text().split("## Before each commit", 1)[1]
    [block] = re.findall(r"```yaml\n(repos:.*?)```", page, re.DOTALL)
    configured = yaml.safe_load(block.replace("https://github.com/OWNER/onefold", str(published)))
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(configured))
    git(repository, "add", "--all")
    return repository


def test_pre_commit_builds_the_hook_and_stops_a_commit_until_it_is_right(scratch: Path) -> None:
    subprocess.run([PRE_COMMIT, "install"], cwd=scratch, capture_output=True, check=True)
    refused = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "a template"],
        cwd=scratch, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1, said
    assert re.search(r"onefold check\.+Failed", said), said
    assert "6 x 30 s timeout + 1 s batching window = 181 s" in said
    assert "1 template checked: 3 errors found." in said

    [program] = (scratch.parent / "cache").glob("repo*/py_env-*/bin/onefold")
    subprocess.run([program, "check", ".", "--fix"], cwd=scratch, capture_output=True, check=False)
    git(scratch, "add", "--all")
    git(scratch, "commit", "-q", "-m", "a template")
    assert git(scratch, "log", "--format=%s") == "a template"

    (scratch / "notes.md").write_text("no template")
    git(scratch, "add", "--all")
    ran = subprocess.run([PRE_COMMIT, "run"], cwd=scratch, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert "(no files to check)Skipped" in ran.stdout


def test_the_steps_of_the_action_install_check_and_fail(scratch: Path, published: Path) -> None:
    """Each in a shell of its own, with the environment that a runner gives, as GitHub's documentation of `shell` says."""
    runner = scratch.parent / "runner"
    runner.mkdir()
    output, summary = runner / "output", runner / "summary"
    for file in (output, summary):
        file.touch()
    given = {name: one["default"] for name, one in ACTION["inputs"].items()} | {"format": "markdown"}
    known = {
        "steps.python.outputs.python-path": sys.executable,
        **{f"inputs.{name}": one for name, one in given.items()},
    }

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ ([a-z.-]+) \}\}", lambda found: known[found[1]], text)

    for step, code in zip([one for one in STEPS if "run" in one], (0, 0, 1), strict=True):
        known |= {f"steps.check.outputs.{name}": value for name, _, value in _pairs(output)}
        variables = {name: filled(value) for name, value in step["env"].items()}
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=scratch, capture_output=True, text=True, check=False,
            env={
                **os.environ, **variables, "RUNNER_TEMP": str(runner), "GITHUB_ACTION_PATH": str(published),
                "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary),
            },
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
    assert summary.read_text().startswith("**onefold check: 3 errors found.**\n")


def _pairs(output: Path) -> list[tuple[str, str, str]]:
    return [line.partition("=") for line in output.read_text().splitlines()]


@pytest.mark.parametrize("program", ["uvx", "pipx"])
def test_it_runs_once_without_being_installed_as_the_page_says(
    scratch: Path, published: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = scratch.parent / "wheels"
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(published)]
    subprocess.run(wheel, capture_output=True, check=True)
    repack("pip", wheels)  # of which pipx makes an environment of its own
    for name, value in {
        "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels), "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never",
        "UV_CACHE_DIR": str(scratch.parent / "uv"), "PIPX_HOME": str(scratch.parent / "pipx"),
        "PIPX_DEFAULT_PYTHON": sys.executable, "UV_PYTHON": sys.executable,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    page = (ROOT / "docs" / "check.md").read_text().split("Without installing anything, once:", 1)[1]
    [command] = [line for line in page.split("```")[1].splitlines() if line.startswith(program)]
    ran = subprocess.run(
        [PRE_COMMIT.with_name(program), *shlex.split(command)[1:]],
        cwd=scratch, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    assert "1 template checked: 3 errors found." in ran.stdout
