"""Handlers in child processes: real ones, killed for real."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.clock import SystemClock
from onefold.contracts.store import RecordKey
from onefold.options import WorkerSettings
from onefold.outside import Waiter
from onefold.record.delivery import LeaseGone
from onefold.runner.processes import Children, Spawn
from tests.run.workshop import PATIENCE_S, Workshop

JOIN = "onefold.engines.sqlite.processes:join"
TARGET = "tests.run.child_app:app"

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the app, on a file of this test."""
    monkeypatch.setenv("ONEFOLD_TEST_DB", str(tmp_path / "shop.db"))
    module = importlib.reload(importlib.import_module("tests.run.child_app"))
    yield module
    module.app.close()


def hire(shop: ModuleType, *, processes: int = 1, target: str = TARGET, **settings: Any) -> Workshop:
    lock_file = shop.app.runtime().engine.appear()
    spawn = Spawn(target=target, join=JOIN, lock_file=lock_file)
    return Workshop(shop.app, WorkerSettings(processes=processes, **settings), spawn=spawn)


def work(shop: ModuleType, **settings: Any) -> Workshop:
    """Run a worker until the queue is empty."""
    worker = hire(shop, until_empty=True, **settings)
    worker.start()
    worker.end()
    return worker


def record(shop: ModuleType, job: str, key: str) -> Any:
    runtime = shop.app.runtime()
    return runtime.engine.store.read([RecordKey("", job, key)], runtime.clock.now_ms())[0]


def result(shop: ModuleType, job: str, key: str) -> Any:
    return msgspec.json.decode(record(shop, job, key).result)


def has_ended(pid: int) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE_S)[0])
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


# -- handlers that are well --------------------------------------------------------------------------------------


def test_handlers_run_in_children_and_their_results_are_recorded_here(shop: ModuleType) -> None:
    shop.ship.send_many([shop.Order(f"o-{number}") for number in range(20)])
    shop.label.send(shop.Order("l"))
    worker = work(shop, processes=2)

    results = [result(shop, "ship", f"o-{number}") for number in range(20)]
    pids = {one["pid"] for one in results} | {result(shop, "label", "l")}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert all(one["attempt"] == 1 for one in results)
    assert len({one["key"] for one in results}) == 20
    assert worker.report is not None
    assert worker.report.counts.completed == 21
    assert all(has_ended(pid) for pid in pids)


def test_what_a_child_counts_is_in_the_row_of_its_completion(shop: ModuleType) -> None:
    shop.ship.send(shop.Order("o-0", "count"))
    (completed,) = work(shop).told.of("completed")
    assert completed.detail["count.parcels_shipped"] == 3


def test_what_a_child_sends_leaves_with_its_completion(shop: ModuleType) -> None:
    shop.ship.send(shop.Order("o-0", "send"))
    work(shop)
    assert record(shop, "label", "label").status == "completed"


def test_a_failure_in_a_child_means_what_it_means_in_a_thread(shop: ModuleType) -> None:
    shop.ship.send(shop.Order("o-0", "raise"))
    worker = work(shop)
    (told,) = worker.told.of("dead-letter")
    assert (told.detail["reason"], told.detail["error"]) == ("permanent", "PermanentError")


def test_an_interrupt_that_a_handler_raises_ends_neither_child_nor_worker(shop: ModuleType) -> None:
    shop.ship.send(shop.Order("o-0", "interrupt"))
    shop.ship.send(shop.Order("o-1"))
    worker = work(shop)
    assert worker.told.of("unknown"), "where it struck, nobody knows"
    assert record(shop, "ship", "o-1").status == "completed"
    assert not worker.told.of("takeover"), "the child lived on"


def test_signals_for_the_parent_do_not_end_a_child(shop: ModuleType) -> None:
    shop.ship.send(shop.Order("o-0", "term"))
    work(shop)
    assert record(shop, "ship", "o-0").status == "completed"


def test_transactional_jobs_stay_with_the_engine(shop: ModuleType) -> None:
    shop.app.runtime().engine.database.write(lambda c: c.execute("CREATE TABLE noted (id TEXT)"))
    shop.note.send(shop.Order("n"))
    work(shop)
    assert result(shop, "note", "n") == os.getpid()


