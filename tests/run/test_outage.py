"""An engine that fails call after call: it is left alone, said to a person when it lasts, and used again when it answers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import onefold
from onefold import errors
from onefold.contracts.queue import Delivery
from onefold.manual_clock import ManualClock
from onefold.options import WorkerSettings
from onefold.runner.longpoll import LongPoll
from onefold.runtime import outage
from onefold.runtime.outage import AGAIN_MS, LASTS_MS, PAUSE_MS_MAX, Outage
from tests.run.workshop import Workshop

EXPIRED = errors.UsageError("AWS does not accept the credentials (ExpiredToken).", todo="Renew them.")


def test_what_lasts_is_said_once_and_then_every_five_minutes() -> None:
    clock, said = ManualClock(), list[tuple[int, str, object]]()
    found = Outage(clock, lambda name, detail, _: said.append((clock.monotonic_ms(), name, detail.get("failing_ms"))))
    begun_ms = clock.monotonic_ms()
    pauses = []
    while clock.monotonic_ms() - begun_ms < LASTS_MS + 2 * AGAIN_MS + 60_000:
        pauses.append(found.failed(errors.TransientError("No answer.")))
        clock.advance(pauses[-1])
    assert pauses[:4] == [50, 100, 200, 400]
    assert max(pauses) == pauses[-1] == PAUSE_MS_MAX
    assert [name for _, name, _ in said] == ["engine-busy", *["engine-unreachable"] * 3]
    first, *again = [at_ms - begun_ms for at_ms, name, _ in said if name == "engine-unreachable"]
    assert LASTS_MS <= first < LASTS_MS + PAUSE_MS_MAX
    assert all(AGAIN_MS <= b - a < AGAIN_MS + PAUSE_MS_MAX for a, b in zip([first, *again], again, strict=False))
    assert said[1][2] == first
    assert (found.age_ms() > LASTS_MS, found.code) == (True, "transient")


def test_one_answer_ends_it() -> None:
    clock, said = ManualClock(), list[str]()
    found = Outage(clock, lambda name, *_: said.append(name))
    for _ in range(3):
        found.failed(errors.TransientError("No answer."))
        clock.advance(LASTS_MS // 2 + 1)
    assert said == ["engine-busy", "engine-unreachable"]
    found.answered()
    assert (found.age_ms(), found.count, found.code) == (0, 0, "")
    assert found.failed(errors.TransientError("No answer.")) == 50
    assert said == ["engine-busy", "engine-unreachable", "engine-busy"]


class Refused:
    """A queue that is asked in the background, and refuses until it is healed."""

    def __init__(self, queue: object) -> None:
        self._queue = queue
        self.healed = threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._queue, name)

    def receive_within(self, count_max: int, visible_ms: int | None, wait_ms: int) -> list[Delivery]:
        if not self.healed.is_set():
            raise EXPIRED
        return self._queue.receive(count_max, visible_ms)  # type: ignore[attr-defined,no-any-return]


def test_a_worker_whose_login_is_over_says_so_and_goes_on_when_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other turn had no error, because nothing had been asked yet: it counted as success, and nobody was told."""
    monkeypatch.setattr(outage, "LASTS_MS", 0)
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'shop.db'}")

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> None: ...

    ship.send_many([{"id": f"o-{number}"} for number in range(5)])
    runtime = app.runtime()
    refused = Refused(runtime.engine.queues.open("orders"))
    waiter = runtime.engine.waiter()
    poll = LongPoll(refused, clock=runtime.clock, wake=waiter.wake)  # type: ignore[arg-type]
    shop = Workshop(app, WorkerSettings(until_empty=True), queues=[poll])  # type: ignore[list-item]
    shop.start()
    (said, *_) = shop.told.wait_for("engine-unreachable")
    assert (said.severity, said.detail["error"]) == ("critical", "transient")
    assert "ExpiredToken" in str(said.detail["summary"])
    assert shop.worker.snapshot().engine_failure == "transient"
    assert len(shop.told.of("engine-busy")) == 1
    refused.healed.set()
    report = shop.end()
    waiter.close()
    app.close()
    assert report.counts.completed == 5
    assert (report.counts.engine_failing_ms, report.counts.engine_failure) == (0, "")
