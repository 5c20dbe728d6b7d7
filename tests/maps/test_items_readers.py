"""Readers of items: every format from every position; malformed rows with line and reason; files that cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from onefold import errors
from onefold.maps.formats import count, read
from onefold.maps.rules import ItemReader
from onefold.maps.sources import Item, LocalSource, Malformed, Position, Read, changed, source_of

CSV = ItemReader()


def written(folder: Path, data: bytes | str, name: str = "a.csv") -> LocalSource:
    file = folder / name
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    return LocalSource(str(file))


def every(source: LocalSource, reader: ItemReader = CSV, start: Position | None = None) -> list[Read]:
    return list(read(source, reader, start))


def values(found: list[Read]) -> list[Any]:
    return [one.value if one.text is None else json.loads(one.text) for one in found if isinstance(one, Item)]


def bad(found: list[Read]) -> list[tuple[int, str]]:
    return [(one.line, one.reason) for one in found if isinstance(one, Malformed)]


# -- csv -------------------------------------------------------------------------------------------------------------


def test_rows_are_text_by_the_header(tmp_path: Path) -> None:
    found = every(written(tmp_path, 'a,b\n1,x\n"2, or 3","two\nlines"\n\n4,\n'))
    assert values(found) == [{"a": "1", "b": "x"}, {"a": "2, or 3", "b": "two\nlines"}, {"a": "4", "b": ""}]
    assert [one.line for one in found] == [2, 3, 6]


@pytest.mark.parametrize("sign", [",", "|", ";", " ", "\t"])
def test_delimiters(tmp_path: Path, sign: str) -> None:
    names = {",": "comma", "|": "pipe", ";": "semicolon", " ": "space", "\t": "tab"}
    reader = ItemReader(delimiter=names[sign], quote="'")  # type: ignore[arg-type]
    assert values(every(written(tmp_path, f"a{sign}b\n1{sign}'x{sign}y'\n"), reader)) == [{"a": "1", "b": f"x{sign}y"}]


def test_a_header_that_is_given(tmp_path: Path) -> None:
    assert values(every(written(tmp_path, "1,2\n"), ItemReader(header=("x", "y")))) == [{"x": "1", "y": "2"}]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert values(every(written(tmp_path, b"\xef\xbb\xbfa\n1\n"))) == [{"a": "1"}]
    assert values(every(written(tmp_path, b"\xef\xbb\xbf1\n"), ItemReader(header=("a",)))) == [{"a": "1"}]


def test_line_ends_of_windows(tmp_path: Path) -> None:
    assert values(every(written(tmp_path, "a,b\r\n1,2\r\n"))) == [{"a": "1", "b": "2"}]


def test_ragged_rows_are_malformed_or_padded_as_aws_does(tmp_path: Path) -> None:
    source = written(tmp_path, "a,b\n1\n1,2,3\n4,5\n")
    found = every(source)
    assert bad(found) == [(2, "the row has 1 cells, the header 2"), (3, "the row has 3 cells, the header 2")]
    assert values(found) == [{"a": "4", "b": "5"}]
    assert values(every(source, ItemReader(ragged="pad")))[:2] == [{"a": "1", "b": ""}, {"a": "1", "b": "2"}]


def test_a_byte_that_is_no_text_costs_its_row_alone(tmp_path: Path) -> None:
    source = written(tmp_path, b"a\nx\n\xa3y\nz\n")
    assert bad(every(source)) == [(3, "byte 0xA3 at position 1 of the line is not utf-8")]
    assert values(every(source)) == [{"a": "x"}, {"a": "z"}]
    assert values(every(source, ItemReader(encoding="latin-1")))[1] == {"a": "£y"}


def test_a_quote_that_is_never_closed_costs_its_line_alone(tmp_path: Path) -> None:
    found = every(written(tmp_path, 'a,b\n1,"x\n2,y\n3,z\n'))
    assert bad(found) == [(2, "a quote is opened and not closed")]
    assert values(found) == [{"a": "2", "b": "y"}, {"a": "3", "b": "z"}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"a,a\n1,2\n", "twice"),
        ("a\n1\n".encode("utf-16"), "UTF-16"),
        (b"\xa3,b\n1,2\n", "cannot be read"),
        (b"\n\n", "names no column"),
    ],
)
def test_a_header_that_cannot_be(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        every(written(tmp_path, data))


def test_no_rows_are_no_items(tmp_path: Path) -> None:
    assert count(written(tmp_path, "a,b\n"), CSV) == 0


# -- json ------------------------------------------------------------------------------------------------------------


def test_json_lines(tmp_path: Path) -> None:
    source = written(tmp_path, '{"a":1}\n\n{"a":\n[2.50]\n', "a.jsonl")
    found = every(source, ItemReader(format="jsonl"))
    assert [one.text for one in found if isinstance(one, Item)] == ['{"a":1}', "[2.50]"]
    assert [line for line, _ in bad(found)] == [3]


def test_a_json_array_is_streamed_with_its_own_digits(tmp_path: Path) -> None:
    many = [{"n": number, "text": "x" * 200} for number in range(2_000)]
    source = written(tmp_path, json.dumps(many), "a.json")
    assert values(every(source, ItemReader(format="json"))) == many
    assert [one.text for one in every(written(tmp_path, "[1.10, 2e3]", "b.json"), ItemReader(format="json"))
            if isinstance(one, Item)] == ["1.10", "2e3"]  # fmt: skip
    assert every(written(tmp_path, " [ ] ", "c.json"), ItemReader(format="json")) == []


def test_what_is_nested_too_deeply_is_a_malformed_line(tmp_path: Path) -> None:
    found = every(written(tmp_path, "1\n" + "[" * 100_000 + "\n2\n", "a.jsonl"), ItemReader(format="jsonl"))
    assert values(found) == [1, 2]
    assert bad(found) == [(2, "it is nested too deeply")]


@pytest.mark.parametrize("number", ["1.5", "-1.25e+7", "12e3", "9" * 5_000])
def test_a_number_of_an_array_is_whole_wherever_the_file_is_cut(tmp_path: Path, number: str) -> None:
    for before in range(len(number[:12]) + 1):
        data = "[" + " " * (65_535 - before) + number + ",2]"
        found = every(written(tmp_path, data, "a.json"), ItemReader(format="json"))
        assert [one.text for one in found if isinstance(one, Item)] == [number, "2"]


@pytest.mark.parametrize(
    ("data", "said"),
    [("", "is empty"), ('{"a":1}', "not a JSON array"), ("[1,2", "ends in the middle"), ("[1 2]", "between values"),
     ("[1]x", "after the end"), ('["a]', "not JSON")],
)  # fmt: skip
def test_an_array_that_breaks(tmp_path: Path, data: str, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        every(written(tmp_path, data, "a.json"), ItemReader(format="json"))


# -- everywhere ------------------------------------------------------------------------------------------------------


def source_in(folder: Path, form: str, packed: bool) -> tuple[LocalSource, ItemReader]:
    rows = [{"a": str(number), "b": f"x,{number}\ny" if number % 3 else ""} for number in range(40)]
    text = {
        "csv": "a,b\n" + "".join(f'{one["a"]},"{one["b"]}"\n' for one in rows) + "ragged\n9,z\n",
        "json": json.dumps(rows, indent=1),
        "jsonl": "".join(json.dumps(one) + "\n" for one in rows) + "{\n[1]\n",
    }[form]
    data = gzip.compress(text.encode()) if packed else text.encode()
    return written(folder, data, f"f.{form}{'.gz' if packed else ''}"), ItemReader(format=form)  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_reading_goes_on_behind_every_item(tmp_path: Path, form: str, packed: bool) -> None:
    source, reader = source_in(tmp_path, form, packed)
    whole = every(source, reader)
    assert count(source, reader) == len(whole) == whole[-1].end.index
    for place, one in enumerate(whole):
        assert every(source, reader, one.end) == whole[place + 1 :]


def test_no_more_items_than_are_asked_for(tmp_path: Path) -> None:
    source, _ = source_in(tmp_path, "csv", False)
    reader = ItemReader(items_max=5)
    whole = every(source, reader)
    assert len(whole) == 5
    assert every(source, reader, whole[2].end) == whole[3:]


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_gzip_that_breaks_off(tmp_path: Path, form: str) -> None:
    source, reader = source_in(tmp_path, form, True)
    file = Path(source.name)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(errors.UsageError, match=r"breaks off|damaged"):
        every(source, reader)


def test_gzip_without_the_name_for_it_and_the_name_without_gzip(tmp_path: Path) -> None:
    assert values(every(written(tmp_path, gzip.compress(b"a\n1\n"), "packed.csv"))) == [{"a": "1"}]
    with pytest.raises(errors.UsageError, match="damaged"):
        every(written(tmp_path, b"a\n1\n", "plain.csv.gz"))


def test_a_directory_lists_its_files_as_s3_does(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("b.pdf", "a.pdf"):
        (tmp_path / "in" / name).write_text(name)
    found = values(every(LocalSource(str(tmp_path / "in")), ItemReader(format="listing")))
    assert [one["Key"] for one in found] == ["a.pdf", "b.pdf"]
    assert sorted(found[0]) == ["Etag", "Key", "LastModified", "Size", "StorageClass"]


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="cannot be read"):
        every(LocalSource(str(tmp_path / "gone.csv")))
    with pytest.raises(errors.NotFoundError, match="not a directory"):
        every(written(tmp_path, "a\n"), ItemReader(format="listing"))
    with pytest.raises(errors.UsageError, match="S3 client"):
        source_of("s3://bucket/key")
    with pytest.raises(errors.UsageError, match="scheme 'ftp'"):
        source_of("ftp://host/file")


def test_a_change_is_found_and_a_new_time_alone_is_none(tmp_path: Path) -> None:
    source = written(tmp_path, "a\n1\n2\n")
    before = source.identity()
    Path(source.name).touch()
    assert changed(before, source.identity()) is None
    Path(source.name).write_text("a\n1\n3\n")
    assert changed(before, source.identity()) == "its beginning has changed"
    Path(source.name).write_text("a\n1\n")
    assert "size" in (changed(before, source.identity()) or "")
