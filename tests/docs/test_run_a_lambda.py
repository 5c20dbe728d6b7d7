"""The page about running a Lambda, as a reader would: a server, a sender, the function, and a mapping by boto3."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onefold.testing
from tests.docs.test_local_sqs import URL, serving
from tests.docs.test_pages import ROOT, blocks, environment, read_until, shell

PAGE = "docs/how-to/run-a-lambda.md"


def write_files(folder: Path, url: str) -> None:
    for language, title, text in blocks(PAGE):
        if language == "python":
            (folder / (title or "map.py")).write_text(text.replace(URL, url), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.conformance(
    operation="Walk-through", case="a function on a queue from the command line", source="clients: boto3"
)
def test_the_function_works_beside_the_server(tmp_path: Path) -> None:
    commands = next(text for language, _, text in blocks(PAGE) if language == "sh").splitlines()
    with serving(tmp_path) as url:
        write_files(tmp_path, url)
        shell(commands[1], tmp_path)
        with subprocess.Popen(
            [sys.executable, "-m", *commands[2].split()],
            cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as function:  # fmt: skip
            try:
                read_until(function, "booked o-2")
            finally:
                function.send_signal(signal.SIGTERM)
                said, _ = function.communicate(timeout=30)
        assert function.returncode == 0, said
        left = shell(f"curl -s '{url}/_onefold/messages?queue=orders'", tmp_path)
        told = shell(f"curl -s -H 'Accept: text/plain' '{url}/_onefold/history'", tmp_path)
    assert told.count("  sent  ") == len(told.splitlines()) == 3  # what the other process did is not in it
    assert '"o-bad"' in left
    assert '"o-1"' not in left


@pytest.mark.slow
def test_a_mapping_that_boto3_makes(tmp_path: Path) -> None:
    command = [text for language, _, text in blocks(PAGE) if language == "sh"][1]
    (tmp_path / "orders.py").write_text(blocks(PAGE)[0][2], encoding="utf-8")
    with serving(tmp_path, *command.split()[2:]) as url:
        write_files(tmp_path, url)
        shell("python send.py && python map.py", tmp_path)
        look = f"until curl -s {url}/_onefold/mappings | grep -q '\"deleted\":2'; do :; done"
        shell(f"timeout 30 bash -c {shlex.quote(look)}", tmp_path)
        told = shell(f"curl -s -H 'Accept: text/plain' '{url}/_onefold/history'", tmp_path)
    assert told.count("  deleted  ") == 2  # the server runs this one


def test_an_asynchronous_invoke_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing.py").write_text("def handler(event, context):\n    raise ValueError('no')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with onefold.testing.sqs(clock="virtual", functions={"failing": "failing:handler"}) as endpoint:
        endpoint.boto3("lambda").invoke(FunctionName="failing", InvocationType="Event", Payload=b"{}")
        look = f"until curl -s {endpoint.url}/_onefold/mappings | grep -q '\"errors\":1'; do :; done"
        shell(f"timeout 30 bash -c {shlex.quote(look)}", tmp_path)
        endpoint.advance("10m")  # Lambda tries twice more within that
        stats = json.loads(shell(f"curl -s {endpoint.url}/_onefold/mappings", tmp_path))["functions"]["failing"]
    assert (stats["invocations"], stats["errors"]) == (1, 1)


def test_the_page_is_linked() -> None:
    assert "run-a-lambda.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
