"""A dispatch, and the closing of a run, killed at every SQL statement, or without transactions at every call.

With one transaction per batch nothing is sent twice and nothing is missing, wherever the process dies. Without
transactions a batch may be sent twice, under the same keys, so that each takes effect once; and the run's numbers are
the same.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner import runs
from onefold.runner.completion import Closer
from onefold.runner.dispatcher import Dispatch
from tests.crash import dispatch_victim, victim
from tests.crash.test_kill import Nursery
from tests.crash.wires import Death, Side
from tests.run.billing import NOMINAL_MS, RUN, Billing, Tick, customers

ALL = customers(5)  # two batches of two, and one customer that is only sent at the end


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery("tests.crash.dispatch_victim")
    yield one
    one.close()


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(text).fetchall()


def killed_everywhere(
    nursery: Nursery, folder: Path, work: str, prepare: Callable[[Billing], None]
) -> Iterator[tuple[Billing, Path, str]]:
    """Kill at every statement of the work; yields for each the app, its file, and where it was killed."""
    number = 0
    while True:
        path = folder / f"{number}.db"
        billing = Billing(f"sqlite:///{path}", batch=dispatch_victim.BATCH)
        billing.customers = ALL
        prepare(billing)
        where = nursery.kill_one(path=str(path), customers=ALL, work=work, point=number)
        if where is not None:
            billing.runtime.engine.appear()
            billing.runtime.engine.maintain(lambda owner: None)
            assert query(path, "PRAGMA integrity_check") == [("ok",)]
            yield billing, path, where
        billing.app.close()
        if where is None:
            return
        number += 1


@pytest.mark.slow
def test_a_dispatch_at_every_statement(nursery: Nursery, tmp_path: Path) -> None:
    checkpoints: set[int | None] = set()
    kills = 0
    for billing, path, where in killed_everywhere(nursery, tmp_path, "dispatch", lambda one: one.tick.send(Tick())):  # type: ignore[func-returns-value]
        kills += 1
        standing = runs.read(billing.runtime.engine.state, RUN)
        checkpoints.add(None if standing is None else standing.run.dispatched)
        sent = [key for (key,) in query(path, "SELECT key FROM onefold_ledger WHERE event = 'dispatched' ORDER BY id")]
        # At every moment the checkpoint, the rows and the messages agree.
        assert sent == billing.waiting() == ALL[: standing.run.dispatched if standing is not None else 0], where
        victim.work(billing.app, billing.runtime)
        assert billing.told("dispatched") == billing.charged == ALL, where
        assert billing.told("dispatch-restarted") == [], where
        assert (billing.run().dispatched, billing.run().expected) == (5, 5), where
        assert billing.counts() == runs.Counts(expected=5, done=5), where
        assert dispatch_victim.close(billing, billing.runtime) == 1, where
        victim.work(billing.app, billing.runtime)
        assert len(billing.closed) == 1, where
    assert checkpoints == {None, 0, 2, 4, 5}
    assert kills > 50


@pytest.mark.slow
def test_the_closing_of_a_run_at_every_statement(nursery: Nursery, tmp_path: Path) -> None:
    def dispatched(billing: Billing) -> None:
        billing.tick.send(Tick())
        victim.work(billing.app, billing.runtime)
        assert billing.counts() == runs.Counts(expected=5, done=5)

    kills, open_then = 0, Counter[bool]()
    for billing, path, where in killed_everywhere(nursery, tmp_path, "close", dispatched):
        kills += 1
        (messages,) = query(path, "SELECT count(*) FROM onefold_message WHERE key LIKE 'billing/%'")[0]
        ended = billing.run().ended_at_ms is not None
        assert messages == ended == (runs.open_names(billing.runtime.engine.state) == []), where  # all or nothing
        open_then[not ended] += 1
        assert dispatch_victim.close(billing, billing.runtime) == (not ended), where
        victim.work(billing.app, billing.runtime)
        assert len(billing.closed) == 1, where
        assert dispatch_victim.close(billing, billing.runtime) == 0, where
    assert kills > 10
    assert open_then[True] > open_then[False] >= 0


# -- part by part ----------------------------------------------------------------------------------------------------


class PartByPart:
    """An engine whose `together` is not a transaction, and which dies at one of the calls that write.

    Args:
        at: number of the call, from 0; with None it never dies. side: before it took effect, or after.
    """

    def __init__(self, real: Any, at: int | None, side: Side) -> None:
        self._real, self._at, self._side = real, at, side
        self.trace: list[str] = []
        self.state, self.ledger = _Part(self, real.state, "put"), _Part(self, real.ledger, "append")
        self.queues = _Queues(self, real.queues)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        dies = len(self.trace) == self._at
        self.trace.append(name)
        if dies and self._side == "before":
            raise Death(name)
        answer = function(*args, **kwargs)
        if dies:
            raise Death(name)
        return answer

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        answers: list[object] = []
        for call in calls:
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001 - the contract: what a call raised is its answer
                answers.append(error)
        return answers


class _Part:
    """A contract whose one writing operation can be the last call."""

    def __init__(self, engine: PartByPart, real: Any, verb: str) -> None:
        self._engine, self._real, self._verb = engine, real, verb

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return (
            (lambda *args, **kwargs: self._engine.call(name, found, *args, **kwargs)) if name == self._verb else found
        )


class _Queues(_Part):
    def __init__(self, engine: PartByPart, real: Any) -> None:
        super().__init__(engine, real, "open")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return (lambda queue: _Part(self._engine, found(queue), "send")) if name == "open" else found


def dispatch_until_death(billing: Billing, engine: PartByPart) -> str | None:
    """Dispatch on that engine; returns the call at which the process died."""
    runtime: Any = billing.runtime
    opened = runtime._opened
    assert opened is not None
    real, opened.engine = opened.engine, engine
    try:
        dispatch = Dispatch(
            runtime, runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True), batch=dispatch_victim.BATCH
        )
        for customer in ALL if not dispatch.over else ():
            if dispatch.add(billing.charge.message({"customer": customer})):
                dispatch.flush()
        if not dispatch.over:
            dispatch.end()
        Closer(engine, billing.app.jobs, billing.runtime.clock).close(RUN)  # type: ignore[arg-type]
    except Death as death:
        return str(death)
    finally:
        opened.engine = real
    return None


def one_walk(at: int | None, side: Side) -> tuple[str | None, list[str], int]:
    """A dispatch that dies there, and the next try; returns where it died, the calls, and the number of messages."""
    billing = Billing(batch=dispatch_victim.BATCH)
    with billing.app._reopened("sqlite://:memory:", ManualClock(), SeededEntropy(0)):
        engine = PartByPart(billing.runtime.engine, at, side)
        died = dispatch_until_death(billing, engine)
        sent, rows = billing.waiting(), billing.told("dispatched")
        assert set(sent) <= set(rows), "a message without its row"
        standing = runs.read(billing.runtime.engine.state, RUN)
        assert standing is None or set(ALL[: standing.run.dispatched]) <= set(sent), "a checkpoint of what was not sent"
        victim.work(billing.app, billing.runtime)  # what was sent is done before the next try
        for _ in range(2):  # the first goes on with the dispatch; the second finds everything done, and closes the run
            assert dispatch_until_death(billing, PartByPart(billing.runtime.engine, None, "before")) is None
            victim.work(billing.app, billing.runtime)
        assert sorted(billing.charged) == ALL
        assert billing.counts() == runs.Counts(expected=5, done=5)
        assert (billing.run().expected, billing.run().dispatched) == (5, 5)
        assert billing.run().ended_at_ms is not None
        assert runs.open_names(billing.runtime.engine.state) == []
        assert len(billing.closed) == 1
        return died, engine.trace, len(billing.told("dispatched"))


def test_part_by_part_a_death_at_any_call_loses_and_doubles_nothing() -> None:
    died, trace, rows = one_walk(None, "before")
    assert (died, rows) == (None, 5)
    assert trace == ["put", *["append", "send", "put"] * 3, "put"]
    sent_again = set()
    for at in range(len(trace)):
        for side in ("before", "after"):
            died, _, rows = one_walk(at, side)  # type: ignore[arg-type]  # from the tuple above
            assert died == trace[at]
            if rows > 5:
                sent_again.add(f"{side} {died}")
    assert sent_again == {"after append", "before send", "after send", "before put"}


def test_part_by_part_a_run_that_is_closed_twice_starts_its_job_once() -> None:
    sent: list[int] = []
    for at, side in ((0, "before"), (0, "after"), (1, "before"), (1, "after")):
        billing = Billing()
        billing.customers = ALL
        with billing.app._reopened("sqlite://:memory:", ManualClock(), SeededEntropy(0)):
            billing.tick.send(Tick())
            victim.work(billing.app, billing.runtime)
            engine = PartByPart(billing.runtime.engine, at, side)  # type: ignore[arg-type]  # from the tuples above
            assert dispatch_until_death(billing, engine) == engine.trace[at] == ("send", "put")[at]
            assert dispatch_until_death(billing, PartByPart(billing.runtime.engine, None, "before")) is None
            sent.append(billing.runtime.engine.queues.depth("reports").visible)
            victim.work(billing.app, billing.runtime)
            assert len(billing.closed) == 1
            assert billing.run().ended_at_ms is not None
    assert sent == [1, 2, 2, 1]
