"""Names of operations on each store: a guard and a job with one name are kept apart, wherever the records are."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import jobs
from onefold.clock import SystemClock
from onefold.engines.urls import open_engine
from onefold.entropy import SystemEntropy
from onefold.runtime import names
from tests.stores.test_looking_at_records import PLACES, session

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("where", PLACES)
def test_a_name_has_one_owner_on_each_store(where: str) -> None:
    with PLACES[where]() as place, session(place.url) as opened:
        state = opened.engine.state
        names.take(state, ["ship", "pack"], "parcels", 1)
        names.take(state, ["pack", "ship"], "parcels", 2)
        with pytest.raises(errors.ConflictError, match="of the app 'parcels' on the same store"):
            names.take(state, ["ship"], "invoices", 3)

        engine: Any = open_engine(
            place.url, clock=SystemClock(), entropy=SystemEntropy(), owner="other", records_alone=True
        )
        ran: list[str] = []

        def call(order: str) -> None:
            ran.append(order)

        guarded = {name: onefold.once(key="{order}", name=name, store=engine.store)(call) for name in ("ship", "pay")}
        guarded["pay"]("1")
        with pytest.raises(errors.ConflictError, match="'ship' under @once has the name of a job of the app 'parcels'"):
            guarded["ship"]("1")
        with pytest.raises(errors.ConflictError, match="'pay' of the app 'parcels' has the name of a function"):
            names.take(state, ["pay"], "parcels", 4)
        jobs.give_names(opened, ["ship"], "invoices", shared=True)
        names.take(state, ["ship"], "invoices", 5)
        engine.close()
        assert ran == ["1"]
        assert [(one.name, one.kind, one.apps) for one in jobs.taken_names(opened)] == [
            ("pack", "job", ("parcels",)),
            ("pay", "guard", ()),
            ("ship", "job", ("parcels", "invoices")),
        ]
