"""Receiving in the background: what arrives is handed out once or given back, and nothing is asked for without room."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from onefold import errors
from onefold.contracts.queue import Delivery, QueueCapabilities, RetryIn
from onefold.manual_clock import ManualClock
from onefold.runner.longpoll import WAIT_FIRST_MS, WAIT_MS, LongPoll

PATIENCE_S = 60.0  # a test that waits so long has failed


def delivery(number: int, group: str | None = None) -> Delivery:
    return Delivery(
        queue="orders", message_id=f"m-{number}", receipt=f"r-{number}", body="{}", attributes={}, receive_count=1,
        sent_at_ms=0, first_received_at_ms=0, received_at_ms=0, visible_ms=30_000, group=group,
    )  # fmt: skip


class Server:
    """A queue whose receives end when the test says so."""

    capabilities = QueueCapabilities(fifo=False, uncounted=False, run_at=False, atomic_move=False, waits=True)

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: deque[tuple[int, int | None, int]] = deque()
        self.answers: deque[list[Delivery] | Exception] = deque()
        self.changes: list[tuple[str, RetryIn]] = []
        self.lost: set[str] = set()
        self.refuses: Exception | None = None
        self._moved = threading.Condition()

    def receive_within(self, count_max: int, visible_ms: int | None, wait_ms: int) -> list[Delivery]:
        with self._moved:
            self.asked.append((count_max, visible_ms, wait_ms))
            self._moved.notify_all()
            assert self._moved.wait_for(lambda: self.answers, PATIENCE_S)
            answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, *answers: list[Delivery] | Exception) -> None:
        with self._moved:
            self.answers.extend(answers)
            self._moved.notify_all()

    def until_asked(self, times: int) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: len(self.asked) >= times, PATIENCE_S), self.asked

    def until_changed(self, times: int) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: len(self.changes) >= times, PATIENCE_S), self.changes

    def set_visible_in(self, changes):
        with self._moved:
            self.changes.extend(changes)
            self._moved.notify_all()
        if self.refuses is not None:
            raise self.refuses
        return [receipt not in self.lost for receipt, _ in changes]


class Desk:
    def __init__(self, name: str = "orders") -> None:
        self.server, self.clock, self.woken = Server(name), ManualClock(), threading.Semaphore(0)
        self.queue = LongPoll(self.server, clock=self.clock, wake=self.woken.release)  # type: ignore[arg-type]

    def wait(self) -> None:
        assert self.woken.acquire(timeout=PATIENCE_S)

    def end(self) -> None:
        self.server.answer([], [], [], [])
        self.queue.stop()
        self.queue.end(self.clock.monotonic_ms() + int(1_000 * PATIENCE_S))


@pytest.fixture
def desk():
    made = Desk()
    yield made
    made.end()


def ids(deliveries: list[Delivery]) -> list[str]:
    return [one.message_id for one in deliveries]


def test_a_receive_answers_at_once_and_asks_in_the_background(desk: Desk) -> None:
    assert desk.queue.receive(5, 30_000) == []
    desk.server.until_asked(1)
    assert list(desk.server.asked) == [(5, 30_000, WAIT_FIRST_MS)]
    desk.server.answer([delivery(1), delivery(2)])
    desk.wait()
    assert ids(desk.queue.receive(1, 30_000)) == ["m-1"]
    assert ids(desk.queue.receive(5, 30_000)) == ["m-2"]


def test_what_arrived_of_a_fifo_queue_is_handed_out_whole() -> None:
    """What would be left here of a group whose first message is retried would run before it."""
    desk = Desk("orders.fifo")
    desk.queue.receive(4, 30_000)
    desk.server.until_asked(1)
    desk.server.answer([delivery(number) for number in range(4)])
    desk.wait()
    assert ids(desk.queue.receive(2, 30_000)) == ["m-0", "m-1", "m-2", "m-3"]
    desk.end()


def test_more_than_ten_are_asked_for_in_several_calls(desk: Desk) -> None:
    assert desk.queue.receive(25, 30_000) == []
    desk.server.until_asked(3)
    assert sorted(count for count, _, _ in desk.server.asked) == [5, 10, 10]


def test_without_room_nothing_is_asked_for(desk: Desk) -> None:
    desk.queue.receive(1, 30_000)
    desk.server.until_asked(1)
    desk.server.answer([delivery(1)])
    desk.wait()
    assert ids(desk.queue.receive(1, 30_000)) == ["m-1"]
    assert len(desk.server.asked) == 1


def test_a_failed_receive_is_said_once_and_asked_again(desk: Desk) -> None:
    desk.queue.receive(1, 30_000)
    desk.server.answer(errors.NotFoundError("Queue orders does not exist.", todo="Deploy it."))
    desk.wait()
    with pytest.raises(errors.TransientError, match="does not exist"):
        desk.queue.receive(1, 30_000)
    assert desk.queue.receive(1, 30_000) == []
    desk.server.until_asked(2)
    assert desk.queue.is_failing  # that nothing was received says nothing of the server
    desk.server.answer([delivery(1)])
    desk.wait()
    assert not desk.queue.is_failing


def test_what_has_lain_for_long_is_extended_or_dropped(desk: Desk) -> None:
    desk.queue.receive(3, 30_000)
    desk.server.answer([delivery(1), delivery(2)])
    desk.wait()
    desk.clock.advance(5_000)
    desk.server.lost.add("r-2")
    assert ids(desk.queue.receive(3, 30_000)) == ["m-1"]
    assert desk.server.changes == [("r-1", RetryIn(30_000)), ("r-2", RetryIn(30_000))]


def test_what_is_behind_a_lost_message_in_its_group_is_not_handed_out() -> None:
    desk = Desk("orders.fifo")
    desk.queue.receive(4, 30_000)
    desk.server.answer([delivery(number, group="ab"[number % 2]) for number in range(5)])
    desk.wait()
    desk.clock.advance(5_000)
    desk.server.lost.add("r-0")
    assert ids(desk.queue.receive(4, 30_000)) == ["m-1", "m-3"]
    assert desk.server.changes[5:] == [("r-4", RetryIn(0)), ("r-2", RetryIn(0))]
    desk.end()


def test_what_could_not_be_extended_for_now_is_kept(desk: Desk) -> None:
    desk.queue.receive(3, 30_000)
    desk.server.answer([delivery(1), delivery(2)])
    desk.wait()
    desk.clock.advance(5_000)
    desk.server.refuses = errors.TransientError("SQS cannot be reached.")
    with pytest.raises(errors.TransientError):
        desk.queue.receive(3, 30_000)
    desk.server.refuses = None
    assert ids(desk.queue.receive(3, 30_000)) == ["m-1", "m-2"]


def test_just_before_that_it_is_handed_out_as_it_is(desk: Desk) -> None:
    desk.queue.receive(1, 30_000)
    desk.server.answer([delivery(1)])
    desk.wait()
    desk.clock.advance(4_999)
    assert ids(desk.queue.receive(1, 30_000)) == ["m-1"]
    assert desk.server.changes == []


def test_what_arrives_at_the_end_is_given_back_last_first() -> None:
    desk = Desk()
    desk.queue.receive(5, 30_000)
    desk.server.until_asked(1)
    desk.server.answer([delivery(1), delivery(2)])
    desk.wait()
    desk.end()
    assert desk.server.changes == [("r-2", RetryIn(0)), ("r-1", RetryIn(0))]
    assert desk.queue.receive(5, 30_000) == []


def test_an_end_without_the_server_leaves_what_arrived_to_its_visibility() -> None:
    desk = Desk()
    desk.queue.receive(5, 30_000)
    desk.server.until_asked(1)
    desk.server.answer([delivery(1)])
    desk.wait()
    desk.server.refuses = errors.TransientError("SQS cannot be reached.")
    desk.end()
    assert desk.server.changes == [("r-1", RetryIn(0))]


def test_who_ends_does_not_wait_for_a_receive_that_nothing_comes_of() -> None:
    desk = Desk()
    desk.queue.receive(5, 30_000)
    desk.server.until_asked(1)
    desk.queue.stop()
    desk.queue.end(desk.clock.monotonic_ms())  # the server has not answered
    desk.server.answer([delivery(1), delivery(2)])
    desk.server.until_changed(2)
    assert desk.server.changes == [("r-2", RetryIn(0)), ("r-1", RetryIn(0))]
    assert desk.queue.receive(5, 30_000) == []
    assert len(desk.server.asked) == 1
    desk.end()
    assert not desk.woken.acquire(blocking=False), "the worker's waiter is closed by then"


def test_a_sudden_end_leaves_what_arrived_to_its_lease() -> None:
    desk = Desk()
    desk.queue.receive(5, 30_000)
    desk.server.answer([delivery(1)])
    desk.wait()
    desk.queue.stop(give_back=False)
    assert desk.queue.receive(5, 30_000) == []
    assert desk.server.changes == []
    desk.end()


def test_an_idle_queue_costs_one_receive_at_a_time(desk: Desk) -> None:
    desk.queue.receive(25, 30_000)
    desk.server.until_asked(3)
    desk.server.answer([], [], [])
    desk.server.until_asked(4)
    desk.server.answer([])
    desk.server.until_asked(5)
    assert [wait_ms for _, _, wait_ms in desk.server.asked][:4] == [WAIT_FIRST_MS] * 3 + [8_000]
    assert len(desk.server.asked) == 5
    desk.server.answer([delivery(1)])  # and side by side again
    desk.wait()
    desk.queue.receive(25, 30_000)
    desk.server.until_asked(8)


@pytest.mark.parametrize("defect", [KeyError("Messages"), errors.InvariantBroken("A receipt came twice.")])
def test_a_defect_in_a_receive_is_raised_where_it_is_handed_out(desk: Desk, defect: Exception) -> None:
    desk.queue.receive(1, 30_000)
    desk.server.answer(defect)
    desk.wait()
    with pytest.raises(type(defect)):
        desk.queue.receive(1, 30_000)


def test_a_passing_error_of_another_receive_does_not_hide_a_defect(desk: Desk) -> None:
    desk.queue.receive(20, 30_000)
    desk.server.until_asked(2)
    desk.server.answer(KeyError("Messages"))
    desk.wait()
    desk.server.answer(errors.TransientError("It timed out."))
    desk.wait()
    with pytest.raises(KeyError):
        desk.queue.receive(20, 30_000)


def test_polls_grow_longer_while_nothing_comes(desk: Desk) -> None:
    desk.queue.receive(1, 30_000)
    desk.server.answer([], [], [], [], [delivery(1)])
    desk.wait()
    waits = [wait_ms for _, _, wait_ms in desk.server.asked]
    assert waits == [WAIT_FIRST_MS, 2_000, 4_000, 8_000, WAIT_MS]
    desk.queue.receive(2, 30_000)
    desk.server.until_asked(6)
    assert desk.server.asked[-1][2] == WAIT_FIRST_MS
