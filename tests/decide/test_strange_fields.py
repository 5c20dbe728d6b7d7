"""Fields that reading passes over: found in every kind of type, and never where the type has a place for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from onefold.codec import payload_type
from onefold.payload_errors import strange_fields


@dataclass
class Line:
    pence: int
    note: str | None = None


@dataclass
class Order:
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Line] = field(default_factory=dict)
    by_number: dict[int, Line] = field(default_factory=dict)


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True):
    unit_price: int = 0


class Typed(TypedDict, total=False):
    pence: int


class Model(pydantic.BaseModel):
    pence: int = pydantic.Field(default=0, alias="amount")


class Open(pydantic.BaseModel, extra="allow"):
    pence: int = 0


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        (Line, '{"pence":1,"pense":5}', ["$.pense"]),
        (Line, '{"pence":1,"note":null}', []),
        (Order, '{"lines":[{"pence":1},{"pence":2,"nota":"x"}]}', ["$.lines[1].nota"]),
        (Order, '{"by_name":{"x":{"pence":1,"a":2}},"by_number":{"1":{"pence":1}}}', ["$.by_name.x.a"]),
        (Renamed, '{"unitPrice":0}', []),
        (Renamed, '{"unitPrize":0}', ["$.unitPrize"]),
        (Typed, '{"pence":1,"pense":2}', ["$.pense"]),
        (Model, '{"amount":1}', []),
        (Model, '{"amount":1,"amont":1}', ["$.amont"]),
        (Open, '{"pense":1}', []),
        (Any, '{"pense":{"x":1}}', []),
        (dict[str, int], '{"pense":1}', []),
    ],
)
def test_fields_without_a_place_are_found(kind: Any, text: str, found: list[str]) -> None:
    value = payload_type(kind).decode(text)
    assert [f"{path}.{name}" for path, name, _ in strange_fields(value, msgspec.json.decode(text))] == found
