"""The guard alone, around plain functions: the same promise without queue and worker, sync and async, on two stores.

Threads are met at events, never at times; the clock moves when a test moves it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from decimal import Decimal
from typing import Any, cast

import pytest

import onefold
from onefold import errors
from onefold.clock import SteadyClock
from onefold.contracts.store import Claimed, Hold, RecordKey
from onefold.contracts.verbs import Store
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.outside import Waiter
from onefold.runner.call_leases import KeptCall, LeaseKeeper
from tests.run.bench import Elsewhere, Fault, Faulty

PATIENCE_S = 60.0  # a test that waits so long has failed
LEASE_MS = 60_000
KEY = RecordKey("", "charge", "o-1")


class Watched(ManualClock):
    """A manual clock; says when somebody waits on it for so long, and lets everybody go when the test is over.

    Attributes:
        waits: how long, for waits below a second. jumps: such a wait lets the time pass by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waited = {100: threading.Event(), LEASE_MS // 3: threading.Event()}
        self.waits: list[int] = []
        self.jumps = False
        self.over = threading.Event()

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        """Tell, then wait."""
        if timeout_ms < 1_000:
            self.waits.append(timeout_ms)
            if self.jumps:
                self.advance(timeout_ms)
        if timeout_ms in self.waited:
            self.waited[timeout_ms].set()
        return super().wait(Either(waiter, self.over), 0 if self.jumps and timeout_ms < 1_000 else timeout_ms)


class Either:
    """Woken by the one or by the other."""

    def __init__(self, waiter: Waiter, over: threading.Event) -> None:
        self._waiter = waiter
        self._over = over

    def wait(self, timeout_s: float) -> bool:
        return self._over.is_set() or self._waiter.wait(timeout_s)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield onefold.memory_store()
        return
    engine = SqliteEngine(
        ":memory:", clock=ManualClock(), entropy=SeededEntropy(0), owner="test", url="sqlite://:memory:"
    )
    yield engine.store
    engine.close()


@pytest.fixture
def clock() -> Iterator[Watched]:
    watched, before = Watched(), threading.enumerate()
    yield watched
    watched.over.set()
    for thread in threading.enumerate():
        if thread.name == "onefold-once" and thread not in before:  # another file's guard may wait for an hour
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def guard(store: Store, clock: Watched) -> Callable[..., Any]:
    """A decorator `once` on this store and clock; each one stands for a process of its own."""
    seeds = iter(range(100))

    def decorator(function: Callable[..., Any], **options: Any) -> Any:
        options = {"key": "{order}", "name": "charge", "clock": clock, "lease": "60s"} | options
        elsewhere: Any = Elsewhere(store)
        return onefold.once(store=elsewhere, entropy=SeededEntropy(next(seeds)), **options)(function)

    return decorator


def noting(calls: list[Any]) -> Callable[..., None]:
    """A function that notes its argument and returns nothing."""

    def charge(order: str) -> None:
        calls.append(order)

    return charge


def standing(store: Store, clock: ManualClock, key: RecordKey = KEY) -> Any:
    return store.read([key], clock.now_ms())[0]


# -- one call after the other ------------------------------------------------------------------------------


def test_the_second_call_answers_the_first_ones_result(guard: Callable[..., Any], store: Store, clock: Watched) -> None:
    calls: list[str] = []

    @guard
    def charge(order: str, cents: int) -> dict[str, int]:
        """Charge it."""
        calls.append(order)
        return {"charged": cents}

    assert charge("o-1", 5) == {"charged": 5}
    assert charge("o-1", cents=5) == {"charged": 5}
    assert charge(cents=5, order="o-1") == {"charged": 5}
    assert charge("o-2", 7) == {"charged": 7}
    assert calls == ["o-1", "o-2"]
    assert charge.__doc__ == "Charge it."
    assert standing(store, clock).status == "completed"


def test_a_wrong_declaration_is_answered_where_it_is_written() -> None:
    def charge(order: str) -> None: ...

    once: Any = onefold.once
    with pytest.raises(
        onefold.errors.UsageError, match=r"@onefold\.once of charge has no parentheses.*\(key=\.\.\., store=\.\.\.\)"
    ):
        once(charge)
    with pytest.raises(onefold.errors.UsageError, match=r"missing a required argument: 'store'"):
        once(key="{order}")
    with pytest.raises(onefold.errors.UsageError, match=r"onefold\.once\(\) has no option 'kep'. Did you mean 'keep'"):
        once(key="{order}", store=onefold.memory_store(), kep="90d")


def test_a_result_comes_back_as_its_type(guard: Callable[..., Any]) -> None:
    @guard
    def charge(order: str) -> Decimal:
        return Decimal("1.50")

    assert charge("o-1") == charge("o-1") == Decimal("1.50")
    assert isinstance(charge("o-1"), Decimal)


def test_none_is_a_result_too(guard: Callable[..., Any]) -> None:
    calls: list[str] = []
    charge = guard(noting(calls))
    assert charge("o-1") is None
    assert charge("o-1") is None
    assert calls == ["o-1"]


def test_defaults_count_as_arguments(guard: Callable[..., Any]) -> None:
    calls: list[int] = []

    @guard
    def charge(order: str, cents: int = 5) -> None:
        calls.append(cents)

    charge("o-1")
    charge("o-1", 5)
    assert calls == [5]
    with pytest.raises(onefold.errors.ConflictError):
        charge("o-1", 6)


def test_functions_do_not_answer_for_one_another(guard: Callable[..., Any]) -> None:
    charge = guard(lambda order: "charged")
    refund = guard(lambda order: "refunded", name="refund")
    assert (charge("o-1"), refund("o-1")) == ("charged", "refunded")


def test_tenants_are_kept_apart(guard: Callable[..., Any]) -> None:
    charge = guard(lambda tenant, order: tenant, tenant="{tenant}")
    assert (charge("a", "o-1"), charge("b", "o-1")) == ("a", "b")


def test_the_same_key_with_other_arguments_names_both(guard: Callable[..., Any]) -> None:
    charge = guard(lambda order, cents: cents)
    charge("o-1", 5)
    with pytest.raises(onefold.errors.ConflictError) as caught:
        charge("o-1", 6)
    text = str(caught.value)
    assert "'o-1'" in text
    assert "now completed" in text
    prints = [word.strip(",") for word in text.split() if len(word.strip(",")) == 12 and word.strip(",").isalnum()]
    assert len(set(prints)) == 2, text
    assert charge("o-1", 5) == 5


@pytest.mark.parametrize("order", [None, ""])
def test_no_key_is_an_error_and_nothing_is_called(guard: Callable[..., Any], order: Any) -> None:
    calls: list[Any] = []
    charge = guard(noting(calls))
    with pytest.raises(onefold.errors.PayloadError):
        charge(order)
    assert calls == []


def test_an_argument_without_a_json_form_is_an_error_and_nothing_is_called(guard: Callable[..., Any]) -> None:
    calls: list[Any] = []
    charge = guard(lambda order, what: calls.append(order))
    with pytest.raises(onefold.errors.PayloadError):
        charge("o-1", object())
    assert calls == []


def test_a_record_ends_when_it_was_said_to(guard: Callable[..., Any], clock: Watched) -> None:
    calls: list[str] = []
    charge = guard(noting(calls), keep="1d")
    charge("o-1")
    clock.advance(86_400_000 - 1)
    charge("o-1")
    assert calls == ["o-1"]
    clock.advance(1)
    charge("o-1")
    assert calls == ["o-1", "o-1"]


def test_an_annotation_that_means_nothing_is_said_at_once(guard: Callable[..., Any]) -> None:
    def charge(order: str) -> Nothing: ...  # type: ignore[name-defined]  # noqa: F821 - on purpose

    with pytest.raises(onefold.errors.UsageError, match="'Nothing' is not defined"):
        guard(charge)


# -- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [KeyboardInterrupt, SystemExit])
def test_a_call_that_is_torn_from_outside_is_of_unknown_outcome(
    guard: Callable[..., Any], torn: type[BaseException]
) -> None:
    calls: list[str] = []

    def charge(order: str) -> None:
        calls.append(order)
        raise torn

    held = guard(charge, on_unknown="hold")
    with pytest.raises(torn):
        held("i-1")
    with pytest.raises(onefold.OutcomeUnknown):
        held("i-1")
    assert calls == ["i-1"]


def test_an_exception_frees_the_key(guard: Callable[..., Any], store: Store, clock: Watched) -> None:
    failures = [ValueError("no"), KeyboardInterrupt(), None]

    @guard
    def charge(order: str) -> str:
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return "charged"

    with pytest.raises(ValueError, match="no"):
        charge("o-1")
    assert standing(store, clock).status == "failed"
    assert standing(store, clock).failure.error == "ValueError"
    with pytest.raises(KeyboardInterrupt):
        charge("o-1")
    assert charge("o-1") == charge("o-1") == "charged"
    assert standing(store, clock).attempts == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_function_that_takes_its_key_out_of_its_argument_and_fails_has_failed(
    guard: Callable[..., Any], store: Store, clock: Watched, *, asynchronous: bool
) -> None:
    def work(order: dict[str, str]) -> None:
        order.clear()
        raise errors.TransientError("the partner is busy")

    async def charge(order: dict[str, str]) -> None:
        work(order)

    guarded = guard(charge if asynchronous else work, key="{order.id}")
    with pytest.raises(errors.TransientError, match="the partner is busy"):
        asyncio.run(guarded({"id": "o-1"})) if asynchronous else guarded({"id": "o-1"})
    assert standing(store, clock).status == "failed"


def test_an_unknown_outcome_is_run_again_or_held(guard: Callable[..., Any], store: Store, clock: Watched) -> None:
    outcomes: list[Any] = [onefold.OutcomeUnknown("sent"), "charged"]

    def work(order: str) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    charge = guard(work)
    with pytest.raises(onefold.OutcomeUnknown, match="sent"):
        charge("o-1")
    assert standing(store, clock).doubt
    assert charge("o-1") == "charged"

    outcomes = [onefold.OutcomeUnknown("sent"), "never asked for"]
    held = guard(work, on_unknown="hold")
    with pytest.raises(onefold.OutcomeUnknown, match="sent"):
        held("o-2")
    with pytest.raises(onefold.OutcomeUnknown, match="It is unknown whether charge 'o-2' took effect"):
        held("o-2")
    assert outcomes == ["never asked for"]


def test_a_result_that_cannot_be_stored_is_parked(guard: Callable[..., Any], store: Store, clock: Watched) -> None:
    calls: list[str] = []

    @guard
    def charge(order: str) -> object:
        calls.append(order)
        return object()

    with pytest.raises(onefold.errors.PayloadError) as caught:
        charge("o-1")
    text = "The function ran and returned a value of type object that cannot be recorded: The value has no JSON form"
    assert caught.value.what.startswith(text)
    assert caught.value.meaning.startswith("Its effect has happened; only its result is missing.")
    assert standing(store, clock).parked
    assert standing(store, clock).failure.summary.startswith(text)
    with pytest.raises(onefold.OutcomeUnknown):
        charge("o-1")
    assert calls == ["o-1"]


class Sour:
    """A result whose own methods fail while it is encoded."""

    kind: type[BaseException] = RuntimeError

    def __repr__(self) -> str:
        raise self.kind("no form today")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, GeneratorExit])
