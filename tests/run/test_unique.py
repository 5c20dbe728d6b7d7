"""Jobs whose known keys are not sent again: what was accepted once is known, and what never was is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.testing import World, inline
from tests.run.ticking import Crash, Loose


class Mill:
    """An app with one unique job, whose queue can be made to fail."""

    def __init__(self) -> None:
        self.app = onefold.App("mill")
        self.done: list[str] = []

        @self.app.job(self.app.queue("orders"), key="{id}", unique=True)
        def grind(order: dict[str, str]) -> None:
            self.done.append(order["id"])

        self.grind = grind

    def fail(self, error: BaseException | None) -> None:
        """What the next sends raise; None: they are as they were."""
        queues: Any = self.app.runtime().engine.queues
        if error is None:
            del queues.open
            return

        class Failing:
            def send(self, entries: object) -> Any:
                raise error

        queues.open = lambda name: Failing()


@pytest.fixture
def mill() -> Mill:
    return Mill()


@pytest.fixture(params=["one transaction", "none"])
def world(request: pytest.FixtureRequest, mill: Mill) -> Iterator[World]:
    with inline(mill.app) as opened:
        if request.param == "none":
            runtime: Any = mill.app.runtime()
            runtime.engine = Loose(runtime.engine)
        yield opened


def test_a_key_is_sent_once_whether_it_waits_or_is_done(mill: Mill, world: World) -> None:
    first, again = mill.grind.send_many([{"id": "1"}, {"id": "1"}])
    assert (first.duplicate, again.duplicate, again.message_id) == (False, True, None)
    assert mill.grind.send({"id": "1"}).duplicate
    assert world.depth("orders").visible == 1
    world.run()
    assert mill.grind.send({"id": "1"}).duplicate
    world.run()
    assert mill.done == ["1"]
    assert "takeover" not in world.names()


def test_a_send_that_failed_leaves_its_key_unknown(mill: Mill, world: World) -> None:
    mill.fail(errors.StorageBusy("The file is locked.", todo="Try again."))
    with pytest.raises(errors.StorageBusy):
        mill.grind.send({"id": "1"})
    mill.fail(None)
    assert not mill.grind.send({"id": "1"}).duplicate
    world.run()
    assert mill.done == ["1"]


def test_a_sender_that_died_before_it_sent_blocks_its_key_for_a_second_at_most(mill: Mill, world: World) -> None:
    mill.fail(Crash())
    store: Any = mill.app.runtime().engine.store
    write = store.write
    store.write = lambda *_: []  # a dead process writes nothing
    with pytest.raises(Crash):
        mill.grind.send({"id": "1"})
    store.write = write
    mill.fail(None)
    world.clock.advance(1_000)
    assert not mill.grind.send({"id": "1"}).duplicate
    world.run()
    assert mill.done == ["1"]
