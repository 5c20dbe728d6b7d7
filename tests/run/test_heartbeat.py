"""Leases and visibilities of everything in flight; deadlines. One beat or look at a time, on a clock that stands still."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors, limits
from onefold.clock import HOLD_MS, Offset, SteadyClock
from onefold.contracts.commit import Settlement
from onefold.contracts.queue import Delivery, RetryIn
from onefold.contracts.store import Fail, Failure
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.options import WorkerSettings
from onefold.record import attempt as script
from onefold.record.delivery import Failed, LeaseGone, Outcome
from onefold.runner.execution import Execution
from onefold.runner.heartbeat import REST_MS_MAX, RETRIES_MAX, Heartbeat, Periodic, ThreadBell, Watchdog
from onefold.runner.runner import Runner
from onefold.runner.settlement import backend_of
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from tests.run.workshop import PATIENCE_S, BreakerUpdate, Workshop

LEASE_MS = 30_000


class Order(msgspec.Struct):
    id: str


class Ward:
    """An app in memory, what a worker would have in flight of it, and the two that watch over it."""

    def __init__(self, app: onefold.App, clock: ManualClock) -> None:
        self.app, self.clock, self.told = app, clock, BreakerUpdate()
        runtime = app.runtime()
        self.backend = backend_of(runtime.engine)
        self.queue = runtime.engine.queues.open("orders")
        self.runner = self.new_runner()
        self.in_flight = self.runner.in_flight
        self.stopped: list[tuple[Execution, Outcome]] = []
        self.busy: list[errors.TransientError] = []
        self.overran: list[Execution] = []
        self.heartbeat = self.new_heartbeat(self.backend)
        self.watchdog = Watchdog(self.in_flight, clock=clock, stop=self.stop, on_overrun=self.overran.append)

    def new_runner(self) -> Runner:
        return make_runner(
            self.app.runtime(),
            self.app.jobs,
            self.app.registry.job_of,
            lease_ms=LEASE_MS,
            sinks=Sinks([self.told]),
            history="off",
        )

    def new_heartbeat(self, backend: Any, mark: Any = None) -> Heartbeat:
        return Heartbeat(
            self.in_flight, backend, clock=self.clock, lease_ms=LEASE_MS, also=lambda: None, stop=self.stop,
            put_back=self.runner.settler.put_back, lost=self.runner.reports.lease_lost, busy=self.busy.append,
            mark=mark,
        )  # fmt: skip

    def stop(self, run: Execution, outcome: Outcome) -> None:
        run.cut = outcome
        self.stopped.append((run, outcome))

    def receive(self, count: int = 10) -> list[Delivery]:
        asked_at_ms = self.clock.monotonic_ms()
        deliveries = self.queue.receive(count, LEASE_MS)
        self.in_flight.take(deliveries, asked_at_ms)
        return deliveries

    def lease_left_ms(self, run: Execution) -> int:
        assert run.facts.key is not None
        record = self.backend.store.read([run.facts.key], self.clock.now_ms())[0]
        assert record is not None
        return record.lease_until_ms - self.clock.now_ms()

    def beat_for(self, total_ms: int, step_ms: int = 1_000) -> None:
        for _ in range(0, total_ms, step_ms):
            self.clock.advance(step_ms)
            self.heartbeat.beat()


@pytest.fixture
def ward() -> Iterator[Ward]:
    clock = ManualClock()
    app = onefold.App("shop", url="sqlite://:memory:", clock=clock, entropy=SeededEntropy(1))
    queue = app.queue("orders")

    @app.job(queue, key="{id}", timeout="60s")
    def ship(order: Order) -> None: ...

    ship.send_many([Order(f"o-{number}") for number in range(6)])
    yield Ward(app, clock)
    app.close()


@pytest.mark.parametrize("lease_ms", [LEASE_MS, 10 * limits.MINUTE_MS, 2 * limits.HOUR_MS])
def test_a_clock_set_forward_ends_no_lease_of_a_process_that_is_at_work(lease_ms: int) -> None:
    """However rarely a lease of that length is due: others follow the clock after two minutes."""
    wall = ManualClock()
    app = onefold.App("shop", url="sqlite://:memory:", clock=wall, entropy=SeededEntropy(1))

    @app.job(app.queue("orders"), key="{id}", timeout="1h")
    def ship(order: Order) -> None: ...

    ship.send_many([Order("o-1"), Order("o-2")])
    runtime = app.runtime()
    backend = backend_of(runtime.engine)
    queue, store = backend.open_queue("orders"), backend.store
    runner = make_runner(runtime, app.jobs, app.registry.job_of, lease_ms=lease_ms, sinks=Sinks([]), history="off")
    heartbeat = Heartbeat(
        runner.in_flight, backend, clock=runtime.steady, lease_ms=lease_ms, also=lambda: None,
        stop=lambda *_: None, put_back=lambda *_: False, lost=lambda _: None, busy=lambda _: None,
    )  # fmt: skip
    runner.in_flight.take(deliveries := queue.receive(2, lease_ms), wall.monotonic_ms())
    (run,) = runner.begin(deliveries[:1])
    heartbeat.beat()
    wall.jump(9 * limits.HOUR_MS)
    other = SteadyClock(wall)  # another process, which has noticed when it happened
    other.adopt(Offset(0, wall.monotonic_ms()), step_ms=9 * limits.HOUR_MS)
    until_ms, beat_at_ms = wall.monotonic_ms() + HOLD_MS + limits.MINUTE_MS, wall.monotonic_ms()
    while (now_ms := wall.monotonic_ms()) < until_ms:
        if now_ms >= beat_at_ms:
            beat_at_ms = now_ms + min(heartbeat.beat(), REST_MS_MAX)
        wall.advance(1_000)
        record = store.read([run.facts.key], other.now_ms())[0]
        assert record.lease_until_ms > other.now_ms(), f"over {(now_ms - until_ms) // 1_000} s before the end"
        assert queue.receive(2) == [], now_ms
    assert other.now_ms() == wall.now_ms()
    app.close()


# -- extending -------------------------------------------------------------------------------------------------


def test_prefetched_and_running_messages_stay_ours_far_beyond_one_lease(ward: Ward) -> None:
    running = ward.runner.begin(ward.receive(2))
    ward.receive(4)

    ward.beat_for(10 * LEASE_MS)

    assert ward.queue.receive(10) == []
    assert all(ward.lease_left_ms(run) > LEASE_MS // 2 for run in running)
    assert ward.stopped == []


def test_without_a_beat_they_are_lost_after_one_lease(ward: Ward) -> None:
    ward.receive(6)
    ward.clock.advance(LEASE_MS)
    assert len(ward.queue.receive(10)) == 6


def test_what_is_due_soon_is_extended_together(ward: Ward) -> None:
    ward.receive(3)
    ward.clock.advance(2_000)
    ward.receive(3)

    ward.clock.advance(LEASE_MS // 3 - 2_000)
    next_ms = ward.heartbeat.beat()

    assert {held.asked_at_ms for held in ward.in_flight.all()} == {LEASE_MS // 3}
    assert next_ms == LEASE_MS // 3


def test_what_is_settled_or_given_back_is_not_in_hand_any_more(ward: Ward) -> None:
    first, second, *rest = ward.receive(6)
    run, other = ward.runner.begin([first, second])
    ward.runner.perform(run)
    ward.runner.finish([run])
    ward.runner.release(rest, "a test")

    assert [held.run for held in ward.in_flight.all()] == [other]
    assert ward.in_flight.counts() == {"received": 6, "completed": 1, "released": 4}


# -- losing ----------------------------------------------------------------------------------------------------


def test_a_lost_lease_is_told_once_and_its_handler_stopped(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    context = ward.runner.open_context(run, 1)
    ward.clock.advance(LEASE_MS)  # nobody beat: the lease is over, and another takes the run
    taken = ward.new_runner()
    taken._owner = "another"
    (other,) = taken.begin(ward.queue.receive(1))
    ward.in_flight.all()[0].asked_at_ms = ward.clock.monotonic_ms() - LEASE_MS // 2  # it thinks it has time

    ward.heartbeat.beat()

    assert ward.stopped == [(run, LeaseGone())]
    assert context.lease_lost
    assert len(ward.told.of("lease-lost")) == 1
    with pytest.raises(errors.LeaseLost):
        context.check()

    ward.runner.perform(run)
    ward.runner.finish([run])
    assert len(ward.told.of("lease-lost")) == 1
    assert len(ward.in_flight) == 0
    taken.perform(other)
    assert other.decided().write is not None


def test_a_lease_that_ended_while_its_process_stood_still_is_renewed_where_nobody_took_it(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    context = ward.runner.open_context(run, 1)
    ward.clock.advance(10 * LEASE_MS)

    ward.heartbeat.beat()

    assert ward.lease_left_ms(run) == LEASE_MS
    assert (ward.stopped, context.lease_lost, ward.runner.is_over(run)) == ([], False, False)
    ward.runner.perform(run)
    ward.runner.finish([run])
    assert len(ward.told.of("completed")) == 1


def test_a_lease_that_another_took_while_its_process_stood_still_is_lost(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    ward.clock.advance(LEASE_MS)
    taken = ward.new_runner()
    taken._owner = "another"
    assert taken.begin(ward.queue.receive(1))

    ward.heartbeat.beat()

    assert ward.stopped == [(run, LeaseGone())]


class Mark:
    """As an engine's, and what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def renewed(self, at_ms: int) -> None:
        self.told.append(at_ms)


