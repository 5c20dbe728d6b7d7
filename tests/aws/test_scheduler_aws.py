"""The embedded scheduler with its queues on SQS: no transaction covers both; a tick comes at least once, under one key."""

from __future__ import annotations

import pytest

from onefold import App, Tick, errors
from onefold.manual_clock import ManualClock
from onefold.runner import runs
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import Scheduler
from onefold.testing import Endpoint
from onefold.testing.wire_faults import wire_faults
from tests.run.ticking import MINUTE_MS, clock_at
from tests.run.workshop import BreakerUpdate

pytestmark = pytest.mark.slow

DUE = [f"steady/2026-06-01T02:{minute:02}:00Z" for minute in range(0, 60, 5)]


def an_app(url: str, clock: ManualClock) -> App:
    app = App("steady", url=url, clock=clock)

    @app.schedule("cron(0/5 * * * ? *)", missed="all")
    def steady(tick: Tick) -> None:
        """Work."""

    return app


def test_two_schedulers_send_each_tick_and_begin_its_run(endpoint: Endpoint, url: str) -> None:
    clock = clock_at("2026-06-01T01:59:00")
    apps = [an_app(url, clock) for _ in range(2)]
    schedulers = [Scheduler(app.runtime(), Sinks()) for app in apps]
    for _ in range(60):
        for one in schedulers:
            one.catch_up()
        clock.advance(MINUTE_MS)
    keys = [message.body for message in endpoint.peek("steady-schedules")]
    assert sorted(keys) == [f'{{"schedule":"steady","scheduled_at":"{due.partition("/")[2]}"}}' for due in DUE]
    assert runs.names(apps[0].runtime().engine.state, "steady/") == DUE
    for app in apps:
        app.close()


def test_a_tick_whose_queue_was_deleted_is_a_dead_letter_as_eventbridge_scheduler_writes_it(
    endpoint: Endpoint, url: str
) -> None:
    clock, told = clock_at("2026-06-01T01:59:00"), BreakerUpdate()
    app = an_app(url, clock)
    scheduler = Scheduler(app.runtime(), Sinks([told]))
    scheduler.catch_up()
    app.runtime().engine.queues.drop("steady-schedules")
    clock.advance(MINUTE_MS)
    scheduler.catch_up()
    (letter,) = endpoint.peek("steady-schedules-dead")
    assert letter.attributes["ERROR_CODE"].value == "not-found"
    assert letter.attributes["SCHEDULED_TIME"].value == "2026-06-01T02:00:00Z"
    assert [event.queue for event in told.of("dead-letter")] == ["steady-schedules-dead"]
    app.close()


def test_through_a_faulty_wire_no_tick_is_lost(endpoint: Endpoint, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = clock_at("2026-06-01T01:59:00"), BreakerUpdate()
    an_app(url, clock).runtime().close()  # makes the queues
    with wire_faults(endpoint.url, rate=0.3, faults=["error", "before", "after"], seed=3) as wire:
        monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
        app: App | None = None
        while app is None:
            try:
                app = an_app(url, clock)
                scheduler = Scheduler(app.runtime(), Sinks([told]))
            except errors.TransientError:
                app = None
        for _ in range(60 + 20):
            scheduler.catch_up()
            clock.advance(MINUTE_MS if clock.now_ms() < clock_at("2026-06-01T02:58:00").now_ms() else 0)
        for _ in range(20):
            clock.advance(1_000)
            scheduler.catch_up()
        app.close()
    found = {message.body for message in endpoint.peek("steady-schedules")}
    assert found == {f'{{"schedule":"steady","scheduled_at":"{due.partition("/")[2]}"}}' for due in DUE}
