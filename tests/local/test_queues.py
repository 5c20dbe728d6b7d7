"""Local queues: long polls in order and without a herd, nothing lost when a client leaves, other processes heard."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onefold import errors
from onefold.clock import SystemClock
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Delivery, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.queue import SqliteQueue
from tests.local.house import WAIT_MS, House, cancelled, opened, play, turns, until

VISIBLE_MS = 30_000


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "q.db" if request.param == "file" else None


def receives(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queue of every receive the engine is asked for from now on."""
    asked: list[str] = []
    inner = SqliteQueue.receive

    def receive(self: SqliteQueue, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        asked.append(self.name)
        return inner(self, count_max, visible_ms)

    monkeypatch.setattr(SqliteQueue, "receive", receive)
    return asked


class TestWaiting:
    def test_those_who_wait_are_served_in_the_order_they_came(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            polls = [await house.poll() for _ in range(4)]
            assert house.queues.waiting() == {"orders": 4}
            await house.send("a", "b")
            await house.send("c")
            answers = await asyncio.gather(*polls[:3])
            assert [one.body for (one,) in answers] == ["a", "b", "c"]
            assert house.queues.waiting() == {"orders": 1}
            assert not polls[3].done()
            await cancelled(polls[3])

        play(script, path)

    def test_one_who_comes_while_others_wait_stands_behind_them(self) -> None:
        async def script(house: House) -> None:
            first = await house.poll()
            sending = asyncio.ensure_future(house.send("a", "b"))
            second = asyncio.ensure_future(house.queues.receive("orders", 2, wait_ms=WAIT_MS))
            await sending
            assert [one.body for one in await first] == ["a"]
            assert [one.body for one in await second] == ["b"]

        play(script)

    def test_one_message_wakes_one_receiver(self, path: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        async def script(house: House) -> None:
            polls = [asyncio.ensure_future(house.queues.receive("orders", 1, wait_ms=WAIT_MS)) for _ in range(1_000)]
            await until(lambda: house.queues.waiting() == {"orders": 1_000})
            await turns()
            asked = receives(monkeypatch)
            await house.send("a")
            assert [one.body for one in await polls[0]] == ["a"]
            await turns()
            assert len(asked) == 2  # one that found it, and one that found nothing more
            assert house.queues.waiting() == {"orders": 999}
            await cancelled(*polls[1:])
            assert house.queues.waiting() == {}

        play(script, path)

    def test_nothing_is_asked_and_no_timer_runs_while_nothing_happens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def script(house: House) -> None:
            await house.send("a")
            await house.queues.receive("orders", 1)
            assert house.timers.next_at_ms() is None  # nobody waits: nobody needs to know when it is visible again
            poll = await house.poll()
            asked = receives(monkeypatch)
            for _ in range(10):
                house.advance(1_000)
                await turns()
            assert asked == []
            await cancelled(poll)
            assert house.timers.next_at_ms() is None

        play(script)

    @pytest.mark.parametrize("queue", ["orders", "steps.fifo"])
    def test_a_visibility_that_ends_wakes(self, path: Path | None, queue: str) -> None:
        async def script(house: House) -> None:
            await house.send("a", queue=queue, group="g" if queue == "steps.fifo" else None)
            (first,) = await house.queues.receive(queue, 1, visible_ms=5_000)
            poll = await house.poll(queue=queue)
            house.advance(4_999)
            await turns()
            assert not poll.done()
            house.advance(1)
            (again,) = await poll
            assert (again.message_id, again.receive_count) == (first.message_id, 2)

        play(script, path)

    def test_a_delay_that_ends_wakes_on_the_machine_s_clock(self) -> None:
        async def script(house: House) -> None:
            poll = await house.poll()
            await house.queues.send("orders", [Entry(body="a", delay_ms=30)])
            (delivery,) = await poll
            assert 30 <= delivery.received_at_ms - delivery.sent_at_ms < 15_000, "the poll ends after 20 s"

        play(script, system=True)

    def test_the_earlier_of_two_instants_counts(self) -> None:
        async def script(house: House) -> None:
            await house.send("a")
            (held,) = await house.queues.receive("orders", 1)
            poll = await house.poll()
            assert await house.queues.set_visible_in("orders", [(held.receipt, RetryIn(2_000))]) == [True]
            await turns()
            house.advance(2_000)
            assert [one.body for one in await poll] == ["a"]

        play(script)

    def test_a_heartbeat_asks_nothing_and_its_end_still_wakes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def script(house: House) -> None:
            await house.send("a")
            (held,) = await house.queues.receive("orders", 1, visible_ms=5_000)
            poll = await house.poll()
            asked = receives(monkeypatch)
            for _ in range(3):
                house.advance(1_000)
                assert await house.queues.set_visible_in("orders", [(held.receipt, RetryIn(5_000))]) == [True]
                await turns()
            assert asked == []
            house.advance(2_000)  # when it would have been visible without them
            await turns()
            assert not poll.done()
            house.advance(3_000)
            assert [one.body for one in await poll] == ["a"]

        play(script)

    def test_a_release_and_a_delete_wake(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            await house.send("a1", "a2", queue="steps.fifo", group="a")
            (first,) = await house.queues.receive("steps.fifo", 1)
            poll = await house.poll(queue="steps.fifo")
            await house.send("a3", queue="steps.fifo", group="a")
            await turns()
            assert not poll.done()  # the group is locked: a new message of it wakes nobody
            await house.queues.set_visible_in("steps.fifo", [(first.receipt, RetryIn(0))])
            (again,) = await poll
            assert again.body == "a1"
            poll = await house.poll(queue="steps.fifo")
            assert await house.queues.delete("steps.fifo", [again.receipt]) == [True]
            assert [one.body for one in await poll] == ["a2"]

        play(script, path)

    def test_the_in_flight_cap_is_a_reason_to_wait(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            house.engine.queues.create(QueueSettings(name="small", in_flight_max=1))
            await house.send("a", "b", queue="small")
            (held,) = await house.queues.receive("small", 1)
            with pytest.raises(errors.OverLimitError):
                await house.queues.receive("small", 1)
            poll = await house.poll(queue="small")
            assert not poll.done()
            await house.queues.delete("small", [held.receipt])
            assert [one.body for one in await poll] == ["b"]

        play(script, path)


class TestTheEndOfAWait:
    def test_after_its_time_on_the_manual_clock(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            poll = await house.poll()
            house.advance(WAIT_MS - 1)
            await turns()
            assert not poll.done()
            house.advance(1)
            assert await poll == []
            assert house.queues.waiting() == {}

        play(script, path)

    @pytest.mark.parametrize("system", [True, False])
    def test_after_its_time_in_real_time_whatever_the_clock(self, system: bool) -> None:
        async def script(house: House) -> None:
            assert await house.queues.receive("orders", 1, wait_ms=30) == []
            assert house.queues.waiting() == {}

        play(script, system=system)

    def test_a_client_that_cancels_is_gone_at_once(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            first, second = await house.poll(), await house.poll()
            await cancelled(first)
            assert house.queues.waiting() == {"orders": 1}
            await house.send("a")
            (delivery,) = await second
            assert (delivery.body, delivery.receive_count) == ("a", 1)

        play(script, path)

    @pytest.mark.parametrize("wait_ms", [0, WAIT_MS])
    def test_a_client_that_cancels_as_its_message_comes_loses_nothing(self, path: Path | None, wait_ms: int) -> None:
        async def script(house: House) -> None:
            (message,) = await house.send("a")
            for turns_before in range(12):
                poll = asyncio.ensure_future(house.queues.receive("orders", 1, wait_ms=wait_ms))
                await turns(turns_before)
                await cancelled(poll)
                await turns()
                if not poll.cancelled():
                    break  # it had its answer before
                (found,) = await house.queues.receive("orders", 1)
                assert (found.message_id, found.receive_count) == (message, 1)
                await house.queues.set_visible_in("orders", [(found.receipt, RetryIn(0, uncounted=True))])
            else:
                pytest.fail("it never had an answer")

        play(script, path)

    @pytest.mark.parametrize("turns_before", range(8))
    def test_one_in_line_who_cancels_as_its_message_comes_loses_nothing(
        self, path: Path | None, turns_before: int
    ) -> None:
        async def script(house: House) -> None:
            poll = await house.poll()
            sending = asyncio.ensure_future(house.send("a"))
            await turns(turns_before)
            await cancelled(poll)
            (message,) = await sending
            await turns()
            found = await house.queues.receive("orders", 1)
            if poll.cancelled():
                assert [(one.message_id, one.receive_count) for one in found] == [(message, 1)]
            else:
                assert [one.message_id for one in poll.result()] == [message]
                assert found == []

        play(script, path)

    def test_who_hung_up_without_a_word_gets_nothing(self) -> None:
        async def script(house: House) -> None:
            left = [False]
            first = await house.poll(gone=lambda: left[0])
            second = await house.poll()
            left[0] = True
            await house.send("a")
            assert [one.body for one in await second] == ["a"]
            assert await first == []

        play(script)

    @pytest.mark.parametrize("wait_ms", [0, WAIT_MS])
    @pytest.mark.parametrize("turns_before", range(8))
    def test_who_hangs_up_as_its_message_comes_leaves_it_to_others(
        self, path: Path | None, turns_before: int, wait_ms: int
    ) -> None:
        async def script(house: House) -> None:
            left = [False]
            poll = asyncio.ensure_future(house.queues.receive("orders", 1, wait_ms=wait_ms, gone=lambda: left[0]))
            if wait_ms:
                await turns()
            sending = asyncio.ensure_future(house.send("a"))
            await turns(turns_before)
            had_it = poll.done() and bool(poll.result())
            left[0] = True
            await sending
            await turns()
            found = await house.queues.receive("orders", 1)
            assert [one.receive_count for one in found] == ([] if had_it else [1])
            poll.cancel()

        play(script, path)

    def test_a_queue_that_is_deleted_under_a_poll(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            polls = [await house.poll(), await house.poll()]
            await house.queues.call(lambda: house.engine.queues.drop("orders"))
            house.queues.dropped("orders")
            answers = await asyncio.gather(*polls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [errors.NotFoundError] * 2
            with pytest.raises(errors.NotFoundError):
                await house.queues.receive("orders", 1, wait_ms=WAIT_MS)
            assert house.queues.waiting() == {}

        play(script, path)

    def test_what_one_asks_for_wrongly_is_its_error_alone(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            first = await house.poll()
            wrong = await house.poll(visible_ms=-1)
            last = await house.poll()
            await house.send("a", "b")
            assert [one.body for one in await first] == ["a"]
            assert [one.body for one in await last] == ["b"]
            with pytest.raises(errors.UsageError, match="-1 ms"):
                await wrong

        play(script, path)

    def test_a_stop_answers_all_with_nothing(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            await house.queues.start()
            polls = [await house.poll(), await house.poll(queue="steps.fifo")]
            await house.queues.stop()
            assert await asyncio.gather(*polls) == [[], []]
            assert house.timers.next_at_ms() is None
            assert await house.queues.receive("orders", 1, wait_ms=WAIT_MS) == []  # who comes later does not hold it up

        play(script, path)


class TestDeadLettersAndMoves:
    def test_a_dead_letter_is_told_and_wakes_those_who_wait_for_it(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            (message,) = await house.send("a")
            letters = await house.poll(queue="orders-dead")
            for _ in range(2):
                assert await house.bodies() == ["a"]
                house.advance(VISIBLE_MS // 2)
                house.advance(VISIBLE_MS // 2)
            letters.cancel()
            letters = await house.poll(queue="orders-dead")
            assert await house.bodies() == []
            (letter,) = await letters
            assert (letter.message_id, letter.receive_count) == (message, 3)
            assert house.whats(message) == ["sent", "received", "received", "dead-lettered", "received"]
            moved = house.history.of(message)[3]
            assert dict(moved.detail) == {"to": "orders-dead", "receive_count": 2, "receives_max": 2}

        play(script, path)

    @pytest.mark.parametrize("per_second_max", [None, 10])
    def test_a_move_task_goes_on_by_itself(self, path: Path | None, per_second_max: int | None) -> None:
        async def script(house: House) -> None:
            ids = await house.send(*(f"b{number}" for number in range(5)))
            while found := await house.queues.receive("orders", 5, visible_ms=0):
                assert {one.message_id for one in found} == set(ids)
            await house.queues.start()
            poll = await house.poll(5)
            await house.queues.call(lambda: house.engine.queues.start_move("orders-dead", None, per_second_max))
            house.queues.maintain_now()
            back = await poll
            seen = {one.message_id for one in back}
            assert len(seen) == (5 if per_second_max is None else 1)
            for _ in range(8):  # every 50 ms, as long as it runs
                house.advance(50)
            seen |= {one.message_id for one in await house.queues.receive("orders", 5)}
            assert len(seen) == 5
            assert house.engine.queues.moves("orders-dead")[0].moved == 5
            assert house.whats(ids[0])[-2:] == ["dead-lettered", "moved"]
            assert house.whats(back[0].message_id) == ["moved", "received"]

        play(script, path)


class TestTelling:
    def test_the_history_knows_no_body_and_why_a_delete_was_refused(self) -> None:
        async def script(house: House) -> None:
            (message,) = await house.send("a secret", queue="steps.fifo", group="g")
            await house.send("a secret", queue="steps.fifo", group="g")
            (late,) = await house.queues.receive("steps.fifo", 1, via="sqs")
            await house.queues.set_visible_in("steps.fifo", [(late.receipt, RetryIn(1_000))])
            house.advance(1_000)
            assert await house.queues.delete("steps.fifo", [late.receipt]) == [False]
            await house.queues.receive("steps.fifo", 1, visible_ms=0)
            assert house.whats(message) == [
                "sent", "deduplicated", "received", "hidden", "delete-refused", "received",
            ]  # fmt: skip
            assert house.history.of(message)[4].detail["standing"] == "expired"
            assert "secret" not in repr(house.history.all())

        play(script)

    def test_a_late_change_on_a_standard_queue_is_not_told_as_one(self) -> None:
        async def script(house: House) -> None:
            (message,) = await house.send("a")
            (late,) = await house.queues.receive("orders", 1)
            assert await house.queues.set_visible_in("orders", [(late.receipt, RetryIn(1_000))]) == [True]
            house.advance(1_000)
            assert await house.queues.set_visible_in("orders", [(late.receipt, RetryIn(1_000))]) == [True]
            assert house.whats(message) == ["sent", "received", "hidden"]

        play(script)

    def test_bad_receipts_change_nothing_and_are_not_told(self, path: Path | None) -> None:
        async def script(house: House) -> None:
            (message,) = await house.send("a")
            (held,) = await house.queues.receive("orders", 1)
            with pytest.raises(errors.UsageError):
                await house.queues.delete("orders", [held.receipt, "garbage"])
            with pytest.raises(errors.UsageError):
                await house.queues.set_visible_in("orders", [(held.receipt, RetryIn(0)), ("1:2:3:4", RetryIn(0))])
            assert house.whats(message) == ["sent", "received"]
            assert house.engine.queues.depth("orders").in_flight == 1

        play(script, path)


class TestOtherProcesses:
    """Another engine on the same file stands for another process: it has its own connections and its own wake-ups."""

    def test_a_send_wakes_those_who_wait_here(self, tmp_path: Path) -> None:
        async def script(house: House) -> None:
            await house.queues.start()
            poll = await house.poll()
            other = opened(house.path, house.clock)
            other.queues.open("orders").send([Entry(body="from afar")])
            other.notify()
            assert [one.body for one in await poll] == ["from afar"]  # while the clock, and so the upkeep, stands still
            other.close()

        play(script, tmp_path / "q.db")

    def test_a_release_without_a_wake_up_is_seen_within_a_second(self, tmp_path: Path) -> None:
        async def script(house: House) -> None:
            await house.queues.start()
            await house.send("a")
            other = opened(house.path, SystemClock())
            theirs = other.queues.open("orders")
            (held,) = theirs.receive(1)
            poll = await house.poll()
            assert not poll.done()
            theirs.set_visible_in([(held.receipt, RetryIn(0))])
            (delivery,) = await asyncio.wait_for(poll, 5)
            assert delivery.receive_count == 2
            other.close()

        play(script, tmp_path / "q.db", system=True)

    def test_what_is_sent_here_wakes_others_but_not_ourselves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def script(house: House) -> None:
            await house.queues.start()
            other = opened(house.path, SystemClock())
            waiter = other.waiter()
            poll = await house.poll(queue="steps.fifo")
            asked = receives(monkeypatch)
            await house.send("a")
            woken = await asyncio.get_running_loop().run_in_executor(None, waiter.wait, 10.0)
            assert woken
            await turns()
            assert asked == []  # nobody looked into the other queue here
            await cancelled(poll)
            other.close()

        play(script, tmp_path / "q.db")
