"""A log line has a hash of each business key that an error of onefold quotes, also of a guarded call inside a handler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.observe.log_fields import fields_of, hashed
from onefold.testing import inline


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_the_key_of_a_guarded_call_is_hashed_in_a_line_of_its_job(tmp_path: Path, kind: str) -> None:
    app = onefold.App("shop")
    store = onefold.store(f"sqlite:///{tmp_path / 'r.db'}")

    @onefold.once(key="{invoice}", name="charge", store=store)
    def charge(invoice: str, pence: int) -> str:
        return invoice

    @onefold.once(key="{invoice}", name="charge-async", store=store)
    async def charge_async(invoice: str, pence: int) -> str:
        return invoice

    @app.job(app.queue("orders"), key="{id}", retry=onefold.Retry(attempts=1))
    def pay(order: dict[str, Any]) -> None:
        for pence in (1, 2):
            if kind == "function":
                charge("SECRET-9", pence)
            else:
                asyncio.run(charge_async("SECRET-9", pence))

    with inline(app) as world:
        pay.send({"id": "SECRET-own"})
        world.run()
        fields = [fields_of(event) for event in world.events]
        assert "SECRET" not in str(fields)
        (dead,) = [one for one in fields if one["event"] == "dead-letter"]
        assert hashed("SECRET-9") in str(dead["summary"])
        assert "SECRET-9" in str([fields_of(event, keys="shown") for event in world.events])
