"""`onefold lambda`: from a queue in a file to a handler and back, what is refused, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onefold.cli.main import run
from onefold.clock import SystemClock
from onefold.contracts.engine import Engine
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines import urls
from onefold.entropy import SystemEntropy
from onefold.errors import NotFoundError, UsageError
from onefold.local.identifiers import message_uuid
from onefold.local.outcomes import LogLine
from onefold.local.run_function import read_env_file

WITHIN_S = 60.0
SHORT_MS = 3_000
"""A visibility timeout that a test waits out, and that no pause of a loaded machine outlasts."""
HANDLERS = """
    import os
    import time

    seen = []


    def handler(event, context):
        bodies = [record["body"] for record in event["Records"]]
        print("took", *bodies, os.environ.get("TABLE"))
        if "bad" in bodies:
            raise ValueError("a bad one")


    def partly(event, context):
        failed = [one["messageId"] for one in event["Records"] if one["body"] == "bad"]
        return {"batchItemFailures": [{"itemIdentifier": one} for one in failed]}


    def patient(event, context):
        print("began", flush=True)
        with open(event["Records"][0]["body"]) as gate:
            gate.read()
        print("ended", flush=True)
"""


@contextmanager
def opened(data: Path) -> Iterator[Engine]:
    engine = urls.open_engine(f"sqlite:///{data}", clock=SystemClock(), entropy=SystemEntropy(), owner="test")
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with handlers, and in it a data file with the queue `orders`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(textwrap.dedent(HANDLERS))
    path = tmp_path / "sqs.db"
    with opened(path) as engine:
        engine.queues.create(QueueSettings(name="orders"))
    return path


def send(data: Path, *bodies: str, queue: str = "orders") -> None:
    with opened(data) as engine:
        engine.queues.open(queue).send([Entry(body=body) for body in bodies])
        engine.notify()


def left(data: Path, queue: str = "orders") -> int:
    with opened(data) as engine:
        depth = engine.queues.depth(queue)
        return depth.visible + depth.in_flight + depth.delayed


def call(data: Path, *words: str, handler: str = "shop:handler") -> int:
    return run(["lambda", handler, "--queue", "orders", "--data", str(data), *words])


# -- working ---------------------------------------------------------------------------------------------------------


def test_it_empties_the_queue_and_shows_the_log(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send(data, "o-1", "o-2")
    assert call(data, "--once", "--env", "TABLE=t-1", "--max-concurrency", "2", "--batch-size", "1") == 0
    found = capsys.readouterr()
    assert left(data) == 0
    assert re.match(r"ended: received 2, deleted 2; invocations 2, errors 0, containers [12]\n", found.out), found.out
    told = found.err.splitlines()
    assert told[0].startswith("shop-handler (shop:handler) works on orders of ")
    assert "visibility 30s" in told[0]
    starts = [line.split()[2][:8] for line in told if line.startswith("START RequestId: ")]
    took = {line for line in told if " | took " in line}
    assert took in (
        {f"{starts[0]} | took o-1 t-1", f"{starts[1]} | took o-2 t-1"},
        {f"{starts[1]} | took o-1 t-1", f"{starts[0]} | took o-2 t-1"},
    )
    assert len([line for line in told if line.startswith("REPORT RequestId: ")]) == 2


def test_json_on_standard_output_and_log_lines_as_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send(data, "o-1")
    assert call(data, "--once", "--json", "--log", "json") == 0
    found = capsys.readouterr()
    assert json.loads(found.out) == {
        "messages": {"received": 1, "deleted": 1, "failed": 0, "filtered": 0, "dropped": 0},
        "invocations": 1,
        "errors": 0,
        "cold_starts": 1,
        "code": 0,
    }
    lines = [json.loads(line) for line in found.err.splitlines()[1:]]
    assert {tuple(line) for line in lines} == {LogLine.__struct_fields__}
    assert [line["text"] for line in lines if line["stream"] == "stdout"] == ["took o-1 None"]


def test_no_log_when_none_is_wanted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send(data, "o-1")
    assert call(data, "--once", "--log", "none") == 0
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_queue_is_made_when_asked_for_with_visibility_for_the_timeout(data: Path) -> None:
    assert run(["lambda", "shop:handler", "--queue", "new.fifo", "--data", str(data), "--once",
                "--create-queue", "--timeout", "60s"]) == 0  # fmt: skip
    with opened(data) as engine:
        (made,) = [one for one in engine.queues.settings() if one.name == "new.fifo"]
    assert (made.fifo, made.visibility_ms) == (True, 360_000)


def test_the_answers_failures_count_where_it_is_said(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(data) as engine:
        engine.queues.create(QueueSettings(name="dead"))
        (orders,) = [one for one in engine.queues.settings() if one.name == "orders"]
        from msgspec import structs

        engine.queues.change(
            structs.replace(orders, dead_letter="dead", receives_max=1, visibility_ms=SHORT_MS), advised=False
        )
    send(data, "good", "bad", "good")
    words = ["--once", "--report-batch-item-failures", "--timeout", "3s"]
    assert call(data, *words, handler="shop:partly") == 0
    assert "received 3, deleted 2, failed 1" in capsys.readouterr().out
    assert (left(data), left(data, "dead")) == (0, 1)


def test_a_fault_kills_the_container_and_the_message_comes_back(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(data) as engine:
        from msgspec import structs

        (orders,) = [one for one in engine.queues.settings() if one.name == "orders"]
        engine.queues.change(structs.replace(orders, visibility_ms=SHORT_MS))
    send(data, "o-1")
    assert call(data, "--once", "--timeout", "3s", "--fault", "kill-after=1,times=1", "--seed", "7") == 0
    found = capsys.readouterr()
    assert "received 2, deleted 1, failed 1; invocations 2, errors 1, containers 2" in found.out
    assert found.err.count("took o-1") == 2
    assert "Runtime exited with error: signal: killed (a fault that was injected on request)" in found.err


# -- refused: nothing is made, nothing is received ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["shop:nothing"], "Runtime.HandlerNotFound: Handler 'nothing' missing on module 'shop'"),
        (["nowhere.handler"], "Runtime.ImportModuleError: Unable to import module 'nowhere'"),
        (["shop"], "'shop' is not a handler."),
        (["shop:handler", "--queue", "absent"], "AWS.SimpleQueueService.NonExistentQueue"),
        (["shop:handler", "--data", "absent.db"], "There is no data file absent.db."),
        (["shop:handler", "--code-dir", "absent"], "There is no folder "),
        (["shop:handler", "--env-file", "absent"], "There is no file absent."),
        (["shop:handler", "--env", "TABLE"], "--env TABLE: it is not KEY=VALUE."),
        (["shop:handler", "--env", "AWS_REGION=x"], "Reserved keys used in this request: AWS_REGION"),
        (
            ["shop:handler", "--timeout", "31s"],
            "Queue visibility timeout: 30 seconds is less than Function timeout: 31 ",
        ),
        (["shop:handler", "--timeout", "901s"], "Value '901' at 'timeout'"),
        (["shop:handler", "--memory", "64"], "Value '64' at 'memorySize'"),
        (["shop:handler", "--batch-size", "11"], "Maximum batch window in seconds must be greater than 0"),
        (["shop:handler", "--max-concurrency", "1"], "Value '1' at 'maximumConcurrency'"),
        (["shop:handler", "--filter", '{"attributes": {}}'], "Invalid filter pattern definition."),
        (["shop:handler", "--fault", "kill-befor=1"], "Did you mean kill-before?"),
        (["shop:handler", "--name", "with space"], "cannot be the name of a function"),
    ],
)
def test_what_is_refused_and_that_nothing_was_done(
    data: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    send(data, "o-1")
    full = [*words]
    for option, value in (("--queue", "orders"), ("--data", str(data))):
        if option not in full:
            full += [option, value]
    assert run(["lambda", *full, "--once"]) == 1
    found = capsys.readouterr().err
    assert told in found
    assert "to do: " in found
    assert "Traceback" not in found
    assert sorted(path.name for path in data.parent.glob("*.db")) == ["sqs.db"]
    with opened(data) as engine:
        assert [one.name for one in engine.queues.settings()] == ["orders"]
        assert engine.queues.depth("orders").visible == 1
        (waiting,) = engine.queues.peek("orders")
        assert waiting.receive_count == 0


def test_a_handler_that_cannot_be_had_makes_no_queue(data: Path) -> None:
    fresh = data.with_name("fresh.db")
    words = ["lambda", "shop:nothing", "--queue", "orders", "--data", str(fresh), "--create-queue"]
    assert run(words) == 1
    assert not fresh.exists()


# -- environment files -------------------------------------------------------------------------------------------------


def test_environment_files(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# a comment\n\nTABLE=orders\nexport KEY = \"with space\" \nQUOTE='#'\nEMPTY=\nURL=a=b\n")
    assert read_env_file(str(file)) == {
        "TABLE": "orders",
        "KEY": "with space",
        "QUOTE": "#",
        "EMPTY": "",
        "URL": "a=b",
    }


def test_environment_files_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "env"
    with pytest.raises(NotFoundError):
        read_env_file(str(file))
    file.write_text("A=1\nno equals\n")
    with pytest.raises(UsageError, match="env, line 2: it is not KEY=VALUE"):
        read_env_file(str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="env cannot be read: it is not UTF-8 text"):
        read_env_file(str(file))
    with pytest.raises(UsageError) as raised:
        read_env_file(str(tmp_path))
    assert raised.value.what == f"{tmp_path} cannot be read: Is a directory."


# -- how it ends -------------------------------------------------------------------------------------------------------


class Process:
    """The command in a process of its own, whose log is read line by line."""

    def __init__(self, data: Path, *words: str, handler: str = "shop:handler") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "onefold", "lambda", handler, "--queue", "orders", "--data", str(data), *words],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.heard("works on orders")

    def heard(self, text: str) -> str:
        """Read the log up to the line with this text."""
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not said: {''.join(lines)}")

    def ended(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, out


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(data: Path, gate: Path, number: int) -> None:
    send(data, str(gate))
    process = Process(data, "--timeout", "20s", handler="shop:patient")
    process.heard("began")
    process.process.send_signal(number)
    process.heard("Draining")
    gate.write_text("go on")
    process.heard("ended")
    code, out = process.ended()
    assert (code, left(data)) == (0, 0)
    assert "received 1, deleted 1" in out


def test_the_second_signal_ends_what_runs(data: Path, gate: Path) -> None:
    send(data, str(gate))
    process = Process(data, "--timeout", "20s", handler="shop:patient")
    process.heard("began")
    process.process.send_signal(signal.SIGTERM)
    process.heard("Draining")
    process.process.send_signal(signal.SIGTERM)
    process.heard("Stopping now")
    code, _ = process.ended()
    assert (code, left(data)) == (3, 1)


def test_new_code_is_taken_and_work_of_other_processes_is_noticed(data: Path) -> None:
    process = Process(data, "--reload")
    shop = data.with_name("shop.py")
    shop.write_text(shop.read_text().replace('"took"', '"took anew"'))
    process.heard("shop.py changed")
    send(data, "o-1")
    process.heard("took anew o-1")
    process.process.send_signal(signal.SIGTERM)
    code, _ = process.ended()
    assert (code, left(data)) == (0, 0)


def test_a_record_names_the_message_as_the_wire_does(data: Path) -> None:
    (data.with_name("naming.py")).write_text(
        "def handler(event, context):\n    print(event['Records'][0]['messageId'], event['Records'][0]['eventSourceARN'])\n"
    )
    with opened(data) as engine:
        (sent,) = engine.queues.open("orders").send([Entry(body="o-1")])
    message_id: Any = getattr(sent, "message_id", None)
    process = Process(data, "--region", "eu-west-1", "--account", "123456789012", handler="naming:handler")
    process.heard(f"{message_uuid(message_id)} arn:aws:sqs:eu-west-1:123456789012:orders")
    process.process.send_signal(signal.SIGTERM)
    assert process.ended()[0] == 0
