"""CSV with quotes at wrong places: what is found is as if every row were read alone, in time that grows with the file."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from onefold.entropy import SeededEntropy
from onefold.maps import formats
from onefold.maps.rules import ItemReader
from onefold.maps.sources import Item, Malformed, Position, Read

READER = ItemReader(header=("a", "b"), ragged="pad")
GROWTH_MAX = 9.0  # for four times the file: linear 4, quadratic 16
PIECES = [
    [b"x", b'"', b",", b"\n", b'","', b'x","y\n', b'""'],
    [b'x","y\n', b"abc\n", b'x"\n', b'"\n', b"a,b\n"],
    [b"x", b'"', b",", b"\n", b"\xff", b"aaaaaaaa", b'x","y\n'],
]


class Held:
    """A source in memory."""

    name = "held.csv"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, offset: int) -> BinaryIO:
        file = io.BytesIO(self._data)
        file.seek(offset)
        return file


def found(data: bytes, start: Position = Position(0, 0, 0)) -> list[Read]:  # noqa: B008 - frozen
    return list(formats.read_csv(Held(data), READER, start))  # type: ignore[arg-type]


def alone(data: bytes, bytes_max: int) -> Iterator[tuple[int, str]]:
    """Line and sort of each row, each read from its own first line on as if nothing had been read before."""
    lines, at = data.splitlines(keepends=True), 0
    while at < len(lines):
        taken, size = 0, 0

        def given(begin: int = at) -> Iterator[str]:
            nonlocal taken, size
            for raw in lines[begin:]:
                taken, size = taken + 1, size + len(raw)
                if size > bytes_max:
                    raise csv.Error
                yield raw.decode()

        try:
            row = next(csv.reader(given(), strict=True))
        except (csv.Error, UnicodeDecodeError):
            yield at + 1, "malformed"
            at += 1
            continue
        if row:
            yield at + 1, "item"
        at += taken


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_each_line_read_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    entropy = SeededEntropy(seed)

    def below(count: int) -> int:
        return int(entropy.fraction() * count)

    field_chars_max = csv.field_size_limit(40)
    try:
        for _ in range(500):
            bytes_max = [20, 40, 80][below(3)]
            monkeypatch.setattr(formats, "RECORD_BYTES_MAX", bytes_max)
            pieces = PIECES[below(3)]
            data = b"".join(pieces[below(len(pieces))] for _ in range(1 + below(60)))
            if max(map(len, data.splitlines(keepends=True))) > bytes_max:
                continue  # such a line is cut
            rows = found(data)
            assert [(one.line, type(one).__name__.lower()) for one in rows] == list(alone(data, bytes_max)), data
            some = below(len(rows)) if rows else 0
            assert not rows or found(data, rows[some].end) == rows[some + 1 :], "and from any place on"
    finally:
        csv.field_size_limit(field_chars_max)


@pytest.mark.parametrize(
    ("line", "bytes_max", "why"),
    [
        (b'x","y\n', 8 * 1024 * 1024, "a quote is opened and not closed"),
        (b'x","y\n', 8_000, "the row has more than 8000 bytes"),
    ],
)
def test_a_quote_in_each_line_is_read_in_linear_time(
    line: bytes, bytes_max: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "RECORD_BYTES_MAX", bytes_max)

    def taken_s(count: int) -> float:
        began = time.thread_time()
        rows = found(line * count)
        took_s = time.thread_time() - began
        assert len(rows) == count
        assert all(isinstance(one, Malformed) for one in rows)
        assert isinstance(rows[0], Malformed)
        assert rows[0].reason.startswith(why)
        return took_s

    # The least of several: a collection of garbage counts as this thread's time.
    small_s, large_s = (min(taken_s(count) for _ in range(3)) for count in (1_500, 6_000))
    assert large_s < small_s * GROWTH_MAX
    assert large_s < 2, "one line costs no more than its own length"


def test_a_row_after_a_broken_part_is_found() -> None:
    data = b'1,"x\n' + b'x","y\n' * 50 + b'p,"q" \n' + b"2,z\n"
    rows = found(data)
    assert [one.value for one in rows if isinstance(one, Item)] == [{"a": "2", "b": "z"}]
    assert len(rows) == 53
