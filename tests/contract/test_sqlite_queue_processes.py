"""Several processes on one file: no message with two receivers at once, none lost, groups in order, deaths noticed.

The processes are real. Each writes what it receives to a journal in the same file before it deletes the message.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from onefold import limits
from onefold.clock import SystemClock
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.queue import end_visibilities_in

WORKERS = 3
MESSAGES = 1_200
GROUPS = 20
spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "shared.db")
    engine = Database(file, SystemClock())
    queues = SqliteQueues(engine)
    for name in ("orders", "orders.fifo"):
        queues.create(QueueSettings(name=name, fifo=name.endswith(".fifo"), visibility_ms=limits.VISIBILITY_MS_MAX))
    engine.write(
        lambda connection: connection.execute(
            "CREATE TABLE journal (id INTEGER PRIMARY KEY, worker TEXT, grp TEXT, body TEXT, receives INTEGER)"
        )
    )
    engine.close()
    return file


def send(path: str, name: str, sender: int, all_there: Barrier) -> None:
    engine = Database(path, SystemClock())
    all_there.wait()
    queue = SqliteQueues(engine).open(name)
    bodies = [f"{sender}-{number:06d}" for number in range(MESSAGES // 2)]
    for first in range(0, len(bodies), 7):
        queue.send(
            [
                Entry(body=body, group=f"g{int(body[-6:]) % GROUPS}", dedup_id=body)
                if name.endswith(".fifo")
                else Entry(body=body)
                for body in bodies[first : first + 7]
            ]
        )
    engine.close()


def work(path: str, name: str, worker: str, all_there: Barrier) -> None:
    """Receive, write down, delete, until everything that will be sent was written down by somebody."""
    engine = Database(path, SystemClock())
    queue = SqliteQueues(engine, owner=worker).open(name)
    all_there.wait()
    while True:
        deliveries = queue.receive(10)
        if deliveries:
            rows = [(worker, one.group, one.body, one.receive_count) for one in deliveries]
            engine.write(
                lambda connection, rows=rows: connection.executemany(
                    "INSERT INTO journal (worker, grp, body, receives) VALUES (?, ?, ?, ?)", rows
                )
            )
            assert all(queue.delete([one.receipt for one in deliveries]))
        else:
            done = engine.read(lambda connection: connection.execute("SELECT count(*) FROM journal").fetchone()[0])
            if done >= MESSAGES:
                break
        SystemClock().wait(threading.Event(), 1)  # the others' turn
    engine.close()


def hold(path: str, name: str, worker: str, holding: Event) -> None:
    """Receive ten messages and hang."""
    engine = Database(path, SystemClock())
    assert len(SqliteQueues(engine, owner=worker).open(name).receive(10)) == 10
    holding.set()
    threading.Event().wait()


def journal(path: str) -> list[tuple[str, str | None, str, int]]:
    engine = Database(path, SystemClock())
    rows = engine.read(
        lambda connection: connection.execute("SELECT worker, grp, body, receives FROM journal ORDER BY id").fetchall()
    )
    engine.close()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_each_message_is_received_once_by_one_of_several_processes(path: str, name: str) -> None:
    all_there = spawn.Barrier(2 + WORKERS)
    processes = [spawn.Process(target=send, args=(path, name, sender, all_there)) for sender in range(2)]
    processes += [spawn.Process(target=work, args=(path, name, f"worker-{n}", all_there)) for n in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)

    rows = journal(path)
    expected = {f"{sender}-{number:06d}" for sender in range(2) for number in range(MESSAGES // 2)}
    assert Counter(body for _, _, body, _ in rows) == Counter(expected)
    assert {receives for *_, receives in rows} == {1}
    assert len({worker for worker, *_ in rows}) > 1
    for group in {group for _, group, _, _ in rows if group is not None}:
        for sender in "01":
            bodies = [body for _, of, body, _ in rows if of == group and body[0] == sender]
            assert bodies == sorted(bodies)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_what_a_killed_process_held_comes_back_when_its_death_is_noticed(path: str, name: str) -> None:
    engine = Database(path, SystemClock())
    queue = SqliteQueues(engine, owner="survivor").open(name)
    fifo = name.endswith(".fifo")
    bodies = [f"{number:02d}" for number in range(15)]
    queue.send([Entry(body=body, group="g" if fifo else None, dedup_id=body if fifo else None) for body in bodies])
    holding = spawn.Event()
    process = spawn.Process(target=hold, args=(path, name, "victim", holding))
    process.start()
    assert holding.wait(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()

    assert [one.body for one in queue.receive(10)] == ([] if fifo else bodies[10:])
    now_ms = engine.clock.now_ms()
    assert engine.write(lambda connection: end_visibilities_in(connection, "victim", now_ms)) == 10
    again = queue.receive(10)
    assert [one.body for one in again] == bodies[:10]
    assert {one.receive_count for one in again} == {2}
    assert engine.write(lambda connection: end_visibilities_in(connection, "victim", now_ms)) == 0
    engine.close()


def test_settings_changed_by_another_process_are_seen_at_once(path: str) -> None:
    first, second = Database(path, SystemClock()), Database(path, SystemClock())
    admin, queue = SqliteQueues(first), SqliteQueues(second).open("orders")
    queue.send([Entry(body="a")])
    assert queue.receive(1)[0].visible_ms == limits.VISIBILITY_MS_MAX
    admin.change(QueueSettings(name="orders", visibility_ms=1_000))
    queue.send([Entry(body="b")])
    assert queue.receive(1)[0].visible_ms == 1_000
    for engine in (first, second):
        engine.close()


def test_threads_share_a_queue_object(path: str) -> None:
    engine = Database(path, SystemClock())
    queue = SqliteQueues(engine).open("orders")
    sent: list[str] = []
    received: list[str] = []
    everything_sent = threading.Event()

    def sender(number: int) -> None:
        for place in range(60):
            sent.extend(one.message_id for one in queue.send([Entry(body=f"{number}-{place}")] * 2))

    def receiver() -> None:
        while True:
            last_look = everything_sent.is_set()
            deliveries = queue.receive(5)
            received.extend(one.message_id for one in deliveries)
            queue.delete([one.receipt for one in deliveries])
            if last_look and not deliveries:
                return

    senders = [threading.Thread(target=sender, args=(number,)) for number in range(4)]
    receivers = [threading.Thread(target=receiver) for _ in range(3)]
    for thread in senders + receivers:
        thread.start()
    for thread in senders:
        thread.join()
    everything_sent.set()
    for thread in receivers:
        thread.join()
    assert len(sent) == len(set(sent)) == 480
    assert sorted(received) == sorted(sent)
    assert queue.depth().visible == queue.depth().in_flight == 0
    engine.close()
