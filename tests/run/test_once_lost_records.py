"""A guarded call whose record goes while it runs, as in a Redis that is flushed or evicts: what is kept and what is said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.contracts.store import RecordKey
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.outside import Waiter
from tests.run.bench import Elsewhere, Fault, Faulty

KEY = RecordKey("", "pay", "a")
LEASE_MS = 60_000
PATIENCE_S = 60.0


class Clock(ManualClock):
    """Says when the thread that renews leases waits, and when a duplicate does; ends its waits with the test."""

    def __init__(self) -> None:
        super().__init__()
        self.rests, self.waits, self.over = threading.Event(), threading.Event(), threading.Event()
        self.jumps = False  # short waits let the time pass by themselves

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        if self.jumps and timeout_ms <= 1_600:
            self.advance(timeout_ms)
            return False
        (self.rests if timeout_ms > 1_600 else self.waits).set()
        return super().wait(_Either(waiter, self.over), timeout_ms)

    def beat(self) -> None:
        """Let the thread that renews look once."""
        assert self.rests.wait(PATIENCE_S)
        self.rests.clear()
        self.advance(LEASE_MS // 3)
        assert self.rests.wait(PATIENCE_S)


class _Either:
    def __init__(self, waiter: Waiter, over: threading.Event) -> None:
        self._waiter, self._over = waiter, over

    def wait(self, timeout_s: float) -> bool:
        return self._over.is_set() or self._waiter.wait(timeout_s)


class Till:
    """A file of records that can be flushed, and guarded functions on it, each as if in a process of its own."""

    is_quick = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.engine = SqliteEngine(
            ":memory:", clock=clock, entropy=SeededEntropy(0), owner="test", url="sqlite://:memory:"
        )
        self.events: list[onefold.Event] = []
        self._seeds = iter(range(1, 100))

    def flush(self) -> None:
        self.engine.database.write(lambda connection: connection.execute("DELETE FROM onefold_record"))

    def record(self) -> Any:
        return self.engine.store.read([KEY], self.clock.now_ms())[0]

    def rows(self) -> list[str]:
        return [row.event for row in self.engine.ledger.of_key(KEY)]

    def emit(self, event: onefold.Event) -> None:
        self.events.append(event)

    def guard(self, function: Callable[..., Any], store: Any = None, **options: Any) -> Any:
        once: Any = onefold.once
        own = {"key": "{i}", "name": "pay", "store": store or Elsewhere(self.engine.store), "clock": self.clock}
        own["entropy"] = SeededEntropy(next(self._seeds))
        return once(**own | options)(function)


@pytest.fixture
def till() -> Iterator[Till]:
    clock, before = Clock(), threading.enumerate()
    till = Till(clock)
    yield till
    clock.over.set()
    for thread in threading.enumerate():
        if thread.name == "onefold-once" and thread not in before:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    till.engine.close()


@pytest.mark.parametrize("on_unknown", ["rerun", "hold"])
@pytest.mark.parametrize("followed", [False, True])
def test_a_call_whose_record_is_gone_is_recorded_all_the_same(
    till: Till, caplog: pytest.LogCaptureFixture, on_unknown: str, *, followed: bool
) -> None:
    calls: list[str] = []

    def pay(i: str) -> str:
        calls.append(i)
        till.flush()
        return i

    options: dict[str, Any] = {"on_unknown": on_unknown, "sinks": [till] if followed else []}
    assert till.guard(pay, **options)("a") == "a"
    assert till.guard(pay, **options)("a") == "a"  # in another process: answered
    assert calls == ["a"]
    assert till.record().status == "completed"
    assert till.rows() == ["record-gone"]
    assert caplog.text.count("pay 'a': its record disappeared from the store while it ran") == 1
    assert [event.name for event in till.events] == (["record-gone", "completed", "duplicate"] if followed else [])


def test_arguments_are_compared_after_a_record_was_put_back(till: Till) -> None:
    def pay(i: str, amount: int) -> None:
        till.flush()

    till.guard(pay)("a", 1)
    with pytest.raises(errors.ConflictError):
        till.guard(pay)("a", 2)


def test_a_call_that_another_one_took_over_after_its_record_was_gone_stays_lost(till: Till) -> None:
    other = till.guard(lambda i: "other")

    def pay(i: str) -> str:
        till.flush()
        assert other(i) == "other"
        return "own"

    with pytest.raises(errors.LeaseLost, match="had been taken over"):
        till.guard(pay)("a")
    assert other("a") == "other"


def test_a_call_that_runs_elsewhere_after_the_record_was_gone_is_left_alone(till: Till) -> None:
    """The record of who claimed in between is another's, whatever its fence."""
    store, seen = till.engine.store, []

    def other(i: str) -> str:
        seen.append(till.record())
        with pytest.raises(errors.LeaseLost, match="had been taken over"):
            finish()
        assert till.record() == seen[0]
        return "other"

    outer: list[Any] = []

    def finish() -> None:
        outer[0].set()
        outer[1].result(PATIENCE_S)

    ended = threading.Event()
    started = threading.Event()

    def pay(i: str) -> str:
        started.set()
        assert ended.wait(PATIENCE_S)
        return "own"

    with ThreadPoolExecutor(1) as pool:
        outer += [ended, pool.submit(till.guard(pay), "a")]
        assert started.wait(PATIENCE_S)
        till.flush()
        assert till.guard(other)("a") == "other"
    assert store.read([KEY], till.clock.now_ms())[0].result == b'"other"'  # type: ignore[union-attr]


