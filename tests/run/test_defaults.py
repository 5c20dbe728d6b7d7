"""A field that is left to its default is the same as the default written out: for duplicates, sends and guarded calls.

What was recorded by versions that did not have a field yet, and what another program wrote without it, is found again; and
another value is a conflict, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest

import onefold
from onefold import codec, payload_defaults
from onefold.clock import SystemClock
from onefold.contracts.entries import Entry
from onefold.contracts.queue import JOB_ATTRIBUTE, Attribute
from onefold.engines.urls import open_engine
from onefold.entropy import SystemEntropy
from onefold.testing import World, inline
from tests.run.bench import Elsewhere


@dataclass
class Line:
    sku: str
    gift: bool = False


@dataclass
class Order:
    id: str
    cur: str = "GBP"
    lines: list[Line] = field(default_factory=list)


class Sent(msgspec.Struct, rename="camel", omit_defaults=True):
    the_id: str
    cur: str = "GBP"
    tags: list[str] = []


class Model(pydantic.BaseModel):
    id: str
    cur: str = pydantic.Field("GBP", alias="currency")
    tags: list[str] = pydantic.Field(default_factory=list)


def of(text: str) -> str:
    return codec.fingerprint(text.encode())


SAME: list[tuple[Any, str]] = [
    (Order("1"), '{"id":"1"}'),
    (Order("1"), '{"id":"1","cur":"GBP","lines":[]}'),
    (Order("1"), '{"id":"1","lines":[]}'),
    (Order("1", lines=[Line("a"), Line("b")]), '{"id":"1","lines":[{"sku":"a"},{"sku":"b"}]}'),
    (Order("1", lines=[Line("a"), Line("b", True)]), '{"id":"1","lines":[{"sku":"a"},{"sku":"b","gift":true}]}'),
    (codec.decode('{"id":"1"}', Order), '{"id":"1","cur":"GBP","lines":[]}'),
    (Sent("1"), '{"theId":"1","cur":"GBP","tags":[]}'),
    (Sent("1", tags=["x"]), '{"theId":"1","cur":"GBP","tags":["x"]}'),
    (Model(id="1"), '{"id":"1"}'),
    (Model(id="1"), '{"id":"1","currency":"GBP"}'),
    ([{"order": Order("1")}], '[{"order":{"id":"1"}}]'),
]
OTHER: list[tuple[Any, str]] = [
    (Order("1", cur="EUR"), '{"id":"1"}'),
    (Order("1"), '{"id":"1","cur":"EUR"}'),
    (Order("1"), '{"id":"2"}'),
    (Order("1", lines=[Line("a", True)]), '{"id":"1","lines":[{"sku":"a"}]}'),
    (Sent("1"), '{"theId":"1","cur":"EUR"}'),
    (Model.model_construct(id="1", cur="EUR", tags=[]), '{"id":"1"}'),
    ({"id": "1", "cur": "GBP"}, '{"id":"1"}'),
]


@pytest.mark.parametrize(("value", "first"), SAME, ids=repr)
def test_a_field_left_to_its_default_is_the_default_written_out(value: Any, first: str) -> None:
    assert payload_defaults.is_alike(value, codec.digest(codec.outline(value)), of(first))


@pytest.mark.parametrize(("value", "first"), OTHER, ids=repr)
def test_another_value_is_another_payload(value: Any, first: str) -> None:
    assert not payload_defaults.is_alike(value, codec.digest(codec.outline(value)), of(first))


def test_a_default_that_somebodys_function_makes_is_never_left_out() -> None:
    made: list[int] = []

    @dataclass
    class Stamped:
        id: str
        at: str = field(default_factory=lambda: made.append(1) or "now")  # type: ignore[func-returns-value]

    value = Stamped("1", "now")
    assert not payload_defaults.is_alike(value, codec.digest(codec.outline(value)), of('{"id":"1"}'))
    assert not made


@pytest.mark.parametrize("gone", [{3}, {38, 39}, set(range(30, 40)), set(range(40)), set(range(40)) - {7}, {2, 19}])
def test_of_many_defaults_the_likely_combinations_are_tried(gone: set[int]) -> None:
    wide: Any = msgspec.defstruct("Wide", [("id", str), *((f"f{one:02}", int, one) for one in range(40))])
    first = {name: value for name, value in codec.plain(wide("1")).items() if name == "id" or int(name[1:]) not in gone}
    assert payload_defaults.is_alike(wide("1"), codec.fingerprint(wide("1")), codec.fingerprint(first))


def test_a_large_payload_is_tried_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    joined = codec.joined
    monkeypatch.setattr(codec, "joined", lambda value: written.append(1) or joined(value))  # type: ignore[func-returns-value]
    many: Any = msgspec.defstruct("Many", [("id", str), *((f"f{one}", int, one) for one in range(10))])
    assert not payload_defaults.is_alike(many("x" * 1_000_000), "1" * 32, "0" * 32)
    assert len(written) < 50


@pytest.mark.parametrize("count", [2_000, 80_000])
def test_what_is_looked_at_of_a_payload_with_many_objects_is_bounded(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    written: list[int] = []
    joined, outline = codec.joined, codec.outline
    monkeypatch.setattr(codec, "joined", lambda value: written.append(1) or joined(value))  # type: ignore[func-returns-value]
    monkeypatch.setattr(codec, "outline", lambda value: written.append(1) or outline(value))  # type: ignore[func-returns-value]
    value, first = Order("1", lines=[Line("a") for _ in range(count)]), Order("1", cur="EUR")
    bare = {"id": "1", "lines": [{"sku": "a"}] * count}
    is_alike = payload_defaults.is_alike(value, codec.fingerprint(value), codec.fingerprint(bare))
    assert is_alike == (count == 2_000), "a large order is still one; of a huge one nothing is looked at to the end"
    assert not payload_defaults.is_alike(value, codec.fingerprint(value), codec.fingerprint(first))
    assert len(written) < 50_000


# -- jobs ------------------------------------------------------------------------------------------------------------


class Shop:
    """One store, on which versions of one app follow each other."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def version(self, kind: Any, *, unique: bool = False) -> onefold.App:
        """An app whose job takes payloads of that type."""
        app = onefold.App("shop")

        def ship(order: Any) -> str:
            self.done.append(order)
            return "shipped"

        ship.__annotations__["order"] = kind
        app.job(app.queue("orders"), key="{id}", unique=unique)(ship)
        return app


