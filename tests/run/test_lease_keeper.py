"""The thread that renews the leases of guarded calls: whatever a store raises it goes on, and a dead one is replaced."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import onefold
from onefold.contracts.store import Ask, Claimed, Hold, RecordKey
from onefold.engines.urls import open_engine
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from onefold.owner_process import owner_of
from onefold.runner.call_leases import KeptCall, LeaseKeeper
from onefold.testing.records import ask

PATIENCE_S = 60
LEASE_MS = 60_000
ASK = cast("Any", None)


def claimed(fence: int = 1) -> Claimed:
    hold = Hold(RecordKey("", "charge", "o-1"), "owner", fence)
    return Claimed(hold=hold, found="absent", doubt=False, started=True, attempts=1, crashes=0, first_at_ms=0)


class Unlooked(BaseException):
    """As an extension module's panic: no Exception."""


class Store:
    appear: Callable[[], object] | None = None

    def __init__(self, *raised: BaseException) -> None:
        self.raised = list(raised)
        self.asked: list[int] = []
        self.renewed = threading.Event()

    def renew(self, holds: list[Hold], until_ms: int) -> list[bool]:
        self.asked.append(until_ms)
        if self.raised:
            raise self.raised.pop(0)
        self.renewed.set()
        return [True] * len(holds)


class Turns(ManualClock):
    """Advances at once; its waits answer what they are given, and then stop who waits."""

    def __init__(self, *waits: Callable[[], bool]) -> None:
        super().__init__()
        self.waits = list(waits)
        self.waited_in: list[threading.Thread] = []

    def wait(self, _waiter: object, timeout_ms: int) -> bool:
        self.waited_in.append(threading.current_thread())
        self.advance(timeout_ms)
        return self.waits.pop(0)() if self.waits else True


