"""Huey on SQLite with fsync: one consumer process with one thread.

Not the defaults: `fsync=True`, because an accepted job must survive a power cut to be compared with one that does.
"""

from __future__ import annotations

from huey import SqliteHuey

from benchmarks import probe

huey = SqliteHuey(filename=str(probe.place() / "huey.db"), fsync=True)
run = probe.handler()


@huey.task()
def job(text: str) -> None:
    run(probe.note(text))


send = job


def work() -> None:
    probe.become("huey_consumer", "benchmarks.peers.huey_sqlite.huey", "-w", "1", "-q")
