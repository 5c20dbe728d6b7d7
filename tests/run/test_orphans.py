"""Messages for a job that nobody declares: they wait, are seen, and end in the dead-letter queue with their reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import onefold
from onefold import limits
from onefold.admin import jobs, status, status_warnings
from onefold.admin.session import AdminSession, SessionJobs
from onefold.clock import SystemClock
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import Change
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.options import WorkerSettings
from onefold.runner import orphans
from onefold.runner.setup import make_runner
from onefold.runner.worker_setup import make_worker
from onefold.testing import inline
from onefold.testing.inline import Recorder, World
from tests.run.workshop import Workshop, finished

DAY_MS = limits.DAY_MS


@dataclass
class Order:
    order_id: str


class Shop:
    def __init__(self, name: str = "shop", *, fifo: bool = False) -> None:
        self.ran: list[str] = []
        self.app = onefold.App(name)
        self.queue = self.app.queue("orders", fifo=fifo)
        group = "{order_id}" if fifo else None

        @self.app.job(self.queue, key="{order_id}", group=group)
        def book(order: Order) -> None:
            self.ran.append(order.order_id)

        self.book = book


def send(
    world: World, job: str, *, app: str | None = None, group: str | None = None, body: str = '{"order_id":"x"}'
) -> None:
    attributes = {"onefold.job": Attribute(job)} | ({"onefold.app": Attribute(app)} if app else {})
    name = "orders.fifo" if group else "orders"
    queue = world.app.runtime().engine.queues.open(name)
    queue.send([Entry(body=body, attributes=attributes, group=group, dedup_id=job if group else None)])


def events(world: World, name: str) -> list[object]:
    return [event for event in world.events if event.name == name]


def session_of(world: World) -> AdminSession:
    jobs = SessionJobs(named=world.app.jobs, of=world.app.registry.job_of, history="brief")
    return AdminSession(world.app.runtime(), actor="person:ada", jobs=jobs)


def test_a_message_nobody_takes_is_seen_and_ends_among_the_dead_letters_with_its_reason() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        send(world, "invoice")
        world.run()
        (told,) = events(world, "waits-for-job")
        assert told.detail["job"] == "invoice"  # type: ignore[attr-defined]
        ledger = world.app.runtime().engine.ledger
        assert "waits-for-job" in [row.event for row in ledger.between(0, world.clock.now_ms() + 1)]
        (warning,) = [one for one in status.status(session_of(world)).warnings if one.code == "no-job"]
        assert "invoice" in warning.text
        world.run_for(limits.HOUR_MS, step_ms=limits.MINUTE_MS)
        assert 5 <= len(events(world, "waits-for-job")) <= 8, "every ten minutes"
        world.run_for(2 * DAY_MS, step_ms=5 * limits.MINUTE_MS)
        assert world.depth("orders").visible == world.depth("orders").in_flight == 0
        (letter,) = world.app.runtime().engine.queues.peek("orders-dead", limit=10)
        assert letter.reason is not None
        assert (letter.reason.kind, letter.reason.job) == ("no-job", "invoice")
        assert "not declared" in letter.reason.summary
        assert len(events(world, "no-job")) == 1


def test_it_runs_within_moments_once_its_job_is_there() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        send(world, "invoice")
        world.run()
        done = []

        @shop.app.job(shop.queue, key="{order_id}")
        def invoice(order: Order) -> None:
            done.append(order.order_id)

        world.run_for(2_000)
        assert done == ["x"]


def no_job_warnings(world: World) -> list[status_warnings.Warning]:
    return [one for one in status.status(session_of(world)).warnings if one.code == "no-job"]


def test_the_warning_ends_with_the_last_message_that_nobody_took() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        send(world, "invoice")
        send(world, "invoice")
        shop.book.send(Order("busy"), delay="1h")  # something else waits in the queue all the time
        world.run()
        queues = world.app.runtime().engine.queues
        first, second, _ = queues.peek("orders")
        (warning,) = no_job_warnings(world)
        assert warning.todo == f"onefold why {first.message_id}"
        assert "a worker that does not take it" in warning.text
        queues.remove([first.message_id])
        (warning,) = no_job_warnings(world)
        assert warning.todo == f"onefold why {second.message_id}"
        assert first.message_id not in warning.text

        @shop.app.job(shop.queue, key="{order_id}")
        def invoice(order: Order) -> None: ...

        (warning,) = no_job_warnings(world)
        assert warning.todo == "This app declares the job. Start a worker: onefold worker <module>:<app>"
        assert "not declared" not in warning.text
        world.run_for(2_000)
        assert no_job_warnings(world) == []


def test_nothing_waits_in_an_empty_queue_whatever_was_noted() -> None:
    """On SQS, where nobody can look at what waits."""
    shop = Shop()
    with inline(shop.app) as world:
        session = session_of(world)
        note = orphans.WaitingForJob(
            at_ms=world.clock.now_ms(), message_id="m-1", why="Not declared.", ends_at_ms=2**42
        )
        value = msgspec.json.encode({"invoice": note})
        session.engine.state.put([Change(f"{orphans.PLACE}orders", value, 0)])
        assert status_warnings.no_job(session, ["orders"]) == []


def test_what_follows_in_its_group_waits_and_goes_with_it() -> None:
    shop = Shop(fifo=True)
    with inline(shop.app) as world:
        send(world, "invoice", group="x")
        shop.book.send(Order("x"))
        shop.book.send(Order("y"))
        world.run_for(limits.HOUR_MS, step_ms=limits.MINUTE_MS)
        assert shop.ran == ["y"]
        world.run_for(2 * DAY_MS, step_ms=5 * limits.MINUTE_MS)
        letters = world.app.runtime().engine.queues.peek("orders-dead.fifo", limit=10)
        assert [one.reason.kind for one in letters if one.reason] == ["no-job", "group-stopped"]
        assert shop.ran == ["y"]


def test_another_apps_message_is_left_alone_and_reported() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        send(world, "book", app="mill", body='{"order_id":"theirs"}')
        send(world, "book", body='{"order_id":"nobodys"}')
        shop.book.send(Order("ours"))
        world.run_for(limits.HOUR_MS, step_ms=limits.MINUTE_MS)
        assert sorted(shop.ran) == ["nobodys", "ours"]
        assert {event.detail["job"] for event in events(world, "waits-for-job")} == {"book of mill"}  # type: ignore[attr-defined]


def test_two_apps_on_one_file_do_their_own(tmp_path: Path) -> None:
    shops = [Shop("shop"), Shop("mill")]
    clock = ManualClock(1_700_000_000_000)
    worlds = []
    url = f"sqlite:///{tmp_path}/both.db"
    with shops[0].app._reopened(url, clock, SeededEntropy(1)), shops[1].app._reopened(url, clock, SeededEntropy(2)):
        for shop in shops:
            runtime, recorder = shop.app.runtime(), Recorder()
            sinks = onefold.runtime.events.Sinks([recorder])
            runner = make_runner(
                runtime, shop.app.jobs, shop.app.registry.job_of, lease_ms=30_000, sinks=sinks, history="brief"
            )
            jobs.give_names(
                AdminSession(runtime, actor="person:ada"), ["book"], "mill", shared=True
            )  # their keys never meet
            worlds.append(World(shop.app, clock, runner, recorder))
        for number in range(5):
            for shop in shops:
                shop.book.send(Order(f"{shop.app.name}-{number}"))
        for turn in range(20):
            for world in worlds[:: 1 if turn % 3 else -1]:
                world.run()
            clock.advance(1_000)
        for shop in shops:
            assert sorted(shop.ran) == [f"{shop.app.name}-{number}" for number in range(5)]


def test_made_up_jobs_fill_neither_state_nor_ledger() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        for number in range(100):
            send(world, f"made-up-{number}")
        world.run()
        assert len(events(world, "waits-for-job")) <= 21
        (noted,) = world.app.runtime().engine.state.get([f"{orphans.PLACE}orders"])
        assert noted is not None
        assert len(orphans.decoded(noted.value)) <= 21


@pytest.mark.parametrize(
    ("age_ms", "receives", "counted", "waits_ms"),
    [
        (0, 1, False, 1_000),
        (60_000, 3, False, 60_000),
        (DAY_MS, 300, False, 300_000),
        (2 * DAY_MS, 1, False, None),
        (0, 1, True, 30_000),
        (0, 4, True, 240_000),
        (0, 9, True, 900_000),
        (0, 10, True, None),
    ],
)
def test_how_long_it_is_hidden(age_ms: int, receives: int, counted: bool, waits_ms: int | None) -> None:
    queue = QueueSettings(name="orders", dead_letter="orders-dead", receives_max=10)
    assert orphans.wait_ms(queue, age_ms, receives, counted=counted) == waits_ms


@pytest.mark.parametrize("fifo", [False, True])
def test_a_worker_until_empty_ends_when_nobody_takes_what_is_left(tmp_path: Path, fifo: bool) -> None:
    shop = Shop(fifo=fifo)
    with shop.app._reopened(f"sqlite:///{tmp_path}/shop.db", SystemClock(), SeededEntropy(1)) as runtime:
        group = "blocked" if fifo else None
        nobodys = Entry(body="{}", attributes={"onefold.job": Attribute("nobody")}, group=group, dedup_id=group)
        runtime.engine.queues.open(shop.queue.name).send([nobodys])
        for name in ["blocked", "free"] if fifo else ["free"]:
            shop.book.send(Order(name))
        report, _ = finished(shop.app)
    assert (report.code, report.counts.completed, shop.ran) == (0, 1, ["free"])
    assert list(report.not_taken) == [shop.queue.name]
    assert report.not_taken[shop.queue.name] >= 1


def test_what_another_worker_runs_is_waited_for_beside_what_nobody_takes(tmp_path: Path) -> None:
    shop, clock = Shop(), ManualClock()
    with shop.app._reopened(f"sqlite:///{tmp_path}/shop.db", clock, SeededEntropy(1)) as runtime:
        queue = runtime.engine.queues.open("orders")
        shop.book.send(Order("elsewhere"))
        (elsewhere,) = queue.receive(1, 60_000)
        queue.send([Entry(body="{}", attributes={"onefold.job": Attribute("nobody")})])
        worker = Workshop(shop.app, WorkerSettings(until_empty=True))
        worker.start()
        worker.told.wait_for("released")
        for count in (2, 3):  # hidden for a second, then looked at again, later each time
            worker.pass_time(clock, 10_000)
            worker.told.wait_for("released", count)
        assert not worker.worker.draining
        queue.delete([elsewhere.receipt])
        clock.advance(1_000)  # the next look
        assert worker.end().not_taken == {"orders": 1}


def test_what_comes_later_in_a_blocked_group_does_not_keep_a_worker_either(tmp_path: Path) -> None:
    shop, clock = Shop(fifo=True), ManualClock()
    with shop.app._reopened(f"sqlite:///{tmp_path}/shop.db", clock, SeededEntropy(1)) as runtime:
        queue = runtime.engine.queues.open("orders.fifo")
        queue.send([Entry(body="{}", attributes={"onefold.job": Attribute("nobody")}, group="x", dedup_id="n")])
        shop.book.send(Order("elsewhere"))
        nobodys, elsewhere = queue.receive(2, 60_000)
        queue.set_visible_in([(nobodys.receipt, RetryIn(0, uncounted=True))])
        worker = Workshop(shop.app, WorkerSettings(until_empty=True))
        worker.start()
        worker.told.wait_for("released")
        shop.book.send(Order("x"))
        queue.delete([elsewhere.receipt])
        worker.pass_time(clock, 30_000)
        worker.told.wait_for("released", 2)
        clock.advance(2_000)
        assert "orders.fifo" in worker.end().not_taken
        assert shop.ran == []


def test_dead_letters_near_their_end_are_warned_about(tmp_path: Path) -> None:
    shop = Shop()
    clock, recorder = ManualClock(1_700_000_000_000), Recorder()
    with shop.app._reopened(f"sqlite:///{tmp_path}/shop.db", clock, SeededEntropy(1)) as runtime:
        runtime.engine.queues.open("orders-dead").send([Entry(body="x")])
        for days in (0, 13.5):
            clock.advance(int(days * DAY_MS))
            worker = make_worker(
                runtime,
                shop.app.jobs,
                shop.app.registry.job_of,
                settings=WorkerSettings(until_empty=True),
                sinks=[recorder],
            )
            assert worker._beside.maintain is not None
            worker._beside.maintain()
            told = [event for event in recorder.events if event.name == "dead-letters-expire"]
            assert len(told) == bool(days)
        assert told[0].detail["in"] == "orders-dead"
