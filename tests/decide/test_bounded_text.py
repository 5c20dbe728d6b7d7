"""Text from outside is bounded before anything looks at it: the work grows with the text at most, and stops at a bound."""

from __future__ import annotations

import dataclasses
import json
import time
import tracemalloc
import uuid
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

import onefold
from onefold import codec
from onefold.check.facts import Unresolved
from onefold.check.intrinsics import Intrinsics
from onefold.contracts.entries import check_attributes
from onefold.contracts.queue import Attribute, Delivery
from onefold.errors import PayloadError
from onefold.events import patterns
from onefold.events.patterns import compile_filters, undotted
from onefold.local.message_operations import _stored
from onefold.record import keys
from onefold.record.error_text import summary_of
from onefold.record.failures import classify
from onefold.redact import masked, printable

GROWTH_MAX = 9.0  # for four times the text: linear 4, quadratic 16
WORTH_A_LOOK_S = 0.002

HOSTILE = [
    "?",
    "?a",
    "://",
    "a://",
    "@",
    "a:",
    " ",
    "\n",
    "\t ",
    "password=",
    "password='",
    "pw",
    "%3a%2f%2f",
    "a://?b=",
    "aa://?=",
    "http://x?a=",
    "http://u:p@x?%61=",
    "aa%3a%2f%2f?=",
    "aa%253a%252f%252f",
    "'\\",
    "\x9b",
    "redis://:a",
    "redis://u:a,",
    "redis://u: ",
    "redis//a",
    "redis:a",
    "//a:",
    "a:b@",
    "a:@",
    "nonnumeric port: '",
]


def taken_s(call: Callable[[str], object], text: str) -> float:
    def once() -> float:
        began = time.thread_time()  # of this thread: a busy machine does not lengthen it
        call(text)
        return time.thread_time() - began

    return min(once() for _ in range(3))