def keeper_on(store: Store, clock: Turns) -> LeaseKeeper:
    return LeaseKeeper(cast("Any", store), clock, LEASE_MS, lambda _: False, lambda _: None)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files"), MemoryError(), RuntimeError("no thread"), Unlooked()],
    ids=repr,
)
def test_whatever_a_store_raises_leases_are_renewed_a_third_of_a_lease_later(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = Store(error, error, error), Turns(*[lambda: False] * 5)
    keeper = keeper_on(store, clock)
    keeper._calls[claimed().hold] = KeptCall(claimed(), None)
    with caplog.at_level(logging.WARNING, logger="onefold"):
        keeper._renew_all()
    third_ms = LEASE_MS // 3
    assert [until_ms - store.asked[0] for until_ms in store.asked] == [turn * third_ms for turn in range(5)]
    said = [record.getMessage() for record in caplog.records]
    assert sum("could not be renewed; this will be tried again" in one for one in said) == 3
    assert sum("its lease ended while it runs" in one for one in said) == 0
    assert all(type(error).__name__ in record.getMessage() for record in caplog.records)


def test_a_lease_that_ends_while_a_store_raises_is_named(caplog: pytest.LogCaptureFixture) -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    keeper = keeper_on(Store(*[error] * 4), Turns(*[lambda: False] * 4))
    keeper._calls[claimed().hold] = KeptCall(claimed(), None)
    with caplog.at_level(logging.WARNING, logger="onefold"):
        keeper._renew_all()
    over = [one.getMessage() for one in caplog.records if "its lease ended" in one.getMessage()]
    assert over == [f"charge 'o-1': its lease ended while it runs and could not be renewed: {error}"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_next_call_starts_the_thread_again_where_it_has_died() -> None:
    dying, over = threading.Event(), threading.Event()

    def dies() -> bool:
        dying.set()
        raise MemoryError

    store, clock = Store(), Turns(dies, lambda: False, lambda: over.wait(PATIENCE_S))
    keeper = keeper_on(store, clock)
    keeper.add(claimed(), ASK)
    assert dying.wait(PATIENCE_S)
    clock.waited_in[0].join(PATIENCE_S)
    assert not store.asked
    keeper.add(claimed(2), ASK)
    assert store.renewed.wait(PATIENCE_S)
    over.set()
    last = clock.waited_in[-1]
    assert (last.name, last.daemon) == ("onefold-once", True)
    last.join(PATIENCE_S)
    assert not last.is_alive()


class Mark:
    """As a store's, and what it was told."""

    def __init__(self) -> None:
        self.told: list[int | None] = []
        self.is_busy: Callable[[], bool] = lambda: True

    def renewed(self, at_ms: int) -> None:
        self.told.append(at_ms)

    def close(self) -> None:
        self.told.append(None)


def test_the_mark_says_when_all_calls_were_renewed_last() -> None:
    """Nothing while a call whose lease is over is not recorded yet."""
    mark, store, clock = Mark(), Store(), Turns()
    store.appear = lambda: mark
    keeper = keeper_on(store, clock)
    hold, now_ms = claimed().hold, clock.now_ms()
    asked = Ask(
        key=hold.key, fingerprint="0" * 32, owner=hold.owner, lease_until_ms=now_ms + LEASE_MS, start=True,
        expires_at_ms=now_ms + 10 * LEASE_MS,
    )  # fmt: skip
    told: list[int] = []

    def then(do: Callable[[], object]) -> Callable[[], bool]:
        def turn() -> bool:
            told.append(len(mark.told))
            do()
            return False

        return turn

    clock.waits = [
        then(lambda: None),  # a third of the lease later: nothing is called
        then(lambda: keeper._calls.update({hold: KeptCall(claimed(), asked)})),
        then(lambda: store.raised.append(OSError())),  # it was renewed
        then(lambda: keeper.end(hold)),  # it could not be renewed, and its lease holds
        then(lambda: None),  # it is being recorded, and its lease holds
        then(lambda: None),  # its lease is over
        then(lambda: None),
        then(lambda: keeper.remove(hold)),
        then(lambda: None),  # it is recorded
    ]
    keeper.appear()
    clock.waited_in[0].join(PATIENCE_S)
    assert told == [1, 2, 3, 4, 5, 5, 5, 5, 6]
    assert mark.told[-1] is None  # its thread has ended
    assert not mark.is_busy()


def test_the_mark_is_closed_when_the_thread_ends_and_written_again_when_another_starts() -> None:
    mark, store, clock = Mark(), Store(), Turns()
    store.appear = lambda: mark
    keeper = keeper_on(store, clock)
    began_ms = clock.now_ms()
    keeper.appear()
    clock.waited_in[0].join(PATIENCE_S)
    assert mark.told == [began_ms, None]
    again_ms = clock.now_ms()
    keeper.add(claimed(), ASK)
    clock.waited_in[-1].join(PATIENCE_S)
    assert mark.told[2:] == [again_ms, None]


def test_without_a_thread_there_is_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    mark, store, clock = Mark(), Store(), Turns()
    store.appear = lambda: mark
    keeper = keeper_on(store, clock)
    monkeypatch.setattr(threading.Thread, "start", start)
    keeper.appear()
    assert mark.told == [clock.now_ms(), None]


def test_a_function_that_only_answers_from_records_keeps_no_run_that_its_process_gave_up(tmp_path: Path) -> None:
    clock, url = ManualClock(), f"sqlite:///{tmp_path}/shop.db"
    here, elsewhere = (
        open_engine(url, clock=clock, entropy=SystemEntropy(), owner=owner_of(f"own-{n}")) for n in range(2)
    )

    def look(order: str) -> str:
        return order.upper()

    for engine in (elsewhere, here):  # the second is answered from the record of the first
        assert onefold.once(key="{order}", store=engine.store, name="look", lease="60s")(look)("o-1") == "O-1"
    run = ask(owner=f"gave-it-up.{cast('Any', here.store).process}", at_ms=clock.now_ms())
    assert isinstance(here.store.claim([run], clock.now_ms())[0], Claimed)
    clock.advance(run.lease_until_ms - clock.now_ms() + 1)
    pause, found = threading.Event(), None
    for _ in range(PATIENCE_S * 100):  # 100 minutes of the clock
        (found,) = elsewhere.store.claim([ask(owner="another", at_ms=clock.now_ms())], clock.now_ms())
        if isinstance(found, Claimed):
            break
        clock.advance(1_000)
        pause.wait(0.01)  # for the thread
    assert isinstance(found, Claimed)
    here.close()
    elsewhere.close()
