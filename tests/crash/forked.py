"""Programs that fork with an engine open; for `test_fork.py`.

    python -m tests.crash.forked SCENE FILE

Each writes a line of JSON for each process to a file beside the database: which process it is, and which of its sends
were accepted.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import onefold
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker

COUNT = 40


class Stage:
    """An app on the file, and the record of which process sent what."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.app = onefold.App("forked", url=f"sqlite:///{path}", history="off")

        @self.app.job(self.app.queue("orders"), key="{order}")
        def book(payload: dict[str, str]) -> None:
            note(path, "ran", [payload["order"]])

        @self.app.job(self.app.queue("forking"), key="{order}")
        def fork_and_send(payload: dict[str, str]) -> None:
            child = os.fork()
            if child == 0:
                self.send(f"in-{payload['order']}", 5)  # and returns from the handler like its parent
            else:
                os.waitpid(child, 0)
                note(path, "ran", [payload["order"]])

        self.book = book
        self.fork_and_send = fork_and_send

    def send(self, who: str, count: int = COUNT) -> None:
        accepted = []
        for number in range(count):
            name = f"{who}-{number}"
            self.book.send({"order": name})
            accepted.append(name)
        note(self.path, "accepted", accepted)


def note(path: str, what: str, names: list[str]) -> None:
    """Append a line in one write."""
    with Path(f"{path}.told").open("a") as file:
        file.write(json.dumps({"what": what, "names": names, "pid": os.getpid()}) + "\n")


def daemon(stage: Stage) -> None:
    """Send, fork, and end; the child goes on after its parent has ended, and a third process has started and ended."""
    stage.send("parent")
    reading, writing = os.pipe()
    if os.fork():
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"", "the parent has gone"
    third = (
        f"import sys; from tests.crash.forked import Stage; s = Stage({stage.path!r}); s.send('third'); s.app.close()"
    )
    stage.send("child-a")
    os.spawnv(
        os.P_WAIT, sys.executable, [sys.executable, "-c", third]
    )  # the last process that SQLite knows about, if locks are lost
    stage.send("child-b")
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", third.replace("'third'", "'fourth'")])
    stage.send("child-c")


def preload(stage: Stage) -> None:
    """Like a server that loads the app and forks its workers: each sends, some end while others go on."""
    stage.send("master", 3)
    children = []
    for number in range(6):
        child = os.fork()
        if child == 0:
            stage.send(f"worker-{number}", COUNT // (1 + number % 3))
            os._exit(0) if number % 2 else sys.exit(0)
        children.append(child)
        stage.send(f"master-{number}", 3)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def pool(stage: Stage) -> None:
    """A pool of multiprocessing's, by fork, while other threads of the parent write."""
    over = threading.Event()
    accepted: list[str] = []

    def send(number: int) -> None:
        count = 0
        while not over.is_set():
            stage.book.send({"order": f"thread-{number}-{count}"})
            accepted.append(f"thread-{number}-{count}")
            stage.app.runtime().engine.queues.open("orders").depth()  # a reader, too
            count += 1

    stage.send("parent", 1)
    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    for turn in range(6):
        children = [context.Process(target=stage.send, args=(f"pool-{turn}-{number}", 5)) for number in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0, child.exitcode
    over.set()
    for thread in threads:
        thread.join()
    note(stage.path, "accepted", accepted)


def handler(stage: Stage) -> None:
    """Handlers that fork, in a worker whose children return from the handler as their parent does."""
    for number in range(5):
        stage.fork_and_send.send({"order": f"fork-{number}"})
    app = stage.app
    make_worker(
        app.runtime(), app.jobs, app.registry.job_of, settings=WorkerSettings(until_empty=True, threads=2, tasks=1)
    ).run()
    note(stage.path, "worker", [])


SCENES: dict[str, Callable[[Stage], None]] = {one.__name__: one for one in (daemon, preload, pool, handler)}

if __name__ == "__main__":
    SCENES[sys.argv[1]](Stage(sys.argv[2]))
