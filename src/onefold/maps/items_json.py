"""JSON Lines, and one JSON array read as a stream: each value as the text that stands in the file.

The text is kept as it is, so that a number comes out with the digits it has. A line that is no JSON is malformed and the
next one is read; an array that breaks has no next value, so it ends the reading with an error that says where.
Never here: payload types, opening files. Invariant: no more of the file is in memory than its largest value and a block.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator

import msgspec

from onefold import errors
from onefold.maps.items import RECORD_BYTES_MAX, Item, Malformed, Position, Read, Source
from onefold.maps.rules import ItemReader

_BLOCK_BYTES = 65_536
_SHOWN_CHARS = 2_000
_NUMBER_CUT_CHARS = 2  # of "1e+5", cut before the 5, "1" is a value
_SPACE = re.compile(r"[ \t\r\n]*")
_CHECK = msgspec.json.Decoder(msgspec.Raw)


def read_lines(source: Source, reader: ItemReader, start: Position) -> Iterator[Read]:
    """The values of a JSON Lines file behind a position; empty lines are none."""
    offset, line, index = start.offset, start.line, start.index
    with source.open(offset) as file:
        while raw := file.readline(RECORD_BYTES_MAX + 1):
            text = raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
            offset += len(raw)
            line += 1
            if len(raw) > RECORD_BYTES_MAX:
                while raw and not raw.endswith(b"\n"):  # the rest of a line that is too long
                    raw = file.readline(RECORD_BYTES_MAX)
                    offset += len(raw)
                index += 1
                yield Malformed(
                    line, f"the line has more than {RECORD_BYTES_MAX} bytes", "", Position(offset, line, index)
                )
                continue
            if not text.strip():
                continue
            index += 1
            end = Position(offset, line, index)
            try:
                value = text.decode(reader.encoding).strip()
                _CHECK.decode(value)
            except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
                yield Malformed(line, _reason(error), text[:_SHOWN_CHARS].decode("utf-8", "replace").rstrip(), end)
                continue
            yield Item(None, value, line, end)


def read_array(source: Source, reader: ItemReader, start: Position) -> Iterator[Read]:
    """The values of a JSON array behind a position. What is before it is read and passed over.

    Raises:
        UsageError: the file is empty, holds no array, or breaks; the values before the break have come out.
    """
    array = _Array(source, reader.encoding)
    for index, (text, line) in enumerate(array, 1):
        if index > start.index:
            yield Item(None, text, line, Position(0, array.line, index))


class _Array:
    """A JSON array of a file, value by value."""

    def __init__(self, source: Source, encoding: str) -> None:
        self._source = source
        self._encoding = "utf-8-sig" if encoding == "utf-8" else encoding
        self._buffer = ""
        self._at = 0
        self._ended = False
        self.line = 1

    def __iter__(self) -> Iterator[tuple[str, int]]:
        with self._source.open(0) as file:
            self._blocks = iter(lambda: file.read(_BLOCK_BYTES), b"")
            self._text = codecs.getincrementaldecoder(self._encoding)()
            sign = self._sign()
            if sign != "[":
                raise self._broken("is empty" if sign == "" else f"is no JSON array: it begins with {sign!r}")
            self._at += 1
            if self._sign() == "]":
                self._at += 1
            else:
                yield from self._values()
            if self._sign():
                raise self._broken("goes on behind the end of its array")

    def _values(self) -> Iterator[tuple[str, int]]:
        while True:
            self._sign()  # to the beginning of the value
            line = self.line
            yield self._value(), line
            sign = self._sign()
            self._at += 1
            if sign == "]":
                return
            if sign != ",":
                raise self._broken("ends in the middle of its array" if sign == "" else f"has {sign!r} between values")

    def _value(self) -> str:
        """The text of the value that begins here; it is whole only when enough stands behind it."""
        while True:
            try:
                _, end = _DECODER.raw_decode(self._buffer, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                if self._ended or isinstance(error, RecursionError):
                    raise self._broken("has a value that is no JSON, or ends inside one") from error
                end = -1
            if end >= 0 and (end + _NUMBER_CUT_CHARS < len(self._buffer) or self._ended):
                text = self._buffer[self._at : end]
                self.line += text.count("\n")
                self._at = end
                return text
            if len(self._buffer) - self._at > RECORD_BYTES_MAX:
                raise self._broken(f"has a value that is no JSON, or has more than {RECORD_BYTES_MAX} characters")
            self._more()

    def _sign(self) -> str:
        """The next sign that is no white space; empty at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            assert match is not None
            self.line += self._buffer.count("\n", self._at, match.end())
            self._at = match.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if self._ended:
                return ""
            self._more()

    def _more(self) -> None:
        """Read on: twice as much as is waiting, so that a long value is not tried at every block."""
        wanted = max(len(self._buffer) - self._at, _BLOCK_BYTES)
        parts, got = [self._buffer[self._at :]], 0
        try:
            while got < wanted and not self._ended:
                block = next(self._blocks, b"")
                self._ended = not block
                parts.append(self._text.decode(block, final=self._ended))
                got += len(block)
        except UnicodeDecodeError as error:
            raise self._broken(f"is not {self._encoding.removesuffix('-sig')}: {error.reason}") from error
        self._buffer, self._at = "".join(parts), 0

    def _broken(self, what: str) -> errors.UsageError:
        return errors.UsageError(
            f"{self._source.name} {what} (line {self.line}).",
            meaning="Items behind this place cannot be found in it.",
            todo='Mend or write the file again; a file with one value a line is read with items="jsonl".',
        )


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # where values end; Python's int refuses 4,300 digits


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte 0x{error.object[error.start]:02X} at place {error.start + 1} of the line is not {error.encoding}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).removeprefix("JSON is malformed: ").rstrip(".")
