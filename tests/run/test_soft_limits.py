"""A soft time limit, raised by a signal's handler in the middle of a function: unknown, whatever class it has."""

from __future__ import annotations

import asyncio
import functools
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import pytest

import onefold
from onefold.clock import SystemClock
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner import call_leases
from onefold.runner.calling import raised
from onefold.runner.retrying import retrying


class Limit(Exception):
    """As the page on Redis proposes: a class of one's own, no OSError."""


@contextmanager
def limit(kind: type[BaseException] = Limit, *, wrap: Callable[[Any], Any] = lambda ring: ring) -> Iterator[None]:
    def ring(_number: int, _frame: object) -> None:
        raise kind("soft limit")

    before = signal.signal(signal.SIGUSR1, wrap(ring))
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def strikes() -> None:
    signal.raise_signal(signal.SIGUSR1)


def within() -> None:
    """A limit that a function sets for a part of itself: its handler is gone when the call has ended."""
    with limit():
        strikes()


def wrapped() -> None:
    """As botocore makes an error of its own of whatever comes while it waits."""
    try:
        strikes()
    except Exception as error:
        raise ValueError("no answer") from error


def grouped() -> None:
    try:
        strikes()
    except Exception as error:  # noqa: BLE001 - as a task group does
        raise ExceptionGroup("of tasks", [error]) from None


def guard(function: Callable[..., Any], **options: Any) -> Any:
    own: dict[str, Any] = {"key": "{i}", "name": "soft", "store": onefold.memory_store(), "clock": ManualClock()}
    own |= {"entropy": SeededEntropy(0), "on_unknown": "hold"}
    once: Any = onefold.once
    return once(**own | options)(function)


@pytest.mark.parametrize("struck", [strikes, within, wrapped, grouped])
@pytest.mark.parametrize("kind", [Limit, TimeoutError, InterruptedError, onefold.TransientError])
def test_a_limit_in_the_middle_of_a_guarded_call_is_held_whatever_its_class(
    struck: Callable[[], None], kind: type[BaseException]
) -> None:
    calls: list[str] = []

    def charge(i: str) -> None:
        calls.append(i)
        struck()

    charge = guard(charge)
    with limit(kind):
        with pytest.raises((kind, Limit, ValueError, ExceptionGroup)):
            charge("x")
        with pytest.raises(onefold.OutcomeUnknown):
            charge("x")
    assert calls == ["x"], "charged once"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda ring: lambda *given: ring(given[0], given[1]),
        lambda ring: functools.partial(lambda _more, *given: ring(*given), "more"),
        lambda ring: type("Bell", (), {"__call__": lambda _self, number, frame: ring(number, frame)})(),
    ],
    ids=["lambda", "partial", "object"],
)
def test_handlers_of_every_form_are_seen(wrap: Callable[[Any], Any]) -> None:
    def charge(i: str) -> None:
        with limit(wrap=wrap):
            strikes()

    charge = guard(charge)
    with pytest.raises(Limit):
        charge("x")
    with pytest.raises(onefold.OutcomeUnknown):
        charge("x")


def test_a_limit_in_a_coroutine_is_held_too() -> None:
    calls: list[str] = []

    async def charge(i: str) -> None:
        calls.append(i)
        strikes()

    charge = guard(charge)
    with limit():
        with pytest.raises(Limit):
            asyncio.run(charge("x"))
        with pytest.raises(onefold.OutcomeUnknown):
            asyncio.run(charge("x"))
    assert calls == ["x"]


def test_what_the_function_itself_makes_of_a_limit_counts() -> None:
    calls: list[str] = []

    def charge(i: str) -> None:
        calls.append(i)
        try:
            strikes()
        except Limit as error:
            raise onefold.TransientError("cancelled at the partner") from error

    charge = guard(charge)
    with limit():
        for _ in range(2):
            with pytest.raises(onefold.TransientError):
                charge("x")
    assert calls == ["x", "x"], "it says that it may run again"


def test_a_failure_while_the_program_deals_with_an_earlier_limit_is_a_failure() -> None:
    calls: list[str] = []

    def charge(i: str) -> None:
        calls.append(i)
        raise ValueError("refused")

    charge = guard(charge)
    with limit():
        for _ in range(2):
            try:
                strikes()
            except Limit:
                with pytest.raises(ValueError, match="refused"):
                    charge("x")
    assert calls == ["x", "x"]


def test_the_same_class_raised_by_the_function_itself_is_a_failure() -> None:
    def charge(i: str) -> None:
        raise Limit("its own")

    charge = guard(charge)
    with limit():
        for _ in range(2):
            with pytest.raises(Limit, match="its own"):
                charge("x")


@pytest.mark.parametrize(("named", "kind"), [((), "unknown"), ((Limit,), "transient")])
def test_a_limit_in_a_jobs_handler_is_unknown_unless_the_job_names_it(named: tuple[Any, ...], kind: str) -> None:
    job: Any = type("Job", (), {"classes": {"transient": named}})()
    with limit(), pytest.raises(Limit) as caught:
        strikes()
    outcome: Any = raised(job, caught.value, SystemClock())
    assert outcome.kind == kind


def test_a_limit_is_not_tried_again_in_the_same_call() -> None:
    calls: list[int] = []

    def charge() -> None:
        calls.append(1)
        strikes()

    with limit(TimeoutError), pytest.raises(TimeoutError, match="soft limit"):
        retrying(tries=3, clock=ManualClock()).call(charge)
    assert calls == [1]


def test_in_another_thread_it_is_known_too() -> None:
    found: list[Any] = []
    job: Any = type("Job", (), {"classes": {}})()
    try:
        within()
    except Limit as error:
        caught = error
        thread = threading.Thread(target=lambda: found.append(raised(job, caught, SystemClock())))
        thread.start()
        thread.join()
    assert found[0].kind == "unknown"


def test_a_limit_as_the_lease_thread_starts_comes_out_as_itself() -> None:
    """After each call that the first guarded call of a process makes to start it; the new thread is ahead by then."""
    files = {call_leases.__file__, threading.__file__}
    events = 0
    for count in itertools.count(1):
        before = threading.enumerate()
        charge, left = guard(lambda i: i), [count]

        def struck_after(
            frame: FrameType, event: str, called: Any, left: list[int] = left, before: Any = before
        ) -> None:
            if event != "c_return" or frame.f_code.co_filename not in files:
                return
            left[0] -= 1
            if left[0] == 0:
                sys.setprofile(None)
                if called.__name__.startswith("start_"):
                    moment, known = threading.Event(), cast("Any", threading)._active
                    while not any(one.name == "onefold-once" and one not in before for one in list(known.values())):
                        moment.wait(0.001)
                strikes()

        with limit():
            sys.setprofile(struck_after)
            try:
                charge("x")
            except Limit:
                events += 1
            finally:
                sys.setprofile(None)
        assert charge("x") == "x"
        if left[0] > 0:
            break
    assert events >= 3
