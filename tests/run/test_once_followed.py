"""Calls of a guarded function as the runner's deliveries: their events, probes and contexts, and what interrupts them."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.contracts.store import Complete, RecordKey
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.outside import Waiter
from tests.run.bench import Elsewhere, Fault, Faulty

LEASE_MS = 60_000
THIRD_MS = LEASE_MS // 3


class Ticking(ManualClock):
    """A manual clock that says when the thread of leases waits for the next third of a lease."""

    def __init__(self) -> None:
        super().__init__()
        self.rests = threading.Event()
        self.over = threading.Event()

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        """Say so, then wait; short waits let the time pass by themselves."""
        if timeout_ms < 1_000:
            self.advance(timeout_ms)
            return False
        self.rests.set()
        return super().wait(_Either(waiter, self.over), timeout_ms)


class _Either:
    def __init__(self, waiter: Waiter, over: threading.Event) -> None:
        self._waiter, self._over = waiter, over

    def wait(self, timeout_s: float) -> bool:
        return self._over.is_set() or self._waiter.wait(timeout_s)


class Desk:
    """Guarded functions on one store, each as if in a process of its own, and what they report."""

    is_quick = True

    def __init__(self, clock: Ticking) -> None:
        self.clock = clock
        self.store: Any = onefold.memory_store()
        self.events: list[onefold.Event] = []
        self._seeds = iter(range(1_000))

    def emit(self, event: onefold.Event) -> None:
        self.events.append(event)

    def names(self) -> list[str]:
        found = [event.name for event in self.events]
        self.events.clear()
        return found

    def guard(self, function: Callable[..., Any], **options: Any) -> Any:
        elsewhere: Any = Elsewhere(self.store)
        own: dict[str, Any] = {"key": "{order}", "name": "charge", "clock": self.clock, "sinks": [self]}
        own |= {"store": elsewhere, "entropy": SeededEntropy(next(self._seeds))}
        once: Any = onefold.once
        return once(**own | options)(function)

    def die(self, **options: Any) -> None:
        """A call that starts, of which nothing is heard any more."""

        class Dead(BaseException):
            pass

        def work(order: str) -> None:
            raise Dead

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("onefold.runner.guarded.GuardedFunction.failed", lambda *_: None)
            patch.setattr("onefold.runner.call_leases.LeaseKeeper.add", lambda *_: True)
            with pytest.raises(Dead):
                self.guard(work, **options)("o-1")
        self.clock.advance(LEASE_MS)

    def record(self, order: str = "o-1") -> Any:
        return self.store.read([RecordKey("", "charge", order)], self.clock.now_ms())[0]


@pytest.fixture
def desk() -> Iterator[Desk]:
    clock = Ticking()
    before = threading.enumerate()
    yield Desk(clock)
    clock.over.set()
    for thread in threading.enumerate():
        if thread.name == "onefold-once" and thread not in before:
            thread.join(30)
            assert not thread.is_alive()


# -- events ----------------------------------------------------------------------------------------------------------


def test_sinks_receive_the_events_of_calls(desk: Desk) -> None:
    ways: list[BaseException | None] = [ValueError("no"), None]

    def work(order: str, cents: int) -> str:
        way = ways.pop(0)
        if way is not None:
            raise way
        return "charged"

    charge = desk.guard(work)
    with pytest.raises(ValueError, match="no"):
        charge("o-1", 5)
    (failed,) = desk.events
    assert (failed.name, failed.key, failed.queue, failed.message_id) == (
        "failed", RecordKey("", "charge", "o-1"), None, None,
    )  # fmt: skip
    assert (failed.detail["error"], failed.detail["attempt"], failed.detail["fence"]) == ("ValueError", 1, 1)
    assert failed.severity == "warning"
    desk.events.clear()
    assert charge("o-1", 5) == charge("o-1", 5) == "charged"
    with pytest.raises(onefold.errors.ConflictError):
        charge("o-1", 6)
    assert desk.names() == ["completed", "duplicate", "conflict"]


def test_an_unknown_outcome_that_is_held_is_reported_and_so_is_who_comes_after(desk: Desk) -> None:
    def work(order: str) -> None:
        raise onefold.OutcomeUnknown("sent, no answer")

    charge = desk.guard(work, on_unknown="hold")
    for names in (["unknown", "held"], ["held"]):
        with pytest.raises(onefold.OutcomeUnknown):
            charge("o-1")
        assert desk.names() == names


def test_a_call_that_meets_a_running_one_is_reported_once(desk: Desk) -> None:
    def work(order: str) -> str:
        other = threading.Thread(target=wait, args=[order])
        other.start()
        other.join(30)
        return "charged"

    def wait(order: str) -> None:
        with pytest.raises(onefold.TransientError, match="This call has waited 1s"):
            desk.guard(lambda order: "never", wait="1s")(order)

    assert desk.guard(work)("o-1") == "charged"
    assert desk.names() == ["running-elsewhere", "completed"]


def test_deaths_are_reported_with_the_claim_and_after_so_many_the_key_is_held(desk: Desk) -> None:
    for _ in range(2):
        desk.die(crashes=2)
    assert desk.names() == ["takeover", "unknown"]  # of the first, by the second
    charge = desk.guard(lambda order: "charged", crashes=2)
    with pytest.raises(onefold.OutcomeUnknown, match="crashes is 2"):
        charge("o-1")
    assert desk.names() == ["takeover", "held"]
    assert (desk.record().parked, desk.record().crashes) == (True, 2)


def test_a_record_that_cannot_be_written_is_the_loudest_event(desk: Desk) -> None:
    faulty: Any = Faulty(desk.store, "store", Fault("store.write", times=100), [])
    charge = desk.guard(lambda order: "charged", store=faulty)
    with pytest.raises(onefold.OutcomeUnknown, match="took effect, but its record could not be written"):
        charge("o-1")
    assert [(event.name, event.severity) for event in desk.events] == [("completion-failed", "critical")]


@pytest.mark.parametrize("followed", [False, True])
def test_a_result_that_the_store_refuses_for_good_is_held_and_not_run_again(desk: Desk, followed: bool) -> None:
    """As DynamoDB refuses an item of more than 400 KB: the effect has happened, and only a person can say so."""
    ran: list[str] = []
    real: Any = Elsewhere(desk.store)

    class Narrow(Elsewhere):
        def write(self, writes: Any, now_ms: int) -> Any:
            if any(isinstance(outcome, Complete) for _, outcome in writes):
                raise errors.UsageError("The record is larger than 400 KB.", todo="Return less.")
            return real.write(writes, now_ms)

    def work(order: str) -> str:
        ran.append(order)
        return "charged"

    narrow: Any = Narrow(desk.store)
    charge = desk.guard(work, store=narrow, sinks=[desk] if followed else ())
    with pytest.raises(onefold.OnefoldError, match="larger than 400 KB"):
        charge("o-1")
    assert (desk.record().status, desk.record().parked) == ("unknown", True)
    desk.clock.advance(2 * LEASE_MS)
    with pytest.raises(onefold.OutcomeUnknown, match="larger than 400 KB"):
        charge("o-1")
    assert ran == ["o-1"]


def test_a_sink_that_raises_does_not_fail_the_call(desk: Desk) -> None:
    class Broken:
        def emit(self, event: onefold.Event) -> None:
            raise LookupError(event.name)

    assert desk.guard(lambda order: "charged", sinks=[Broken()])("o-1") == "charged"
    assert desk.record().status == "completed"


def test_a_sink_that_is_none_is_refused(desk: Desk) -> None:
    with pytest.raises(onefold.errors.UsageError, match="sinks="):
        desk.guard(lambda order: "charged", sinks=[object()])


# -- probes ----------------------------------------------------------------------------------------------------------


def test_a_probe_that_finds_the_effect_answers_the_call(desk: Desk) -> None:
    desk.die()
    asked: list[tuple[str, int]] = []
    ran: list[str] = []

    def probe(order: str, cents: int = 5) -> onefold.Done:
        asked.append((order, cents))
        return onefold.Done({"charge": cents})

    def work(order: str) -> Any:
        ran.append(order)

    charge = desk.guard(work, on_unknown=probe)
    assert charge("o-1") == {"charge": 5}
    assert desk.names() == ["takeover", "probe", "completed"]
    assert charge("o-1") == {"charge": 5}
    assert (asked, ran, desk.record().status) == ([("o-1", 5)], [], "completed")


def test_a_probe_that_finds_nothing_lets_the_call_run(desk: Desk) -> None:
    desk.die()
    assert desk.guard(lambda order: "charged", on_unknown=lambda order: onefold.NotDone())("o-1") == "charged"
    assert desk.names() == ["takeover", "probe", "completed"]
    assert (desk.record().attempts, desk.record().fence) == (2, 2)


def test_a_probe_that_cannot_tell_has_the_call_held(desk: Desk) -> None:
    desk.die()
    charge = desk.guard(lambda order: "charged", on_unknown=lambda order: onefold.StillUnknown("no log of that day"))
    with pytest.raises(onefold.OutcomeUnknown, match="no log of that day"):
        charge("o-1")
    assert desk.names() == ["takeover", "probe", "unknown", "held"]
    assert desk.record().parked


def test_a_probe_that_fails_for_now_is_asked_again(desk: Desk) -> None:
    desk.die()
    answers: list[Any] = [ConnectionRefusedError("not now"), onefold.Done("found")]

    def probe(order: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    charge = desk.guard(lambda order: "charged", on_unknown=probe)
    with pytest.raises(
        onefold.TransientError, match="was not called: The probe failed: ConnectionRefusedError"
    ) as caught:
        charge("o-1")
    assert caught.value.retry_in_ms
    assert desk.record().status == "unknown"
    assert charge("o-1") == "found"


def test_a_probe_may_be_a_coroutine_and_so_may_the_function(desk: Desk) -> None:
    desk.die()

    async def probe(order: str) -> onefold.Done:
        return onefold.Done("found")

    async def work(order: str) -> str:
        return "charged"

    charge = desk.guard(work, on_unknown=probe)
    assert asyncio.run(charge("o-1")) == "found"
    assert asyncio.run(charge("o-2")) == "charged"


# -- contexts --------------------------------------------------------------------------------------------------------


def test_a_function_that_asks_for_its_context_gets_it(desk: Desk) -> None:
    seen: list[onefold.Context] = []

    def work(order: str, ctx: onefold.Context | None = None) -> str:
        assert ctx is not None
        seen.append(ctx)
        if len(seen) == 1:
            raise ValueError
        return "charged"

    charge = desk.guard(work, sinks=())
    with pytest.raises(ValueError):  # noqa: PT011 - without a text
        charge("o-1")
    assert charge("o-1") == charge(order="o-1") == "charged"
    first, second = seen
    assert [(ctx.job, ctx.key, ctx.fence, ctx.attempt) for ctx in seen] == [
        ("charge", "o-1", 1, 1), ("charge", "o-1", 2, 2),
    ]  # fmt: skip
    assert first.idempotency_key == second.idempotency_key
    assert (second.message, second.remaining_ms, second.lease_lost) == (None, None, False)
    second.check()


def test_a_context_without_default_may_be_left_out_and_one_that_is_given_is_taken(desk: Desk) -> None:
    seen: list[object] = []

    def work(order: str, ctx: onefold.Context) -> str:
        seen.append(ctx)
        return "charged"

    charge = desk.guard(work)
    mine: Any = object()
    assert [charge("o-1"), charge("o-2", mine), charge("o-3", ctx=mine)] == ["charged"] * 3
    assert isinstance(seen[0], onefold.Context)
    assert seen[1:] == [mine, mine]


def test_a_context_before_other_parameters_is_refused(desk: Desk) -> None:
    def work(ctx: onefold.Context, order: str) -> None: ...

    with pytest.raises(onefold.errors.UsageError, match="comes before other parameters"):
        desk.guard(work)


def test_a_calls_context_has_no_outbox(desk: Desk) -> None:
    app = onefold.App("shop")
    queue = app.queue("mails")

    @app.job(queue, key="{order}")
    def mail(payload: dict[str, str]) -> None: ...

    def work(order: str, ctx: onefold.Context | None = None) -> None:
        assert ctx is not None
        with pytest.raises(onefold.errors.UsageError, match="has no outbox"):
            ctx.send(mail, {"order": order})

    desk.guard(work)("o-1")
    assert desk.record().status == "completed"


def test_a_coroutine_gets_its_context(desk: Desk) -> None:
    async def work(order: str, ctx: onefold.Context | None = None) -> int:
        assert ctx is not None
        return ctx.fence

    assert asyncio.run(desk.guard(work)("o-1")) == 1


def test_a_lease_that_is_lost_is_seen_in_the_context_and_reported_once(desk: Desk) -> None:
    second = desk.guard(lambda order: "second", name="charge", sinks=(), lease="90s")

    def work(order: str, ctx: onefold.Context | None = None) -> str:
        assert ctx is not None
        assert desk.clock.rests.wait(30)
        desk.clock.jump(LEASE_MS)
        assert second(order) == "second"
        while not ctx.lease_lost:
            desk.clock.rests.clear()
            desk.clock.advance(THIRD_MS)
            assert desk.clock.rests.wait(30)
        with pytest.raises(onefold.errors.LeaseLost):
            ctx.check()
        return "first"

    with pytest.raises(onefold.errors.LeaseLost, match="had been taken over"):
        desk.guard(work)("o-1")
    assert desk.names() == ["lease-lost"]


# -- signals ---------------------------------------------------------------------------------------------------------

PACKAGE = str(Path(onefold.__file__).parent)


class Alarmed(Exception):
    """Out of a signal's handler."""