def grows_linearly(call: Callable[[str], object], piece: str, chars: int = 80_000) -> bool:
    whole = taken_s(call, piece * (chars // len(piece)))
    return whole < WORTH_A_LOOK_S or whole < GROWTH_MAX * taken_s(call, piece * (chars // len(piece) // 4))


@pytest.mark.parametrize("piece", HOSTILE)
def test_an_exception_of_any_text_is_summed_up_in_a_bounded_time(piece: str) -> None:
    def summed(text: str) -> None:
        assert len(summary_of(RuntimeError(text))) <= 500
        assert len(classify(ExceptionGroup("many", [ValueError(text)] * 40), now_ms=0).summary) <= 500

    short, long = piece * (20_000 // len(piece)), piece * (2_000_000 // len(piece))
    assert taken_s(summed, long) < 4 * taken_s(summed, short) + 0.002, "what lies behind the bound costs something"


@pytest.mark.parametrize("piece", HOSTILE)
def test_masking_and_escaping_take_linear_time(piece: str) -> None:
    assert grows_linearly(masked, piece)
    assert grows_linearly(printable, piece)


@pytest.mark.parametrize("piece", ["aa://?=", "aa://?", "http://x?a=", "aa%3a%2f%2f?a=", "aa%253a%252f%252f"])
def test_a_url_inside_of_a_url_inside_of_a_url_is_masked_at_any_depth(piece: str) -> None:
    text = piece * 290 + "http://user:secret@host/"
    assert "secret" not in masked(text)
    assert masked(masked(text)) == masked(text)
    failed = classify(ValueError(f"cannot call {text}"), now_ms=0)
    assert failed.error == "ValueError"
    assert failed.summary.startswith("cannot call aa" if piece.startswith("aa") else "cannot call http://x")
    assert "secret" not in failed.trace


def test_a_failure_at_the_end_of_the_stack_is_summed_up_all_the_same() -> None:
    error, said = ValueError("no http://user:secret@host/?a=http://b?c=d"), list[str]()

    def go_down() -> None:
        with suppress(RecursionError):  # of the last step down, or of the first one below that cannot even call
            go_down()
        if len(said) < 60:
            said.append(summary_of(error))

    go_down()
    assert said[0] == "ValueError"
    assert set(said) == {"ValueError", "no http://***@host/"}


PIECE = "~"
QUOTING: dict[str, list[Any]] = {
    "sns": [{PIECE: 1}, {"Type": "Notification", "TopicArn": PIECE, "Message": "{}", "MessageId": "m"}],
    "eventbridge": [{PIECE: 1}],
    "s3": [{PIECE: 1}],
    "scheduler": [{PIECE: 1}],
    "json": [{PIECE: 1, "id": 1}, {"id": PIECE}, [PIECE]],
}


@dataclasses.dataclass
class _Order:
    id: int


class _Closed(msgspec.Struct, forbid_unknown_fields=True):
    id: int


class _Model(pydantic.BaseModel, extra="forbid"):
    id: int


@pytest.mark.parametrize("kind", [_Order, _Closed, _Model, dict])
@pytest.mark.parametrize(("source", "body"), [(source, body) for source, bodies in QUOTING.items() for body in bodies])
def test_a_message_that_cannot_be_read_is_quoted_in_part(kind: Any, source: Any, body: Any) -> None:
    app = onefold.App("shop")

    def ship(order: Any) -> None: ...

    ship.__annotations__["order"] = kind
    job = app.job(app.queue("orders"), key="{id}", source=source)(ship)
    text = json.dumps(body).replace(PIECE, "_" * 900_000 + "://")
    attributes = {"SCHEDULE_ARN": Attribute("_" * 100_000 + "://")} if source == "scheduler" else {}
    delivery = Delivery(
        queue="orders", message_id="m", receipt="r", body=text, attributes=attributes, receive_count=1, sent_at_ms=0,
        first_received_at_ms=0, received_at_ms=0, visible_ms=1, trusted=False,
    )  # fmt: skip
    began = time.thread_time()
    job.read(delivery)
    assert time.thread_time() - began < 0.5, "it was 7 s and more: all of it was masked"


def test_each_part_of_an_error_is_cut_before_it_is_masked() -> None:
    error = onefold.errors.UsageError("_" * 1_000_000 + "password=x", meaning="b" * 1_000_000, todo="short")
    assert (len(error.what), len(error.meaning), error.todo) == (8_195, 8_195, "short")
    assert error.what.endswith("...")


@pytest.mark.parametrize("piece", ["0", "1", "10", "0.", ".0", "e1", "+"])
@pytest.mark.parametrize("ends", ["", "!", ".", "e", "1"])
def test_a_number_attribute_of_many_characters_takes_linear_time(piece: str, ends: str) -> None:
    def refused(text: str) -> None:
        check_attributes({"n": Attribute(text + ends, "Number")})

    def kept(text: str) -> None:
        _stored(Attribute(text + ends, "Number"))
        _stored(Attribute("0." + text + ends, "Number"))

    assert grows_linearly(refused, piece)
    assert grows_linearly(kept, piece)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("00120.500", "120.5"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("0", "0"),
        ("+7", "7"),
        ("1.", "1"),
        ("1e3", "1e3"),
        ("-0.50", "-0.5"),
        (".5", "0.5"),
    ],
)
def test_a_number_is_stored_without_its_zeros(given: str, stored: str) -> None:
    assert _stored(Attribute(given, "Number")).value == stored


class _NoNames:
    def ref(self, name: str) -> str:
        return name

    def attribute(self, name: str, attribute: str) -> str:
        return f"{name}.{attribute}"

    def condition(self, name: str) -> bool:
        return bool(name)

    def mapping(self, name: str) -> dict[str, object]:
        return {name: {}}


@pytest.mark.parametrize("piece", ["${", "${a", "${!", "$", "}", "{{resolve:"])
def test_substitution_in_a_template_takes_linear_time(piece: str) -> None:
    assert grows_linearly(lambda text: Intrinsics(_NoNames()).resolve({"Fn::Sub": text}), piece)


@pytest.mark.parametrize("piece", ["1", "[", '{"a":', "1.", "-", '"\\u0061', " "])
def test_a_payload_that_is_no_json_is_refused_in_linear_time(piece: str) -> None:
    def refused(text: str) -> None:
        try:
            codec.canonical(text)
        except codec.PayloadError:
            return

    assert grows_linearly(refused, piece)


@pytest.mark.parametrize("others", ["", '"a":1,', '"a":{"b":1},'])
def test_an_event_with_many_dotted_names_is_matched_in_linear_time(others: str) -> None:
    filters = compile_filters(['{"body":{"kind":["order"]}}', '{"body":{"a":{"x":["order"]}}}'])

    def kept(text: str) -> None:
        fields = ",".join(f'"a.{number}":1' for number in range(len(text)))
        assert not filters.keep(f"{{{others}{fields}}}")

    assert grows_linearly(kept, ".", 20_000)


def test_dotted_names_are_split_once_for_all_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    split: list[object] = []
    monkeypatch.setattr(patterns, "undotted", lambda fields: split.append(fields) or undotted(fields))
    filters = compile_filters([json.dumps({"body": {"$or": [{f"a{number}": {"b": [1]}} for number in range(100)]}})])
    assert filters.keep('{"a98.b":2,"a99.b":1,"a0.b":2}')
    assert len(split) <= 4  # the event, and its three inner objects


def test_names_with_dots_that_meet_are_one_object() -> None:
    value = {"a": {"b": 1}, "a.c": 2, "a.d.e": 3, "f.g": 4, "h": 5}
    assert undotted(value) == {"a": {"b": 1, "c": 2, "d.e": 3}, "f": {"g": 4}, "h": 5}
    assert value["a"] == {"b": 1}, "the event itself stays as it is"
    assert undotted({"a": 1, "a.b": 2, "a.c": 3}) == {"a": [1, {"b": 2, "c": 3}]}
    assert undotted({"a.b": 2, "a": 1, "a.c": 3}) == {"a": [{"b": 2, "c": 3}, 1]}


@pytest.mark.parametrize("function", ["Fn::ToJsonString", "Fn::Base64"])
def test_functions_inside_of_each_other_make_no_endless_text(function: str) -> None:
    value: Any = 'a"b'
    for _ in range(49):
        value = {function: [value] if function == "Fn::ToJsonString" else value}
    began = time.thread_time()
    found = Intrinsics(_NoNames()).resolve(value)
    assert time.thread_time() - began < 2
    assert isinstance(found, Unresolved)
    assert f"{function} makes more than" in str(found)


def test_a_name_that_is_substituted_often_is_resolved_once() -> None:
    value: Any = "x"
    for _ in range(18):
        value = {"Fn::Sub": ["${a}${a}", {"a": value}]}
    assert Intrinsics(_NoNames()).resolve(value) == "x" * 2**18
    asked: list[str] = []

    class Counting(_NoNames):
        def ref(self, name: str) -> str:
            asked.append(name)
            return name

    value = {"Ref": "b"}
    for _ in range(10):
        value = {"Fn::Sub": ["${a}${a}", {"a": value}]}
    Intrinsics(Counting()).resolve(value)
    assert asked == ["b"]


def test_groups_that_share_members_are_not_walked_along_every_way() -> None:
    group: BaseException = ValueError("x" * 100)
    for _ in range(30):
        group = ExceptionGroup("g", [group, group, group])
    assert "3 errors" in summary_of(group)


class _Pear(pydantic.BaseModel):
    pear: int


class _Basket(pydantic.BaseModel):
    lines: list[_Model | _Pear]


def test_an_error_of_pydantic_about_very_many_items_is_not_taken_apart() -> None:
    body = '{"lines":[' + ",".join(["0"] * 20_000) + "]}"

    def refused(what: Any, text: str) -> PayloadError:
        with pytest.raises(PayloadError) as caught:
            codec.payload_type(what).decode(text)
        return caught.value

    def summed_up() -> str:
        with pytest.raises(pydantic.ValidationError) as caught:
            _Basket.model_validate_json(body)
        return summary_of(caught.value)

    def by_rule() -> PayloadError:
        read = keys.by_function(lambda _: _Basket.model_validate_json(body), "read", "key")
        with pytest.raises(PayloadError) as caught:
            read({})
        return caught.value

    many = "pydantic finds 40,000 errors in it, too many to list."
    tracemalloc.start()
    try:
        assert refused(_Basket, body).what == f"The value does not fit _Basket: {many}"
        assert refused(list[_Basket], f"[{body}]").what == f"The field $[0] does not fit list[_Basket]: {many}"
        assert summed_up() == "40000 validation errors, too many to list"
        assert by_rule().meaning == "It said: 40000 validation errors, too many to list"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000, "it was 60 MB and more: an object and a text about each of them"
    first = refused(list[_Basket], '[{"lines":[0,{"pear":"x"}]}]')
    assert first.what.startswith("The field $[0].lines[0]._Model does not fit list[_Basket]: Input should be")


class _Numbers(pydantic.BaseModel):
    numbers: set[int]


@dataclasses.dataclass
class _Stock:
    by_product: dict[int, int]


_ALIKE = 2**61 - 1  # Python's integers hash modulo this


@pytest.mark.parametrize(
    ("kind", "form", "around"),
    [
        (set[int], "{}", "[{}]"),
        (frozenset[Decimal], '"{}"', "[{}]"),
        (frozenset[Decimal], "{}.0", "[{}]"),
        (set[tuple[int, int]], "[{},1]", "[{}]"),
        (dict[int, int], '"{}":1', "{{{}}}"),
        (_Stock, '"{}":1', '{{"by_product":{{{}}}}}'),
        (_Numbers, "{}", '{{"numbers":[{}]}}'),
        (list[_Numbers], "{}", '[{{"numbers":[{}]}}]'),
        (set[uuid.UUID], '"{0:032x}"', "[{}]"),
        (dict[uuid.UUID, int], '"{0:032x}":1', "{{{}}}"),
    ],
)
def test_numbers_of_one_hash_are_refused_before_a_set_is_made_of_them(kind: Any, form: str, around: str) -> None:
    def text(step: int) -> str:
        return around.format(",".join(form.format(number * step) for number in range(1, 3_001)))

    payload = codec.payload_type(kind)
    with pytest.raises(PayloadError, match="more than 32 different numbers with one hash"):
        payload.decode(text(_ALIKE))
    payload.decode(text(10**15 + 37))  # as long, and harmless


def test_numbers_that_are_equal_or_no_keys_are_no_crowd() -> None:
    alike = ",".join(str(number * _ALIKE) for number in range(1, 2_001))
    assert len(codec.payload_type(list[int]).decode(f"[{alike}]")) == 2_000
    assert codec.payload_type(set[int]).decode("[" + ",".join(["7"] * 20_000) + "]") == {7}
    assert len(codec.payload_type(set[str]).decode(f'["{alike.replace(",", chr(34) + "," + chr(34))}"]')) == 2_000
