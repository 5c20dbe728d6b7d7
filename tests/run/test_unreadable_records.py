"""Records that were damaged by hand, or that a newer onefold has written: their messages wait, and all others run."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
import onefold.testing
from onefold import errors


@pytest.mark.parametrize(
    "damage", ["failure = '[[['", "status = 77", "outbox = '{'", "status = 1, result = NULL", "failure = '7'"]
)
def test_a_record_that_cannot_be_read_keeps_its_own_message_waiting_only(damage: str) -> None:
    app = onefold.App("shop")
    ran: list[str] = []

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> None:
        ran.append(order["id"])
        if order["id"] == "bad":
            raise onefold.PermanentError("x")

    with onefold.testing.inline(app) as world:
        ship.send({"id": "bad"})
        world.run()
        store: Any = app.runtime().engine.store
        database = store._engine
        database.write(lambda connection: connection.execute(f"UPDATE onefold_record SET {damage}"))
        ship.send_many([{"id": name} for name in ("g-0", "bad", "g-1")])
        world.run()
        assert ran == ["bad", "g-0", "g-1"]
        assert [one.key for one in app.runtime().engine.queues.peek("orders")] == ["bad"]
        rows = app.runtime().engine.ledger.between(0, 2**50)
        assert [row.key.key for row in rows if row.event == "record-unreadable" and row.key] == ["bad"]
        with pytest.raises(errors.StorageError, match="cannot be read"):
            ship.look("bad")
        database.write(lambda connection: connection.execute("DELETE FROM onefold_record WHERE key = 'bad'"))
        world.clock.advance(301_000)
        world.run()
        assert ran[-1] == "bad"
