"""Commands on a machine that has onefold without an extra: each names the extra to install, and none is a defect.

One process makes a child for each case, in which `sys.modules` says that the packages are not there, before anything of
ours that would need them was imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
import onefold

app = onefold.App("shop")

orders = app.queue("orders")

@app.job(orders, key="{id}")
def charge(order: dict[str, str]) -> None: ...

handler = app.lambda_handler()
"""
TRACED = SHOP.replace('"shop")', '"shop", sinks=[onefold.observe.OpenTelemetry()])')
SEARCHED = SHOP.replace('"{id}"', 'onefold.jmespath("id")')
CLOUD = "deploy shop:app --bucket b --region eu-central-1 --dry-run"
STATUS = "status --url"
CASES = [
    *(
        (f"web {at}", package, "web")
        for at in ("shop:app",)
        for package in ("jinja2", "markupsafe", "httptools", "uvloop")
    ),
    *(("serve --memory --port 0", package, "serve") for package in ("uvloop", "httptools", "botocore")),
    ("serve template.yaml --memory --port 0", "yaml", "serve"),
    ("synth shop:app --format yaml", "yaml", "serve"),
    ("demo", "aiohttp", "demo"),
    ("demo web", "aiohttp", "demo"),
    ("demo web", "jinja2", "web"),
    (f"{STATUS} redis://127.0.0.1:1/0", "redis", "redis"),
    (f"{STATUS} postgresql://127.0.0.1:1/x", "psycopg", "postgres"),
    (f"{STATUS} aws://eu-central-1/", "boto3", "aws"),
    ("held list --url dynamodb://eu-central-1/onefold", "boto3", "aws"),
    ("outbox create postgresql://127.0.0.1:1/x", "psycopg", "postgres"),
    (CLOUD, "boto3", "aws"),
    ("status traced:app", "opentelemetry", "otel"),
    ("status searched:app", "jmespath", "cli"),
    ("status shop:app", "click", "cli"),
    ("status shop:app", "rich", "cli"),
]
BARE = (
    "jinja2",
    "markupsafe",
    "httptools",
    "uvloop",
    "aiohttp",
    "boto3",
    "botocore",
    "psycopg",
    "redis",
    "opentelemetry",
    "yaml",
)
WORKS = ["--help", "web --help", "serve --help", "demo --help", "worker shop:app --until-empty --metrics 127.0.0.1:0",
         "worker shop:app --until-empty --emf", "status shop:app", "synth shop:app"]  # fmt: skip
PROGRAM = """
import json, os, signal, sys
from onefold.cli import main

found = []
for words, packages in json.load(sys.stdin):
    read, write = os.pipe()
    if not os.fork():
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.alarm(60)  # what goes on without the package ends, and fails the test
        sys.modules.update(dict.fromkeys(packages))
        code = main.run(words.split())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(write)
    with open(read, encoding="utf-8") as said:
        text = said.read()
    found.append((os.waitstatus_to_exitcode(os.wait()[1]), text))
json.dump(found, sys.stdout)
"""

Said = dict[tuple[str, str], tuple[int, str]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Exit code and output of each case."""
    folder: Path = tmp_path_factory.mktemp("bare")
    for name, text in (("shop", SHOP), ("traced", TRACED), ("searched", SEARCHED)):
        (folder / f"{name}.py").write_text(text, "utf-8")
    (folder / "template.yaml").write_text("Resources: {}\n", "utf-8")
    cases = [(words, package) for words, package, _ in CASES] + [(words, ",".join(BARE)) for words in WORKS]
    given = json.dumps([(words, packages.split(",")) for words, packages in cases])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {case: (code, text) for case, (code, text) in zip(cases, json.loads(done.stdout), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize(("words", "package", "extra"), CASES)
def test_what_is_missing_is_named_with_its_extra(said: Said, words: str, package: str, extra: str) -> None:
    code, text = said[words, package]
    assert (code, f"needs the package {package}, which is not installed" in " ".join(text.split())) == (1, True), text
    assert f"pip install 'onefold[{extra}]'" in text
    assert "defect" not in text


@pytest.mark.slow
@pytest.mark.parametrize("words", WORKS)
def test_what_needs_no_extra_works_without(said: Said, words: str) -> None:
    code, text = said[words, ",".join(BARE)]
    assert code == 0, text
