"""Celery on kombu's SQS transport: real workers in processes of their own run tasks, retry them, die, and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.celery import TaskCall
from onefold.contracts.entries import Entry
from tests.clients.serving import PATIENCE_S, Reports, environment, unique

FOLDER = Path(__file__).parent
SOURCE = "clients: Celery"
VISIBILITY_S = 8  # far longer than a task that was received waits for its turn


class Shop:
    """One queue, those who send to it, and the workers of it."""

    def __init__(self, server: str, queue: str, reports: Reports, url: str | None) -> None:
        self.reports = reports
        broker = f"sqs://key:secret@{server.removeprefix('http://')}//"
        self._env = environment(
            BROKER=broker, QUEUE=queue, REPORT_PORT=str(reports.port), VISIBILITY_S=str(VISIBILITY_S)
        )
        if url is not None:
            self._env["QUEUE_URL"] = url

    def send(self, *calls: str) -> None:
        """Send tasks from a process that only sends, `add.delay(1, 2)`."""
        code = "from celery_app import add, deadly, fragile\n" + "\n".join(calls)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=FOLDER, env=self._env, text=True, capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker with its children, in a process group that is gone at the end."""
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_app",
            "worker",
            "--loglevel",
            "ERROR",
            "-c",
            "1",
            *options,
        ]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        process = subprocess.Popen([*command, *quiet], cwd=FOLDER, env=self._env, start_new_session=True)
        try:
            yield process
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


@pytest.fixture(params=["created by kombu", "predefined"])
def shop(request: pytest.FixtureRequest, server: str, reports: Reports, make_queue: Callable[..., str]) -> Shop:
    if request.param == "predefined":
        url = make_queue("tasks", VisibilityTimeout=str(VISIBILITY_S))
        return Shop(server, url.rsplit("/", 1)[-1], reports, url)
    return Shop(server, unique("tasks"), reports, None)


@pytest.mark.slow
@pytest.mark.conformance(operation="Walk-through", case="tasks run, one fails twice and is retried", source=SOURCE)
def test_tasks_run_and_are_retried(shop: Shop) -> None:
    with shop.worker("--pool", "prefork"):
        shop.send("fragile.delay()", *(f"add.delay({number}, 1)" for number in range(4)))
        heard = shop.reports.until(lambda lines: len(lines) == 7)
    assert sorted(heard) == [
        *(f"add {number}" for number in range(1, 5)),
        *(f"fragile {number}" for number in range(3)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shop", ["predefined"], indirect=True)
@pytest.mark.conformance(
    operation="Walk-through", case="a worker killed with -9: the task runs again elsewhere", source=SOURCE
)
def test_a_task_survives_its_worker(shop: Shop, tmp_path: Path) -> None:
    with shop.worker("--pool", "solo") as first:
        shop.send(f"deadly.delay({str(tmp_path / 'mark')!r})")
        [began] = shop.reports.until(len)
        assert began == f"deadly first {first.pid}"
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE_S)
    with shop.worker("--pool", "solo") as second:
        [ended] = shop.reports.until(len)
        assert ended == f"deadly again {second.pid}"


@pytest.mark.slow
@pytest.mark.parametrize("shop", ["predefined"], indirect=True)
def test_a_job_takes_what_celery_sends(shop: Shop, sqs: Any) -> None:
    """Celery and kombu write the message; a worker of onefold takes it from the same queue, once for one order."""
    shop.send("add.delay(1, 2)", "add.delay(1, 2)")  # sent twice: two ids of Celery's, one operation
    url = shop._env["QUEUE_URL"]
    ran: list[TaskCall] = []
    app = onefold.App("adding")

    @app.job(app.queue("tasks"), source="celery", key=lambda call: str(call.args[0]))
    def added(call: TaskCall) -> None:
        ran.append(call)

    with onefold.testing.inline(app) as world:
        for _ in range(2):
            (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
            app.runtime().engine.queues.open("tasks").send([Entry(body=message["Body"])])
        world.run()
        names = world.names()
    assert ran == [TaskCall(task="celery_app.add", args=[1, 2], kwargs={})]
    assert names.count("completed") == names.count("duplicate") == 1
