"""Canonical JSON: what goes in comes out equal or is refused by name; a fingerprint knows values, not spellings."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import codec
from onefold.codec import (
    PayloadCodec,
    canonical,
    decode,
    digest,
    encode,
    fingerprint,
    payload_type,
    type_name,
)
from onefold.errors import PayloadError, UsageError


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Line(msgspec.Struct, frozen=True, rename="camel"):
    sku_code: str
    quantity: int = 1


@dataclass
class Order:
    order_id: str
    lines: list[Line] = field(default_factory=list)
    amount: Decimal = Decimal(0)
    placed_on: date | None = None
    colour: Colour = Colour.RED
    ref: UUID | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Row(TypedDict):
    name: str
    size: NotRequired[int]


class Model(pydantic.BaseModel):
    number: int
    at: datetime
    amount: Decimal = Decimal(1)
    ratio: float = 1.0
    given: str = pydantic.Field(default="x", alias="theGivenName")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime


@dataclass
class Holder:
    one: Model
    some: list[Model]
    perhaps: Strict | None = None


@dataclass(eq=False)
class Identity:
    number: float
    lines: list[Line]


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ORDER = Order(
    "A-1",
    [Line("s", 2), Line("t")],
    Decimal("1.50"),
    date(2024, 5, 1),
    Colour.RED,
    UUID(int=7),
    {"b": [1, 2.5, None, True], "a": {"z": "é", "y": "😀"}},
)


# ------------------------------------------------------------------------------------------------------- round trips

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (Any, None),
    (Any, {"b": 1, "a": [1.5, "x", {"c": None}]}),
    (Order, ORDER),
    (list[Order], [ORDER, ORDER]),
    (Order | None, None),
    (Line, Line("s", 3)),
    (Row, {"name": "n"}),
    (Row, {"name": "n", "size": 3}),
    (Model, Model(number=1, at=NOON, theGivenName="g")),
    (Holder, Holder(Model(number=1, at=NOON), [Model(number=2, at=NOON)], Strict(at=NOON))),
    (list[Model], [Model(number=1, at=NOON)]),
    (tuple[int, str], (1, "a")),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[int, str], {10: "a", 9: "b"}),
    (dict[date, int], {date(2024, 5, 1): 1}),
    (Decimal, Decimal("12345678901234567890.123456789")),
    (float, 0.1),
    (int, 2**70),
    (datetime, NOON),
    (datetime, datetime(2024, 5, 1, 12)),  # noqa: DTZ001 - a naive one stays naive
    (timedelta, timedelta(hours=1, microseconds=3)),
    (date, date(2024, 5, 1)),
    (UUID, UUID(int=3)),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (bytes, b"\x00\xff"),
    (Literal["a", "b"], "b"),
    (type(None), None),
    (object, {"a": 1}),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=lambda one: str(one)[:40])
def test_what_is_encoded_comes_back_equal_and_is_canonical(annotation: Any, value: Any) -> None:
    one = payload_type(annotation)
    data = one.encode(value)
    back = one.decode(data)
    assert back == value
    assert type(back) is type(value)
    assert one.decode(data.decode()) == value  # text does as well as bytes
    assert canonical(data) == data
    assert one.fingerprint(data) == digest(data) == fingerprint(data)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_value_comes_back_equal(value: Any) -> None:
    data = encode(value)
    assert decode(data, Any) == value
    assert canonical(data) == data


@given(JSON, st.booleans(), st.booleans())
def test_a_fingerprint_ignores_key_order_white_space_and_escapes(value: Any, ascii_only: bool, spaced: bool) -> None:
    def turned(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: turned(part[key]) for key in reversed(part)}
        return [turned(one) for one in part] if isinstance(part, list) else part

    other = json.dumps(turned(value), ensure_ascii=ascii_only, indent=3 if spaced else None)
    assert PayloadCodec.fingerprint(other) == PayloadCodec.fingerprint(encode(value)) == fingerprint(value)


@given(JSON, JSON)
def test_different_values_have_different_fingerprints(one: Any, other: Any) -> None:
    assert (encode(one) == encode(other)) == (fingerprint(one) == fingerprint(other))


def test_a_fingerprint_is_stable_between_versions() -> None:
    # Records made by an earlier version must still recognise their payload: this value never changes.
    assert fingerprint({"b": 1, "a": [1.5, "é"]}) == "ad9f863c3126904efde68135fa0d14ff"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1.50", "1.5", True),
        ("1e2", "100.0", True),
        ("0.1000000000000000000", "0.1", True),
        ("1", "1.0", False),
        ("1", '"1"', False),
        ("null", '"null"', False),
        ("12345678901234567.88", "12345678901234567.89", False),  # one and the same double
        ("0.12345678901234567890", "0.12345678901234567891", False),
        ("1e400", "1e401", False),
        ("-0.0", "0.0", False),
        ("123456789012345678901234567890", "123456789012345678901234567891", False),
        ('{"a":1,"b":2}', '{ "b" : 2,\n"a":1 }', True),
        ("[1,2]", "[2,1]", False),
    ],
)
def test_numbers_are_compared_by_value_to_the_last_digit(one: str, other: str, same: bool) -> None:
    assert (fingerprint(one.encode()) == fingerprint(other.encode())) is same


def test_keys_are_sorted_by_code_point_at_every_level() -> None:
    assert encode({"é": 1, "z": {"b": 1, "a": 2}, "Z": 3}) == '{"Z":3,"z":{"a":2,"b":1},"é":1}'.encode()
    assert encode(Line("s", 2)) == b'{"quantity":2,"skuCode":"s"}'


def test_a_module_level_codec_knows_the_class_of_the_value() -> None:
    assert decode(encode(ORDER), Order) == ORDER
    model = Model(number=1, at=NOON)
    assert decode(encode(model), Model) == model
    assert fingerprint(ORDER) == fingerprint(encode(ORDER))


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: Any = (1,)  # not so deep that it could not be encoded, and different at the bottom
for _ in range(600):
    DEEP = [DEEP]


def test_codecs_are_made_once_and_unhashable_annotations_work_too() -> None:
    assert payload_type(Order) is payload_type(Order)
    unhashable = Annotated[int, msgspec.Meta(extra_json_schema={"examples": [1]})]
    assert payload_type(unhashable).decode(b"3") == 3
    assert repr(payload_type(list[Order])) == "<codec of list[Order]>"


def test_results_have_a_type_of_their_own() -> None:
    one = payload_type(Order, result=Line)
    assert one.decode_result(one.encode_result(Line("s"))) == Line("s")
    assert one.decode(one.encode(ORDER)) == ORDER
    untyped = payload_type(Order)
    assert untyped.encode_result({"a": 1}) == b'{"a":1}'
    assert untyped.decode_result(b'{"a":1}') == {"a": 1}
    assert untyped.decode_result(untyped.encode_result(Line("s"))) == {"skuCode": "s", "quantity": 1}
    with pytest.raises(PayloadError, match="tuple would become list"):
        untyped.encode_result((1, 2))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Decimal("1.50"), "Decimal"),
        (date(2024, 1, 1), "date"),
        ((1, Decimal(2)), "tuple[int, Decimal]"),
        ((1,) * 9, "tuple[int, ...]"),
        ({"a", "b"}, "set[str]"),
        (b"ab", "bytes"),
        ([Line("s")], "list[Line]"),
        ([1, Decimal(1)], "list[int | Decimal]"),
        ({"when": date(2024, 1, 1)}, "dict[str, date]"),
        ({1: "a"}, "dict[int, str]"),
        ({"a": [Decimal(1)], "b": []}, "dict[str, list[Decimal]]"),
        (object(), None),
        (float("nan"), None),
        (CYCLE, None),
    ],
)
def test_the_advice_for_a_result_without_annotation_is_one_that_helps(value: Any, annotation: str | None) -> None:
    with pytest.raises(PayloadError) as caught:
        payload_type(Any).encode_result(value)
    if annotation is None:
        assert "nnotate" not in caught.value.todo
        assert "Return None or a value that JSON can hold" in caught.value.todo
        return
    assert f"Annotate what the function returns: -> {annotation}." in caught.value.todo
    declared = eval(annotation, {"Decimal": Decimal, "date": date, "Line": Line})
    typed = payload_type(Any, result=declared)
    assert typed.decode_result(typed.encode_result(value)) == value


def test_a_result_that_is_not_of_its_type_is_to_be_of_it_or_the_annotation_changed() -> None:
    with pytest.raises(PayloadError) as caught:
        payload_type(Any, result=int).encode_result(Decimal("1.5"))
    wider = "Return a value of type int, as its annotation says, or annotate it with -> int | Decimal."
    assert wider in caught.value.todo
    with pytest.raises(PayloadError) as caught:
        payload_type(Any, result=dict).encode_result({"a": Decimal("1.5")})
    assert "Annotate it with -> dict[str, Decimal], if that fits all it returns" in caught.value.todo


def test_classes_without_equality_are_compared_by_their_fields() -> None:
    data = encode(Identity(1.5, [Line("s")]))
    assert decode(data, Identity).lines == [Line("s")]
    with pytest.raises(PayloadError, match=r"\$\.number is nan"):
        encode(Identity(float("nan"), []))


# --------------------------------------------------------------------------------------------------- refused: values

REFUSED: list[tuple[Any, Any, str, str]] = [
    (Any, float("nan"), "The value is nan", "nan"),
    (Any, {"a": [1, float("inf")]}, r"field \$\.a\[1\] is inf", "inf"),
    (float, float("-inf"), "The value is -inf, which JSON does not have", "-inf"),
    (Any, {"a": (1, 2)}, r"\$\.a cannot be stored exactly: tuple would become list", r"\(1, 2\)"),
    (Any, {"a": {1, 2}}, r"\$\.a cannot be stored exactly: set would become list", "{1, 2}"),
    (Any, {"a": Decimal(1)}, r"\$\.a cannot be stored exactly: Decimal would become str", "Decimal"),
    (Any, {"a": date(2024, 1, 1)}, r"\$\.a .*date would become str", "2024"),
    (Any, {1: "a"}, r"The value has the key 1 of type int: keys in JSON are text", "'a'"),
    (Any, {"a": {1: "a", "1": "b"}}, r"The field \$\.a has the key 1 of type int: keys in JSON are text", "'a'"),
    (Any, {"a": [object()]}, r"field \$\.a\[0\] has no JSON form: its type is object", "object"),
    (Any, "\ud800", "The value is text that is not valid Unicode", "ud800"),
    (Any, {"a": [{"b": "\ud800"}]}, r"\$\.a\[0\]\.b is text that is not valid Unicode", "ud800"),
    (Any, CYCLE, "nested too deeply, or contains itself", ""),
    (Any, DEEP, "nested too deeply, or contains itself", ""),
    (Order, replace(ORDER, extra={"x": {"y": (1,)}}), r"\$\.extra\.x\.y .*tuple", r"\(1,\)"),
    (Order, replace(ORDER, order_id=5), r"\$\.order_id does not fit Order: Expected `str`, got `int`", "is 5"),
    (Order, replace(ORDER, lines=[Line("s", "2")]), r"\$\.lines\[0\]\.quantity .*got `str`", "'2'"),  # type: ignore[arg-type]
    (Order, replace(ORDER, extra={"x": complex(1)}), r"\$\.extra\.x has no JSON form", "1"),
    (Order, {"order_id": "A"}, "declared as Order, but a value of type dict was given", "A"),
    (Row, {"name": "n", "colour": 1}, r"Row has no place for the field \$\.colour", "is 1"),
    (Row, {}, "missing required field `name`", ""),
    (list[int], [1, "2"], r"\$\[1\] .*Expected `int`, got `str`", "'2'"),
    (tuple[int, int], [1, 2], "declared as tuple, but a value of type list was given", r"\[1, 2\]"),
    (Model, Model(number=1, at=NOON, ratio=float("nan")), r"\$\.ratio is nan", "nan"),
    (type(None), 3, "Expected `null`, got `int`", "3"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value", "what", "shown"), REFUSED, ids=lambda one: str(one).partition(" at 0x")[0][:40]
)
def test_what_would_not_come_back_equal_is_refused_by_name(annotation: Any, value: Any, what: str, shown: str) -> None:
    with pytest.raises(PayloadError, match=what) as caught:
        payload_type(annotation).encode(value)
    assert caught.value.todo
    assert re.search(shown, caught.value.meaning)


def test_the_next_step_for_a_wrong_class_is_the_right_class() -> None:
    with pytest.raises(PayloadError, match=r"Pass a value of type Order\."):
        payload_type(Order).encode({"order_id": "A"})


# ---------------------------------------------------------------------------------------------------- refused: texts

UNREADABLE: list[tuple[Any, str | bytes, str, str]] = [
    (Any, "", "not JSON", "It is empty"),
    (Any, "{", "not JSON", r"begins with '{'"),
    (Any, '{"a":1} x', r"not JSON: trailing characters \(byte 9\)", "begins"),
    (Any, "NaN", "not JSON", "NaN"),
    (Any, b"\xff", "not JSON", "xff"),
    (Any, '"\\ud800"', "not JSON", "ud800"),
    (Any, "[" * 3000, "nested too deeply", r"\[\["),
    (Order, "[1]", "does not fit Order: Expected `object`, got `array`", r"\[1\]"),
    (Order, "{}", "Object missing required field `order_id`", "{}"),
    (Order, '{"order_id":5}', r"field \$\.order_id does not fit Order: Expected `str`, got `int`", "is 5"),
    (Order, '{"order_id":"A","lines":[{"skuCode":1}]}', r"\$\.lines\[0\]\.skuCode", "is 1"),
    (
        Order,
        '{"order_id":"A","colour":"blue"}',
        r"\$\.colour does not fit Order: Invalid enum value\.",
        "'blue'",
    ),
    (Order, '{"order_id":"A","amount":"x"}', r"\$\.amount", "'x'"),
    (Order, '{"order_id":"A","placed_on":"2024-13-01"}', r"\$\.placed_on", "2024-13-01"),
    (dict[str, int], '{"only":"x"}', r"\$\[\.\.\.\] does not fit", "'x'"),
    (dict[str, int], '{"a":1,"b":"x"}', r"\$\[\.\.\.\] does not fit", ""),
    (Model, '{"number":"x","at":"2024-01-01T00:00:00Z"}', r"field \$\.number does not fit Model", "'x'"),
    (Model, "{}", r"field \$\.number does not fit Model: Field required \(and 1 more\)", ""),
    (Model, '{"number":', "not JSON: EOF", "number"),
    (Holder, '{"one":{"number":"x","at":1},"some":[]}', r"field \$\.one\.number does not fit Holder", "'x'"),
    (list[Model], '[{"number":1,"at":1},{"number":"y","at":1}]', r"\$\[1\]\.number", "'y'"),
    (Strict, '{"at":5}', r"\$\.at", "5"),
]


@pytest.mark.parametrize(("annotation", "text", "what", "shown"), UNREADABLE, ids=lambda one: str(one)[:40])
def test_a_text_that_does_not_fit_is_refused_with_field_value_and_type(
    annotation: Any, text: str | bytes, what: str, shown: str
) -> None:
    with pytest.raises(PayloadError, match=what) as caught:
        payload_type(annotation).decode(text)
    assert caught.value.todo
    assert re.search(shown, caught.value.meaning)


def test_what_and_todo_of_a_misfit_do_not_repeat_the_value() -> None:
    secret = "jane@example.com"
    for annotation, text in (
        (Order, f'{{"order_id":"A","colour":"{secret}"}}'),
        (Model, f'{{"number":"{secret}","at":1}}'),
        (dict[str, int], f'{{"a":"{secret}"}}'),
    ):
        with pytest.raises(PayloadError) as caught:
            payload_type(annotation).decode(text)
        assert secret not in caught.value.what + caught.value.todo
        assert secret in caught.value.meaning


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a":Infinity}', "[" * 3000, "1e99999999999999999999", "1" * 5000])
def test_what_is_no_json_has_no_fingerprint(text: str) -> None:
    with pytest.raises(PayloadError):
        PayloadCodec.fingerprint(text)


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(PayloadError) as caught:
        payload_type(int).decode(json.dumps("x" * 5000))
    assert len(str(caught.value)) < 250


# ---------------------------------------------------------------------------------------------------- refused: types


class Opaque:
    pass


@dataclass
class Deep:
    inner: dict[str, list[Opaque]]


class Chain(msgspec.Struct):
    following: Chain | None = None


@pytest.mark.parametrize(
    ("annotation", "named"),
    [
        (complex, "complex"),
        (Opaque, "Opaque"),
        (list[Opaque], "Opaque"),
        (Deep, "Opaque"),
        (int | Opaque, "Opaque"),
        (msgspec.Raw, "Raw"),
        ("Order", "Order"),
        (int | Model, "Model"),
    ],
    ids=str,
)
def test_a_type_without_a_json_form_is_refused_at_declaration(annotation: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        payload_type(annotation)
    assert "dataclass" in caught.value.todo


def test_a_type_that_contains_itself_is_fine() -> None:
    chain = Chain(Chain(None))
    assert decode(encode(chain), Chain) == chain


def test_types_are_named_as_their_authors_write_them() -> None:
    named = {type_name(one) for one in (Order, list[Order], Order | None, dict[str, list[int]], type(None), Any)}
    assert named == {"Order", "list[Order]", "Order | None", "dict[str, list[int]]", "None", "Any"}


def test_plain_shows_a_value_as_its_json_would_be() -> None:
    plain = codec.plain(replace(ORDER, extra={"model": Model(number=1, at=NOON)}))
    assert plain["lines"][0] == {"skuCode": "s", "quantity": 2}
    assert plain["extra"]["model"]["theGivenName"] == "x"


class Plain(Enum):
    ONE = "one"


def test_pydantic_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pydantic")
    assert payload_type(Plain).encode(Plain.ONE) == b'"one"'
    assert "pydantic" not in sys.modules


def test_object_inside_a_type_takes_any_json() -> None:
    codec = payload_type(dict[str, object])
    assert codec.decode(codec.encode({"a": [1, "b"], "c": None})) == {"a": [1, "b"], "c": None}


class Ping(msgspec.Struct, eq=False):
    """A type without fields and without an equality of its own."""


@dataclass(eq=False)
class Pong:
    ping: Ping | None = None


@pytest.mark.parametrize("value", [Ping(), Pong(), Pong(Ping())])
def test_a_type_without_fields_comes_back(value: object) -> None:
    assert type(PayloadCodec(type(value)).decode(PayloadCodec(type(value)).encode(value).decode())) is type(value)
