"""What the errors of refused payloads and results advise: following it helps, and breaks no other answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import pytest

from onefold.codec import payload_type
from onefold.errors import PayloadError


@dataclass
class Charge:
    invoice: str
    amount: Decimal
    due: datetime | None = None
    token: UUID | None = None
    tags: tuple[str, ...] = ()


@dataclass
class Loose:
    lines: list[Any]


class Paid(TypedDict):
    id: str
    amount: Decimal


def refused(codec: Any, value: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        codec.encode(value)
    return caught.value


def refused_result(annotation: Any, value: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        payload_type(str, result=annotation).encode_result(value)
    return caught.value


@pytest.mark.parametrize(
    ("declared", "value", "others", "wider"),
    [
        (str, None, ["receipt"], "str | None"),
        (type(None), "receipt", [None], "str | None"),
        (int, "text", [1], "int | str"),
        (int, Decimal("1.5"), [1], "int | Decimal"),
        (int | None, "text", [1, None], "int | None | str"),
        (list[int], None, [[1]], "list[int] | None"),
    ],
)
def test_a_proposed_annotation_also_fits_what_the_present_one_allows(
    declared: Any, value: object, others: list[object], wider: str
) -> None:
    error = refused_result(declared, value)
    assert error.todo.endswith(f"or annotate it with -> {wider}.")
    codec = payload_type(str, result=eval(wider, {"Decimal": Decimal}))
    for one in [value, *others]:
        assert codec.decode_result(codec.encode_result(one)) == one


@pytest.mark.parametrize(("declared", "value"), [(str, Decimal("1.5")), (Charge, {"a": 1}), (dict, Loose([]))])
def test_no_annotation_is_proposed_where_a_wider_one_cannot_be(declared: Any, value: object) -> None:
    error = refused_result(declared, value)
    assert error.todo == (
        f"Return a value of type {declared.__name__}, as its annotation says, or annotate it with a type that fits all"
        " it returns."
    )


@pytest.mark.parametrize("declared", [dict, dict[str, Any], Any])
def test_a_dict_of_a_decimal_beside_text_is_to_have_declared_fields(declared: Any) -> None:
    value = {"id": "i", "amount": Decimal("2.50")}
    error = refused_result(declared, value)
    assert "$.amount cannot be stored exactly: Decimal would become str" in error.what
    assert error.todo == (
        "Declare the field as amount: Decimal, in a dataclass, TypedDict or Struct; or convert it to str."
        " The function's annotation must name that type."
    )
    followed = payload_type(str, result=Paid)
    assert followed.decode_result(followed.encode_result(value)) == value


def test_a_loose_field_of_a_returned_dataclass_is_to_have_its_type() -> None:
    for declared in (Any, Loose):
        error = refused_result(declared, Loose([Decimal(1)]))
        assert "Declare the field as lines: list[Decimal], in a dataclass" in error.todo
        assert "Return" not in error.todo


@pytest.mark.parametrize(
    ("field", "value", "kind", "todo"),
    [
        ("amount", "9.95", "Decimal", "Pass a value of type Decimal, for example Decimal('1.10')."),
        ("due", "2026-01-31T12:00:00Z", "datetime", "for example datetime.fromisoformat("),
        ("token", "12345678-1234-5678-1234-567812345678", "UUID", "for example UUID(text)."),
    ],
)
def test_text_for_a_field_of_another_type_is_answered_with_that_type(
    field: str, value: object, kind: str, todo: str
) -> None:
    charge = Charge("i", Decimal(1))
    setattr(charge, field, value)
    error = refused(payload_type(Charge), charge)
    assert error.what == f"The field $.{field} is declared as {kind}, but a value of type str was given."
    assert todo in error.todo


def test_a_list_for_a_tuple_is_answered_with_the_tuple() -> None:
    error = refused(payload_type(Charge), Charge("i", Decimal(1), None, None, ["a"]))  # type: ignore[arg-type]
    assert error.what == "The field $.tags is declared as tuple, but a value of type list was given."
    assert error.todo == "Pass a value of type tuple."


@pytest.mark.parametrize("amount", ["NaN", "-NaN", "sNaN"])
def test_a_decimal_that_is_no_number_is_named_as_such(amount: str) -> None:
    error = refused(payload_type(Charge), Charge("i", Decimal(amount)))
    assert error.what == f"The field $.amount is {Decimal(amount)}, which is not equal to itself."
    assert error.todo == "Send a number, or None if there is none."


@pytest.mark.parametrize(
    ("value", "todo"),
    [
        ({"a": date(2026, 1, 1)}, "Declare the field as a: date, in a dataclass"),
        ([Decimal(1)], "Declare its exact type, for example list[Decimal], or convert it to str."),
        ({"order 7": Decimal(1)}, "Declare its exact type, for example Decimal, or convert it to str."),
    ],
)
def test_a_sent_value_without_a_declared_type_is_to_get_one(value: object, todo: str) -> None:
    assert todo in refused(payload_type(Any), value).todo
