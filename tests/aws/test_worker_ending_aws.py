"""A worker on SQS that is to end: nobody waits for long polls, and what they bring goes back in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import onefold
from onefold.options import WorkerSettings
from onefold.runner import longpoll
from onefold.runner.longpoll import LongPoll
from tests.run.workshop import PATIENCE_S, Workshop

pytestmark = pytest.mark.slow

POLL_S = 20
ENDS_S = 15  # it takes half a second and something, on a machine that is not busy; each of four polls took up to 10 s


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[onefold.App]:
    monkeypatch.setattr(longpoll, "WAIT_FIRST_MS", POLL_S * 1_000)  # as if nothing had come for a while
    app = onefold.App("shop", url=url)
    for name in ("one", "two", "three"):
        app.job(app.queue(name), key="{id}", name=name)(lambda order: None)
    app.job(app.queue("four", fifo=True), key="{id}", group="{group}", name="four")(lambda order: None)
    yield app
    app.close()


class Polls:
    """Long polls of all queues, and how many of their receives have begun."""

    def __init__(self, app: onefold.App) -> None:
        self._begun = threading.Semaphore(0)
        self.queues: list[Any] = []
        self.shop: Workshop | None = None
        for name in app.queues:
            queue: Any = app.runtime().engine.queues.open(name)
            self._note(queue)
            self.queues.append(LongPoll(queue, clock=app.runtime().clock, wake=lambda: None))

    def _note(self, queue: Any) -> None:
        receive = queue.receive_within

        def noted(*args: Any) -> Any:
            self._begun.release()
            return receive(*args)

        queue.receive_within = noted

    def until_begun(self, count: int) -> None:
        for _ in range(count):
            assert self._begun.acquire(timeout=PATIENCE_S)


def test_an_idle_worker_ends_soon(app: onefold.App) -> None:
    polls = Polls(app)
    shop = Workshop(app, WorkerSettings(threads=2, lease_ms=30_000), queues=polls.queues)
    shop.start()
    polls.until_begun(len(polls.queues))
    shop.worker.drain()
    shop._thread.join(ENDS_S)
    assert not shop._thread.is_alive()
    assert shop.end().code == 0


def test_what_a_receive_brings_after_the_end_goes_back_in_order(app: onefold.App) -> None:
    """As where the program goes on without its worker: the thread of the receive is still there."""
    polls = Polls(app)
    shop = Workshop(app, WorkerSettings(threads=2, lease_ms=30_000), queues=polls.queues)
    shop.start()
    polls.until_begun(len(polls.queues))
    shop.worker.drain()
    shop.end()
    app.jobs["four"].send_many({"id": number, "group": "g"} for number in range(5))
    for thread in polls.queues[-1]._threads:
        thread.join(PATIENCE_S + POLL_S)
        assert not thread.is_alive()
    found = app.runtime().engine.queues.open("four.fifo").receive(10)
    assert [one.key for one in found] == [str(number) for number in range(5)]
