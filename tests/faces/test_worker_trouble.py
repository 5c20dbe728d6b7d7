"""What `onefold worker` says of its own trouble: once, with what to do, and without ending its progress."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

import onefold
from onefold import errors
from onefold.admin.session import AdminSession
from onefold.cli.commands.worker import Trouble, Waits
from onefold.contracts.store import RecordKey
from onefold.runtime.events import EVENTS, Event
from onefold.testing import inline

BUSY = Event(at_ms=0, name="engine-busy", detail={"summary": "The disk is full. Free space."})


def test_trouble_is_said_once_and_again_after_a_quiet_minute(capsys: pytest.CaptureFixture[str]) -> None:
    trouble = Trouble()
    for at_ms in (0, 5_000, 64_000, 125_000):
        trouble.emit(structs.replace(BUSY, at_ms=at_ms))
    text = "warning: the engine could not be written for now; the worker goes on when it can: The disk is full. Free space."
    assert capsys.readouterr().err.splitlines() == [text, text]


def test_an_effect_without_a_record_is_said_with_its_key_and_what_is_no_trouble_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trouble = Trouble()
    lost = Event(at_ms=0, name="completion-failed", key=RecordKey("acme", "book", "o-1"))
    trouble.emit(lost)
    trouble.emit(structs.replace(lost, name="dead-letter"))
    assert capsys.readouterr().err == f"warning: {EVENTS['completion-failed'].text}: book o-1\n"


def test_each_schedule_whose_unsent_ticks_wait_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    trouble = Trouble()
    for name in ("nightly", "weekly", "nightly"):
        trouble.emit(Event(at_ms=0, name="ticks-orphaned", detail={"schedule": name, "count": 3}))
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["nightly", "weekly"]


def test_progress_goes_on_with_the_last_number_while_the_engine_cannot_be_asked() -> None:
    app = onefold.App("shop")
    orders, other = app.queue("orders"), app.queue("other")

    @app.job(orders, key="{id}")
    def ship(order: dict[str, str]) -> None: ...

    @app.job(other, key="{id}")
    def bill(order: dict[str, str]) -> None: ...

    with inline(app) as world:
        ship.send_many([{"id": "1"}, {"id": "2"}])
        bill.send({"id": "1"})
        session = AdminSession(app.runtime(), actor="person:me")
        waits = Waits(session, ["orders"])
        assert waits.now() == 2, "what waits in queues of other workers is not counted"
        assert Waits(session, ["orders", "other"]).now() == 3
        queues: Any = session.engine.queues

        def depth(_queue: str) -> Any:
            raise errors.StorageBusy("The file is locked.")

        queues.depth = depth
        world.clock.advance(1_000)
        assert waits.now() == 2
        del queues.depth
        world.run()
        world.clock.advance(1_000)
        assert waits.now() == 0