@dataclass
class Before:
    id: str
    cur: str = "GBP"


@dataclass
class After:
    id: str
    cur: str = "GBP"
    gift: bool = False


@pytest.fixture
def shop() -> Shop:
    return Shop()


def raw(app: onefold.App, world: World, text: str) -> None:
    """A message as another program, or the version before, has written it."""
    queue = app.runtime().engine.queues.open("orders")
    queue.send([Entry(body=text, attributes={JOB_ATTRIBUTE: Attribute("ship")})])
    world.run()


FIRST = ('{"id":"1","cur":"GBP"}', '{"id":"1"}')


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("again", [*FIRST, '{"id":"1","cur":"GBP","gift":false}'])
def test_a_duplicate_is_answered_whatever_it_leaves_to_defaults(shop: Shop, first: str, again: str) -> None:
    app = shop.version(After)
    with inline(app) as world:
        raw(app, world, first)
        raw(app, world, again)
        assert [one.id for one in shop.done] == ["1"]
        assert app.runtime().engine.queues.peek("orders-dead") == []
        raw(app, world, '{"id":"1","discount":50}')  # of a version that this one does not know yet
        raw(app, world, '{"id":"1","gift":true}')
        _, letter = app.runtime().engine.queues.peek("orders-dead")
        assert letter.reason is not None
        assert letter.reason.kind == "conflict"
        assert "the first payload itself is not kept" in letter.reason.summary


@pytest.mark.parametrize("first", ['{"id":"1"}', '{"id":"1","cur":"GBP"}'])
def test_a_unique_job_knows_what_was_sent_before_a_field_was_added(shop: Shop, first: str) -> None:
    app = shop.version(After, unique=True)
    with inline(app) as world:
        raw(app, world, first)
        receipt = app.jobs["ship"].send(After("1"))
        assert (receipt.duplicate, receipt.found) == (True, "done")
        with pytest.raises(onefold.errors.ConflictError, match="Only the fingerprint of the first"):
            app.jobs["ship"].send(After("1", gift=True))


# -- guarded calls ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    if request.param == "memory":
        yield onefold.memory_store()
        return
    engine = open_engine(f"sqlite:///{tmp_path}/r.db", clock=SystemClock(), entropy=SystemEntropy(), owner="test")
    yield engine.store
    engine.close()


def test_a_parameter_that_a_deploy_adds_leaves_earlier_calls_known(store: Any) -> None:
    ran: list[str] = []

    @onefold.once(key="{invoice}", name="charge", store=store)
    def before(invoice: str) -> str:
        ran.append("before")
        return "paid"

    after_the_deploy: Any = Elsewhere(store)

    @onefold.once(key="{invoice}", name="charge", store=after_the_deploy)
    def after(invoice: str, cur: str = "GBP", *notes: str, line: Line = Line("a"), **more: Any) -> str:  # noqa: B008
        ran.append("after")
        return "paid again"

    assert before("i-1") == after("i-1") == after("i-1", "GBP") == "paid"
    assert ran == ["before"]
    others: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("EUR",), {}),
        ((), {"line": Line("b")}),
        ((), {"more": 1}),
    ]
    for arguments, options in others:
        with pytest.raises(onefold.errors.ConflictError, match="Only the fingerprint of the first"):
            after("i-1", *arguments, **options)
    assert after("i-2") == "paid again"
    assert ran == ["before", "after"]


def test_an_order_whose_type_has_grown_is_the_same_order(store: Any) -> None:
    def charge(order: Any) -> str:
        return f"{order.id} paid"

    guarded = onefold.once(key="{order.id}", name="charge", store=store)(charge)
    assert guarded(Before("1")) == guarded(After("1")) == "1 paid"
    with pytest.raises(onefold.errors.ConflictError):
        guarded(After("1", gift=True))
