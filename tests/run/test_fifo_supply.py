"""FIFO groups between the receive and the handler: a queue that is received in the background, a store that fails for now.

Two processes with a buffer each work on one queue; which of them does what next, and what fails, is drawn from a seed.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - the test's own seeded dice
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import onefold
from onefold import errors
from onefold.contracts.queue import Delivery, QueueCapabilities, RetryIn
from onefold.runner.execution import Execution
from onefold.runner.heartbeat import Heartbeat
from onefold.runner.longpoll import LongPoll
from onefold.runner.poll import Poller
from onefold.runtime.events import Sinks
from tests.run.bench import Bench, opened

LEASE_MS = 30_000


class Waiting:
    """A queue as SQS is: a receive may wait for messages, and a wait for something else costs a receive."""

    capabilities = QueueCapabilities(fifo=True, uncounted=False, run_at=False, atomic_move=False, waits=True)

    def __init__(self, queue: Any) -> None:
        self.name = queue.name
        self._queue = queue
        self.poll: AtOnce | None = None

    def receive_within(self, count_max: int, visible_ms: int | None, _wait_ms: int) -> list[Delivery]:
        found: list[Delivery] = self._queue.receive(count_max, visible_ms)
        if not found and self.poll is not None:
            self.poll.rest()
        return found

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._queue, verb)


class Torn:
    """A queue whose batches may be carried out in part, as SQS's are."""

    def __init__(self, queue: Any, faults: Faults) -> None:
        self._queue = queue
        self._faults = faults

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        left_out = self._faults.left_out(changes)
        answers = self._queue.set_visible_in([one for one in changes if one not in left_out])
        if left_out:
            raise errors.TransientError("The others were not carried out.", todo="Try again.")
        return answers

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._queue, verb)


class AtOnce(LongPoll):
    """A long poll whose threads have always done what they were asked for: the same order of events for each seed."""

    def rest(self) -> None:
        self._wanted = 0

    def _staff(self) -> None:
        asked = self._wanted
        self._ended = False
        while self._wanted > 0:
            count = self._next()
            assert count > 0
            self._under_way -= count
            arrived = self._queue.receive_within(count, self._visible_ms, 0)
            now_ms = self._clock.monotonic_ms()
            self._arrived.extend((now_ms, one) for one in arrived)
            self._wanted = max(min(self._wanted, asked) - len(arrived), 0)


class Process:
    """One worker's supply, runner and heartbeat, without its threads."""

    def __init__(self, bench: Bench, faults: Faults) -> None:
        process = bench.process(fault=faults, one_transaction=False)
        backend = replace(process.backend, open_queue=lambda name: Torn(process.backend.open_queue(name), faults))
        self.runner = bench.runner(backend, process.owner, Sinks([process]))
        waiting = Waiting(backend.open_queue("orders.fifo"))
        poll = AtOnce(waiting, clock=bench.clock, wake=lambda: None)  # type: ignore[arg-type]
        waiting.poll = poll
        self.poller = Poller([poll], {}, visible_ms=LEASE_MS, in_flight=self.runner.in_flight, clock=bench.clock)  # type: ignore[list-item]
        self.heartbeat = Heartbeat(
            self.runner.in_flight, backend, clock=bench.clock, lease_ms=LEASE_MS, also=lambda: None,
            stop=lambda *_: None, put_back=self.runner.settler.put_back,
            lost=self.runner.reports.lease_lost, busy=lambda _: None,
        )  # fmt: skip
        self.ready: list[Execution] = []

    def refill(self, room: int) -> None:
        for feed in self.poller.feeds.values():
            feed.due_at_ms = feed.gathers_until_ms = 0
        with suppress(errors.TransientError):
            self.poller.put_back(self.runner.in_flight.dropped())
            self.poller.refill(lambda _: room)

    def begin(self, count: int) -> None:
        (feed,) = self.poller.feeds.values()
        batch = []
        while len(batch) < count and (one := self.poller.first(feed)) is not None:
            batch.append(one)
            feed.buffer.popleft()
        with suppress(errors.TransientError):
            self.ready += self.runner.begin(batch)

    def finish(self, number: int) -> None:
        if self.ready:
            run = self.ready.pop(number % len(self.ready))
            self.runner.perform(run)
            self.ready += self.runner.finish([run])


