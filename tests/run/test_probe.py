"""A probe that fails for now is asked again later; it uses up no attempt, and nothing runs meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import onefold
from onefold import testing


@dataclass
class Order:
    order_id: str


def test_a_probe_that_fails_for_now_is_asked_again() -> None:
    asked: list[int] = []
    ran: list[int] = []

    def ask_partner(order: Order, ctx: onefold.Context) -> onefold.Done | onefold.NotDone:
        asked.append(ctx.fence)
        if len(asked) == 1:
            raise ConnectionRefusedError("the partner restarts")
        return onefold.NotDone()

    app = onefold.App("probes")
    queue = app.queue("orders")

    @app.job(queue, key="{order_id}", on_unknown=ask_partner, retry=onefold.Retry(base="2s", jitter="none"))
    def book(order: Order, ctx: onefold.Context) -> str:
        ran.append(ctx.attempt)
        if len(ran) == 1:
            raise onefold.OutcomeUnknown("the line went dead")
        return "booked"

    with testing.inline(app) as world:
        book.send(Order("o-1"))
        world.run_for(10_000)
        assert asked == [2, 3]
        assert ran == [1, 2]
        assert world.names().count("completed") == 1
        assert "held" not in world.names()
        assert world.depth("orders-held").visible == 0
