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


def without_transactions(mill: Mill) -> None:
    """As where messages are on SQS and records elsewhere."""
    runtime: Any = mill.app.runtime()
    runtime._opened.engine = Loose(runtime.engine)


@pytest.fixture(params=["one transaction", "none"])
def world(request: pytest.FixtureRequest, mill: Mill) -> Iterator[World]:
    with inline(mill.app) as opened:
        if request.param == "none":
            without_transactions(mill)
        yield opened


@pytest.fixture
def loose(mill: Mill) -> Iterator[World]:
    with inline(mill.app) as opened:
        without_transactions(mill)
        yield opened


def die_while_sending(mill: Mill) -> None:
    """A sender has reserved its key, and then nothing more is heard of it."""
    store: Any = mill.app.runtime().engine.store
    write, claim = store.write, store.claim

    class Dying:
        def send(self, entries: object) -> Any:
            store.write = store.claim = lambda *given: (_ for _ in ()).throw(Crash())
            raise Crash

    queues: Any = mill.app.runtime().engine.queues
    queues.open = lambda name: Dying()
    with pytest.raises(Crash):
        mill.grind.send({"id": "1"})
    store.write, store.claim = write, claim
    del queues.open


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


def test_a_receipt_says_what_was_known(mill: Mill, world: World) -> None:
    assert [one.found for one in mill.grind.send_many([{"id": "1"}, {"id": "1"}])] == ["new", "waiting"]
    assert mill.grind.send({"id": "1"}).found == "waiting"
    world.run()
    assert mill.grind.send({"id": "1"}).found == "done"


def test_another_payload_under_a_known_key_is_a_conflict(mill: Mill, world: World) -> None:
    other = {"id": "1", "note": "another"}
    with pytest.raises(errors.ConflictError, match=r"Key '1' of the unique job grind is known with another payload"):
        mill.grind.send_many([{"id": "0"}, {"id": "1"}, other])
    assert world.depth("orders").visible == 0, "none of the call was sent"
    assert mill.grind.send({"id": "1"}).found == "new"
    with pytest.raises(errors.ConflictError, match=r"\(waiting\)"):
        mill.grind.send_many([{"id": "0"}, other])
    world.run()
    with pytest.raises(errors.ConflictError, match=r"\(done\)"):
        mill.grind.send(other)
    assert mill.grind.send({"id": "0"}).found == "new", "nothing stayed reserved"
    world.run()
    assert mill.done == ["1", "0"]


def test_a_send_that_failed_leaves_its_key_unknown(mill: Mill, world: World) -> None:
    mill.fail(errors.StorageBusy("The file is locked.", todo="Try again."))
    with pytest.raises(errors.StorageBusy):
        mill.grind.send({"id": "1"})
    mill.fail(None)
    assert not mill.grind.send({"id": "1"}).duplicate
    world.run()
    assert mill.done == ["1"]


def test_a_sender_that_died_in_a_transaction_has_sent_nothing(mill: Mill) -> None:
    with inline(mill.app) as world:
        die_while_sending(mill)
        assert not mill.grind.send({"id": "1"}).duplicate
        world.run()
        assert mill.done == ["1"]


def test_whether_a_sender_that_died_has_sent_is_open_for_a_minute(mill: Mill, loose: World) -> None:
    die_while_sending(mill)
    with pytest.raises(errors.TransientError, match=r"Key '1' of job grind is being sent by another process"):
        mill.grind.send_many([{"id": "0"}, {"id": "1"}])
    assert not mill.grind.send({"id": "0"}).duplicate
    loose.clock.advance(60_000)
    assert not mill.grind.send({"id": "1"}).duplicate
    loose.run()
    assert mill.done == ["0", "1"]


def test_of_two_senders_at_a_time_one_sends_and_the_other_is_told_to_ask_again(mill: Mill, loose: World) -> None:
    die_while_sending(mill)
    store: Any = mill.app.runtime().engine.store
    store.read = lambda keys, now_ms: [None] * len(keys)  # it asked before the other had reserved
    with pytest.raises(errors.TransientError, match=r"Key '1'"):
        mill.grind.send_many([{"id": "0"}, {"id": "1"}])
    del store.read
    assert not mill.grind.send({"id": "0"}).duplicate, "what this call had reserved is free again"
    with pytest.raises(errors.TransientError, match=r"Key '1'"):
        mill.grind.send({"id": "1"})


def test_a_worker_that_is_quicker_than_the_sender_s_last_word_runs_the_job(mill: Mill, loose: World) -> None:
    engine: Any = mill.app.runtime().engine
    opened, names = engine.queues.open, list[str]()

    class Quick:
        """A queue whose messages are taken before their sender hears that they are there."""

        def __init__(self, name: str) -> None:
            self._queue = opened(name)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._queue, name)

        def send(self, entries: Any) -> Any:
            answers = self._queue.send(entries)
            engine.queues.open = opened
            loose.run()
            names.extend(loose.names())
            return answers

    engine.queues.open = Quick
    assert not mill.grind.send({"id": "1"}).duplicate
    assert mill.done == ["1"]
    assert "running-elsewhere" not in names
    loose.clock.advance(3_600_000)
    assert mill.grind.send({"id": "1"}).duplicate


def test_a_key_that_waits_for_a_worker_stays_known(mill: Mill, loose: World) -> None:
    mill.grind.send({"id": "1"})
    loose.clock.advance(24 * 3_600_000)
    assert mill.grind.send({"id": "1"}).duplicate
    loose.run()
    assert mill.done == ["1"]
