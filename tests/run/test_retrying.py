"""Retry inside a call: which failures, how often, how long; plain and async; as decorator, loop and call."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.outside import Waiter
from onefold.record.delivery import Backoff
from onefold.runner.retrying import ASK_MS_MAX, Retrying, Try, retrying


class StepClock(ManualClock):
    """A clock on which every wait passes at once, and is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_ms: list[int] = []
        self.woken = False

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        self.waits_ms.append(timeout_ms)
        if self.woken or waiter.wait(0):
            return True
        self.advance(timeout_ms)
        return False


class Flaky:
    """A function that raises these, one after the other, and then answers."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any) -> str:
        self.calls.append(args)
        if len(self.calls) <= len(self.failures):
            raise self.failures[len(self.calls) - 1]
        return f"answer {len(self.calls)}"

    async def later(self, *args: Any) -> str:
        return self(*args)


def exact(clock: ManualClock, **options: Any) -> Retrying:
    options.setdefault("pauses", Backoff(base_ms=50, factor=2.0, cap_ms=5_000, jitter="none"))
    return Retrying(clock=clock, entropy=SeededEntropy(1), **options)


def run_plain(one: Retrying, flaky: Flaky, *args: Any) -> str:
    return one.call(flaky, *args)


def run_async(one: Retrying, flaky: Flaky, *args: Any) -> str:
    return asyncio.run(_awaited(one.call(flaky.later, *args)))


def run_decorated(one: Retrying, flaky: Flaky, *args: Any) -> str:
    @one
    def wrapped(*inner: Any) -> str:
        return flaky(*inner)

    return wrapped(*args)


def run_decorated_async(one: Retrying, flaky: Flaky, *args: Any) -> str:
    @one
    async def wrapped(*inner: Any) -> str:
        return await flaky.later(*inner)

    return asyncio.run(wrapped(*args))


def run_loop(one: Retrying, flaky: Flaky, *args: Any) -> str:
    for turn in one:
        with turn:
            return flaky(*args)
    raise AssertionError("a loop ends by an answer or an exception")


async def _awaited(value: Awaitable[str]) -> str:
    return await value


WAYS = [run_plain, run_async, run_decorated, run_decorated_async, run_loop]
Way = Callable[..., str]


@pytest.mark.parametrize("way", WAYS)
def test_what_fails_for_a_moment_is_tried_again(way: Way) -> None:
    clock, flaky = StepClock(), Flaky(ConnectionRefusedError(), errors.TransientError("busy"))
    assert way(exact(clock), flaky, "a", 1) == "answer 3"
    assert flaky.calls == [("a", 1)] * 3
    assert clock.waits_ms == [50, 100]


@pytest.mark.parametrize("way", WAYS)
def test_what_works_is_called_once(way: Way) -> None:
    clock, flaky = StepClock(), Flaky()
    assert way(exact(clock), flaky) == "answer 1"
    assert clock.waits_ms == []


@pytest.mark.parametrize("way", WAYS)
def test_the_last_failure_is_raised_as_it_was_with_a_note(way: Way) -> None:
    failures = [ConnectionRefusedError(str(number)) for number in range(3)]
    clock, flaky = StepClock(), Flaky(*failures)
    with pytest.raises(ConnectionRefusedError) as caught:
        way(exact(clock), flaky)
    assert caught.value is failures[2]
    assert caught.value.__notes__ == ["onefold: tried 3 times in this call"]
    assert clock.waits_ms == [50, 100]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "failure",
    [
        ValueError("a bug, or half an answer: not known to pass"),
        errors.PermanentError("x"),
        errors.DependencyDown("x"),
        errors.OutcomeUnknown("x"),
        errors.PayloadError("x"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_other_failures_are_raised_at_once(way: Way, failure: Exception) -> None:
    clock, flaky = StepClock(), Flaky(failure)
    with pytest.raises(type(failure)) as caught:
        way(exact(clock), flaky)
    assert caught.value is failure
    assert not hasattr(failure, "__notes__")
    assert len(flaky.calls) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_of_the_process_is_never_swallowed(way: Way) -> None:
    with pytest.raises(KeyboardInterrupt):
        way(exact(StepClock(), on=(BaseException,)), Flaky(KeyboardInterrupt()))


@pytest.mark.parametrize("way", WAYS)
def test_named_classes_are_tried_again_too(way: Way) -> None:
    clock, flaky = StepClock(), Flaky(KeyError("x"), ValueError("y"))
    assert way(exact(clock, on=(LookupError, "ValueError")), flaky) == "answer 3"


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_answer_is_repeated_only_where_that_is_welcome(way: Way) -> None:
    assert way(exact(StepClock()), Flaky(TimeoutError())) == "answer 2"
    with pytest.raises(TimeoutError):
        way(exact(StepClock(), sent="unknown"), Flaky(TimeoutError()))


@pytest.mark.parametrize("way", WAYS)
def test_one_try_is_no_retry(way: Way) -> None:
    failure = ConnectionRefusedError()
    with pytest.raises(ConnectionRefusedError):
        way(exact(StepClock(), tries=1), Flaky(failure))
    assert not hasattr(failure, "__notes__")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("left_ms", "waits_ms"), [(151, [50, 100]), (150, [50]), (51, [50]), (50, []), (0, [])])
def test_no_wait_passes_the_time_that_is_left(way: Way, left_ms: int, waits_ms: list[int]) -> None:
    clock, flaky = StepClock(), Flaky(*[ConnectionRefusedError() for _ in range(9)])
    with pytest.raises(ConnectionRefusedError) as caught:
        way(exact(clock, remaining_ms=lambda: left_ms - clock.monotonic_ms()), flaky)
    assert clock.waits_ms == waits_ms
    if len(waits_ms) < 2:
        assert "ms is too long to wait here" in caught.value.__notes__[0]


def test_without_a_limit_nothing_is_cut_short() -> None:
    assert run_plain(exact(StepClock(), remaining_ms=lambda: None), Flaky(ConnectionRefusedError())) == "answer 2"


@pytest.mark.parametrize("way", WAYS)
def test_a_longer_pause_that_was_asked_for_is_kept(way: Way) -> None:
    clock = StepClock()
    way(
        exact(clock),
        Flaky(errors.TransientError("x", retry_in_ms=700), errors.TransientError("x", retry_in_ms=7)),
    )
    assert clock.waits_ms == [700, 100]


@pytest.mark.parametrize(("asked_ms", "tried"), [(ASK_MS_MAX, True), (ASK_MS_MAX + 1, False)])
def test_a_pause_too_long_for_a_call_is_left_to_the_job(asked_ms: int, tried: bool) -> None:
    clock, flaky = StepClock(), Flaky(errors.TransientError("x", retry_in_ms=asked_ms))
    if tried:
        assert run_plain(exact(clock), flaky) == "answer 2"
        return
    with pytest.raises(errors.TransientError) as caught:
        run_plain(exact(clock), flaky)
    assert "10001 ms is too long to wait here" in caught.value.__notes__[0]


@pytest.mark.parametrize("way", WAYS)
def test_who_is_woken_while_waiting_raises(way: Way) -> None:
    stop = threading.Event()
    stop.set()
    clock, flaky = StepClock(), Flaky(ConnectionRefusedError())
    with pytest.raises(ConnectionRefusedError):
        way(exact(clock, stop=stop), flaky)
    assert len(flaky.calls) == 1


def test_a_coroutine_waits_as_it_is_told() -> None:
    waits_ms: list[int] = []

    async def wait(pause_ms: int) -> None:
        waits_ms.append(pause_ms)

    clock = StepClock()
    assert run_async(exact(clock, async_wait=wait), Flaky(ConnectionRefusedError())) == "answer 2"
    assert (waits_ms, clock.waits_ms) == ([50], [])


def test_a_cancelled_coroutine_leaves_no_thread_waiting() -> None:
    waiting = threading.Event()

    class Waiting(ManualClock):
        def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
            waiting.set()
            return waiter.wait(60)  # only a set event ends it

    async def cancelled() -> None:
        task = asyncio.ensure_future(_awaited(exact(Waiting()).call(Flaky(ConnectionRefusedError()).later)))
        await asyncio.to_thread(waiting.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())  # would hang for a minute joining the executor's threads


def test_the_pauses_are_spread_and_repeat_for_one_seed() -> None:
    waits_ms = []
    for _ in range(2):
        clock = StepClock()
        run_plain(
            Retrying(clock=clock, entropy=SeededEntropy(5)),
            Flaky(ConnectionRefusedError(), ConnectionRefusedError()),
        )
        waits_ms.append(clock.waits_ms)
    assert waits_ms[0] == waits_ms[1]
    assert 25 <= waits_ms[0][0] < 75
    assert 50 <= waits_ms[0][1] < 150


def test_a_loop_shows_its_turns_and_ends_without_a_failure() -> None:
    clock, numbers = StepClock(), []
    for turn in exact(clock, tries=5):
        with turn as same:
            assert isinstance(same, Try)
            assert same is turn
            numbers.append(turn.number)
            if turn.number < 3:
                raise ConnectionRefusedError
    assert numbers == [1, 2, 3]
    assert clock.waits_ms == [50, 100]


def test_a_decorated_function_keeps_its_name() -> None:
    @exact(StepClock())
    def quote(order: str) -> str:
        """Ask for a price."""
        return order

    @exact(StepClock())
    async def quote_later(order: str) -> str:
        return order

    assert (quote.__name__, quote.__doc__, quote("a")) == ("quote", "Ask for a price.", "a")
    assert inspect.iscoroutinefunction(quote_later)


def test_the_public_function_has_the_articles_defaults() -> None:
    assert onefold.retrying is retrying
    clock = StepClock()
    one = retrying(clock=clock, entropy=SeededEntropy(1))
    with pytest.raises(ConnectionRefusedError):
        one.call(Flaky(*[ConnectionRefusedError()] * 9))
    assert len(clock.waits_ms) == 2
    tuned = retrying(
        tries=4,
        base="1s",
        factor=3,
        cap="2s",
        jitter="none",
        on=(KeyError,),
        clock=clock,
        entropy=SeededEntropy(1),
    )
    clock.waits_ms.clear()
    with pytest.raises(KeyError):
        tuned.call(Flaky(*[KeyError("x")] * 9))
    assert clock.waits_ms == [1_000, 2_000, 2_000]


def test_without_a_clock_it_takes_the_machines() -> None:
    assert retrying(base="0s").call(Flaky(ConnectionRefusedError())) == "answer 2"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tries": 0}, "tries=0 is out of range"),
        ({"base": "fast"}, "base='fast' is not a duration"),
        ({"base": "10s"}, "first pause of 10s"),
        ({"factor": 0}, "factor=0"),
        ({"jitter": "some"}, "jitter='some'"),
        ({"on": ("not a name",)}, "not an exception class"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared(options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        retrying(**options)