def test_a_result_whose_own_methods_raise_is_parked(
    guard: Callable[..., Any],
    store: Store,
    clock: Watched,
    is_async: bool,
    kind: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sour, "kind", kind)
    calls: list[str] = []

    def work(order: str) -> object:
        calls.append(order)
        return Sour()

    async def awaited(order: str) -> object:
        return work(order)

    charge = guard(awaited if is_async else work)
    with pytest.raises(errors.PayloadError, match=r"could not be encoded: .*no form today") as caught:
        asyncio.run(charge("o-1")) if is_async else charge("o-1")
    assert caught.value.meaning == "Its effect has happened; only its result is missing."
    assert "onefold held settle o-1 --done" in caught.value.todo
    assert "no form today" in repr(caught.value.__cause__)
    assert (standing(store, clock).parked, standing(store, clock).failure.error) == (True, "PayloadError")
    with pytest.raises(onefold.OutcomeUnknown):
        asyncio.run(charge("o-1")) if is_async else charge("o-1")
    assert calls == ["o-1"]


# -- crashes and lost leases -------------------------------------------------------------------------------


class Dead(BaseException):
    """A process that ends without a word: its guard writes nothing."""


def dies(guard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """A call that starts, and of which nothing is ever heard."""

    def work(order: str) -> None:
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr("onefold.runner.guarded.GuardedFunction.failed", lambda self, claimed, error: None)
        patch.setattr("onefold.runner.call_leases.LeaseKeeper.add", lambda *_: True)
        with pytest.raises(Dead):
            guard(work, **options)("o-1")


def test_after_a_crash_it_runs_again_when_the_lease_is_over(
    guard: Callable[..., Any], clock: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies(guard, monkeypatch)
    charge = guard(lambda order: "charged", on_running="raise")
    clock.advance(LEASE_MS - 1)
    with pytest.raises(onefold.TransientError) as caught:
        charge("o-1")
    assert caught.value.retry_in_ms == 1
    clock.advance(1)
    assert charge("o-1") == "charged"


def test_after_a_crash_it_is_held(
    guard: Callable[..., Any], store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies(guard, monkeypatch)
    clock.advance(LEASE_MS)
    charge = guard(lambda order: "charged", on_unknown="hold")
    for _ in range(2):
        with pytest.raises(onefold.OutcomeUnknown):
            charge("o-1")
    assert (standing(store, clock).parked, standing(store, clock).crashes) == (True, 1)


@pytest.mark.parametrize("crashes", [1, 3])
def test_a_call_that_always_dies_is_held_after_so_many_deaths(
    guard: Callable[..., Any], store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch, crashes: int
) -> None:
    for _ in range(crashes):
        dies(guard, monkeypatch, crashes=crashes)
        clock.advance(LEASE_MS)
    calls: list[str] = []
    charge = guard(noting(calls), crashes=crashes)
    for _ in range(2):
        with pytest.raises(onefold.OutcomeUnknown) as caught:
            charge("o-1")
        earlier = "1 earlier call" if crashes == 1 else f"{crashes} earlier calls"
        assert f"{earlier} ended without a recorded outcome, and crashes is {crashes}." in str(caught.value)
    assert calls == []
    stands = standing(store, clock)
    assert (stands.parked, stands.crashes, stands.attempts) == (True, crashes, crashes)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ("dead", "the process of an earlier call, owner OWNER, ended before an outcome was recorded"),
        (
            "alive",
            "the lease of an earlier call, owner OWNER, whose process still runs, has ended, and no outcome was recorded",
        ),
        ("elsewhere", "the lease of an earlier call, owner OWNER, has ended, and no outcome was recorded"),
    ],
)
def test_a_call_without_an_outcome_is_logged_when_it_is_noticed_with_what_is_known_of_its_process(
    guard: Callable[..., Any], store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, known: str, text: str,
) -> None:  # fmt: skip
    dies(guard, monkeypatch)
    owner = standing(store, clock).owner
    monkeypatch.setattr("onefold.owner_process.ended", lambda owners: frozenset(owners if known == "dead" else ()))
    monkeypatch.setattr("onefold.owner_process.is_here", lambda owner: known != "elsewhere")
    clock.advance(LEASE_MS)
    logged: list[str] = []
    guard(lambda order: logged.append(caplog.text))("o-1")  # before the function is called again
    assert "charge 'o-1'" in logged[0]
    text = text.replace("OWNER", owner)
    assert f"{text} (1 of at most 3). Whether it took effect is not known." in logged[0]


@pytest.mark.parametrize("crashes", [0, -1, True, "3", 2.5])
def test_a_number_of_deaths_that_cannot_be_is_refused(guard: Callable[..., Any], crashes: Any) -> None:
    with pytest.raises(onefold.errors.UsageError, match="crashes is"):
        guard(noting([]), crashes=crashes)


def test_a_lease_that_is_lost_under_way_is_logged_once_and_the_call_ends_with_lease_lost(
    guard: Callable[..., Any], clock: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    second = guard(lambda order: "second", lease="90s")

    @guard
    def first(order: str) -> str:
        assert clock.waited[LEASE_MS // 3].wait(PATIENCE_S)
        clock.jump(LEASE_MS)
        assert second(order) == "second"
        for _ in range(3):
            clock.waited[LEASE_MS // 3].clear()
            clock.advance(LEASE_MS // 3)
            assert clock.waited[LEASE_MS // 3].wait(PATIENCE_S)  # it has looked, and waits again
        return "first"

    with pytest.raises(onefold.errors.LeaseLost):
        first("o-1")
    assert caplog.text.count("its lease was lost while it runs") == 1


def test_a_lease_that_could_not_be_renewed_until_its_end_is_logged(
    store: Store, clock: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    faulty: Any = Faulty(store, "store", Fault("store.renew", times=100), [])

    @onefold.once(key="{order}", name="charge", store=faulty, clock=clock, lease="60s", entropy=SeededEntropy(0))
    def charge(order: str) -> str:
        for _ in range(4):
            assert clock.waited[LEASE_MS // 3].wait(PATIENCE_S)
            assert "could not be renewed" not in caplog.text
            clock.waited[LEASE_MS // 3].clear()
            clock.advance(LEASE_MS // 3)
        assert clock.waited[LEASE_MS // 3].wait(PATIENCE_S)
        return "charged"

    assert charge("o-1") == "charged"  # nobody took it over
    assert "its lease ended while it runs and could not be renewed: store.renew failed on purpose" in caplog.text


def test_a_call_that_was_taken_over_is_refused(guard: Callable[..., Any], clock: Watched) -> None:
    second = guard(lambda order: "second")

    @guard
    def first(order: str) -> str:
        clock.jump(LEASE_MS)  # without waking the thread that would have renewed the lease
        assert second(order) == "second"
        return "first"

    with pytest.raises(onefold.errors.LeaseLost, match="its lease had been taken over"):
        first("o-1")
    assert first("o-1") == "second"


def test_a_call_that_was_taken_over_and_fails_says_both(guard: Callable[..., Any], clock: Watched) -> None:
    second = guard(lambda order: "second")

    @guard
    def first(order: str) -> str:
        clock.jump(LEASE_MS)  # as above
        second(order)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        first("o-1")
    assert "had been taken over" in caught.value.__notes__[0]
    assert first("o-1") == "second"


def test_a_long_call_keeps_its_lease(guard: Callable[..., Any], store: Store, clock: Watched) -> None:
    other = guard(lambda order: "other", on_running="raise")

    @guard
    def long(order: str) -> str:
        for _ in range(6):  # two leases
            assert clock.waited[LEASE_MS // 3].wait(PATIENCE_S)
            clock.waited[LEASE_MS // 3].clear()
            clock.advance(LEASE_MS // 3)
        assert clock.waited[LEASE_MS // 3].wait(PATIENCE_S)  # the last renewal is done
        with pytest.raises(onefold.TransientError):
            other(order)
        return "long"

    assert long("o-1") == "long"
    assert standing(store, clock).fence == 1


# -- two at a time -----------------------------------------------------------------------------------------


class Meeting:
    """A function that says when it was entered, and returns when it is told to."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.calls = 0

    def charge(self, order: str) -> str:
        self.calls += 1
        self.entered.set()
        assert self.leave.wait(PATIENCE_S)
        return "charged"


def let_pass(clock: Watched, *futures: Future[Any]) -> None:
    """Let time pass for whoever waits, and only then, until all of these are done."""
    while not all(future.done() for future in futures):
        if clock.waited[100].wait(0.005):
            clock.waited[100].clear()
            clock.advance(100)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def test_a_concurrent_call_waits_and_is_answered(
    guard: Callable[..., Any], clock: Watched, pool: ThreadPoolExecutor
) -> None:
    meeting = Meeting()
    charge = guard(meeting.charge)
    first: Future[str] = pool.submit(charge, "o-1")
    assert meeting.entered.wait(PATIENCE_S)
    second: Future[str] = pool.submit(charge, "o-1")
    assert clock.waited[100].wait(PATIENCE_S)
    meeting.leave.set()
    assert first.result(PATIENCE_S) == "charged"
    let_pass(clock, second)
    assert second.result() == "charged"
    assert meeting.calls == 1


def test_a_concurrent_call_is_refused_when_told_so(
    guard: Callable[..., Any], clock: Watched, pool: ThreadPoolExecutor
) -> None:
    meeting = Meeting()
    charge = guard(meeting.charge, on_running="raise")
    first: Future[str] = pool.submit(charge, "o-1")
    assert meeting.entered.wait(PATIENCE_S)
    with pytest.raises(onefold.TransientError, match="charge 'o-1' is already running in another call") as caught:
        charge("o-1")
    assert caught.value.retry_in_ms == LEASE_MS
    meeting.leave.set()
    assert first.result(PATIENCE_S) == charge("o-1") == "charged"


def test_who_waited_for_a_call_that_fails_runs_itself(
    guard: Callable[..., Any], clock: Watched, pool: ThreadPoolExecutor
) -> None:
    meeting = Meeting()

    def work(order: str) -> str:
        meeting.charge(order)
        if meeting.calls == 1:
            raise ValueError("no")
        return "charged"

    charge = guard(work)
    first: Future[str] = pool.submit(charge, "o-1")
    assert meeting.entered.wait(PATIENCE_S)
    second: Future[str] = pool.submit(charge, "o-1")
    assert clock.waited[100].wait(PATIENCE_S)
    meeting.leave.set()
    with pytest.raises(ValueError, match="no"):
        first.result(PATIENCE_S)
    let_pass(clock, second)
    assert (second.result(), meeting.calls) == ("charged", 2)


def test_of_many_threads_one_runs(guard: Callable[..., Any], clock: Watched) -> None:
    calls: list[str] = []
    charge = guard(noting(calls))
    with ThreadPoolExecutor(8) as many:
        futures = [many.submit(charge, f"o-{number % 5}") for number in range(100)]
        let_pass(clock, *futures)
        assert [future.result() for future in futures] == [None] * 100
    assert sorted(calls) == [f"o-{number}" for number in range(5)]


# -- coroutines --------------------------------------------------------------------------------------------


def test_a_coroutine_function_is_answered_too(guard: Callable[..., Any]) -> None:
    calls: list[str] = []

    @guard
    async def charge(order: str) -> str:
        calls.append(order)
        if order == "bad":
            raise ValueError("no")
        return f"charged {order}"

    async def main() -> None:
        assert await charge("o-1") == "charged o-1"
        assert await charge("o-1") == "charged o-1"
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await charge("bad")

    asyncio.run(main())
    assert calls == ["o-1", "bad", "bad"]


@pytest.mark.parametrize("on_running", ["wait", "raise"])
def test_concurrent_coroutines_wait_or_are_refused(guard: Callable[..., Any], clock: Watched, on_running: str) -> None:
    async def main() -> tuple[Any, Any]:
        entered, leave = asyncio.Event(), asyncio.Event()
        calls: list[str] = []

        async def work(order: str) -> str:
            calls.append(order)
            entered.set()
            await leave.wait()
            return "charged"

        charge = guard(work, on_running=on_running)
        first = asyncio.create_task(charge("o-1"))
        await entered.wait()
        second = asyncio.create_task(charge("o-1"))
        if on_running == "wait":
            await asyncio.to_thread(clock.waited[100].wait, PATIENCE_S)
        else:
            await asyncio.wait([second])
        leave.set()
        answer = await first
        while not second.done():
            clock.advance(100)
            await asyncio.wait([second], timeout=0.01)
        assert calls == ["o-1"]
        return answer, second.exception() or second.result()

    answer, other = asyncio.run(main())
    assert answer == "charged"
    assert isinstance(other, onefold.TransientError) if on_running == "raise" else other == "charged"


def test_a_cancelled_coroutine_frees_its_key(guard: Callable[..., Any], store: Store, clock: Watched) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        @guard
        async def charge(order: str) -> None:
            entered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(charge("o-1"))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert standing(store, clock).status in ("failed", "unknown")
    assert guard(lambda order: "charged")("o-1") == "charged"


def test_a_coroutine_cancelled_while_it_claims_does_not_hold_the_key(store: Store, clock: Watched) -> None:
    claiming, go_on = threading.Event(), threading.Event()

    def slow(verb: str, side: str) -> None:
        if (verb, side) == ("store.claim", "after") and not go_on.is_set():
            claiming.set()
            assert go_on.wait(PATIENCE_S)

    calls: list[str] = []

    async def charge(order: str) -> str:
        calls.append(order)
        return "charged"

    faulty: Any = Faulty(store, "store", slow, [])
    guarded: Any = onefold.once(key="{order}", name="charge", store=faulty, clock=clock)(charge)

    async def main() -> str:
        task = asyncio.create_task(guarded("o-1"))
        await asyncio.to_thread(claiming.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        while standing(store, clock).status != "released":
            await asyncio.to_thread(threading.Event().wait, 0.001)
        answer: str = await guarded("o-1")
        return answer

    assert asyncio.run(main()) == "charged"
    assert calls == ["o-1"]
    assert standing(store, clock).attempts == 1


# -- a store that fails ------------------------------------------------------------------------------------


def failing(store: Store, fault: Fault, clock: Watched, function: Callable[..., Any]) -> Any:
    clock.jumps = True
    faulty: Any = Faulty(store, "store", fault, [])
    return onefold.once(key="{order}", name="charge", store=faulty, clock=clock, entropy=SeededEntropy(7))(function)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_record_that_cannot_be_written_at_once_is_written_again(store: Store, clock: Watched, side: str) -> None:
    fault = Fault("store.write", times=6, side=side)
    charge = failing(store, fault, clock, lambda order: "charged")
    assert charge("o-1") == "charged"
    assert clock.waits == [50, 100, 200, 400, 800][: 6 - fault.left]
    assert standing(store, clock).status == "completed"


def test_a_record_that_cannot_be_written_is_no_quiet_success(store: Store, clock: Watched) -> None:
    charge = failing(store, Fault("store.write", times=1_000), clock, lambda order: "charged")
    with pytest.raises(onefold.OutcomeUnknown, match="took effect, but its record could not be written") as caught:
        charge("o-1")
    assert isinstance(caught.value.__cause__, onefold.TransientError)
    assert caught.value.__cause__.what in caught.value.what
    assert (
        caught.value.__cause__.todo not in caught.value.what
    )  # it is about the record, and reads as if about the effect
    assert standing(store, clock).status == "in_progress"


def test_a_store_that_fails_does_not_hide_what_the_function_raised(store: Store, clock: Watched) -> None:
    def work(order: str) -> None:
        raise ValueError("no")

    charge = failing(store, Fault("store.write", times=1_000), clock, work)
    with pytest.raises(ValueError, match="no"):
        charge("o-1")


def test_a_claim_that_cannot_be_made_calls_nothing(store: Store, clock: Watched) -> None:
    calls: list[str] = []
    charge = failing(store, Fault("store.claim"), clock, noting(calls))
    with pytest.raises(onefold.TransientError):
        charge("o-1")
    assert calls == []
    charge("o-1")
    assert calls == ["o-1"]


@pytest.mark.parametrize(
    ("option", "said"),
    [({"on_running": "riase"}, "Did you mean 'raise'"), ({"on_unknown": "probe"}, "It is one of rerun, hold")],
)
def test_a_policy_that_does_not_exist_is_refused(guard: Callable[..., Any], option: dict[str, str], said: str) -> None:
    with pytest.raises(onefold.errors.UsageError, match=said):
        guard(noting([]), **option)


def test_a_probe_that_could_not_be_called_is_refused(guard: Callable[..., Any]) -> None:
    def pay(invoice: str, pence: int, *, note: str = "", ctx: onefold.Context | None = None) -> str:
        return "paid"

    fits: list[Any] = [
        lambda invoice, pence, note="": onefold.NotDone(),
        lambda invoice, pence, *, note=None: onefold.NotDone(),
        lambda *args, **kwargs: onefold.NotDone(),
    ]
    for probe in fits:
        guard(pay, key="{invoice}", on_unknown=probe)
    others: list[Any] = [
        onefold.NotDone,
        lambda invoice: onefold.NotDone(),
        lambda a, b, c, d: onefold.NotDone(),
    ]
    for probe in others:
        with pytest.raises(errors.UsageError, match="cannot be called with the arguments of charge") as caught:
            guard(pay, key="{invoice}", on_unknown=probe)
        assert "(invoice, pence, *, note='')" in caught.value.todo


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_that_is_listed_leaves_the_outcome_unknown(
    guard: Callable[..., Any], *, asynchronous: bool
) -> None:
    calls: list[str] = []

    def pay(order: str) -> str:
        calls.append(order)
        answer: dict[str, str] = {}
        if order == "o-2":
            raise IndexError(order)
        return answer["reference"]

    async def pay_later(order: str) -> str:
        return pay(order)

    held = guard(pay_later if asynchronous else pay, key="{order}", on_unknown="hold", unknown=[KeyError])

    def call(order: str) -> None:
        asyncio.run(held(order)) if asynchronous else held(order)

    with pytest.raises(KeyError):
        call("o-1")
    with pytest.raises(onefold.OutcomeUnknown, match="KeyError"):
        call("o-1")
    for _ in range(2):
        with pytest.raises(IndexError):
            call("o-2")
    assert calls == ["o-1", "o-2", "o-2"]
    with pytest.raises(errors.UsageError, match="not an exception class"):
        guard(pay, key="{order}", unknown=[5])


# -- what would never end ----------------------------------------------------------------------------------


def test_a_call_from_within_its_own_call_is_refused_at_once(guard: Callable[..., Any], clock: Watched) -> None:
    depth: list[int] = []

    @guard
    def charge(order: str) -> str:
        depth.append(len(depth))
        if order == "o-1":
            with pytest.raises(onefold.errors.UsageError, match=r"charge 'o-1' was called from within its own call"):
                charge("o-1")
            return str(charge("o-2"))  # another key is another operation
        with pytest.raises(onefold.errors.UsageError, match="within its own call"):
            charge("o-1")  # two calls up
        return "charged"

    assert charge("o-1") == "charged"
    assert depth == [0, 1]
    assert clock.waits == []
    assert charge("o-1") == "charged"


def test_a_coroutine_that_awaits_its_own_call_is_refused_at_once(guard: Callable[..., Any]) -> None:
    @guard
    async def charge(order: str) -> str:
        with pytest.raises(onefold.errors.UsageError, match="within its own call"):
            await charge(order)
        with pytest.raises(onefold.errors.UsageError, match="within its own call"):
            await asyncio.create_task(charge(order))  # a task of this one, which waits for it
        return "charged"

    assert asyncio.run(charge("o-1")) == "charged"
    assert asyncio.run(charge("o-1")) == "charged"


def test_a_call_in_a_thread_that_has_the_context_of_its_own_call_is_refused_at_once(
    guard: Callable[..., Any], clock: Watched
) -> None:
    said: list[str] = []

    def work(order: str) -> str:
        with ThreadPoolExecutor(1) as pool:
            said.append(str(pool.submit(copy_context().run, charge, order).exception(PATIENCE_S)))
        return str(asyncio.run(beside(order)))

    async def beside(order: str) -> str:
        with pytest.raises(onefold.errors.UsageError, match="within its own call"):
            await asyncio.to_thread(charge, order)
        return "charged"

    charge = guard(work)
    assert charge("o-1") == "charged"
    assert said[0].startswith("charge 'o-1' was called from within its own call.")
    assert clock.waits == []


def test_a_call_in_another_thread_that_its_own_call_waits_for_ends(guard: Callable[..., Any], clock: Watched) -> None:
    clock.jumps = True
    with ThreadPoolExecutor(1) as pool:

        def work(order: str) -> str:
            return str(pool.submit(charge, order).exception(PATIENCE_S))

        charge = guard(work, wait="2s")
        said = charge("o-1")
    assert said.startswith("charge 'o-1' is already running in another call (owner ")
    assert "has waited 2s for it. That call is in this process and may itself be waiting for this one." in said
    assert "wait longer" not in said
    assert "contextvars.copy_context().run" in said


def generated(order: str) -> Iterator[int]:
    yield 1


async def generated_later(order: str) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [generated, generated_later])
def test_a_generator_function_is_refused_when_it_is_decorated(guard: Callable[..., Any], function: Any) -> None:
    function.__annotations__.pop("return", None)
    with pytest.raises(onefold.errors.UsageError, match=r"charge is a generator function\."):
        guard(function)


async def later(order: str) -> str:
    return "charged"


@pytest.mark.parametrize(
    ("lazy", "name"),
    [
        (lambda: map(str, [1]), "map"),
        (lambda: iter([1]), "list_iterator"),
        (lambda: (one for one in [1]), "generator"),
        (lambda: later("o-1"), "coroutine"),
        (lambda: generated_later("o-1"), "async_generator"),
    ],
)
def test_a_function_that_ran_and_returned_work_still_to_do_is_not_run_again(
    guard: Callable[..., Any], store: Store, clock: Watched, lazy: Callable[[], Any], name: str
) -> None:
    results: list[Any] = [lazy(), "charged"]
    charge = guard(lambda order: results.pop(0))
    with pytest.raises(
        onefold.errors.PayloadError, match=f"charge ran and returned a {name}, which cannot be recorded"
    ):
        charge("o-1")
    stands = standing(store, clock)
    assert (stands.status, stands.parked) == ("unknown", True)
    with pytest.raises(onefold.errors.OutcomeUnknown):
        charge("o-1")
    assert results == ["charged"]


class TornError(Exception):
    """Out of a signal's handler, while a claim is answered."""


def test_a_torn_claim_leaves_the_claim_of_a_call_whose_result_is_being_written() -> None:
    """Both have this process's owner id; the second one's claim was answered with the first one's, or not at all."""
    store: Any = onefold.memory_store()
    write, claim = store.write, store.claim
    writing, written = threading.Event(), threading.Event()
    ran: list[str] = []

    @onefold.once(key="{order}", name="charge", store=store, on_running="raise")
    def charge(order: str) -> str:
        ran.append(order)
        return "charged"

    def slow(*args: Any) -> Any:
        writing.set()
        assert written.wait(30)
        return write(*args)

    def torn(*args: Any) -> Any:
        claim(*args)
        raise TornError

    store.write = slow
    first = threading.Thread(target=charge, args=("o-1",))
    first.start()
    assert writing.wait(30)
    store.write, store.claim = write, torn
    with pytest.raises(TornError):
        charge("o-1")
    store.claim = claim
    written.set()
    first.join(30)
    assert charge("o-1") == "charged"
    assert ran == ["o-1"]


def test_a_long_lease_is_renewed_soon_after_the_clock_was_set_forward() -> None:
    """A third of it may be longer than the time without steps waits for those at work."""
    wall = ManualClock()
    clock = SteadyClock(wall)
    renewed: list[int] = []

    class Store:
        def renew(self, holds: list[Any], until: int) -> list[bool]:
            renewed.append(until)
            return [True] * len(holds)

    keeper = LeaseKeeper(cast("Any", Store()), clock, 3_600_000, lambda _: False, lambda _: None)
    hold = Hold(RecordKey("", "j", "k"), "o", 1)
    keeper._calls[hold] = KeptCall(
        Claimed(hold=hold, found="absent", doubt=False, started=True, attempts=1, crashes=0, first_at_ms=0), None
    )
    waits = iter([False, False, True])

    def wait(_: object, timeout_ms: int) -> bool:
        wall.advance(timeout_ms)
        if not renewed:
            wall.jump(3_600_000)
        return next(waits)

    clock.wait = wait  # type: ignore[assignment,method-assign]
    keeper._renew_all()
    assert renewed[0] >= wall.now_ms() + 3_600_000 - 60_000
