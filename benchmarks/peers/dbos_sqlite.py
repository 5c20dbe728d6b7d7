"""DBOS on SQLite: one worker process, a workflow per job from a database-backed queue.

Not the defaults: the queue is polled every 10 ms instead of every second, which raises its throughput and lowers its
latency; at most 100 jobs are started before the first has ended.
"""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks import probe

DATABASE = probe.place() / "dbos.db"
URL = f"sqlite:///{DATABASE}"
POLL_S = 0.01
run = probe.handler()


@DBOS.workflow(name="job")
def job(text: str) -> None:
    run(probe.note(text))


def launch() -> None:
    config: DBOSConfig = {"name": "peers", "system_database_url": URL, "log_level": "ERROR",
                          "application_version": "1"}  # fmt: skip
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue("jobs", worker_concurrency=100, polling_interval_sec=POLL_S)


@contextmanager
def alone() -> Iterator[None]:
    """Two processes that make the database at one moment disturb each other."""
    with (probe.place() / "launching").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def work() -> None:
    with alone():
        launch()
    signal.pause()


@cache
def client() -> DBOSClient:
    """Opens a client; makes the database first where there is none, which only an application may do."""
    with alone():
        if not DATABASE.exists():
            launch()
            DBOS.destroy()
    return DBOSClient(system_database_url=URL)


connect = client


def send(text: str) -> None:
    client().enqueue({"workflow_name": "job", "queue_name": "jobs", "app_version": "1"}, text)
