"""A lease that is over before its handler or probe could be called: the process stood still between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import onefold
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner import tasks
from onefold.runner.execution import Execution
from onefold.runner.runner import Runner
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks

LEASE_MS = 30_000


class Order(msgspec.Struct):
    id: str


class Desk:
    """A job whose handler and probe note that they were called."""

    def __init__(self, *, is_async: bool = False) -> None:
        self.clock, self.ran = ManualClock(), list[str]()
        self.app = onefold.App("shop", url="sqlite://:memory:", clock=self.clock, entropy=SeededEntropy(1))
        queue = self.app.queue("orders")

        def probe(order: Order) -> onefold.NotDone:
            self.ran.append("probe")
            return onefold.NotDone()

        if is_async:

            @self.app.job(queue, key="{id}", name="ship", on_unknown=probe)
            async def ship_async(order: Order) -> None:
                self.ran.append("handler")

            self.job: Any = ship_async
        else:

            @self.app.job(queue, key="{id}", name="ship", on_unknown=probe)
            def ship(order: Order) -> None:
                self.ran.append("handler")

            self.job = ship
        self.job.send(Order("o-1"))
        runtime = self.app.runtime()
        self.queue, self.store = runtime.engine.queues.open("orders"), runtime.engine.store

    def runner(self) -> Runner:
        return make_runner(
            self.app.runtime(),
            self.app.jobs,
            self.app.registry.job_of,
            lease_ms=LEASE_MS,
            sinks=Sinks([]),
            history="off",
        )

    def begin(self, runner: Runner) -> Execution:
        (run,) = runner.begin(self.queue.receive(1, LEASE_MS))
        return run

    def perform(self, runner: Runner, run: Execution) -> None:
        asyncio.run(tasks.perform(runner, run)) if run.job.is_async else runner.perform(run)
        runner.finish([run])

    def record(self, run: Execution) -> Any:
        assert run.facts.key is not None
        return self.store.read([run.facts.key], self.clock.now_ms())[0]


@pytest.fixture(params=[False, True], ids=["plain", "async"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(is_async=request.param)
    yield desk
    desk.app.close()


def test_a_run_whose_lease_was_over_before_its_handler_is_not_started_and_comes_back(desk: Desk) -> None:
    """As after a stop of the process (Ctrl-Z, a paused container) between the claim and the call."""
    runner = desk.runner()
    run = desk.begin(runner)
    desk.clock.advance(LEASE_MS - LEASE_MS // 10)  # trusted up to here: less its margin
    desk.perform(runner, run)
    assert desk.ran == []
    assert (desk.record(run).status, desk.record(run).attempts, desk.record(run).crashes) == ("released", 0, 0)
    again = desk.begin(runner)
    desk.perform(runner, again)
    assert desk.ran == ["handler"]
    assert desk.record(run).status == "completed"


def test_a_run_that_was_taken_over_before_its_handler_is_left_to_the_other(desk: Desk) -> None:
    first, other = desk.runner(), desk.runner()
    run = desk.begin(first)
    desk.clock.advance(LEASE_MS)
    taken = desk.begin(other)
    desk.perform(first, run)
    assert desk.ran == []
    assert desk.record(run).fence == taken.hold.fence
    desk.perform(other, taken)
    assert desk.ran == ["probe", "handler"]
    assert desk.record(run).status == "completed"


def test_a_probe_is_not_asked_under_a_lease_that_is_over(desk: Desk) -> None:
    first, other = desk.runner(), desk.runner()
    desk.begin(first)  # and dies
    desk.clock.advance(LEASE_MS)
    run = desk.begin(other)
    desk.clock.advance(LEASE_MS)
    desk.perform(other, run)
    assert desk.ran == []
    assert (desk.record(run).status, desk.record(run).doubt) == ("released", True)
