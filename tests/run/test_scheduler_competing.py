"""Several schedulers on one file, as threads and as processes: each tick is sent exactly once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from onefold import App, Tick
from onefold.manual_clock import ManualClock
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import Scheduler
from tests.run.ticking import MINUTE_MS, at, clock_at

SCHEDULES, ROUNDS, SCHEDULERS = 20, 30, 4


def declared(path: Path, clock: ManualClock) -> App:
    app = App("shop", url=f"sqlite:///{path}", clock=clock)
    for number in range(SCHEDULES):
        app.schedule(f"cron(0/{number % 5 + 1} * * * ? *)", name=f"s{number}")(_nothing)
    return app


def _nothing(tick: Tick) -> None:
    """Work."""


def keys(app: App) -> Counter[str]:
    queues = app.runtime().engine.queues
    found: Counter[str] = Counter()
    after: str | None = None
    while page := queues.peek("shop-schedules", limit=500, after=after):
        found.update(str(one.key) for one in page)
        after = page[-1].message_id
    return found


def test_four_threads_that_turn_at_once_send_each_tick_once(tmp_path: Path) -> None:
    clock = clock_at("2026-06-01T01:59:30")
    apps = [declared(tmp_path / "shop.db", clock) for _ in range(SCHEDULERS)]
    schedulers = [Scheduler(app.runtime(), Sinks()) for app in apps]
    begin, end = threading.Barrier(SCHEDULERS), threading.Barrier(SCHEDULERS, action=lambda: clock.advance(MINUTE_MS))
    failures: list[BaseException] = []

    def work(scheduler: Scheduler) -> None:
        try:
            for _ in range(ROUNDS + 1):
                begin.wait(60)
                scheduler.catch_up()
                end.wait(60)
        except BaseException as error:
            failures.append(error)
            begin.abort()
            end.abort()
            raise

    threads = [threading.Thread(target=work, args=(one,)) for one in schedulers]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert failures == []
    expected = Counter(
        f"s{number}/2026-06-01T02:{minute:02}:00Z"
        for number in range(SCHEDULES)
        for minute in range(ROUNDS)
        if minute % (number % 5 + 1) == 0
    )
    assert keys(apps[0]) == expected
    assert sum(one.sent for one in schedulers) == sum(expected.values())
    for app in apps:
        app.close()


PROCESS = """
import sys
import onefold
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import Scheduler

app = onefold.App("shop", url=f"sqlite:///{sys.argv[1]}")
for number in range(300):
    app.schedule("at(2020-01-01T00:00:00)", name=f"s{number}")(lambda tick: None)
scheduler = Scheduler(app.runtime(), Sinks())
print("ready", flush=True)
sys.stdin.readline()
scheduler.start()
print(scheduler.catch_up(), flush=True)
"""


def test_four_processes_that_start_at_once_send_each_tick_once(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    some = [subprocess.Popen([sys.executable, "-c", PROCESS, str(path)], **pipes) for _ in range(SCHEDULERS)]  # type: ignore[call-overload]
    for one in some:
        assert one.stdout.readline() == "ready\n"
    for one in some:  # now all of them, at once
        one.stdin.write("go\n")
        one.stdin.flush()
    sent = [int(one.communicate(timeout=60)[0]) for one in some]
    assert sum(sent) == 300
    app = App("shop", url=f"sqlite:///{path}", clock=ManualClock(at("2026-06-01T00:00:00")))
    app.queue("shop-schedules")
    found = keys(app)
    app.close()
    assert len(found) == 300
    assert set(found.values()) == {1}
