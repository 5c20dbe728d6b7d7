"""What @once takes: arguments of every type that a service passes, and options that are checked when it decorates."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import re
import uuid
import warnings
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
    with pytest.raises(onefold.errors.ConflictError):
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
    with pytest.raises(onefold.errors.PayloadError, match=r"The argument value of charge.*ignore=\(\"value\",\)"):
        guarded("i-1", Session())
    with pytest.raises(onefold.errors.PayloadError, match=r"The argument value of charge.*nan"):
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
        (lambda: decorate(5), "@onefold.once was put on 5, which is not a function"),
        (lambda: decorate(Order), "which is a class"),
        (lambda: decorate(name=5), "name=5 is not a text. Write name='5'"),
        (lambda: decorate(name="a\x1b"), "cannot name an operation"),
        (lambda: decorate(ignore=("valu",)), "Did you mean 'value'?"),
        (lambda: decorate(ignore="value"), "Write for example ignore=('value',)"),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_it_decorates(call: Callable[[], object], said: str) -> None:
    with pytest.raises(onefold.errors.UsageError, match=re.escape(said)):
        call()


# -- results -------------------------------------------------------------------------------------------------


@dataclass
class Receipt:
    number: str


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "annotation", "replayed"),
    [
        (Receipt("r-1"), "Receipt", {"number": "r-1"}),
        (Colour.RED, "Colour", 1),
        ([Colour.RED], "list[Colour]", [1]),
        ({"colours": [Colour.RED]}, "dict[str, list[Colour]]", {"colours": [1]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_result_that_comes_back_as_another_type_is_warned_about_once(
    value: Any, annotation: str, replayed: Any, how: str
) -> None:
    decorate = onefold.once(key="{order}", name="charge", store=onefold.memory_store())
    if how == "sync":

        @decorate
        def call(order: str):  # type: ignore[no-untyped-def]
            return value

        charge: Any = call
    else:

        @decorate
        async def later(order: str):  # type: ignore[no-untyped-def]
            return value

        def charge(order: str) -> Any:
            return asyncio.run(later(order))

    with pytest.warns(UserWarning, match="charge returned") as caught:
        assert charge("o-1") is value
    (warning,) = caught
    assert warning.filename == __file__
    assert f"-> {annotation}" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert charge("o-2") is value
        assert type(charge("o-1")) is type(replayed)
        assert charge("o-1") == replayed


def test_what_comes_back_as_it_was_is_not_warned_about() -> None:
    plain = [None, True, 1, 1.5, "a", [1, {"a": None}], {"a": [1]}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, value in enumerate(plain):

            @onefold.once(key="{order}", name=f"plain-{number}", store=onefold.memory_store())
            def charge(order: str, value: Any = value):  # type: ignore[no-untyped-def]
                return value

            assert charge("o-1") == charge("o-1") == value

        @onefold.once(key="{order}", name="typed", store=onefold.memory_store())
        def typed(order: str) -> Receipt:
            return Receipt(order)

        assert typed("o-1") == typed("o-1") == Receipt("o-1")


def test_the_record_is_written_before_the_warning_even_where_warnings_are_errors() -> None:
    ran: list[str] = []

    @onefold.once(key="{order}", name="charge", store=onefold.memory_store())
    def charge(order: str):  # type: ignore[no-untyped-def]
        ran.append(order)
        return Receipt(order)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="-> Receipt"):
            charge("o-1")
        assert charge("o-1") == {"number": "o-1"}
    assert ran == ["o-1"]


def test_the_advice_for_a_result_that_cannot_be_recorded_says_how_to_go_on() -> None:
    @onefold.once(key="{order}", name="charge", store=onefold.memory_store())
    def charge(order: str):  # type: ignore[no-untyped-def]
        return Decimal("1.50")

    with pytest.raises(onefold.errors.PayloadError) as caught:
        charge("o-1")
    assert "Annotate what the function returns: -> Decimal." in caught.value.todo
    assert "onefold held settle o-1 --done --result JSON --url URL" in caught.value.todo
