"""After an answer the loop looks for a moment longer, and only where that was worth it before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from onefold.local.connection import POLL_REST_MAX, POLL_REST_MIN, POLL_TURNS, BusyPoll


class Loop:
    """Counts turns; runs what was to be called soon."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()

    def turns_until_it_sleeps(self) -> int:
        for count in range(10 * POLL_TURNS):
            if not self.soon:
                return count
            self.turn()
        raise AssertionError("the loop never sleeps")


def made() -> tuple[Loop, BusyPoll]:
    loop = Loop()
    return loop, BusyPoll(cast(Any, loop))


def answers_without_a_vigil(loop: Loop, vigil: BusyPoll) -> int:
    """How many answers pass until one keeps the loop awake."""
    for count in range(10 * POLL_REST_MAX):
        vigil.answered()
        if loop.soon:
            return count
    raise AssertionError("there never is another vigil")


def test_after_an_answer_the_loop_stays_awake_for_a_moment_and_then_sleeps() -> None:
    loop, vigil = made()
    assert not loop.soon  # nothing before the first request
    vigil.answered()
    assert loop.turns_until_it_sleeps() == POLL_TURNS


def test_an_answer_in_time_begins_the_moment_anew() -> None:
    loop, vigil = made()
    vigil.answered()
    for _ in range(POLL_TURNS - 1):
        loop.turn()
    vigil.answered()
    assert len(loop.soon) == 1  # one look a turn, however many answers
    assert loop.turns_until_it_sleeps() == POLL_TURNS


def test_what_was_for_nothing_is_tried_ever_less_often() -> None:
    loop, vigil = made()
    vigil.answered()
    loop.turns_until_it_sleeps()
    rests = []
    while not rests or rests[-1] < POLL_REST_MAX:
        rests.append(answers_without_a_vigil(loop, vigil))
        loop.turns_until_it_sleeps()
    assert rests == [POLL_REST_MIN * 2**tried for tried in range(len(rests))]
    assert answers_without_a_vigil(loop, vigil) == POLL_REST_MAX


def test_one_request_in_time_is_enough_to_try_as_often_as_at_first() -> None:
    loop, vigil = made()
    vigil.answered()
    loop.turns_until_it_sleeps()
    for _ in range(3):
        answers_without_a_vigil(loop, vigil)
        loop.turns_until_it_sleeps()
    answers_without_a_vigil(loop, vigil)
    vigil.answered()
    loop.turns_until_it_sleeps()
    assert answers_without_a_vigil(loop, vigil) == POLL_REST_MIN
