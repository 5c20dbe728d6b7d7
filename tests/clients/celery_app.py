"""A Celery app on the SQS transport; its tasks report what they do to the test that started the worker.

Settings come from the environment: BROKER (the URL), QUEUE (the queue's name), REPORT_PORT, and VISIBILITY_S.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from celery import Celery, Task

QUEUE = os.environ["QUEUE"]
app = Celery("shop", broker=os.environ["BROKER"])
app.conf.update(
    broker_connection_retry_on_startup=False,
    broker_transport_options={
        "region": "us-east-1",
        "visibility_timeout": int(os.environ["VISIBILITY_S"]),
        "wait_time_seconds": 5,
        "polling_interval": 0,
        **(
            {"predefined_queues": {QUEUE: {"url": url, "access_key_id": "key", "secret_access_key": "secret"}}}
            if (url := os.environ.get("QUEUE_URL"))
            else {}
        ),
    },
    task_acks_late=True,
    task_default_queue=QUEUE,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
)


def report(line: str) -> None:
    with socket.create_connection(("127.0.0.1", int(os.environ["REPORT_PORT"])), timeout=60) as connection:
        connection.sendall(f"{line}\n".encode())


@app.task
def add(left: int, right: int) -> None:
    report(f"add {left + right}")


@app.task(bind=True, max_retries=2)
def fragile(self: Task) -> None:
    """Fails twice."""
    report(f"fragile {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0)


@app.task
def deadly(mark: str) -> None:
    """The worker that makes the file `mark` is killed by the test while it waits; whoever finds it ends at once."""
    again = Path(mark).exists()
    if not again:
        Path(mark).touch(exist_ok=False)
    report(f"deadly {'again' if again else 'first'} {os.getpid()}")
    if not again:
        signal.pause()
