"""`onefold serve` as an unlucky user starts it: an empty host, a file under two names, a log that nobody reads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

import onefold.testing
from onefold import errors
from onefold.clock import SystemClock
from onefold.entropy import SystemEntropy
from onefold.local import serving
from onefold.local.request_handler import is_local, is_loopback
from onefold.local.serving import ServeSettings, Serving

HANDLER = """
import os
def loud(event, context):
    for _ in range(8):
        os.write(2, b"x" * 100_000 + b"\\n")
    return {}
"""


def _serving(data: Path | None, host: str = "127.0.0.1") -> Serving:
    settings = ServeSettings(host=host, port=0, data=None if data is None else str(data))
    return Serving(settings, clock=SystemClock(), entropy=SystemEntropy())


def test_an_empty_host_is_refused_and_not_taken_for_all_addresses() -> None:
    with pytest.raises(errors.UsageError, match="host='' is not an address"):
        serving.check(ServeSettings(host=""))


def test_a_file_that_is_served_is_refused_under_the_name_of_a_link_too(tmp_path: Path) -> None:
    data, link = tmp_path / "q.db", tmp_path / "other.db"
    link.symlink_to(data)

    async def both() -> None:
        first = _serving(data)
        await first.start()
        try:
            with pytest.raises(errors.ConflictError, match="is being served already"):
                await _serving(link).start()
        finally:
            await first.stop()

    with asyncio.Runner(loop_factory=serving.new_loop) as runner:
        runner.run(both())


def test_names_of_this_machine_have_no_case() -> None:
    assert is_loopback("LocalHost")
    assert is_loopback("queues.LOCALHOST")
    assert is_local("http://LOCALHOST:3000")
    assert not is_loopback("LOCALHOST.example.com")


@pytest.mark.parametrize("reader", ["stands still", "has left"])
def test_a_log_that_nobody_reads_holds_up_no_request_and_no_end(tmp_path: Path, reader: str) -> None:
    (tmp_path / "h.py").write_text(HANDLER)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "onefold", "serve", "--memory", "--port", "0", "--json", "--function", "f=h:loud"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, cwd=tmp_path, text=True) as server:
        os.close(writing)
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            if reader == "has left":
                os.close(reading)
            for _ in range(3):
                client = HTTPConnection("127.0.0.1", port, timeout=60)
                client.request("POST", "/2015-03-31/functions/f/invocations", "{}")
                answer = client.getresponse()
                assert (answer.status, answer.read()) == (200, b"{}")
                client.close()
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
            if reader != "has left":
                os.close(reading)


def test_a_signal_that_keeps_coming_changes_nothing_about_the_end() -> None:
    command = [sys.executable, "-m", "onefold", "serve", "--memory", "--port", "0", "--json"]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert json.loads(server.stdout.readline())["port"]
            while server.poll() is None:
                server.send_signal(signal.SIGTERM)
            assert server.returncode == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "evil.example", "Authorization": "x"}, 403),
    ],
)
def test_a_page_under_a_name_that_was_pointed_here_gets_nothing_by_get(headers: dict[str, str], status: int) -> None:
    with onefold.testing.sqs() as endpoint:
        connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
        connection.request("GET", "/?Action=ListQueues", headers=headers)
        assert connection.getresponse().status == status
        connection.close()


def test_an_attributes_type_has_no_control_characters() -> None:
    with onefold.testing.sqs() as endpoint:
        sqs = endpoint.boto3("sqs")
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        hostile = {"a": {"DataType": "String.\x00", "StringValue": "x"}}
        with pytest.raises(sqs.exceptions.ClientError, match="invalid message attribute type"):
            sqs.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=hostile)


def test_a_file_that_somebody_else_holds_makes_the_server_wait_for_a_second(tmp_path: Path) -> None:
    async def ask() -> int:
        serving = _serving(tmp_path / "q.db")
        await serving.start()
        holder = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            loop = asyncio.get_running_loop()
            return await asyncio.wait_for(loop.run_in_executor(None, _create, serving.port), PATIENCE_S)
        finally:
            holder.close()
            await serving.stop()

    assert asyncio.run(ask()) == 503


PATIENCE_S = 9.0  # below the ten seconds that a worker waits for the file


def _create(port: int) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/?Action=CreateQueue&QueueName=orders")
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_closed_standard_output_is_no_harm(tmp_path: Path) -> None:
    said = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m onefold queue list --url sqlite:///shop.db >&- 2>err; echo $?"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said.stdout.strip() in ("0", "1")
    assert "Traceback" not in (tmp_path / "err").read_text()
