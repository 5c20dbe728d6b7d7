"""Business keys: every rule that gives one, every value that never is one, and what is said at declaration."""

from __future__ import annotations

import re
import string
import sys
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onefold.contracts.store import RecordKey
from onefold.errors import PayloadError, UsageError
from onefold.record.keys import JmesPath, idempotency_key, is_volatile, jmespath, key_rule

OrderId = NewType("OrderId", str)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Tag(str):
    __slots__ = ()


class Empty(Enum):
    NOTHING = ""


class Customer(msgspec.Struct, rename="camel"):
    customer_id: int
    name: str | None = None


class Place(NamedTuple):
    town: str


class Row(TypedDict):
    sku: str
    size: NotRequired[int]


class Inner(pydantic.BaseModel):
    sku: str


class Model(pydantic.BaseModel):
    number: int
    row: Inner | None = None


class OpenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    number: int


@dataclass
class Order:
    order_id: OrderId
    customer: Customer = field(default_factory=lambda: Customer(7))
    month: date = date(2024, 5, 1)
    rows: list[Row] = field(default_factory=list)
    by_name: dict[str, Customer] = field(default_factory=dict)
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    ref: UUID | None = None
    place: Place = field(default_factory=lambda: Place("Leeds"))
    kind: Literal["a", "b"] = "a"
    mixed: int | str = 3
    maybe: Annotated[str | None, "note"] = None
    extra: dict[str, Any] = field(default_factory=dict)
    anything: Any = None
    paid: bool = True
    placed_at: datetime = datetime(2024, 5, 1)  # noqa: DTZ001
    amount: Decimal = Decimal(1)
    ratio: float = 1.0
    message_id: str = "m"


ORDER = Order(
    OrderId("A-1"),
    rows=[{"sku": "s1"}, {"sku": "s2"}],
    by_name={"x": Customer(9)},
    ref=UUID(int=3),
    extra={"deep": {"id": 5}, "null": None, "detail-type": "d"},
)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("{order_id}", "A-1"),
        ("order/{order_id}!", "order/A-1!"),
        ("{customer.customer_id}#{month}", "7#2024-05-01"),
        ("{colour}", "red"),
        ("{level}", "1"),
        ("{ref}", "00000000-0000-0000-0000-000000000003"),
        ("{place.town}", "Leeds"),
        ("{rows.1.sku}", "s2"),
        ("{by_name.x.customer_id}", "9"),
        ("{extra.deep.id}", "5"),
        ("{extra.detail-type}", "d"),
        ("{kind}", "a"),
        ("{mixed}", "3"),
        ("{{{order_id}}}", "{A-1}"),
        ("{order_id}}}", "A-1}"),
        ("  {order_id} ", "  A-1 "),
    ],
)
def test_a_template_reads_fields_of_any_kind_of_payload(template: str, key: str) -> None:
    assert key_rule(template, Order).of(ORDER) == key
    assert key_rule(template).of(ORDER) == key  # the type is only there to check earlier


