"""A guarded function's key is checked by its parameters' annotations when it is declared, as a job's key by its payload."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

import onefold
from onefold.errors import PayloadError, UsageError


@dataclass
class Order:
    number: str

    @property
    def code(self) -> str:
        return f"#{self.number}"


class Plain:
    def __init__(self, number: str) -> None:
        self.number = number


def charge(
    amount: Decimal, when: datetime | None, ratio: float, paid: bool, raw: bytes, o: dict[str, str], xs: list[str],
    order: Order,
) -> str:  # fmt: skip
    return "charged"


def guarded(function: Callable[..., Any], key: str, **options: Any) -> Any:
    return onefold.once(key=key, name="till", store=onefold.memory_store(), **options)(function)


@pytest.mark.parametrize("name", ["amount", "when", "ratio", "paid", "raw", "o", "xs", "order"])
def test_a_parameter_that_can_be_no_key_is_refused_at_declaration(name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"key of till='x{{{name}}}': the field {name} cannot be part of a key: it is"
    ):
        guarded(charge, f"x{{{name}}}")
    with pytest.raises(UsageError, match=f"tenant of till.*the field {name} cannot be part of a key"):
        guarded(charge, "{order.number}", tenant=f"{{{name}}}")


def test_what_could_be_a_key_before_still_is() -> None:
    def sell(day: date, token: UUID, order: Order, plain: Plain, when: datetime, o: dict[str, str], *more: int) -> str:
        sold_days.append(day)
        return "sold"

    sold_days: list[date] = []
    key = "{day}/{token}/{order.code}/{plain.number}/{when.year}/{o.a}/{more.0}"
    sold = guarded(sell, key, ignore=["plain"])
    arguments = (
        date(2026, 1, 31),
        UUID(int=7),
        Order("3"),
        Plain("4"),
        datetime(2026, 1, 31, tzinfo=UTC),
        {"a": "b"},
        9,
    )
    assert [sold(*arguments), sold(*arguments)] == ["sold", "sold"]
    assert sold_days == [date(2026, 1, 31)]


@pytest.mark.parametrize("name", ["uuid", "created_at", "request_id"])
def test_a_key_that_sounds_new_at_every_call_is_warned_about_at_the_function(name: str) -> None:
    def call(invoice: str, uuid: str, created_at: str, request_id: str) -> str:
        return invoice

    with pytest.warns(UserWarning, match=f"The key of till uses {name}, which seems to differ at every call") as caught:
        guarded(call, f"{{invoice}}/{{{name}}}")
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guarded(call, "{invoice}")


@pytest.mark.parametrize("value", [Decimal(1), datetime(2026, 1, 31, tzinfo=UTC), True, 1.5, b"a"])
def test_a_filled_argument_that_can_be_no_key_is_not_asked_to_be_filled(value: object) -> None:
    call = guarded(lambda invoice: "charged", "{invoice}")
    with pytest.raises(PayloadError) as caught:
        call(value)
    assert caught.value.todo == "Name another field, or use a function that derives a text from it."
    for empty in ("", " ", None):
        with pytest.raises(PayloadError) as caught:
            call(empty)
        assert caught.value.todo == "Fill the field, or declare another rule."
