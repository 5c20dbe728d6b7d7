"""A process that dies in the middle of a put or of a replay's page, at every statement: all of it stands, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import onefold
from onefold.contracts.entries import Entry
from onefold.events import EventEntry
from onefold.events import replay as replays

STATEMENTS_MAX = 200
DIED, SURVIVED = 9, 0


def make(folder: Path) -> onefold.App:
    """A bus whose one event becomes four messages (one of them a dead letter) and one archived event."""
    app = onefold.App("town", url=f"sqlite:///{folder / 'town.db'}")
    several = [app.queue("billing"), app.queue("log"), app.queue("small", max_bytes=1_024)]
    bus = app.bus("orders")
    bus.rule("all", {"source": ["shop"]}, to=several)
    bus.rule("lines", {"source": ["shop"]}, to=app.queue("lines", fifo=True, content_dedup=True), group="all")
    bus.archive("all")
    return app


def stands(app: onefold.App) -> tuple[int, ...]:
    """How much lies in the queues, and in the archive."""
    engine = app.runtime().engine
    names = ("billing", "log", "small", "orders-undelivered", "lines.fifo")
    assert engine.archive is not None
    return (*(len(engine.queues.peek(name)) for name in names), engine.archive.holdings("orders/all").count)


def put(app: onefold.App) -> None:
    """One event, too large for one of the targets."""
    app.bus("orders").put([EventEntry(source="shop", detail_type="x", detail={"a": "x" * 1_200}, time_ms=1_000)])


def dies_at(statement: int, folder: Path, act: Callable[[onefold.App], None]) -> int:
    """Do it in a child process that dies before its n-th statement; how the child ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = DIED + 1
    try:
        app = make(folder)
        database = app.runtime().engine.database  # type: ignore[attr-defined]
        left = [statement]

        def count(_: str) -> None:
            left[0] -= 1
            if left[0] <= 0:
                os._exit(DIED)

        database._writer.set_trace_callback(count)
        act(app)
        code = SURVIVED
    finally:
        os._exit(code)


def test_a_put_stands_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    app = make(tmp_path)
    app.runtime()
    app.close()
    for statement in range(1, STATEMENTS_MAX):
        ended = dies_at(statement, tmp_path, put)
        found = stands(app)
        app.close()
        if ended == SURVIVED:
            assert found == (1, 1, 0, 1, 1, 1)
            assert statement > 8  # at least the parts of one put
            return
        assert ended == DIED
        assert found in ((0,) * 6, (1, 1, 0, 1, 1, 1)), statement
        if found[0]:
            pytest.fail(f"the put stood before its statement {statement}, and the process went on")
    pytest.fail("the put never ended")


def test_a_replay_killed_anywhere_delivers_each_event_once(tmp_path: Path) -> None:
    app = make(tmp_path)
    put(app)
    replays.begin(app.bus("orders"), app.runtime(), "all", 0, 2_000, name="june")
    app.close()

    def go_on(opened: onefold.App) -> None:
        replays.run(opened.bus("orders"), opened.runtime(), "june")

    for statement in range(1, STATEMENTS_MAX):
        ended = dies_at(statement, tmp_path, go_on)
        found = stands(app)
        app.close()
        assert found in ((1, 1, 0, 1, 1, 1), (2, 2, 0, 2, 2, 1)), statement
        if ended == SURVIVED:
            assert found == (2, 2, 0, 2, 2, 1)
            return
        assert ended == DIED
    pytest.fail("the replay never ended")


def test_a_dead_letter_can_be_sent_again(tmp_path: Path) -> None:
    app = make(tmp_path)
    put(app)
    (dead,) = app.runtime().engine.queues.peek("orders-undelivered")
    app.runtime().engine.queues.open("billing").send([Entry(body=dead.body)])
    assert stands(app)[0] == 2
    app.close()
