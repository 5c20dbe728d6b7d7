"""A worker that was stopped at once leaves a handler behind, in a program that goes on.

Other processes leave the handler's key alone for as long as it runs, and no longer.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import onefold
from onefold.contracts.store import Ask, Claimed, RecordKey, Running
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker

PATIENCE_S = 60


def test_the_key_of_a_left_handler_is_free_when_it_has_returned_and_its_lease_is_over(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "shop.db"
    app = onefold.App("shop", url=f"sqlite:///{path}", clock=clock)
    begun, may_return = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> None:
        threads.append(threading.current_thread())
        begun.set()
        may_return.wait(PATIENCE_S)

    ship.send({"id": "a"})
    settings = WorkerSettings()
    runtime = app.runtime()
    worker = make_worker(runtime, app.jobs, app.registry.job_of, settings=settings)
    reports: list[Any] = []
    working = threading.Thread(target=lambda: reports.append(worker.run()))
    working.start()
    assert begun.wait(PATIENCE_S)
    worker.stop_now()
    working.join(PATIENCE_S)
    assert reports[0].left == ("ship a",)
    other = SqliteEngine(str(path), clock=clock, entropy=SystemEntropy(), owner="other", url=str(path))
    (record,) = other.store.read([RecordKey("", "ship", "a")], clock.now_ms())
    assert record is not None

    def claim() -> object:
        ask = Ask(
            key=record.key, fingerprint=record.fingerprint, owner="other", lease_until_ms=clock.now_ms() + 30_000,
            start=True, expires_at_ms=clock.now_ms() + 1_000_000,
        )  # fmt: skip
        return other.store.claim([ask], clock.now_ms())[0]

    clock.advance(10 * settings.lease_ms)
    found = claim()
    assert isinstance(found, Running), "it still runs here, and nobody renews its lease"
    assert found.stopped is not None
    may_return.set()
    threads[0].join(PATIENCE_S)
    assert isinstance(claim(), Claimed)
    other.close()
    app.close(unfinished=True)
