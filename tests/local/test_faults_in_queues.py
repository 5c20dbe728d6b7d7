"""Faults and history through the local queues: what is set happens, and the story of the message says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import Change, group_flag
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.local.fault_rules import parse_faults
from onefold.local.faults import FaultInjector
from onefold.local.history import MessageHistory
from onefold.local.queues import LocalQueues
from onefold.local.timers import Timers
from onefold.manual_clock import ManualClock

START_MS = 1_700_049_600_000  # 2023-11-15T12:00:00Z


class Bench:
    """Local queues in memory on a manual clock: `orders` with the dead-letter queue `orders-dead`, and one FIFO queue."""

    def __init__(self, options: tuple[str, ...]) -> None:
        self.clock = ManualClock(START_MS)
        self.engine = SqliteEngine(
            ":memory:", clock=self.clock, entropy=SeededEntropy(1), owner="test", url="sqlite:///:memory:"
        )
        self.engine.queues.create(QueueSettings(name="orders-dead", retention_ms=1_209_600_000))
        self.engine.queues.create(QueueSettings(name="orders", dead_letter="orders-dead", receives_max=2))
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.history = MessageHistory()
        faults = FaultInjector(parse_faults([*options, "seed=5"]), SeededEntropy(2))
        self.queues = LocalQueues(self.engine, self.timers, self.history, faults)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.timers.moved()

    def story(self, message_id: str) -> list[str]:
        return [f"{event.what}: {self.history.why(event)}" for event in self.history.of(message_id)]


def play(script: Callable[[Bench], Awaitable[None]], *options: str) -> None:
    """Run a script on a bench with these faults."""

    async def run() -> None:
        bench = Bench(options)
        try:
            await asyncio.wait_for(script(bench), 10)
        finally:
            await bench.queues.stop()
            bench.engine.close()

    asyncio.run(run())


def test_a_lost_delete_and_its_story() -> None:
    async def script(bench: Bench) -> None:
        await bench.queues.send("orders", [Entry(body="b")])
        (first,) = await bench.queues.receive("orders", 1)
        assert await bench.queues.delete("orders", [first.receipt]) == [True]
        bench.advance(30_000)
        (again,) = await bench.queues.receive("orders", 1)
        assert await bench.queues.delete("orders", [again.receipt]) == [True]
        ended = "its visibility of 30 s ended at 12:00:30 after the previous fault"
        assert bench.story(first.message_id) == [
            "sent: sent",
            "received: received, hidden for 30 s",
            "fault: fault: the delete was answered and not done",
            f"received: received for the 2nd time: {ended}; hidden for 30 s",
            "deleted: deleted, 0 ms after it was received",
        ]

    play(script, "lose-ack=1,times=1")


def test_a_receiver_that_waits_is_given_the_copy() -> None:
    async def script(bench: Bench) -> None:
        waiting = [asyncio.ensure_future(bench.queues.receive("orders", 1, wait_ms=20_000)) for _ in range(2)]
        await bench.queues.send("orders", [Entry(body="b")])
        (first,), (copy,) = await asyncio.gather(*waiting)
        assert (copy.message_id, copy.receipt, copy.receive_count) == (first.message_id, first.receipt, 2)
        assert await bench.queues.delete("orders", [copy.receipt]) == [True]
        assert "delivered once more" in bench.story(first.message_id)[3]

    play(script, "deliver=2")


def test_a_repeated_delete_wakes_a_receiver() -> None:
    async def script(bench: Bench) -> None:
        await bench.queues.send("orders", [Entry(body="b")])
        (first,) = await bench.queues.receive("orders", 1)
        waiting = asyncio.ensure_future(bench.queues.receive("orders", 1, wait_ms=20_000))
        await bench.queues.delete("orders", [first.receipt])
        (again,) = await waiting
        assert again.message_id == first.message_id

    play(script, "repeat-deleted=1,times=1")


def test_a_dead_letter_is_redriven_by_itself() -> None:
    async def script(bench: Bench) -> None:
        await bench.queues.send("orders", [Entry(body="b")])
        for _ in range(2):
            (delivery,) = await bench.queues.receive("orders", 1)
            bench.advance(30_000)
        assert await bench.queues.receive("orders", 1) == []
        bench.advance(10_000)
        (back,) = await bench.queues.receive("orders", 1)
        assert (back.body, back.receive_count) == ("b", 1)
        said = bench.story(delivery.message_id)
        assert said[-3] == "dead-lettered: moved to orders-dead: received 2 times, the maximum is 2"
        assert said[-2].startswith("fault: fault: sent back to where it came from after ")
        assert said[-1] == f"moved: moved to orders, where it is message {back.message_id}"
        assert bench.story(back.message_id)[0].endswith(f"where it was message {delivery.message_id}")

    play(script, "redrive=1,times=1")


def test_a_dead_letter_of_a_stopped_group_is_not_redriven_alone() -> None:
    """It would follow its group to the dead-letter queue again, behind those that were sent after it."""

    async def script(bench: Bench) -> None:
        bench.engine.queues.create(QueueSettings(name="dead.fifo", fifo=True, retention_ms=1_209_600_000))
        bench.engine.queues.create(
            QueueSettings(name="steps.fifo", fifo=True, content_dedup=True, dead_letter="dead.fifo", receives_max=1)
        )
        for group in ("a", "b"):
            await bench.queues.send("steps.fifo", [Entry(body=group, group=group)])
        first, second = await bench.queues.receive("steps.fifo", 10)
        assert bench.engine.state.put([Change(group_flag("steps.fifo", "a"), b"the id of a", 0)]) == [True]
        bench.advance(30_000)
        assert await bench.queues.receive("steps.fifo", 10) == []
        assert len(bench.engine.queues.peek("dead.fifo")) == 2
        bench.advance(10_000)
        (back,) = await bench.queues.receive("steps.fifo", 10)
        assert back.body == "b"
        assert [one.message_id for one in bench.engine.queues.peek("dead.fifo")] == [first.message_id]
        assert bench.story(first.message_id)[-1] == (
            "fault: not sent back after all: its group is stopped, and goes back as a whole"
        )
        assert bench.story(second.message_id)[-1].startswith("moved: moved to steps.fifo")

    play(script, "redrive=1")


def test_without_faults_the_history_tells_of_none() -> None:
    async def script(bench: Bench) -> None:
        await bench.queues.send("orders", [Entry(body="b")])
        (first,) = await bench.queues.receive("orders", 1)
        await bench.queues.delete("orders", [first.receipt])
        bench.advance(60_000)
        assert await bench.queues.receive("orders", 1) == []
        assert [event.what for event in bench.history.all()] == ["sent", "received", "deleted"]

    play(script)