@pytest.mark.parametrize("processes", [0, 1])
def test_a_job_says_where_its_handler_runs(shop: ModuleType, processes: int) -> None:
    """With and without child processes for the others."""
    for job in (shop.apart, shop.inside):
        job.send(shop.Order("w"))
    work(shop, processes=processes)
    assert result(shop, "apart", "w") != os.getpid()
    assert result(shop, "inside", "w") == os.getpid()


def test_where_a_handler_cannot_run() -> None:
    app = onefold.App("where")
    queue = app.queue("orders")
    with pytest.raises(errors.UsageError, match="executor='proces' is not known"):
        app.job(queue, key="{id}", executor=cast(Any, "proces"))(lambda order: None)
    with pytest.raises(errors.UsageError, match="executor='process' with effect='transactional'"):
        app.job(queue, key="{id}", effect="transactional", executor="process")(lambda order: None)


# -- handlers that are not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "error", "evidence"),
    [
        ("exit", "ProcessDied", "exit code 7"),
        ("signal", "ProcessDied", "signal SIGSEGV"),
        ("killed", "ProcessDied", "out of memory"),
        (
            "spin",
            "HandlerTimeout",
            "timeout of 1000 ms and was stopped. Its process was killed (signal SIGKILL)",
        ),
    ],
)
def test_a_child_that_ends_leaves_an_unknown_outcome_with_evidence(
    shop: ModuleType, how: str, error: str, evidence: str
) -> None:
    shop.ship.send(shop.Order("o-0", how))
    shop.ship.send(shop.Order("o-1"))
    worker = work(shop)

    standing = record(shop, "ship", "o-0")
    assert (standing.status, standing.parked, standing.crashes) == ("unknown", True, 1)
    assert standing.failure.error == error
    assert evidence in standing.failure.summary
    assert len(worker.told.of("overrun")) == (how == "spin")
    assert record(shop, "ship", "o-1").status == "completed"  # by another child
    assert worker.report is not None
    assert (worker.report.code, worker.report.counts.held) == (0, 1)


@pytest.mark.parametrize("how", ["while idle", "before it has read the order"])
def test_an_order_that_no_child_has_read_goes_to_another_one(shop: ModuleType, how: str) -> None:
    worker = hire(shop)
    worker.start()
    shop.label.send(shop.Order("o-0"))
    worker.told.wait_for("completed")
    pid = result(shop, "label", "o-0")
    if how == "while idle":
        os.kill(pid, signal.SIGKILL)
        assert has_ended(pid)
        shop.label.send(shop.Order("o-1"))
    else:
        os.kill(pid, signal.SIGSTOP)
        shop.label.send(shop.Order("o-1"))
        while record(shop, "label", "o-1") is None:
            select.select([], [], [], 0.01)
        os.kill(pid, signal.SIGKILL)
    worker.told.wait_for("completed", 2)
    worker.worker.drain()
    assert worker.end().counts.completed == 2
    assert record(shop, "label", "o-1").attempts == 1
    assert result(shop, "label", "o-1") != pid
    assert not worker.told.of("unknown")


def test_what_a_killed_handler_had_started_is_killed_with_it(shop: ModuleType, tmp_path: Path) -> None:
    shop.ship.send(shop.Order("o-0", "start"))
    worker = hire(shop)
    worker.start()
    worker.told.wait_for("held")
    worker.worker.drain()
    worker.end()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _read(path) == b"sleep\0600\0"]


def test_probes_are_asked_in_children_too(shop: ModuleType) -> None:
    runtime = shop.app.runtime()
    shop.ask.send(shop.Order("a", "found"))
    shop.ask.send(shop.Order("b", "lost"))
    first = hire(shop, lease_ms=1_000)
    begun = first.runner.begin(runtime.engine.queues.open("orders").receive(2, 0))  # started, and never ended
    assert len(begun) == 2
    first.waiter.close()
    runtime.engine.store.renew([run.claimed.hold for run in begun if run.claimed], runtime.clock.now_ms())

    worker = work(shop)

    assert result(shop, "ask", "a") not in (f"found by {os.getpid()}", f"done by {os.getpid()}")
    assert result(shop, "ask", "a").startswith("found by ")
    assert record(shop, "label", "found-label").status == "completed", "what a probe sends goes with the completion"
    lost = record(shop, "ask", "b")
    assert (lost.status, lost.parked) == ("unknown", True)
    assert "exit code 9" in lost.failure.summary
    assert len(worker.told.of("probe")) == 2


