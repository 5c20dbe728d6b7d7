"""A relay that passes messages to SQS and is killed on the way: none is lost, each takes effect once, groups keep order."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from onefold.engines.urls import open_outbox
from onefold.runner.executors import Grouper
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.testing import sqs
from tests.crash import victim
from tests.emulators import servers
from tests.run.outbox_shop import Heard, OutboxShop

ROOT = Path(__file__).parents[2]
KILLS = [("1", "before"), ("2", "before"), ("2", "after")]
"""Of the two calls for a batch, one for each queue."""

PATIENCE_S = 60.0  # a test that waits so long has failed

pytestmark = pytest.mark.slow


@contextmanager
def own() -> Iterator[str]:
    with sqs() as endpoint:
        yield endpoint.url


@pytest.fixture(params=[own, servers.ministack, servers.moto], ids=["onefold", "ministack", "moto"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutboxShop]:
    """Queues on a server of SQS; records and the program's own tables in two files."""
    server: Callable[[], AbstractContextManager[str]] = request.param
    with server() as endpoint:
        for name, value in {**servers.CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        outbox = f"sqlite:///{tmp_path}/books.db"
        (tmp_path / "books.db").touch()
        open_outbox(outbox).create()
        one = OutboxShop(f"aws://eu-west-1?create=yes&records=sqlite:///{tmp_path}/records.db", outbox)
        yield one
        one.app.close()


def sell(shop: OutboxShop, path: str, names: list[str]) -> None:
    """Each order with two messages, one on each queue, in one transaction."""
    with closing(sqlite3.connect(path)) as mine, mine:
        for name in names:
            shop.ship.send({"id": name}, connection=mine)
        for name in names:
            shop.pack.send({"id": name, "customer": "c"}, connection=mine)


def keys_of(told: Heard, event: str, job: str) -> list[str]:
    return [one.key.key for one in told.events if one.name == event and one.key is not None and one.key.job == job]


def waiting(path: str) -> int:
    with closing(sqlite3.connect(path)) as mine:
        found: int = mine.execute("SELECT count(*) FROM onefold_outbox").fetchone()[0]
        return found


def work(shop: OutboxShop) -> Heard:
    """Perform all messages, as a worker does, in this thread; what was reported."""
    told, runtime = Heard(), shop.app.runtime()
    runner = make_runner(
        runtime, shop.app.jobs, shop.app.registry.job_of, lease_ms=30_000, sinks=Sinks([told]), history="brief"
    )  # fmt: skip
    queues = [runtime.engine.queues.open(name) for name in shop.app.queues]
    while received := [one for queue in queues for one in queue.receive(10)]:
        victim.perform(runner, Grouper(runner), runner.begin(received))
    return told


def test_a_relay_killed_around_the_removal_of_rows_loses_nothing_and_doubles_no_effect(shop: OutboxShop) -> None:
    path, pause = shop.outbox_url.removeprefix("sqlite:///"), threading.Event()
    sold: list[str] = []
    for number, when in KILLS:
        names = [f"o-{number}-{when}-{each}" for each in range(3)]
        sell(shop, path, names)
        sold += names
        command = [sys.executable, "-m", "tests.crash.relay_victim", shop.app.url, shop.outbox_url, number, when]
        killed = subprocess.run(command, cwd=ROOT, env=os.environ, timeout=PATIENCE_S, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert waiting(path) == {("1", "before"): 6, ("2", "after"): 0}.get((number, when), 3)
        with closing(shop.relay()) as relay:
            for _ in range(int(PATIENCE_S / 0.05)):
                if not relay.check() and not waiting(path):
                    break
                pause.wait(0.05)  # for the end of the turn of the one that was killed
    assert waiting(path) == 0
    told = work(shop)
    assert sorted(keys_of(told, "completed", "ship")) == sorted(sold)
    assert keys_of(told, "completed", "pack") == sold
    assert sorted(keys_of(told, "duplicate", "ship")) == sold[:3]  # sent twice, answered from the record
    assert keys_of(told, "duplicate", "pack") == []  # the queue itself has dropped them