@pytest.mark.parametrize("way", ["plain", "followed", "context"])
@pytest.mark.parametrize("kind", [Alarmed, KeyboardInterrupt])
def test_an_exception_of_a_signal_at_any_place_leaves_the_key_free_or_its_effect_recorded(
    request: pytest.FixtureRequest, desk: Desk, kind: type[BaseException], way: str
) -> None:
    ran: list[str] = []

    def plain(order: str) -> str:
        ran.append(order)
        return "charged"

    def with_context(order: str, ctx: onefold.Context | None = None) -> str:
        assert ctx is not None
        ran.append(order)
        return "charged"

    charge = desk.guard(with_context if way == "context" else plain, sinks=[desk] if way == "followed" else ())
    assert charge("first") == "charged"  # its name is taken, its thread of leases runs
    left, where = 0, ""

    def handler(_number: int, _frame: types.FrameType | None) -> None:
        raise kind

    def profile(frame: types.FrameType, event: str, _arg: object) -> None:
        """Where Python looks for signals: as a function of ours begins, and after it has called one written in C."""
        nonlocal left, where
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            left -= 1
            if left == 0:
                where = f"{event} in {frame.f_code.co_filename}, {frame.f_code.co_name}, line {frame.f_lineno}"
                sys.setprofile(None)
                handler(signal.SIGUSR1, frame)

    before = signal.signal(signal.SIGUSR1, handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    places: set[str] = set()
    for number in range(1, 2_000):
        left, where, order = number, "", f"o-{number}"
        ran.clear()
        sys.setprofile(profile)
        try:
            charge(order)
        except kind:
            pass
        finally:
            sys.setprofile(None)
        found = desk.record(order)
        if ran:
            assert found.status == "completed", where
        else:
            assert found is None or found.status in ("released", "failed", "unknown"), where
        assert charge(order) == "charged", where
        assert ran == [order], where
        if left > 0:
            break
        places.add(where)
    assert len(places) > 60


# -- leases that are over before the call ------------------------------------------------------------------------------


class Slow:
    """A store whose answer to the first claims comes after so long: the process stood still, or the store did."""

    def __init__(self, desk: Desk, stands_ms: int, meanwhile: Callable[[], object], times: int = 1) -> None:
        self._desk, self._stands_ms, self._meanwhile, self._left = desk, stands_ms, meanwhile, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk.store, name)

    def claim(self, *args: Any) -> Any:
        """Claim, then let the time pass."""
        found = self._desk.store.claim(*args)
        if self._left:
            self._left -= 1
            self._desk.clock.advance(self._stands_ms)
            self._meanwhile()
        return found