@pytest.mark.parametrize(
    ("payload", "annotation", "template", "key"),
    [
        ({"a": {"b": "x"}}, dict, "{a.b}", "x"),
        ({"a": 1}, dict[str, int], "{a}", "1"),
        ([{"a": "x"}], list[dict[str, str]], "{0.a}", "x"),
        ({"sku": "s"}, Row, "{sku}", "s"),
        (Customer(4), Customer, "{customer_id}", "4"),
        (Model(number=3), Model, "{number}", "3"),
        (Model(number=3, row=Inner(sku="s")), Model, "{row.sku}", "s"),
        (OpenModel.model_validate({"number": 1, "more": "m"}), OpenModel, "{more}", "m"),
        (Place("Leeds"), Place, "{town}", "Leeds"),
        (Customer(4), Annotated[Customer, "note"], "{customer_id}", "4"),
        ({"tag": Tag("t")}, dict[str, Tag], "{tag}", "t"),
    ],
    ids=str,
)
def test_every_payload_type_can_be_read(payload: Any, annotation: Any, template: str, key: str) -> None:
    assert key_rule(template, annotation).of(payload) == key


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "is null"),
        ("", "is empty"),
        (" \t ", "is white space only"),
        (True, "is the boolean True"),
        (False, "is the boolean False"),
        (1.0, "is of type float"),
        (Decimal(1), "is of type Decimal"),
        (b"x", "is of type bytes"),
        ([1], "is of type list"),
        ({}, "is of type dict"),
        (datetime(2024, 5, 1), "is an instant"),  # noqa: DTZ001
        (timedelta(1), "is of type timedelta"),
        (Empty.NOTHING, "is empty"),
        (object(), "is of type object"),
        (str.upper, "is of type method_descriptor"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
@pytest.mark.parametrize("template", ["{anything}", "{order_id}#{anything}"])
def test_what_does_not_tell_operations_apart_is_never_a_key(template: str, value: Any, why: str) -> None:
    order = Order(OrderId("A"), anything=value)
    with pytest.raises(PayloadError, match=f"anything {why}") as caught:
        key_rule(template, Order).of(order)
    assert template in str(caught.value)
    assert caught.value.todo


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{extra.none}", r"extra\.none is missing"),
        ("{extra.null}", r"extra\.null is null"),
        ("{extra.null.id}", r"extra\.null\.id is null"),
        ("{rows.7.sku}", r"rows\.7\.sku is missing"),
        ("{maybe}", "maybe is null"),
        ("{anything.id}", r"anything\.id is null"),
    ],
)
def test_a_missing_or_null_field_is_named(template: str, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        key_rule(template, Order).of(ORDER)


def test_an_optional_key_of_a_dict_may_be_missing() -> None:
    with pytest.raises(PayloadError, match="size is missing"):
        key_rule("{size}", Row).of({"sku": "s"})


# -------------------------------------------------------------------------------------------------------- declaration


@pytest.mark.parametrize(
    ("template", "annotation", "what"),
    [
        ("{orderId}", Order, r"Order has no field orderId.*Did you mean order_id\?"),
        ("{order}", Order, r"Did you mean order_id\?"),
        ("{zzz}", Order, r"It has order_id, customer, .*Name one of its fields"),
        ("{customer.customerId}", Order, r"Customer has no field customerId.*Did you mean customer_id\?"),
        ("{customer.name.first}", Order, r"has no fields at all"),
        ("{order_id.upper}", Order, "has no fields at all"),
        ("{__class__}", Order, "no field __class__"),
        ("{nope}", Row, "Row has no field nope"),
        ("{nope}", Model, "Model has no field nope"),
        ("{row.nope}", Model, "no field nope"),
        ("{nope}", int, "int has no field nope"),
        ("{paid}", Order, "paid cannot be part of a key: it is bool"),
        ("{ratio}", Order, "ratio cannot be part of a key: it is float"),
        ("{amount}", Order, "amount cannot be part of a key: it is Decimal"),
        ("{placed_at}", Order, "an instant differs when the same thing is sent again"),
        ("{customer}", Order, "it is Customer, which has parts"),
        ("{rows}", Order, "which has parts"),
        ("{extra}", Order, "which has parts"),
        ("{rows.sku}", Order, "has numbers, not names"),
        ("{rows.0.nope}", Order, "Row has no field nope"),
        ("{by_name.x.nope}", Order, "Customer has no field nope"),
        ("order_id", Order, r'names no field.*Write the field in braces: "\{order_id\}"'),
        ("A", Order, r'"\{order_id\}"'),
        ("", Any, "names no field"),
        ("{{order_id}}", Order, "names no field"),
        ("{order_id!r}", Order, "formats and conversions do not exist"),
        ("{order_id:>5}", Order, "is not a field"),
        ("{}", Order, "is not a field"),
        ("{order_id", Order, "'{' is not a field"),
        ("order_id}", Order, "'}' is not a field"),
        ("{a b}", Any, "is not a field"),
        ("{a..b}", Any, "is not a field"),
        ("{order_id}{month}", Order, "two fields with nothing between them"),
    ],
)
def test_a_template_that_cannot_work_is_refused_at_declaration(template: str, annotation: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        key_rule(template, annotation, what="key of book")
    assert str(caught.value).startswith(f"key of book={template!r}")
    assert caught.value.todo


def test_a_class_that_cannot_be_resolved_is_checked_by_its_names_alone() -> None:
    @dataclass
    class Local:
        inner: Unknown  # type: ignore[name-defined]  # noqa: F821 - that is the point
        order_id: str = "A"

    assert key_rule("{inner.id}", Local).of(Local({"id": 3})) == "3"
    with pytest.raises(UsageError, match="Did you mean order_id"):
        key_rule("{orderid}", Local)


@pytest.mark.parametrize("rule", [5, None, b"{a}", ["a"]])
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    with pytest.raises(UsageError, match="is not a rule"):
        key_rule(rule, Order)


# ------------------------------------------------------------------------------------------------ several fields, text


@given(st.lists(st.text(string.printable[:95], min_size=1), min_size=4, max_size=4), st.sampled_from("#-/%:|"))
def test_two_different_pairs_never_give_one_key(texts: list[str], sign: str) -> None:
    assume(all(text.strip() for text in texts))
    rule = key_rule(f"keys-v2:{{a}}{sign}{{b}}")
    one, other = {"a": texts[0], "b": texts[1]}, {"a": texts[2], "b": texts[3]}
    assert (rule.of(one) == rule.of(other)) == (one == other)


@given(
    st.text("a%#2", min_size=1, max_size=4),
    st.text("a%#2", min_size=1, max_size=4),
    st.text("a%#2", min_size=1, max_size=4),
)
def test_what_looks_like_the_sign_between_two_fields_is_escaped(a: str, b: str, c: str) -> None:
    rule = key_rule("x{a}#{b}#b{c}y")
    parts = rule.of({"a": a, "b": b, "c": c})[1:-1].split("#", 2)
    unescaped = [part.replace("%23", "#").replace("%25", "%") for part in parts[:2]]
    assert [*unescaped, parts[2]] == [a, b, f"b{c}"]


def test_ordinary_values_are_not_touched() -> None:
    assert key_rule("{a}#{b}").of({"a": "50%", "b": "x#y%"}) == "50%25#x#y%"
    assert key_rule("{a}#{b}").of({"a": "2024-05", "b": "x-y"}) == "2024-05#x-y"
    assert key_rule("{a}").of({"a": "50%#-"}) == "50%#-"


@pytest.mark.parametrize(("length", "fits"), [(1, True), (512, True), (513, False)])
def test_a_key_has_at_most_512_characters(length: int, fits: bool) -> None:
    rule = key_rule("{a}")
    if fits:
        assert rule.of({"a": "é" * length}) == "é" * length
        return
    with pytest.raises(PayloadError, match="gives 513 characters"):
        rule.of({"a": "é" * length})


def test_other_lengths_can_be_set() -> None:
    assert len(key_rule("{a}", what="group", chars_max=128).of({"a": "x" * 128})) == 128
    with pytest.raises(PayloadError, match=r"The group \{a\} gives 129 characters"):
        key_rule("{a}", what="group", chars_max=128).of({"a": "x" * 129})


@pytest.mark.parametrize("bad", ["a\nb", "a\x00", "\x7f", "\ud800"])
def test_control_characters_and_broken_unicode_are_refused(bad: str) -> None:
    with pytest.raises(PayloadError, match="control characters or broken Unicode"):
        key_rule("{a}").of({"a": bad})


# ----------------------------------------------------------------------------------------------- JMESPath, functions


@pytest.mark.parametrize(
    ("expression", "key"),
    [
        ("order_id", "A-1"),
        ("customer.customerId", "7"),  # JSON names, as a message shows them
        ("extra.deep.id", "5"),
        ("join('#', [order_id, month])", "A-1#2024-05-01"),
        ("rows[0].sku", "s1"),
        ('extra."detail-type"', "d"),
    ],
)
def test_a_jmespath_expression_reads_the_payloads_json(expression: str, key: str) -> None:
    assert key_rule(jmespath(expression), Order).of(ORDER) == key
    assert key_rule(f"jmespath:{expression}", Order).of(ORDER) == key


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("nothing", "nothing is null"),
        ("rows[].sku", "is of type list"),
        ("[order_id, nothing]", "is of type list"),
        ("paid", "is the boolean True"),
        ("length(paid)", "raised JMESPathTypeError"),
        ("unknown(order_id)", "raised UnknownFunctionError"),
    ],
)
def test_a_jmespath_expression_that_gives_no_identity_is_refused(expression: str, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        key_rule(jmespath(expression), Order).of(ORDER)


def test_an_expression_that_is_no_jmespath_is_refused_at_declaration() -> None:
    with pytest.raises(UsageError, match=r"is not JMESPath"):
        key_rule("jmespath:extra.[", Order)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jmespath", None)
    with pytest.raises(UsageError, match=r"pip install 'onefold\[cli\]', or use a template or a function"):
        key_rule(JmesPath("a"), Order)


def test_a_function_gives_the_key() -> None:
    rule = key_rule(lambda order: order.rows[1]["sku"], Order)
    assert rule.of(ORDER) == "s2"
    assert rule.text == "<lambda>()"
    assert key_rule(lambda order: 5, Order).of(ORDER) == "5"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda order: order.nope, "raised AttributeError"),
        (lambda order: None, r"the result of <lambda>\(\) is null"),
        (lambda order: 1.5, "is of type float"),
        (lambda order: "", "is empty"),
    ],
)
def test_a_function_that_gives_no_identity_is_refused(function: Any, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        key_rule(function, Order).of(ORDER)


# ----------------------------------------------------------------------------------------------------------- warnings


@pytest.mark.parametrize(
    "name",
    [
        "uuid",
        "timestamp",
        "message_id",
        "messageId",
        "detail.event-time",
        "created_at",
        "now",
        "trace_id",
        "ts",
    ],
)
def test_names_of_things_that_change_at_every_send_are_volatile(name: str) -> None:
    assert is_volatile(name)


@pytest.mark.parametrize("name", ["order_id", "timestamp.day", "month", "runtime", "message", "sequence_name"])
def test_other_names_are_not(name: str) -> None:
    assert not is_volatile(name)


def test_a_rule_lists_its_volatile_fields() -> None:
    assert key_rule("{order_id}#{message_id}", Order).volatile == ("message_id",)
    assert key_rule("{order_id}", Order).volatile == ()
    assert key_rule("jmespath:detail.requestId").volatile == ("requestId",)
    assert key_rule("jmespath:time.order_id").volatile == ()
    assert key_rule(lambda order: "x").volatile == ()


def test_a_rule_shows_itself() -> None:
    assert repr(key_rule("{order_id}", Order, what="tenant")) == "<tenant {order_id}>"


# ---------------------------------------------------------------------------------------------------- idempotency keys


def test_the_key_for_partners_is_stable_for_ever() -> None:
    # Partners remember these keys: this value never changes.
    assert idempotency_key(RecordKey("", "book_courier", "536365")) == "book_courier-e2e37086ae25dd86d64f43a4ad626c21"


def test_scope_job_key_and_parts_all_count() -> None:
    keys = {
        idempotency_key(RecordKey("", "a", "bc")),
        idempotency_key(RecordKey("", "ab", "c")),
        idempotency_key(RecordKey("a", "", "bc")),
        idempotency_key(RecordKey("x", "a", "bc")),
        idempotency_key(RecordKey("", "a", "bc"), "refund"),
        idempotency_key(RecordKey("", "a", "bc"), "refund", "2"),
        idempotency_key(RecordKey("", "a", "bcrefund")),
    }
    assert len(keys) == 7


@given(st.builds(RecordKey, st.text(max_size=20), st.text(min_size=1, max_size=120), st.text(min_size=1, max_size=512)))
def test_any_operation_has_a_short_plain_key(record: RecordKey) -> None:
    key = idempotency_key(record)
    assert 32 <= len(key) <= 64
    assert set(key) <= set(string.ascii_letters + string.digits + "-_")