def test_a_record_that_is_gone_is_put_back_while_the_call_runs(till: Till, caplog: pytest.LogCaptureFixture) -> None:
    """From the next renewal on, a second call meets the first as before."""
    other = till.guard(lambda i: "other", on_running="raise")

    def pay(i: str) -> str:
        till.flush()
        till.clock.beat()
        with pytest.raises(errors.TransientError, match="already running"):
            other(i)
        till.clock.beat()
        return "own"

    assert till.guard(pay)("a") == "own"
    assert other("a") == "own"
    assert caplog.text.count("its record disappeared") == 1
    assert "taken it over" not in caplog.text


def test_the_function_is_told_of_no_lost_lease_where_its_record_was_put_back(till: Till) -> None:
    seen: list[bool] = []

    def pay(i: str, ctx: onefold.Context | None = None) -> None:
        assert ctx is not None
        till.flush()
        till.clock.beat()
        seen.append(ctx.lease_lost)
        ctx.check()

    till.guard(pay, sinks=[till])("a")
    assert seen == [False]
    assert [event.name for event in till.events] == ["record-gone", "completed"]


def test_a_lease_that_was_seen_with_another_stays_lost_when_that_record_goes_too(till: Till) -> None:
    other = till.guard(lambda i: "other", lease="90s")

    def pay(i: str) -> str:
        till.flush()
        assert other(i) == "other"
        till.clock.beat()
        till.flush()
        return "own"

    with pytest.raises(errors.LeaseLost, match="had been taken over"):
        till.guard(pay)("a")
    assert till.record() is None


def test_a_second_call_of_the_same_process_waits_for_the_first_whose_record_was_gone(till: Till) -> None:
    """Its claim is the first one's to the letter: owner and fence are equal."""
    calls: list[str] = []
    started, go_on = threading.Event(), threading.Event()

    def pay(i: str) -> int:
        calls.append(i)
        started.set()
        assert go_on.wait(PATIENCE_S)
        return len(calls)

    guarded = till.guard(pay)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(guarded, "a")
        assert started.wait(PATIENCE_S)
        till.flush()
        second = pool.submit(guarded, "a")
        assert till.clock.waits.wait(PATIENCE_S)
        go_on.set()
        assert first.result(PATIENCE_S) == 1
        till.clock.advance(100)
        assert second.result(PATIENCE_S) == 1
    assert calls == ["a"]


def test_a_call_within_itself_is_refused_also_when_its_record_was_gone(till: Till) -> None:
    def pay(i: str) -> None:
        till.flush()
        guarded(i)

    guarded = till.guard(pay)
    with pytest.raises(errors.UsageError, match="within its own call"):
        guarded("a")


def test_a_failed_call_whose_record_is_gone_leaves_its_failure(till: Till) -> None:
    def pay(i: str) -> str:
        till.flush()
        raise ValueError(i)

    with pytest.raises(ValueError, match="a") as caught:
        till.guard(pay)("a")
    assert not hasattr(caught.value, "__notes__")
    assert (till.record().status, till.record().failure.error) == ("failed", "ValueError")
    assert till.rows() == ["record-gone", "failed"]


def test_a_result_that_cannot_be_stored_is_held_although_the_record_was_gone(till: Till) -> None:
    def pay(i: str) -> object:
        till.flush()
        return object()

    with pytest.raises(errors.PayloadError):
        till.guard(pay)("a")
    assert till.record().parked
    with pytest.raises(errors.OutcomeUnknown):
        till.guard(pay)("a")


def test_an_unknown_outcome_is_kept_although_the_record_was_gone(till: Till) -> None:
    """Nothing but that record has the next call held."""

    def pay(i: str) -> object:
        till.flush()
        raise errors.OutcomeUnknown("sent, not answered")

    for _ in range(2):
        with pytest.raises(errors.OutcomeUnknown):
            till.guard(pay, on_unknown="hold")("a")
        assert till.record().parked


@pytest.mark.parametrize("times", [1, 3])
def test_a_store_that_is_busy_when_the_record_is_to_be_put_back_is_asked_again(till: Till, times: int) -> None:
    till.clock.jumps = True

    def pay(i: str) -> str:
        till.flush()
        return i

    store: Any = Faulty(till.engine.store, "store", Fault("store.restore", times=times), [])
    assert till.guard(pay, store)("a") == "a"
    assert till.record().status == "completed"


def test_a_record_that_cannot_be_put_back_is_said_to_be_missing(till: Till) -> None:
    till.clock.jumps = True

    def pay(i: str) -> str:
        till.flush()
        return i

    store: Any = Faulty(till.engine.store, "store", Fault("store.restore", times=100), [])
    with pytest.raises(errors.OutcomeUnknown, match="took effect, but its record could not be written"):
        till.guard(pay, store)("a")
    assert till.record() is None


def test_a_record_that_was_put_back_without_an_answer_takes_the_result(till: Till) -> None:
    till.clock.jumps = True

    def pay(i: str) -> str:
        till.flush()
        return i

    store: Any = Faulty(till.engine.store, "store", Fault("store.restore", times=100, side="after"), [])
    assert till.guard(pay, store)("a") == "a"
    assert till.record().status == "completed"


def test_a_coroutine_whose_record_is_gone_is_recorded_all_the_same(till: Till) -> None:
    calls: list[str] = []

    async def pay(i: str) -> str:
        calls.append(i)
        till.flush()
        return i

    assert [asyncio.run(till.guard(pay)("a")) for _ in range(2)] == ["a", "a"]
    assert calls == ["a"]


def test_a_later_call_keeps_its_fence_when_its_record_is_put_back(till: Till) -> None:
    def fails(i: str) -> str:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):  # noqa: PT011 - without a text
            till.guard(fails)("a")

    def pay(i: str) -> str:
        till.flush()
        return i

    till.guard(pay)("a")
    assert (till.record().fence, till.record().attempts) == (3, 3)
