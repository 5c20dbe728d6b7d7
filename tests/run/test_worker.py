"""The control loop on the real engine: what it does, what it counts, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.contracts.store import RecordKey
from onefold.manual_clock import ManualClock
from onefold.options import WorkerSettings
from onefold.runner.heartbeat import RETRIES_MAX
from onefold.runner.settlement import backend_of
from onefold.runner.setup import make_runner
from tests.run.workshop import PATIENCE_S, Workshop, finished, working


class Order(msgspec.Struct):
    id: str
    n: int = 0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[onefold.App]:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db")
    yield app
    app.close()


def orders(count: int, first: int = 0) -> list[Order]:
    return [Order(f"o-{number}", number) for number in range(first, first + count)]


def record(app: onefold.App, job: str, key: str) -> Any:
    runtime = app.runtime()
    return runtime.engine.store.read([RecordKey("", job, key)], runtime.clock.now_ms())[0]


# -- doing the work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["external", "repeatable", "transactional"])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_every_job_is_done_once(app: onefold.App, effect: Any, kind: str) -> None:
    queue, ran, lock = app.queue("orders"), Counter[str](), threading.Lock()

    def note(order: Order) -> int:
        with lock:
            ran[order.id] += 1
        return order.n

    if kind == "plain":

        @app.job(queue, key="{id}", effect=effect)
        def ship(order: Order) -> int:
            return note(order)

    else:

        @app.job(queue, key="{id}", effect=effect)
        async def ship(order: Order) -> int:
            return note(order)

    ship.send_many(orders(250))
    ship.send_many(orders(50))  # the same keys again: answered from their records

    report, told = finished(app)

    assert report.code == 0
    assert report.left == ()
    assert ran == Counter({f"o-{number}": 1 for number in range(250)})
    counts = report.counts
    assert (counts.received, counts.started, counts.completed, counts.duplicates) == (300, 250, 250, 50)
    assert (counts.in_hand, counts.running, counts.dead_lettered, counts.held) == (0, 0, 0, 0)
    assert record(app, "ship", "o-7").result == b"7"
    assert told.names()[0] == "worker-started"
    assert told.names()[-1] == "worker-stopped"


def test_rows_of_transactional_handlers_stand_with_their_records(app: onefold.App) -> None:
    queue = app.queue("orders")

    @app.job(queue, key="{id}", effect="transactional", retry=onefold.Retry(attempts=1))
    def ship(order: Order, ctx: onefold.Context) -> None:
        ctx.connection.execute("INSERT INTO shipped VALUES (?)", (order.id,))
        if order.n % 10 == 3:
            raise onefold.PermanentError("out of stock")

    app.runtime().engine.database.write(lambda c: c.execute("CREATE TABLE shipped (id TEXT)"))  # type: ignore[attr-defined]
    ship.send_many(orders(100))

    report, _ = finished(app)

    rows = app.runtime().engine.database.read(lambda c: c.execute("SELECT id FROM shipped").fetchall())  # type: ignore[attr-defined]
    assert sorted(rows) == sorted((f"o-{n}",) for n in range(100) if n % 10 != 3)
    assert (report.counts.completed, report.counts.dead_lettered) == (90, 10)


def test_what_handlers_raise_is_counted_and_never_ends_the_worker(app: onefold.App) -> None:
    queue = app.queue("orders")

    @app.job(queue, key="{id}", retry=onefold.Retry(attempts=2, base="1ms", cap="1ms"))
    def ship(order: Order) -> None:
        match order.id:
            case "o-0":
                raise SystemExit(3)
            case "o-1":
                raise onefold.PermanentError("no such street")
            case "o-2":
                raise onefold.OutcomeUnknown("the line went dead")
            case "o-3":
                raise KeyboardInterrupt  # of a library: nobody's Ctrl-C reaches a thread

    ship.send_many(orders(5))
    report, told = finished(app)

    assert report.counts.completed == 1
    assert report.counts.retried == 3
    assert report.counts.dead_lettered == 4
    assert {event.detail["reason"] for event in told.of("dead-letter")} == {"attempts", "permanent"}


def test_coroutines_run_side_by_side(app: onefold.App) -> None:
    queue = app.queue("orders")
    inside: list[str] = []
    everyone = asyncio.Event()

    @app.job(queue, key="{id}")
    async def ship(order: Order, ctx: onefold.Context) -> None:
        inside.append(order.id)
        if len(inside) == 50:
            everyone.set()
        await everyone.wait()  # goes on only when all fifty have been called
        invoice.send(Order(ctx.key))

    @app.job(queue, key="{id}")
    async def invoice(order: Order) -> None: ...

    ship.send_many(orders(50))
    report, _ = finished(app, tasks=50)

    assert report.counts.completed == 100  # what a coroutine sends leaves with its own completion


def test_a_slow_queue_starves_no_other(app: onefold.App) -> None:
    slow, quick = app.queue("slow"), app.queue("quick")
    release, ran = threading.Event(), threading.Event()

    @app.job(slow, key="{id}")
    async def ponder(order: Order) -> None:
        await asyncio.to_thread(release.wait, PATIENCE_S)

    @app.job(quick, key="{id}")
    def ship(order: Order) -> None:
        ran.set()

    ponder.send_many(orders(300))
    with working(app, tasks=4, threads=1):
        ship.send(Order("o-0"))
        assert ran.wait(PATIENCE_S)
        release.set()


def test_queues_take_turns_by_weight(app: onefold.App) -> None:
    heavy, light = app.queue("heavy"), app.queue("light")
    order_of_runs: list[str] = []

    @app.job(heavy, key="{id}")
    def lift(order: Order) -> None:
        order_of_runs.append("heavy")

    @app.job(light, key="{id}")
    def wave(order: Order) -> None:
        order_of_runs.append("light")

    lift.send_many(orders(60))
    wave.send_many(orders(60))
    finished(app, threads=4, prefetch=60, weights={"heavy": 3})

    share = order_of_runs[8:72].count("heavy") / 64  # the first and the last turns are uneven
    assert 0.65 < share < 0.85


def test_messages_of_one_group_keep_their_order(app: onefold.App) -> None:
    queue, ran = app.queue("orders", fifo=True), list[tuple[str, int]]()

    @app.job(queue, key="{id}", group=lambda order: f"g-{order.n % 5}")
    def ship(order: Order) -> None:
        ran.append((f"g-{order.n % 5}", order.n))

    ship.send_many(orders(100))
    finished(app)

    assert len(ran) == 100
    for group in range(5):
        of_group = [n for name, n in ran if name == f"g-{group}"]
        assert of_group == sorted(of_group)


def test_an_idle_worker_is_woken_by_a_send(app: onefold.App) -> None:
    queue, ran = app.queue("orders"), threading.Event()
    clock = ManualClock()  # it stands still: only a wake-up can help
    app._runtime.clock = clock

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        ran.set()

    with working(app) as shop:
        shop.told.wait_for("worker-started")
        ship.send(Order("o-0"))
        assert ran.wait(PATIENCE_S)


def test_a_delayed_message_keeps_an_emptying_worker_waiting_or_not(app: onefold.App) -> None:
    queue = app.queue("orders")
    clock = ManualClock()
    app._runtime.clock = clock

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None: ...

    ship.send(Order("o-0"), delay="10m")
    report, _ = finished(app, wait_for_delayed=False)
    assert report.counts.received == 0

    shop = Workshop(app, WorkerSettings(until_empty=True))
    shop.start()
    shop.told.wait_for("worker-started")
    clock.advance(600_000)
    assert shop.end().counts.completed == 1


def test_messages_of_an_unknown_job_are_given_back(app: onefold.App) -> None:
    queue = app.queue("orders")

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None: ...

    @app.job(queue, key="{id}")
    def retired(order: Order) -> None: ...

    retired.send(Order("old"))
    ship.send(Order("new"))
    del app.jobs["retired"]
    with working(app) as shop:
        shop.told.wait_for("released")
        shop.told.wait_for("completed")
    depth = app.runtime().engine.queues.open("orders").depth()
    assert (depth.visible, depth.in_flight) == (0, 1)  # hidden for half a minute, for a worker that knows it


# -- ending ----------------------------------------------------------------------------------------------------


def test_a_drain_gives_back_in_order_and_finishes_what_runs(app: onefold.App) -> None:
    queue = app.queue("orders")
    begun, release = threading.Event(), threading.Event()

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        begun.set()
        assert release.wait(PATIENCE_S)

    ship.send_many(orders(8))
    shop = Workshop(app, WorkerSettings(threads=1, prefetch=8))
    shop.start()
    assert begun.wait(PATIENCE_S)
    shop.worker.drain()
    draining = shop.told.wait_for("worker-draining")[0]
    shop.told.wait_for("released", 7)
    waiting = app.runtime().engine.queues.open("orders").receive(10)
    release.set()
    report = shop.end()

    assert draining.detail == {"running": 1, "given_back": 7}
    assert [one.key for one in waiting] == [f"o-{number}" for number in range(1, 8)]
    assert [one.receive_count for one in waiting] == [1] * 7  # being given back is no attempt
    assert (report.code, report.counts.completed, report.counts.given_back) == (0, 1, 7)


def test_a_drain_gives_back_what_waits_behind_a_running_group_member(app: onefold.App) -> None:
    queue = app.queue("orders", fifo=True)
    begun, release, ran = threading.Event(), threading.Event(), list[int]()

    @app.job(queue, key="{id}", group=lambda _: "one")
    def ship(order: Order) -> None:
        ran.append(order.n)
        begun.set()
        assert release.wait(PATIENCE_S)

    ship.send_many(orders(6))
    shop = Workshop(app, WorkerSettings(threads=4, prefetch=10))
    shop.start()
    assert begun.wait(PATIENCE_S)
    shop.worker.drain()
    shop.told.wait_for("released", 5)
    release.set()
    assert shop.end().code == 0
    assert ran == [0]

    finished(app)
    assert ran == [0, 1, 2, 3, 4, 5]


def test_the_grace_time_bounds_a_drain(app: onefold.App) -> None:
    queue, clock = app.queue("orders"), ManualClock()
    app._runtime.clock = clock
    begun, release = threading.Event(), threading.Event()

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    ship.send(Order("o-0"))
    shop = Workshop(app, WorkerSettings(threads=1, grace_ms=5_000))
    shop.start()
    assert begun.wait(PATIENCE_S)
    shop.worker.drain()
    shop.told.wait_for("worker-draining")
    while shop.report is None and not shop.told.of("worker-stopped"):
        clock.advance(1_000)
    report = shop.end()
    release.set()
    assert (report.code, report.left) == (3, ("ship o-0",))


def test_a_later_drain_can_only_shorten_the_grace_time(app: onefold.App) -> None:
    queue, clock = app.queue("orders"), ManualClock()
    app._runtime.clock = clock
    begun, release = threading.Event(), threading.Event()

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    ship.send(Order("o-0"))
    shop = Workshop(app, WorkerSettings(threads=1, grace_ms=600_000))
    shop.start()
    assert begun.wait(PATIENCE_S)
    since_ms = clock.monotonic_ms()
    shop.worker.drain()
    shop.told.wait_for("worker-draining")
    assert shop.runner.settler.last_try_ms == since_ms + 600_000 + 1_500
    shop.worker.drain(5_000)  # as when the thread that extends the leases has ended
    shop.worker.drain()
    assert shop.runner.settler.last_try_ms == since_ms + 5_000 + 1_500
    while shop.report is None and not shop.told.of("worker-stopped"):
        clock.advance(1_000)
    report = shop.end()
    release.set()
    assert (report.code, report.left) == (3, ("ship o-0",))


def test_a_drain_that_comes_while_the_worker_looks_whether_all_is_done_is_not_forgotten(app: onefold.App) -> None:
    queue, ran = app.queue("orders"), list[str]()

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        ran.append(order.id)

    shop = Workshop(app, WorkerSettings(until_empty=True))

    def check(*, turns: bool = True) -> bool:
        shop.worker.drain()  # a signal arrives now
        ship.send(Order("o-0"))  # and closing a run has sent the jobs that wait for it
        return True

    shop.runner.closer.check = check
    shop.start()
    assert shop.end().code == 0
    assert ran == []


def test_a_handler_that_hangs_in_its_transaction_does_not_keep_its_worker(app: onefold.App) -> None:
    queue = app.queue("orders")
    begun, release = threading.Event(), threading.Event()

    @app.job(queue, key="{id}", effect="transactional", timeout="1s")
    def ship(order: Order, ctx: onefold.Context) -> None:
        ctx.connection.execute("SELECT 1")
        begun.set()
        release.wait(PATIENCE_S)

    ship.send(Order("o-0"))
    shop = Workshop(app, WorkerSettings(threads=1, grace_ms=500))
    shop.start()
    assert begun.wait(PATIENCE_S)
    shop.worker.drain()
    assert shop.end().left == ("ship o-0",)
    app.close(unfinished=True)
    release.set()


def test_stopping_at_once_leaves_what_runs_to_whoever_takes_over(app: onefold.App) -> None:
    queue = app.queue("orders")
    begun, release = threading.Event(), threading.Event()

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    ship.send(Order("o-0"))
    shop = Workshop(app, WorkerSettings(threads=1))
    shop.start()
    assert begun.wait(PATIENCE_S)
    shop.worker.drain()
    shop.told.wait_for("worker-draining")
    shop.worker.stop_now()
    report = shop.end()
    standing = record(app, "ship", "o-0")
    release.set()

    assert (report.code, report.left) == (3, ("ship o-0",))
    assert (standing.status, standing.attempts) == ("in_progress", 1)
    assert app.runtime().engine.queues.open("orders").depth().in_flight == 1


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_or_done_twice_however_often_workers_stop(app: onefold.App, seed: int) -> None:
    queue, ran, lock = app.queue("orders"), Counter[str](), threading.Lock()
    stop_after = 0

    def note(order: Order) -> None:
        with lock:
            ran[order.id] += 1
            if ran.total() == stop_after:
                shop.worker.drain()

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        note(order)

    @app.job(queue, key="{id}", effect="repeatable")
    def label(order: Order) -> None:
        note(order)

    @app.job(queue, key="{id}")
    async def call(order: Order) -> None:
        note(order)

    for number, job in enumerate((ship, label, call)):
        job.send_many(orders(100, first=100 * number))
    while stop_after < 300:
        stop_after = ran.total() + 1 + (7 * seed + 13 * ran.total()) % 37
        shop = Workshop(app, WorkerSettings(until_empty=True, threads=3, tasks=5, group_max=20))
        shop.start()
        assert shop.end().code == 0
    assert ran == Counter({f"o-{number}": 1 for number in range(300)})


# -- faults ----------------------------------------------------------------------------------------------------


class Faulty:
    """Raises the given errors at the first calls of one method, then is what it wraps."""

    def __init__(self, wrapped: Any, method: str, *faults: Exception) -> None:
        self._wrapped, self._method, self._faults = wrapped, method, list(faults)

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._faults:
            return self._fail
        return getattr(self._wrapped, name)

    def _fail(self, *_args: Any, **_options: Any) -> Any:
        raise self._faults.pop(0)


BUSY = errors.StorageBusy("shop.db is locked by another process.")


def test_a_busy_engine_is_told_and_the_work_goes_on(app: onefold.App) -> None:
    queue = app.queue("orders")

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None: ...

    ship.send_many(orders(30))
    backend = backend_of(app.runtime().engine)
    shop = Workshop(
        app,
        WorkerSettings(until_empty=True),
        backend=msgspec.structs.replace(backend, store=Faulty(backend.store, "claim", BUSY, BUSY, BUSY)),
        queues=[Faulty(backend.open_queue("orders"), "receive", BUSY)],
    )
    shop.start()
    report = shop.end()

    assert report.counts.completed == 30
    assert report.counts.received == 30  # what could not be begun stayed in hand: nothing was received twice
    assert [event.detail["error"] for event in shop.told.of("engine-busy")] == ["storage-busy"] * 2


def test_a_start_that_could_not_be_marked_comes_back(app: onefold.App) -> None:
    queue, clock = app.queue("orders"), ManualClock()
    app._runtime.clock = clock
    ran: list[int] = []

    @app.job(queue, key="{id}")
    def ship(order: Order, ctx: onefold.Context) -> None:
        ran.append(ctx.attempt)

    ship.send(Order("o-0"))
    backend = backend_of(app.runtime().engine)
    delivery = backend.open_queue("orders").receive(1, 1_000)[0]
    runtime = app.runtime()
    other = make_runner(
        runtime, app.jobs, app.registry.job_of, lease_ms=1_000, sinks=onefold.runtime.events.Sinks(), history="off"
    )
    assert other.begin([delivery])  # and then it dies
    clock.advance(2_000)

    shop = Workshop(
        app,
        WorkerSettings(until_empty=True),
        backend=msgspec.structs.replace(backend, store=Faulty(backend.store, "start", BUSY)),
    )
    shop.start()
    shop.told.wait_for("released")
    clock.advance(1_500)
    shop.end()
    assert ran == [2]


def test_a_defect_ends_the_worker_with_its_error(app: onefold.App) -> None:
    queue = app.queue("orders")

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None: ...

    ship.send(Order("o-0"))
    backend = backend_of(app.runtime().engine)
    broken = errors.InvariantBroken("two and two are five")
    shop = Workshop(
        app,
        WorkerSettings(),
        backend=msgspec.structs.replace(backend, store=Faulty(backend.store, "claim", broken)),
    )
    shop.start()
    with pytest.raises(errors.InvariantBroken):
        shop.end()
    assert shop.told.names()[-1] == "worker-stopped"


def test_maintenance_is_called_and_may_fail_for_a_while(app: onefold.App) -> None:
    app.queue("orders")
    called = threading.Semaphore(0)
    faults = [BUSY]

    def maintain() -> int:
        called.release()
        if faults:
            raise faults.pop()
        return 0

    clock = ManualClock()
    app._runtime.clock = clock
    shop = Workshop(app, WorkerSettings(), maintain=maintain)
    shop.start()
    assert called.acquire(timeout=PATIENCE_S)
    shop.told.wait_for("engine-busy")
    for _ in range(3):
        while not called.acquire(timeout=0.01):
            clock.advance(500)
    shop.worker.drain()
    assert shop.end().code == 0


@pytest.mark.parametrize(
    ("raised", "found", "tries"),
    [
        (ValueError("a library's own"), (errors.InvariantBroken, "ValueError: a library's own"), RETRIES_MAX + 1),
        (errors.StorageError("no rights"), (errors.StorageError, "no rights"), 1),
    ],
    ids=["unexpected", "onefold's own"],
)
def test_a_thread_beside_the_work_that_cannot_go_on_drains_the_worker(
    app: onefold.App, raised: Exception, found: tuple[type[Exception], str], tries: int
) -> None:
    queue, began, release = app.queue("orders"), threading.Event(), threading.Event()
    clock = ManualClock()
    app._runtime.clock = clock

    @app.job(queue, key="{id}")
    def ship(order: Order) -> int:
        began.set()
        assert release.wait(PATIENCE_S)
        return order.n

    def maintain() -> int:
        if not began.is_set():
            return 0
        raise raised

    ship.send(Order("o-0", 7))
    shop = Workshop(app, WorkerSettings(), maintain=maintain)
    shop.start()
    assert began.wait(PATIENCE_S)
    while "worker-draining" not in shop.told.names():
        clock.advance(50)
        threading.Event().wait(0.002)
    release.set()  # what runs is finished and recorded before the worker ends
    with pytest.raises(found[0], match=found[1]):
        shop.end()
    names = shop.told.names()
    assert names.count("thread-failed") == tries
    assert names.index("completed") < names.index("worker-stopped")
    assert record(app, "ship", "o-0").status == "completed"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"threads": 0}, "threads=0"),
        ({"tasks": 0}, "tasks=0"),
        ({"group_max": 0}, "group_max=0"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"lease_ms": 999}, "lease_ms=999"),
        ({"processes": 1}, "processes=1"),
        ({"weights": {"other": 2}}, "other=2"),
        ({"weights": {"orders": 0}}, "orders=0"),
    ],
)
def test_a_setting_out_of_range_is_refused(app: onefold.App, settings: dict[str, Any], named: str) -> None:
    app.queue("orders")
    with pytest.raises(errors.UsageError, match=named):
        Workshop(app, WorkerSettings(**settings))
