"""One look at an engine: queues with their companions, jobs, runs and their reconciliation; it is cheap."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

import onefold
from onefold import errors
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import Change
from onefold.contracts.verbs import Ledger
from onefold.engines.urls import open_engine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.observe import readings
from onefold.observe.metrics import gauges
from onefold.observe.readings import Reader, RunReading
from onefold.reconcile import findings
from onefold.record.breaker import Breaker
from onefold.runner import runs
from onefold.runner.admission import breaker_name
from tests.faces.office import Office, Open, Order
from tests.reconcile.test_reconcile_runs import DUE_MS, RUN, Shop


@pytest.fixture
def there() -> Iterator[Open]:
    with Office().opened() as opened:
        yield opened


def look(there: Open) -> readings.Readings:
    return Reader(there.session.engine, there.clock).read()


def test_a_queue_is_shown_with_its_companions(there: Open) -> None:
    there.office.ill = {"bad": errors.PermanentError("no")}
    there.office.book.send_many(Order(name) for name in ("bad", "a", "b"))
    there.world.run()
    there.clock.advance(60_000)
    there.office.book.send_many(Order(f"o-{number}") for number in range(4))
    there.office.book.send(Order("later"), delay="10m")
    there.clock.advance(3_000)
    there.session.engine.queues.open("orders").receive(1)
    found = {one.queue: one for one in look(there).queues}
    assert sorted(found) == ["careful", "lines.fifo", "orders"]
    orders = found["orders"]
    assert (orders.visible, orders.in_flight, orders.delayed, orders.dead, orders.held) == (3, 1, 1, 1, 0)
    assert (orders.oldest_age_ms, orders.dead_oldest_age_ms) == (3_000, 63_000)
    kept_ms = there.session.engine.queues.setting(str(orders.settings.dead_letter)).retention_ms
    assert orders.dead_expires_in_ms == kept_ms - 63_000
    assert orders.in_flight_ratio == 1 / 120_000
    assert (found["careful"].oldest_age_ms, found["careful"].dead_expires_in_ms) == (None, None)


def test_only_the_queues_that_were_asked_for_are_looked_at(there: Open) -> None:
    found = Reader(there.session.engine, there.clock, queues=["orders"], jobs=["book"]).read()
    assert [one.queue for one in found.queues] == ["orders"]
    assert [one.job for one in found.jobs] == ["book"]


def test_a_job_shows_what_was_done_and_that_it_is_paused(there: Open) -> None:
    there.office.book.send_many(Order(f"o-{number}") for number in range(3))
    there.world.run()
    there.clock.advance(120_000)
    paused = Breaker(pauses=1, until_ms=there.clock.now_ms() + 5_000)
    there.session.engine.state.put([Change(breaker_name("pay"), msgspec.json.encode(paused), 0)])
    found = {one.job: one for one in look(there).jobs}
    assert (found["book"].done_last_minute, found["book"].done_last_30_minutes) == (0, 3)
    assert (found["book"].paused_until_ms, found["pay"].paused_until_ms) == (None, paused.until_ms)


def test_a_run_is_counted_and_what_its_reconciliation_found_stands_beside_it() -> None:
    shop = Shop("dispatcher")
    with onefold.testing.inline(shop.app, start_ms=DUE_MS - 1_000) as world:
        reader = Reader(world.app.runtime().engine, world.clock, reconciled=["billing"])
        assert reader.read().runs == ()
        (before,) = reader.read().reconciliations
        assert (before.title, before.good_age_ms, before.waiting_ms) == ("billing", None, 0)
        world.clock.advance(1_000)
        world.tick()
        world.run()
        (run,) = reader.read().runs
        assert (run.run, run.title, run.expected, run.completed, run.unfinished) == (RUN, "billing", 3, 3, 0)
        assert (run.missing, run.duplicates, run.reconciled_at_ms, run.agrees) == (None, None, None, False)
        world.clock.advance(60_000)
        (late,) = reader.read().reconciliations
        assert (late.good_age_ms, late.waiting_ms) == (None, 60_000)
        world.clock.advance(30 * 60_000)
        world.run()
        world.clock.advance(1_000)
        found = reader.read()
        (run,), (good,) = found.runs, found.reconciliations
        outcome = findings.read(world.app.runtime().engine.state, RUN)
        assert outcome is not None
        assert (run.missing, run.duplicates, run.agrees) == (0, outcome.twice, outcome.verdict == "agrees")
        assert (good.good_age_ms is not None) == run.agrees


def test_a_run_that_has_ended_is_counted_once(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = there.session.engine
    run = runs.RunState(name="bills/1", kind="dispatch", title="bills", started_at_ms=1, expected=0, ended_at_ms=2)
    runs.begin(engine.state, run)
    counted: list[str] = []
    count = runs.count

    def counting(ledger: Ledger, one: runs.RunState) -> runs.Counts:
        counted.append(one.name)
        return count(ledger, one)

    monkeypatch.setattr(runs, "count", counting)
    reader = Reader(engine, there.clock)
    assert [one.is_open for one in (*reader.read().runs, *reader.read().runs)] == [False, False]
    assert counted == ["bills/1"]


def test_looking_takes_at_most_a_tenth_of_the_time(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = there.session.engine.queues
    looks: list[int] = []
    depths = queues.depths

    def slow(names: list[str]) -> object:
        looks.append(there.clock.monotonic_ms())
        there.clock.advance(200)
        return depths(names)

    monkeypatch.setattr(queues, "depths", slow)
    reader = Reader(there.session.engine, there.clock)
    reader.read()
    there.clock.advance(1_999)
    reader.read()
    assert len(looks) == 1
    there.clock.advance(1)
    reader.read()
    assert len(looks) == 2


def test_a_thousand_queues_are_three_statements() -> None:
    clock = ManualClock(1_700_000_000_000)
    engine = open_engine("sqlite://:memory:", clock=clock, entropy=SeededEntropy(1), owner="o")
    for number in range(50):
        engine.queues.create(QueueSettings(name=f"q-{number}"))
    statements: list[str] = []
    engine.queues._engine.read(lambda connection: connection.set_trace_callback(statements.append))  # type: ignore[attr-defined]
    assert len(Reader(engine, clock).read().queues) == 50
    engine.queues._engine.read(lambda connection: connection.set_trace_callback(None))  # type: ignore[attr-defined]
    assert len([one for one in statements if "onefold_waiting" in one or "onefold_received" in one]) == 2
    engine.close()


def test_what_alarms_are_about_is_shown() -> None:
    with Office().opened() as there:
        found = Reader(there.session.engine, there.clock, jobs=[]).read()
    queue = replace(found.queues[0], dead=1, dead_oldest_age_ms=5_000, held=0, held_oldest_age_ms=None)
    run = RunReading(
        run="r/1", title="r", owner=None, started_at_ms=0, is_open=True, failure="no file", expected=0, completed=0,
        failed=0, dead=0, held=0, unfinished=0, reconciled_at_ms=1, agrees=False, missing=1, duplicates=0,
    )  # fmt: skip
    fine = replace(run, run="r/2", failure=None, agrees=True)
    shown = {
        (one.metric.name, *(value for _, value in one.labels)): one.value
        for one in gauges(replace(found, queues=(queue,), runs=(run, fine)))
        if one.metric.name in ("onefold.queue.companion.age", "onefold.runs")
    }
    assert shown == {
        ("onefold.queue.companion.age", queue.queue, "dead"): 5,
        ("onefold.queue.companion.age", queue.queue, "held"): 0,
        ("onefold.runs", "r", "stopped"): 1,
        ("onefold.runs", "r", "disagrees"): 1,
    }