class Faults:
    """Makes a verb fail for now, before or after it took effect, with a likelihood of its own for each verb."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.likely: dict[str, float] = {}

    def left_out(self, changes: Sequence[tuple[str, RetryIn]]) -> list[tuple[str, RetryIn]]:
        """What of a batch is not carried out."""
        likely = self.likely.get("torn", 0.0)
        return [one for one in changes if self._chance.random() < likely / 2]

    def __call__(self, verb: str, side: str) -> None:
        if self._chance.random() < self.likely.get(verb, 0.0) / 2:
            raise errors.StorageBusy(f"{verb} failed on purpose {side} it took effect.", todo="Try again.")


VERBS = ("store.claim", "store.write", "queue.set_visible_in", "queue.receive", "queue.delete", "state.get", "torn")


class Groups:
    """Two groups of twelve messages and the two processes that work on them.

    Attributes:
        began, done: the numbers of a group's messages whose handlers were called, and ended well, in order.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.faults = Faults(chance)
        self.app = onefold.App("shop")
        self.began: dict[str, list[int]] = {"a": [], "b": []}
        self.done: dict[str, list[int]] = {"a": [], "b": []}
        retry = onefold.Retry(attempts=1_000, base="1s", jitter="none")
        queue = self.app.queue("orders", fifo=True, dead_letter=onefold.DeadLetter(after=1_000))

        @self.app.job(queue, key="{group}-{number}", group="{group}", effect="repeatable", retry=retry)
        def ship(order: dict[str, Any]) -> None:
            self.began[order["group"]].append(order["number"])
            if chance.random() < 0.3:
                raise onefold.TransientError("not now")
            self.done[order["group"]].append(order["number"])

        self.ship = ship

    def act(self, bench: Bench, processes: Sequence[Process]) -> None:
        """One of them does something, or time passes."""
        chance, one = self.chance, self.chance.choice(processes)
        match chance.randrange(8):
            case 0 | 1:
                one.refill(chance.choice((1, 2, 4, 10, 20)))
            case 2 | 3:
                one.begin(chance.randrange(1, 5))
            case 4 | 5 | 6:
                one.finish(chance.randrange(4))
            case _:
                bench.clock.advance(chance.choice((10, 500, 3_000, 12_000, 19_000)))
                for each in processes:
                    if chance.random() < 0.8:
                        each.heartbeat.beat()

    def end(self, bench: Bench, processes: Sequence[Process]) -> None:
        """Nothing fails any more, until all is done."""
        self.faults.likely = {}
        for _ in range(3_000):
            for one in processes:
                one.refill(10)
                one.begin(4)
                one.finish(0)
                one.heartbeat.beat()
            bench.clock.advance(1_000)
            if all(len(set(numbers)) == 12 for numbers in self.done.values()):
                return


@pytest.mark.parametrize("seed", range(1_500 if os.environ.get("ONEFOLD_SOAK") == "1" else 25))
def test_groups_keep_their_order_whatever_fails(seed: int) -> None:
    groups = Groups(seed)
    with opened(groups.app) as bench:
        for number in range(12):
            groups.ship.send_many([{"group": group, "number": number} for group in groups.done])
        processes = [Process(bench, groups.faults) for _ in range(2)]
        for turn in range(400):
            if turn % 40 == 0:
                down = groups.chance.sample(VERBS, groups.chance.randrange(3)) if turn < 300 else []
                groups.faults.likely = dict.fromkeys(down, groups.chance.random())
            groups.act(bench, processes)
        groups.end(bench, processes)
    for group, done in groups.done.items():
        assert list(dict.fromkeys(done)) == list(range(12)), (group, done)
        began = groups.began[group]
        assert began == sorted(began), (group, began)  # a handler is called again, but never after a later one's
