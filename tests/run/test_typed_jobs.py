"""What a type checker knows of declared jobs. mypy checks this file (`make check`), and pytest that the types are true."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

import onefold
from onefold.maps import ItemRetry
from onefold.schedules import ScheduleRetry


@dataclass
class Order:
    order_id: str


app = onefold.App("typed", url="sqlite://:memory:")
orders = app.queue("orders")


@app.job(orders, key="{order_id}")
def book(order: Order) -> str:
    return f"label-{order.order_id}"


@app.job(orders, key="{order_id}")
def book_with_context(order: Order, ctx: onefold.Context) -> int:
    return ctx.attempt


@app.job(orders, key="{order_id}")
async def book_later(order: Order) -> str:
    return f"label-{order.order_id}"


@app.job(orders, key="{order_id}")
async def book_later_with_context(order: Order, ctx: onefold.Context) -> int:
    return ctx.attempt


def test_a_plain_job_is_called_as_its_function() -> None:
    assert_type(book, onefold.Job[Order, str])
    assert_type(book_with_context, onefold.Job[Order, int])
    assert assert_type(book(Order("o-1")), str) == "label-o-1"


def test_an_async_job_gives_a_coroutine() -> None:
    assert_type(book_later, onefold.Job[Order, Coroutine[Any, Any, str]])
    assert_type(book_later_with_context, onefold.Job[Order, Coroutine[Any, Any, int]])
    called = assert_type(book_later(Order("o-1")), Coroutine[Any, Any, str])
    assert assert_type(asyncio.run(called), str) == "label-o-1"


def test_sending_takes_the_payload_and_gives_a_receipt() -> None:
    with onefold.testing.inline(app) as world:
        assert_type(book_later.send(Order("o-1")), onefold.Receipt)
        assert_type(book.send_many([Order("o-2")]), list[onefold.Receipt])
        world.run()
        with pytest.raises(onefold.errors.PayloadError):
            book.send("o-3")  # type: ignore[arg-type]  # a checker says so before it runs


@pytest.mark.parametrize("kind", [ItemRetry, ScheduleRetry])
def test_a_count_of_retries_is_called_so_and_found_by_its_old_name(kind: Any) -> None:
    assert kind(retries=2).retries == 2
    with pytest.warns(DeprecationWarning, match=f"attempts of {kind.__name__} is now called retries") as said:
        old = kind(attempts=2)
    assert said[0].filename == __file__
    assert old == kind(retries=2)
    with pytest.warns(DeprecationWarning, match=f"attempts of {kind.__name__} is now called retries") as said:
        assert old.attempts == 2
    assert said[0].filename == __file__
    with pytest.raises(onefold.errors.UsageError, match="has no option 'attempt'"):
        kind(attempt=2)
