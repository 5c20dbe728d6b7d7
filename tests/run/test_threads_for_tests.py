"""`onefold.testing.threads`: what it answers, and that nobody waits for ever."""

from __future__ import annotations

import threading

import pytest

from onefold import errors
from onefold.testing import threads


def test_answers_in_order_and_errors_of_onefold_among_them() -> None:
    def work(number: int) -> int:
        if number == 1:
            raise errors.TransientError("not now")
        return number

    zero, refused, two = threads.at_once(3, work)
    assert (zero, two) == (0, 2)
    assert isinstance(refused, errors.TransientError)


def test_any_other_error_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        threads.at_once(2, lambda number: 1 // number)


def test_who_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 0.1)
    never = threading.Event()
    with pytest.raises(TimeoutError, match="1 of 2 threads"):
        threads.at_once(2, lambda number: never.wait(30) if number else True)
    never.set()