def test_a_lost_lease_kills_the_child_and_settles_nothing(shop: ModuleType, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    shop.wait.send(shop.Order("w", where=str(fifo)))
    worker = hire(shop)
    worker.start()
    pid = int(fifo.read_text())
    (held,) = worker.runner.in_flight.all()
    assert held.run is not None
    worker.worker._executors.stop(held.run, LeaseGone())
    assert has_ended(pid)
    worker.told.wait_for("lease-lost")
    worker.worker.drain()
    assert worker.end().counts.lost == 1


def test_a_second_stop_kills_the_children(shop: ModuleType, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    shop.wait.send(shop.Order("w", where=str(fifo)))
    worker = hire(shop)
    worker.start()
    pid = int(fifo.read_text())
    worker.worker.drain()
    worker.worker.stop_now()
    assert worker.end().left == ("wait w",)
    assert has_ended(pid)
    assert record(shop, "wait", "w").status == "in_progress"


@pytest.mark.parametrize(
    ("target", "said"),
    [("tests.run.no_such_app:app", "no_such_app"), ("tests.run.child_app:application", "application")],
)
def test_an_app_that_cannot_be_loaded_ends_the_worker(shop: ModuleType, target: str, said: str) -> None:
    worker = hire(shop, target=target)
    worker.start()
    with pytest.raises(errors.UsageError, match=said):
        worker.end()


PARENT = """
import sys
from tests.run import child_app as shop
from tests.run.test_processes import hire
worker = hire(shop)
print(worker.runner._owner, flush=True)
worker.worker.run()
"""


def test_children_end_with_their_parent_and_its_work_is_freed(shop: ModuleType, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    shop.wait.send(shop.Order("w", where=str(fifo)))
    runtime = shop.app.runtime()
    runtime.engine.appear()
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        owner = parent.stdout.readline().strip()
        pid = int(fifo.read_text())
        dead: list[str] = []
        runtime.engine.maintain(dead.append)
        assert dead == []
        parent.send_signal(signal.SIGKILL)
    assert has_ended(pid)
    runtime.engine.maintain(dead.append)
    assert dead == [owner]
    (delivery,) = runtime.engine.queues.open("orders").receive(1)
    assert delivery.key == "w"


def test_an_owner_lives_as_long_as_its_children(shop: ModuleType) -> None:
    """A child that outlives its parent (stopped, it cannot notice) still counts as a sign of life."""
    runtime = shop.app.runtime()
    lock_file = runtime.engine.appear()
    assert lock_file is not None
    script = f"from {JOIN.split(':', maxsplit=1)[0]} import join; join({lock_file!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        presence = runtime.engine._presence
        os.close(presence._file.number)  # as if the parent had died
        presence._file = None
        presence.owner = "another"
        assert presence.find_dead() == []
        child.stdin.write("\n")
        child.stdin.close()
    assert presence.find_dead() == [Path(lock_file).name]


def test_every_slot_that_pauses_is_woken_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unborn.py").write_text("import os\n\nos._exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    pausing, woken = threading.Semaphore(0), []

    class LongPauses(SystemClock):
        def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
            pausing.release()
            woken.append(waiter.wait(PATIENCE_S))
            return woken[-1]

    lane = Children(3, Spawn(target="unborn:app"), cast("Any", None), LongPauses(), lambda done: None)
    lane.start()
    for _ in range(3):
        assert pausing.acquire(timeout=PATIENCE_S)
    lane.end(wait=True)
    assert woken == [True] * len(woken)


def test_slots_of_a_lane_are_replaced_one_by_one(shop: ModuleType) -> None:
    """While one child is being replaced, the other goes on."""
    shop.ship.send_many([shop.Order(f"x-{number}", "exit") for number in range(3)])
    shop.ship.send_many([shop.Order(f"o-{number}") for number in range(30)])
    worker = work(shop, processes=2)
    assert worker.report is not None
    assert (worker.report.counts.held, worker.report.counts.completed) == (3, 30)
    lanes = [one.name for one in threading.enumerate() if one.name.startswith("onefold-child-")]
    assert len(lanes) < 3  # they have ended
