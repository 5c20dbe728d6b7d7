"""A probe that fails for now is asked again later; it uses up no attempt, and nothing runs meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import testing
from tests.run.workshop import working


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


@pytest.mark.parametrize("answer", ["done", "not done", "unknown", "fails"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_probe_sends_and_counts_goes_with_the_run_that_it_completes(answer: str, *, asynchronous: bool) -> None:
    mailed: list[str] = []
    app = onefold.App("probes")

    @app.job(app.queue("mail"), key="{order_id}")
    def mail(order: Order) -> None:
        mailed.append(order.order_id)

    def ask_partner(order: Order, ctx: onefold.Context) -> onefold.Done | onefold.NotDone | onefold.StillUnknown:
        ctx.send(mail, Order("by the context"))
        mail.send(Order("by the job"))
        ctx.count("labels")
        assert mailed == []
        match answer:
            case "done":
                return onefold.Done("label")
            case "not done":
                return onefold.NotDone()
            case "unknown":
                return onefold.StillUnknown("nobody is there")
            case _:
                raise ValueError(answer)

    async def ask_later(order: Order, ctx: onefold.Context) -> Any:
        return ask_partner(order, ctx)

    @app.job(app.queue("orders"), key="{order_id}", on_unknown=ask_later if asynchronous else ask_partner)
    def book(order: Order, ctx: onefold.Context) -> str:
        if ctx.attempt == 1:
            raise onefold.OutcomeUnknown("the line went dead")
        return "booked"

    with testing.inline(app) as world:
        book.send(Order("o-1"))
        world.run_for(60_000)
        assert sorted(mailed) == (["by the context", "by the job"] if answer == "done" else [])
        done = [
            one for one in world.events if one.name == "completed" and one.key is not None and one.key.job == "book"
        ]
        counted = [one.detail.get("count.labels") for one in done]
        assert counted == {"done": [1], "not done": [None]}.get(answer, [])


def test_what_the_probe_of_a_coroutine_sends_goes_with_the_run_that_it_completes(tmp_path: Path) -> None:
    app = onefold.App("probes", url=f"sqlite:///{tmp_path / 'probes.db'}")
    mailed: list[str] = []

    @app.job(app.queue("mail"), key="{order_id}")
    def mail(order: Order) -> None:
        mailed.append(order.order_id)

    def ask_partner(order: Order, ctx: onefold.Context) -> onefold.Done:
        ctx.send(mail, Order("by the context"))
        mail.send(Order("by the job"))
        return onefold.Done("label")

    @app.job(app.queue("orders"), key="{order_id}", on_unknown=ask_partner, retry=onefold.Retry(base="10ms"))
    async def book(order: Order) -> str:
        raise onefold.OutcomeUnknown("the line went dead")

    book.send(Order("o-1"))
    with working(app, until_empty=True) as worker:
        worker.end()
    assert sorted(mailed) == ["by the context", "by the job"]
    app.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_handler_gets_its_payload_as_it_was_sent_whatever_the_probe_did_to_it(
    tmp_path: Path, *, asynchronous: bool
) -> None:
    app = onefold.App("probes", url=f"sqlite:///{tmp_path / 'probes.db'}")
    got: list[dict[str, str]] = []

    def ask_partner(order: dict[str, str]) -> onefold.NotDone:
        order.clear()
        return onefold.NotDone()

    def charge(order: dict[str, str], ctx: onefold.Context) -> None:
        got.append(dict(order))
        if ctx.attempt == 1:
            raise onefold.OutcomeUnknown("the line went dead")

    async def charge_later(order: dict[str, str], ctx: onefold.Context) -> None:
        charge(order, ctx)

    declare = app.job(
        app.queue("q"), name="charge", key="{id}", on_unknown=ask_partner, retry=onefold.Retry(base="10ms")
    )
    job = declare(charge_later if asynchronous else charge)
    job.send({"id": "o-1", "pence": "5"})
    with working(app, until_empty=True) as worker:
        worker.end()
    assert got == [{"id": "o-1", "pence": "5"}] * 2
    app.close()
