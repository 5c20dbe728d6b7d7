"""A CSV file without the columns that every item needs is refused before anything is sent; any other is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

import onefold
from onefold import errors
from onefold.admin import maps
from onefold.maps.checks import check_columns
from onefold.maps.jobs import MapJob
from onefold.maps.rules import ItemReader
from onefold.maps.sources import LocalSource
from onefold.testing.inline import inline
from tests.maps.map_world import RUN, Mill, drive


class Customer(msgspec.Struct):
    id: str
    country: str
    orders: int
    note: str = ""


@dataclass
class Sale:
    id: str
    qty: int = 1


class Entry(TypedDict):
    id: str
    qty: int


class Model(pydantic.BaseModel):
    id: str
    qty: int = pydantic.Field(alias="Quantity")
    note: str | None = None


class Chosen(pydantic.BaseModel):
    id: str = pydantic.Field(validation_alias=pydantic.AliasChoices("id", "ID"))


class Rewritten(pydantic.BaseModel):
    id: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def renamed(cls, row: Any) -> Any:
        return {"id": row.get("ident", "")}


class Renamed(msgspec.Struct, rename="pascal"):
    id: str


def declared(item: Any, *, key: str | Callable[[Any], object] = "{id}", **options: Any) -> MapJob:
    app = onefold.App("columns")

    def grind(row: Any) -> None:
        """Does nothing."""

    grind.__annotations__["row"] = item
    made: MapJob = app.map(app.queue("items"), key=key, **options)(grind)
    return made


def refused(folder: Path, header: str | bytes, mapping: MapJob) -> errors.UsageError | None:
    file = folder / "in.csv"
    file.write_bytes(header if isinstance(header, bytes) else header.encode())
    try:
        check_columns(LocalSource(str(file)), mapping)
    except errors.UsageError as error:
        return error
    return None


SEMICOLON = ItemReader(delimiter="semicolon")


@pytest.mark.parametrize(
    ("header", "item", "options", "said"),
    [
        (
            "ident;name;orders\n1;a;2\n",
            Customer,
            {},
            "its header is ident;name;orders; Customer needs id, country, orders.",
        ),
        ("ident;name;orders\n1;a;2\n", Customer, {}, "Is the delimiter ';'?"),
        ("c0,GB,3\nc1,GB,3\n", Customer, {}, "if there is no header at all"),
        ("id,country\n", Customer, {}, "has no column orders:"),
        ("Id,country,orders\n", Customer, {}, "Is 'Id' meant?"),
        ("id,country\n", Customer, {"items": ItemReader(header=("id", "country"))}, "declared with header="),
        ("a;b\n", dict[str, str], {"items": SEMICOLON}, "its header is a;b; the key {id} needs id."),
        ("a\n", dict[str, str], {"key": "{id}#{month}"}, "has no column id, month:"),
        ("a\n", Any, {}, "has no column id:"),
        ("a\n", list[Customer], {"batch": 5}, "Customer needs id, country, orders."),
        ("qty\n", Sale, {}, "Sale needs id."),
        ("id\n", Entry, {}, "has no column qty:"),
        ("id\n", Model, {}, "has no column Quantity:"),
        ("id\n", Renamed, {"key": "{id}"}, "has no column Id:"),
        ("id\n", Annotated[Customer, "a remark"], {}, "has no column country, orders:"),
    ],
)
def test_what_no_row_can_do_without(tmp_path: Path, header: str, item: Any, options: Any, said: str) -> None:
    error = refused(tmp_path, header, declared(item, **options))
    assert error is not None
    assert said in str(error)


@pytest.mark.parametrize(
    ("header", "item", "options"),
    [
        ("orders,id,country,more\n", Customer, {}),
        ("id\n", Sale, {}),
        ("id\n", dict[str, str], {}),
        ("a\n", dict[str, str], {"key": lambda row: row["a"]}),
        ("a\n", dict[str, str], {"key": onefold.jmespath("a")}),
        ("id,Quantity\n", Model, {}),
        ("ID\n", Chosen, {}),
        ("ident\n", Rewritten, {}),
        ("1,2,3\n", Customer, {"items": ItemReader(header=("id", "country", "orders"))}),
        ('{"id": 1}\n', Customer, {"items": "jsonl"}),
    ],
)
def test_a_file_of_which_a_row_could_be_an_item_is_taken(tmp_path: Path, header: str, item: Any, options: Any) -> None:
    assert refused(tmp_path, header, declared(item, **options)) is None


@pytest.mark.parametrize(
    ("data", "order"),
    [
        ("id,qty\n1,2\n".encode("utf-16-le"), "UTF-16LE"),
        ("id,qty\n1,2\n".encode("utf-16-be"), "UTF-16BE"),
        (b"\x7fELF\x02\x01\x01\x00\x00\xd0\n1,2\n", "binary file"),
    ],
)
def test_what_is_no_text_is_said(tmp_path: Path, data: bytes, order: str) -> None:
    error = refused(tmp_path, data, declared(dict[str, str]))
    assert error is not None
    assert "holds NUL bytes" in str(error)
    assert order in str(error)


def test_a_header_with_signs_that_break_a_terminal_is_shown_without_them(tmp_path: Path) -> None:
    error = refused(tmp_path, b"\x1b[31mred,b\n", declared(dict[str, str]))
    assert error is not None
    assert "\x1b" not in str(error)
    long = refused(tmp_path, ",".join(f"column-{number}" for number in range(200)), declared(dict[str, str]))
    assert long is not None
    assert len(str(long)) < 800


def test_nothing_is_begun_with_a_wrong_header_and_nothing_redriven(tmp_path: Path) -> None:
    mill = Mill(tmp_path)
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("ident,qty\n1,1\n")
    with inline(mill.app) as world:
        state = mill.app.runtime().engine.state
        with pytest.raises(errors.UsageError, match="has no column id: its header is ident,qty; Row needs id, qty"):
            maps.start(mill.app, "grind", run=RUN, items=str(wrong))
        assert (state.names("map/"), state.names("run/"), state.names("open-run/")) == ([], [], [])
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3, bad={1: "1"}), turns=False)
        before = drive(mill, world)
        with pytest.raises(errors.UsageError, match="has no column id"):
            maps.redrive(mill.app, RUN, items=str(wrong))
        assert maps.progress(mill.app, RUN) == before