class BusyStore:
    """Renews nothing while it is busy."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.is_busy = backend, True

    def __getattr__(self, name: str) -> Any:
        return self if name == "store" else getattr(self.backend, name)

    def renew(self, holds: Any, until_ms: int) -> Any:
        if self.is_busy:
            raise errors.StorageBusy("busy")
        return self.backend.store.renew(holds, until_ms)


def test_the_mark_says_when_all_that_runs_here_was_renewed_last(ward: Ward) -> None:
    mark, store = Mark(), BusyStore(ward.backend)
    heartbeat = ward.new_heartbeat(store, mark)
    heartbeat.beat()
    assert mark.told == [ward.clock.now_ms()]  # nothing runs
    ward.runner.begin(ward.receive(1))
    ward.clock.advance(10 * LEASE_MS)  # it stood still
    heartbeat.beat()
    assert len(mark.told) == 1  # the lease is over, and may still be this process's
    store.is_busy = False
    ward.clock.advance(LEASE_MS // 12)
    heartbeat.beat()
    assert mark.told[1:] == [ward.clock.now_ms()]


@pytest.mark.parametrize("tries", [1, 3])
def test_a_lease_that_ended_while_its_process_stood_still_is_tried_until_the_store_answers(
    ward: Ward, tries: int
) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    (behind,) = ward.receive(1)
    store = BusyStore(ward.backend)
    ward.heartbeat = ward.new_heartbeat(store)
    ward.clock.advance(10 * LEASE_MS)
    for _ in range(tries):
        assert 0 < ward.heartbeat.beat() <= LEASE_MS // 12  # not at once: the store is busy
        ward.clock.advance(LEASE_MS // 12)
    store.is_busy = False
    ward.heartbeat.beat()
    assert len(ward.busy) == tries
    assert (ward.stopped, ward.lease_left_ms(run)) == ([], LEASE_MS)
    assert not ward.in_flight.keeps(behind)  # it was not begun, and others have received it since


def test_a_lease_that_ended_while_its_process_stood_still_is_given_up_where_the_store_never_answers(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    mark = Mark()
    ward.heartbeat = ward.new_heartbeat(BusyStore(ward.backend), mark)
    ward.clock.advance(10 * LEASE_MS)
    ward.beat_for(LEASE_MS // 2)
    assert (ward.stopped, mark.told) == ([], [])
    ward.beat_for(LEASE_MS // 2)
    assert ward.stopped == [(run, LeaseGone())]
    assert mark.told[-1] == ward.clock.now_ms()  # others may have it


def test_a_record_that_is_gone_is_put_back_while_its_handler_runs(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    context = ward.runner.open_context(run, 1)
    before = ward.backend.store.read([run.hold.key], ward.clock.now_ms())
    engine: Any = ward.app.runtime().engine
    engine.database.write(lambda connection: connection.execute("DELETE FROM onefold_record"))

    ward.clock.advance(LEASE_MS // 2)
    ward.heartbeat.beat()

    assert (ward.stopped, context.lease_lost) == ([], False)
    assert ward.lease_left_ms(run) == LEASE_MS
    assert len(ward.told.of("record-gone")) == 1
    (after,) = ward.backend.store.read([run.hold.key], ward.clock.now_ms())
    assert before[0] is not None
    assert after == msgspec.structs.replace(
        before[0], lease_until_ms=ward.clock.now_ms() + LEASE_MS, updated_at_ms=ward.clock.now_ms()
    )
    ward.beat_for(2 * LEASE_MS)
    ward.runner.perform(run)
    ward.runner.finish([run])
    assert [event.name for event in ward.told.events] == ["record-gone", "completed"]


def test_a_lease_that_cannot_be_extended_in_time_is_not_trusted(ward: Ward) -> None:
    class Busy:
        def renew(self, *_: object) -> list[bool]:
            raise errors.StorageBusy("locked")

    (run,) = ward.runner.begin(ward.receive(1))
    (waiting,) = ward.receive(1)
    ward.heartbeat = ward.new_heartbeat(msgspec.structs.replace(ward.backend, store=Busy()))

    ward.beat_for(LEASE_MS - 4_000)
    assert ward.stopped == []
    assert 4 <= len(ward.busy) <= 8  # it tried again every twelfth of the lease
    ward.beat_for(2_000)

    assert ward.stopped == [(run, LeaseGone())]
    assert not ward.in_flight.keeps(waiting)
    assert ward.told.of("lease-lost") == []  # nobody has taken it: its own settlement will tell


def test_visibility_ends_at_twelve_hours_whatever_the_handler_does(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    step_ms = 9_000
    ward.beat_for(limits.VISIBILITY_MS_MAX - 60_000, step_ms)
    assert ward.stopped == []
    ward.beat_for(70_000, step_ms)
    assert ward.stopped == [(run, LeaseGone())]
    assert ward.lease_left_ms(run) <= 0


def test_a_run_that_was_just_settled_is_not_taken_for_lost(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    ward.runner.perform(run)
    assert run.claimed is not None
    ward.backend.store.write([(run.claimed.hold, run.decided().write)], ward.clock.now_ms())  # type: ignore[list-item]
    ward.clock.advance(LEASE_MS // 3)
    ward.heartbeat.beat()  # between the commit and the moment it leaves the hand
    assert (ward.stopped, ward.told.of("lease-lost")) == ([], [])


# -- deadlines -------------------------------------------------------------------------------------------------


def test_a_handler_that_overruns_is_stopped_once_reported_more_and_more_rarely_and_never_let_go(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    assert ward.watchdog.look() == 60_000  # not called yet: its time has not begun
    context, begun_ms = ward.runner.open_context(run, 1), ward.clock.monotonic_ms()
    ward.beat_for(59_000)
    ward.clock.advance(999)
    assert ward.watchdog.look() == 1
    ward.clock.advance(1)
    ward.watchdog.look()

    (stopped, outcome) = ward.stopped[0]
    assert stopped is run
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.error, outcome.crashed) == ("unknown", "HandlerTimeout", False)
    assert ward.overran == [run]
    with pytest.raises(errors.OutcomeUnknown):
        context.check()

    for reports, timeouts in ((2, 2), (3, 4), (4, 8), (5, 16)):  # it goes on running
        left_ms = timeouts * 60_000 - (ward.clock.monotonic_ms() - begun_ms)
        ward.beat_for(left_ms - 1_000)
        ward.clock.advance(999)
        ward.watchdog.look()
        assert len(ward.overran) == reports - 1
        ward.clock.advance(1)
        ward.watchdog.look()
        assert len(ward.overran) == reports
        assert ward.watchdog.look() <= REST_MS_MAX
        assert not ward.in_flight.all()[0].let_go
        assert ward.lease_left_ms(run) > 0
    others = [one.message_id for one in ward.queue.receive(10)]
    assert (len(others), run.delivery.message_id in others, len(ward.stopped)) == (5, False, 1)


def test_the_watchdog_is_rung_only_for_an_earlier_deadline(ward: Ward) -> None:
    assert ward.watchdog.expects(1)
    ward.runner.begin(ward.receive(1))
    ward.watchdog.look()
    assert ward.watchdog.expects(59_999)
    assert not ward.watchdog.expects(60_000)


# -- in a worker -----------------------------------------------------------------------------------------------


def file_app(path: Path) -> onefold.App:
    return onefold.App("shop", url=f"sqlite:///{path}/shop.db", clock=ManualClock())


def test_a_worker_keeps_what_it_holds_while_a_handler_takes_its_time(tmp_path: Path) -> None:
    app, begun, release = file_app(tmp_path), threading.Event(), threading.Event()
    clock = app._runtime.clock
    assert isinstance(clock, ManualClock)
    queue = app.queue("orders")

    @app.job(queue, key="{id}", timeout="1h")
    def ship(order: Order) -> None:
        begun.set()
        assert release.wait(PATIENCE_S)

    ship.send_many([Order(f"o-{number}") for number in range(5)])
    shop = Workshop(app, WorkerSettings(threads=1, prefetch=4))
    shop.start()
    assert begun.wait(PATIENCE_S)
    other = app.runtime().engine.queues.open("orders")
    assert shop.worker.snapshot().in_hand == 5
    for _ in range(4):
        shop.pass_time(clock, LEASE_MS)
        assert other.receive(10) == []
    release.set()
    shop.told.wait_for("completed", 5)
    shop.worker.drain()
    assert shop.end().counts.lost == 0
    app.close()


def test_a_thread_that_overruns_keeps_its_key_and_message_and_what_it_returns_counts(tmp_path: Path) -> None:
    """A second run beside it would be a second effect: with the default policy, of an operation that takes its time."""
    app, begun, release = file_app(tmp_path), threading.Event(), threading.Event()
    clock = app._runtime.clock
    assert isinstance(clock, ManualClock)
    calls: list[str] = []

    @app.job(app.queue("orders"), key="{id}", timeout="3s")
    def ship(order: Order) -> str:
        calls.append(order.id)
        begun.set()
        assert release.wait(PATIENCE_S)
        return "shipped"

    ship.send(Order("o-0"))
    shop = Workshop(app, WorkerSettings(threads=1))
    shop.start()
    assert begun.wait(PATIENCE_S)
    other, watchdog = app.runtime().engine.queues.open("orders"), shop.worker._beside._watching.bell
    clock.advance(3_000)
    watchdog.ring()  # its thread may get its turn only when all this time has passed
    shop.told.wait_for("overrun")
    for _ in range(10):
        shop.pass_time(clock, LEASE_MS)
        assert other.receive(10) == []
        (record,) = app.runtime().engine.records.scan(status="in_progress", limit=10)
        assert record.lease_until_ms > clock.now_ms()
    watchdog.ring()
    overruns = [told.detail for told in shop.told.wait_for("overrun", 2)]
    release.set()
    shop.told.wait_for("completed")
    shop.worker.drain()
    report = shop.end()

    assert calls == ["o-0"]
    assert (report.counts.completed, report.counts.lost) == (1, 0)
    assert {detail["timeout_ms"] for detail in overruns} == {3_000}
    running_ms = [detail["running_ms"] for detail in overruns]
    assert running_ms == sorted(running_ms)
    assert int(str(running_ms[-1])) >= 6_000
    app.close()


def test_an_overrunning_task_is_cancelled_and_its_outcome_unknown(tmp_path: Path) -> None:
    app, begun, cleaned = file_app(tmp_path), threading.Event(), threading.Event()
    clock = app._runtime.clock
    assert isinstance(clock, ManualClock)
    queue = app.queue("orders")

    @app.job(queue, key="{id}", timeout="90s", on_unknown="hold")
    async def ship(order: Order) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    ship.send(Order("o-0"))
    shop = Workshop(app, WorkerSettings())
    shop.start()
    assert begun.wait(PATIENCE_S)
    shop.pass_time(clock, 90_000)
    assert cleaned.wait(PATIENCE_S)
    (told,) = shop.told.wait_for("unknown")
    shop.worker.drain()
    report = shop.end()

    assert told.detail["error"] == "HandlerTimeout"
    assert len(shop.told.of("overrun")) == 1
    assert report.counts.held == 1
    app.close()


def test_a_task_that_lost_its_lease_is_cancelled_and_settles_nothing(tmp_path: Path) -> None:
    app, begun, cleaned = file_app(tmp_path), threading.Event(), threading.Event()
    queue = app.queue("orders")

    @app.job(queue, key="{id}")
    async def ship(order: Order) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    ship.send(Order("o-0"))
    shop = Workshop(app, WorkerSettings())
    shop.start()
    assert begun.wait(PATIENCE_S)
    (held,) = shop.runner.in_flight.all()
    assert held.run is not None
    shop.worker._executors.stop(held.run, LeaseGone())
    assert cleaned.wait(PATIENCE_S)
    shop.told.wait_for("lease-lost")
    shop.worker.drain()
    report = shop.end()

    assert (report.counts.lost, report.counts.completed) == (1, 0)
    assert app.runtime().engine.queues.open("orders").depth().in_flight == 1  # left to whoever takes over
    app.close()


# -- the threads -----------------------------------------------------------------------------------------------


def test_a_periodic_thread_works_when_due_and_when_rung() -> None:
    clock, worked = ManualClock(), threading.Semaphore(0)

    def work() -> int:
        worked.release()
        return 1_000

    periodic = Periodic("test", work, clock, failed=lambda _: None, reported=lambda *_: None)
    periodic.start()
    assert worked.acquire(timeout=PATIENCE_S)
    clock.advance(999)
    assert not worked.acquire(timeout=0.02)
    clock.advance(1)
    assert worked.acquire(timeout=PATIENCE_S)
    periodic.bell.ring()
    assert worked.acquire(timeout=PATIENCE_S)
    periodic.end(wait=True)


def test_a_periodic_thread_that_fails_says_so() -> None:
    failures: list[BaseException] = []
    heard = ThreadBell()

    def work() -> int:
        raise errors.InvariantBroken("two and two are five")

    def failed(error: BaseException) -> None:
        failures.append(error)
        heard.ring()

    reported: list[str] = []
    periodic = Periodic("test", work, ManualClock(), failed, lambda name, _: reported.append(name))
    periodic.start()
    assert heard.wait(PATIENCE_S)
    assert isinstance(failures[0], errors.InvariantBroken)
    assert reported == ["test"]  # onefold's own error is final
    periodic.end(wait=True)


@pytest.mark.parametrize("recovers", [True, False])
@pytest.mark.parametrize("raised", [ValueError("from a library"), errors.StorageBusy("from a library")], ids=repr)
def test_a_periodic_thread_tries_again_after_an_error_that_nobody_foresaw(recovers: bool, raised: Exception) -> None:
    clock, bell = ManualClock(), ThreadBell()
    calls: list[int] = []
    reported: list[str] = []
    failures: list[BaseException] = []

    def work() -> int:
        calls.append(clock.monotonic_ms())
        if recovers and len(calls) > RETRIES_MAX:
            bell.ring()
            return REST_MS_MAX
        raise raised

    def failed(error: BaseException) -> None:
        failures.append(error)
        bell.ring()

    def report(name: str, error: Exception) -> None:
        reported.append(f"{name} {error}")
        raise errors.StorageError("the history cannot be written either")

    periodic = Periodic("test", work, clock, failed, report)
    periodic.start()
    while not bell.wait(0.005):
        clock.advance(50)
    periodic.end(wait=True)
    assert reported == [f"test {raised}"] * len(calls if not recovers else calls[1:])
    assert len(calls) == RETRIES_MAX + 1
    pauses = [after - before for before, after in itertools.pairwise(calls)]
    assert all(pause >= 100 << number for number, pause in enumerate(pauses)), pauses
    assert [type(error) for error in failures] == ([] if recovers else [type(raised)])


def test_a_beat_leaves_the_retry_of_a_run_that_was_just_settled(ward: Ward) -> None:
    (run,) = ward.runner.begin(ward.receive(1))
    (held,) = ward.in_flight.all()
    assert run.claimed is not None
    failure = Failure(kind="transient", error="E", summary="")
    fail = Fail(failure=failure, expires_at_ms=ward.clock.now_ms() + limits.DAY_MS)
    retry = RetryIn(10 * limits.MINUTE_MS)
    ward.clock.advance(LEASE_MS // 3)
    rows = [Settlement(write=(run.claimed.hold, fail), queue="orders", receipt=run.delivery.receipt, settle=retry)]
    assert ward.backend.commit is not None
    ward.backend.commit.commit(rows, ward.clock.now_ms())  # settled, and not out of the hand yet
    run.step = script.Commit()

    next_ms = ward.heartbeat.beat()

    assert next_ms == LEASE_MS // 3  # it does not come again at once
    assert not held.let_go
    ward.clock.advance(LEASE_MS + 1_000)
    assert run.delivery.message_id not in {one.message_id for one in ward.queue.receive(10)}


def test_a_run_whose_lease_was_extended_is_started_however_long_it_waited(ward: Ward) -> None:
    ward.receive(1)
    (run,) = ward.runner.begin([ward.in_flight.all()[0].delivery])
    ward.beat_for(3 * LEASE_MS)
    ward.runner.perform(run)
    ward.runner.finish([run])
    assert run.decided().write is not None
    assert [note.event for note in run.decided().notes] == ["completed"]
