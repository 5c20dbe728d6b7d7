"""What @once takes: arguments of every type that a service passes, and options that are checked when it decorates."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

import onefold
from onefold.codec import digest, encode


@dataclass
class Order:
    invoice: str
    amount: Decimal


class Session:
    """A connection, a request: nothing that says what is done."""


VALUES: list[tuple[Any, Any]] = [
    (Decimal("9.95"), Decimal("9.96")),
    (Order("i-1", Decimal("9.95")), Order("i-1", Decimal("9.96"))),
    (uuid.UUID(int=1), uuid.UUID(int=2)),
    (dt.date(2026, 1, 1), dt.date(2026, 1, 2)),
    (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
    (dt.timedelta(seconds=1), dt.timedelta(seconds=2)),
    ((1, 2), (1, 3)),
    ({3, 1, 2}, {1, 2}),
    (b"a", b"b"),
    ({1: "a"}, {2: "a"}),
]


@pytest.mark.parametrize(("value", "other"), VALUES, ids=lambda one: type(one).__name__)
def test_arguments_of_any_type_with_a_json_form(value: Any, other: Any) -> None:
    ran: list[Any] = []

    @onefold.once(key="{invoice}", store=onefold.memory_store())
    def charge(invoice: str, value: Any) -> int:
        ran.append(value)
        return len(ran)

    assert charge("i-1", value) == charge("i-1", value) == 1
    with pytest.raises(onefold.ConflictError):
        charge("i-1", other)
    assert ran == [value]


@pytest.mark.parametrize("value", [{"a": 1, "b": [1.5, None, True]}, "text", None, [1, "x"]])
def test_fingerprints_are_those_of_before(value: Any) -> None:
    store = onefold.memory_store()
    onefold.once(key="{invoice}", name="charge", store=store)(charge_of)("i-1", value)
    (record,) = store._records.values()  # type: ignore[attr-defined]
    assert record.fingerprint == digest(encode({"invoice": "i-1", "value": value}))


def charge_of(invoice: str, value: Any) -> None:
    """For tests."""


def test_a_connection_is_left_out_and_a_methods_object_too() -> None:
    store = onefold.memory_store()

    class Payments:
        def __init__(self) -> None:
            self.ran = 0

        @onefold.once(key="{invoice}", name="charge", store=store, ignore=("db",))
        def charge(self, invoice: str, db: Session) -> str:
            self.ran += 1
            return invoice

    first, second = Payments(), Payments()
    assert first.charge("i-1", Session()) == second.charge("i-1", db=Session()) == "i-1"
    assert (first.ran, second.ran) == (1, 0)


def test_an_argument_without_a_json_form_is_named_with_the_way_out() -> None:
    guarded = onefold.once(key="{invoice}", name="charge", store=onefold.memory_store())(charge_of)
    with pytest.raises(onefold.PayloadError, match=r"The argument value of charge.*ignore=\(\"value\",\)"):
        guarded("i-1", Session())
    with pytest.raises(onefold.PayloadError, match=r"The argument value of charge.*nan"):
        guarded("i-1", float("nan"))


def test_keys_may_name_what_comes_in_by_keyword() -> None:
    @onefold.once(key="{invoice}", store=onefold.memory_store())
    def charge(**options: Any) -> str:
        return f"{options['invoice']}"

    assert charge(invoice="i-1", pence=5) == charge(pence=5, invoice="i-1") == "i-1"


def decorate(function: Any = charge_of, **options: Any) -> Callable[..., Any]:
    given: dict[str, Any] = {"key": "{invoice}", "store": onefold.memory_store(), **options}
    made: Callable[..., Any] = onefold.once(**given)(function)
    return made


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: decorate(store="sqlite:///x.db"), "Write store=onefold.store('sqlite:///x.db')"),
        (lambda: decorate(store=None), "store=None is not a store"),
        (lambda: onefold.store(None), "is not set"),  # type: ignore[arg-type]
        (lambda: decorate(key="{invoce}"), "has no field invoce. It has invoice, value. Did you mean invoice?"),
        (lambda: decorate(tenant="{who}"), "has no field who"),
        (lambda: decorate(5), "@onefold.once was put on 5, which is no function"),
        (lambda: decorate(Order), "which is a class"),
        (lambda: decorate(name=5), "name=5 is not a text. Write name='5'"),
        (lambda: decorate(name="a\x1b"), "cannot name an operation"),
        (lambda: decorate(ignore=("valu",)), "Did you mean 'value'?"),
        (lambda: decorate(ignore="value"), "Write for example ignore=('value',)"),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_it_decorates(call: Callable[[], object], said: str) -> None:
    with pytest.raises(onefold.UsageError, match=re.escape(said)):
        call()