def _both(desk: Desk, is_async: bool, ran: list[str], **options: Any) -> Callable[[], object]:
    if is_async:

        async def late(order: str) -> str:
            ran.append("late")
            return "late"

        guarded = desk.guard(late, **options)
        return lambda: asyncio.run(guarded("o-1"))

    def charge(order: str) -> str:
        ran.append("late")
        return "late"

    return lambda: desk.guard(charge, **options)("o-1")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_call_whose_lease_was_over_before_it_began_is_not_made_beside_anothers(
    desk: Desk, is_async: bool, sinks: bool
) -> None:
    """It stood still between its claim and the call; another has taken over by then, and its result is the answer."""
    ran: list[str] = []

    def takes_over(order: str) -> str:
        ran.append("other")
        return "other"

    slow = Slow(desk, LEASE_MS, lambda: desk.guard(takes_over)("o-1"))
    call = _both(desk, is_async, ran, store=slow, sinks=[desk] if sinks else [])
    assert call() == "other"
    assert ran == ["other"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_nobody_took_over_meanwhile_is_claimed_again_and_made_once(desk: Desk, is_async: bool) -> None:
    ran: list[str] = []
    call = _both(desk, is_async, ran, store=Slow(desk, LEASE_MS, lambda: None), on_unknown="hold")
    assert call() == "late"
    assert ran == ["late"]
    assert (desk.record().fence, desk.record().attempts, desk.record().crashes) == (2, 1, 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lease_that_is_over_three_times_before_its_call_is_an_error_and_the_key_is_free(
    desk: Desk, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.runner.call_leases.LeaseKeeper._renew_all", lambda _: None)  # else it may win the race
    ran: list[str] = []
    call = _both(desk, is_async, ran, store=Slow(desk, LEASE_MS, lambda: None, times=3))
    with pytest.raises(errors.TransientError, match="3 times in a row its lease of 1m was over before the call"):
        call()
    assert ran == []
    assert desk.record().status == "released"
    assert call() == "late"


def test_a_probe_is_not_asked_under_a_lease_that_is_over(desk: Desk) -> None:
    asked: list[str] = []

    def probe(order: str) -> onefold.NotDone:
        asked.append(desk.record().owner)
        return onefold.NotDone()

    ran: list[str] = []
    desk.die(on_unknown=probe)
    call = _both(desk, False, ran, store=Slow(desk, LEASE_MS, lambda: None), on_unknown=probe)
    assert call() == "late"
    assert (len(asked), ran) == (1, ["late"])


def test_a_probe_that_takes_longer_than_a_lease_keeps_it(desk: Desk) -> None:
    def probe(order: str) -> onefold.NotDone:
        for _ in range(4):
            assert desk.clock.rests.wait(30)
            desk.clock.rests.clear()
            desk.clock.advance(THIRD_MS)
        assert desk.clock.rests.wait(30)
        return onefold.NotDone()

    desk.die(on_unknown=probe)
    ran: list[str] = []
    assert _both(desk, False, ran, on_unknown=probe)() == "late"
    assert ran == ["late"]
