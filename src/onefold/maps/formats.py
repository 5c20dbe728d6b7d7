"""Reads items in every format of a map run: CSV, JSON Lines, one JSON array, a listing (`read`, `count`).

CSV: Python's own csv module reads the rows. It gets one line at a time, so that the bytes of a row are known and a row
that cannot be read loses only its own first line: the lines that an unbalanced quote has swallowed are read again. A
quoted value that is still open at the end of one of these lines ends where that row ended, so its end is not searched
for again, and reading takes linear time. JSON: a value is kept as it is written in the file, so that a number keeps its
digits. A malformed line of JSON Lines is reported and the next one is read; after a malformed value in an array the
next one cannot be found, so reading ends with an error that gives the line.

Never here: payload types (a CSV value is text, as in Step Functions), opening files (`sources.py`).
Invariants: `count` and `read` agree on what an item is, malformed ones included. Every line of a CSV file is empty or
in exactly one row, malformed row or header. Memory holds no more of a JSON file than its largest value and one block.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import BinaryIO, Protocol

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.maps.rules import DELIMITERS, ItemReader, check_header
from onefold.maps.sources import RECORD_BYTES_MAX, Item, Malformed, Position, Read, Source, unpacking

_SHOWN_CHARS = 2_000
_OPEN = "unexpected end of data"  # the text of Python's csv for a value that is not closed
_REASONS = {_OPEN: "a quote is opened and not closed"}  # clearer texts for those of Python's csv
_BOMS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


class _Readable(Protocol):
    def readline(self, size: int, /) -> bytes: ...


class _Lines:
    """The lines of a file with their bytes; lines can be put back to be read again."""

    def __init__(self, file: _Readable, encoding: str, start: Position, *, bytes_max: int | None = None) -> None:
        self._file = file
        self._bytes_max = RECORD_BYTES_MAX if bytes_max is None else bytes_max
        self._encoding = encoding
        self._again: deque[bytes] = deque()
        self.offset = start.offset
        self.line = start.line
        self.taken: list[bytes] = []  # lines of the row that is being read
        self.size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = self._again.popleft() if self._again else self._file.readline(RECORD_BYTES_MAX + 1)
        if not raw:
            raise StopIteration
        self.offset += len(raw)
        self.line += 1
        self.taken.append(raw)
        self.size += len(raw)
        if self.size > self._bytes_max or len(raw) > RECORD_BYTES_MAX:
            raise _TooLongError
        return raw.decode(self._encoding)

    def begin(self) -> None:
        """Note that the next row begins here."""
        self.taken = []
        self.size = 0

    def first(self) -> bytes:
        """The next line, without consuming it; empty at the end of the file."""
        if not self._again:
            raw = self._file.readline(RECORD_BYTES_MAX + 1)
            if not raw:
                return raw
            self._again.append(raw)
        return self._again[0]

    def put_back(self) -> bytes:
        """Put back all lines of this row except the first, and return the first."""
        first, *rest = self.taken
        for raw in reversed(rest):
            self._again.appendleft(raw)
            self.offset -= len(raw)
            self.line -= 1
        return first


class _TooLongError(csv.Error):
    """A row has more bytes than are allowed."""

    def __init__(self) -> None:
        super().__init__(f"the row has more than {RECORD_BYTES_MAX} bytes; is a quote never closed?")


class _Swallowed(Struct, frozen=True):
    """Where an unreadable row ended, all of whose lines except the first are read again.

    A value that is open at the end of one of these lines ends at the same place as the row did: both are inside a value
    there, the same bytes follow, and what came before the value does not matter.

    Args:
        offset: after the last line that was read. line: the first line about whose end nothing is known.
        error: how the row ended; None: as a row with too many bytes; `_TooLongError`: its end was not reached.
    """

    offset: int
    line: int
    error: Exception | None

    def error_of(self, lines: _Lines, raw: bytes, reader: ItemReader) -> Exception | None:
        """Why the row that begins with the line `raw` cannot be read; None if it must be read to find out."""
        if lines.line + 1 >= self.line:
            return None
        too_long = self.offset - lines.offset > RECORD_BYTES_MAX
        if not too_long and (self.error is None or isinstance(self.error, _TooLongError)):
            return None
        try:
            next(_parser(iter([raw.decode(reader.encoding)]), reader), None)
        except UnicodeDecodeError:
            return None
        except csv.Error as error:
            return (_TooLongError() if too_long else self.error) if str(error) == _OPEN else None
        return None


def read_csv(source: Source, reader: ItemReader, start: Position) -> Iterator[Read]:
    """The rows of a CSV file after a position, each as a dict of text.

    Raises:
        UsageError: the file is empty, or its header cannot be read or names a column twice.
    """
    header = reader.header
    if header is None:
        header, first = _header_in(source, reader)
        if start.index == 0:
            start = first
    elif start.index == 0:
        with source.open(0) as file:
            bom = file.read(3) == codecs.BOM_UTF8
        start = Position(3 if bom else 0, 0, 0)
    with source.open(start.offset) as file:
        lines = _Lines(file, reader.encoding, start, bytes_max=2 * RECORD_BYTES_MAX)  # see `_Swallowed`
        yield from _rows(lines, reader, header, start.index)


def header_of(source: Source, reader: ItemReader) -> tuple[str, ...]:
    """The names of the columns, as declared or in the file's first row. Raises what `read_csv` raises."""
    return reader.header if reader.header is not None else _header_in(source, reader)[0]


def _header_in(source: Source, reader: ItemReader) -> tuple[tuple[str, ...], Position]:
    with unpacking(source.name), source.open(0) as file:
        return _header(file, source.name, reader)


def _rows(lines: _Lines, reader: ItemReader, header: tuple[str, ...], index: int) -> Iterator[Read]:
    width = len(header)
    rows = _parser(lines, reader)
    swallowed: _Swallowed | None = None
    while True:
        lines.begin()
        line = lines.line + 1
        known = swallowed.error_of(lines, lines.first(), reader) if swallowed is not None else None
        try:
            if known is not None:
                next(lines)
                raise known
            row = next(rows)
            if lines.size > RECORD_BYTES_MAX:
                raise _TooLongError
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            if known is None:
                swallowed = _swallowed(lines, error)
            first = lines.put_back()
            rows = _parser(lines, reader)  # the old parser may be in the middle of a value
            index += 1
            why = _TooLongError() if lines.size > RECORD_BYTES_MAX else error
            yield Malformed(line, _reason(why, reader), _shown(first), Position(lines.offset, lines.line, index))
            continue
        if not row:
            continue  # Python's csv returns an empty row for an empty line
        index += 1
        end = Position(lines.offset, lines.line, index)
        if len(row) != width:
            if reader.ragged == "quarantine":
                reason = f"the row has {len(row)} cells, the header {width}"
                yield Malformed(line, reason, _shown(b"".join(lines.taken)), end)
                continue
            row = (row + [""] * width)[:width]
        yield Item(dict(zip(header, row, strict=True)), None, line, end)


def _swallowed(lines: _Lines, error: Exception) -> _Swallowed | None:
    """What an unreadable row shows about its lines; called before they are put back."""
    if len(lines.taken) < 2:
        return None
    if (
        isinstance(error, _TooLongError)
        and lines.size <= 2 * RECORD_BYTES_MAX
        and len(lines.taken[-1]) <= RECORD_BYTES_MAX
    ):
        return _Swallowed(lines.offset, lines.line, None)
    return _Swallowed(lines.offset, lines.line + 1 if str(error) == _OPEN else lines.line, error)


def _parser(lines: Iterator[str], reader: ItemReader) -> Iterator[list[str]]:
    return csv.reader(lines, delimiter=DELIMITERS[reader.delimiter], quotechar=reader.quote, strict=True)


def _header(file: BinaryIO, name: str, reader: ItemReader) -> tuple[tuple[str, ...], Position]:
    """The first row, and the position behind it."""
    start = file.read(4)
    if not start:
        raise errors.UsageError(
            f"{name} is empty.",
            meaning="It has no first row with the names of the columns.",
            todo="Check what wrote it; a file without rows still has its header, or declare header=[...].",
        )
    for bom, encoding in _BOMS.items():
        if start.startswith(bom):
            raise errors.UsageError(
                f"{name} is text in {encoding}.",
                meaning=f"It begins with the byte order mark {bom.hex()}.",
                todo=f"Convert it first, for example: iconv -f {encoding} -t UTF-8.",
            )
    skipped = 3 if start.startswith(codecs.BOM_UTF8) else 0
    lines = _Lines(_Joined(start[skipped:], file), reader.encoding, Position(skipped, 0, 0))
    try:
        row = next((row for row in _parser(lines, reader) if row), [])
    except (csv.Error, UnicodeDecodeError) as error:
        _refuse_nul(lines.taken, name)
        raise errors.UsageError(
            f"The header of {name} cannot be read: {_reason(error, reader)}.",
            todo="Check the reader's encoding, quote and delimiter, or declare header=[...].",
        ) from error
    _refuse_nul(lines.taken, name)
    check_header(row)
    return tuple(row), Position(lines.offset, lines.line, 0)


def _refuse_nul(header: Sequence[bytes], name: str) -> None:
    if any(b"\0" in raw for raw in header):
        order = "BE" if header[0].startswith(b"\0") else "LE"
        raise errors.UsageError(
            f"The header of {name} holds NUL bytes.",
            meaning="It is text in UTF-16 without a byte order mark, or not text at all (a binary file).",
            todo=f"Convert text first, for example: iconv -f UTF-16{order} -t UTF-8.",
        )


class _Joined:
    """Bytes that have already been read, followed by the rest of the file."""

    def __init__(self, start: bytes, file: BinaryIO) -> None:
        self._start = start
        self._file = file

    def readline(self, size: int, /) -> bytes:
        if not self._start:
            return self._file.readline(size)
        first, sign, rest = self._start.partition(b"\n")
        self._start = rest
        return first + sign if sign else first + self._file.readline(size)


def _reason(error: Exception, reader: ItemReader) -> str:
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return f"byte 0x{byte:02X} at position {error.start + 1} of the line is not {reader.encoding}"
    return _REASONS.get(str(error), str(error))


def _shown(raw: bytes) -> str:
    return raw[:_SHOWN_CHARS].decode("utf-8", "replace").rstrip("\r\n")


_BLOCK_BYTES = 65_536
_NUMBER_CUT_CHARS = 2  # "1e+5" cut off before the 5 begins with the value "1"
_SPACE = re.compile(r"[ \t\r\n]*")
_CHECK = msgspec.json.Decoder(msgspec.Raw)


def read_lines(source: Source, reader: ItemReader, start: Position) -> Iterator[Read]:
    """The values of a JSON Lines file after a position; empty lines are skipped."""
    offset, line, index = start.offset, start.line, start.index
    with source.open(offset) as file:
        while raw := file.readline(RECORD_BYTES_MAX + 1):
            text = raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
            offset += len(raw)
            line += 1
            if len(raw) > RECORD_BYTES_MAX:
                while raw and not raw.endswith(b"\n"):  # skip the rest of a line that is too long
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
                yield Malformed(line, _json_reason(error), text[:_SHOWN_CHARS].decode("utf-8", "replace").rstrip(), end)
                continue
            yield Item(None, value, line, end)


def read_array(source: Source, reader: ItemReader, start: Position) -> Iterator[Read]:
    """The values of a JSON array after a position; those before it are read and skipped.

    Raises:
        UsageError: the file is empty, is not an array, or is damaged; the values before the damage were returned.
    """
    array = _Array(source, reader.encoding)
    for index, (text, line) in enumerate(array, 1):
        if index > start.index:
            yield Item(None, text, line, Position(0, array.line, index))


class _Array:
    """Reads the JSON array in a file value by value."""

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
                raise self._broken("is empty" if sign == "" else f"is not a JSON array: it begins with {sign!r}")
            self._at += 1
            if self._sign() == "]":
                self._at += 1
            else:
                yield from self._values()
            if self._sign():
                raise self._broken("continues after the end of its array")

    def _values(self) -> Iterator[tuple[str, int]]:
        while True:
            self._sign()  # move to the beginning of the value
            line = self.line
            yield self._value(), line
            sign = self._sign()
            self._at += 1
            if sign == "]":
                return
            if sign != ",":
                raise self._broken("ends in the middle of its array" if sign == "" else f"has {sign!r} between values")

    def _value(self) -> str:
        """The text of the value that begins here; that it is complete shows only in what follows it."""
        while True:
            try:
                _, end = _DECODER.raw_decode(self._buffer, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                if self._ended or isinstance(error, RecursionError):
                    raise self._broken("has a value that is not JSON, or ends inside one") from error
                end = -1
            if end >= 0 and (end + _NUMBER_CUT_CHARS < len(self._buffer) or self._ended):
                text = self._buffer[self._at : end]
                self.line += text.count("\n")
                self._at = end
                return text
            if len(self._buffer) - self._at > RECORD_BYTES_MAX:
                raise self._broken(f"has a value that is not JSON, or has more than {RECORD_BYTES_MAX} characters")
            self._more()

    def _sign(self) -> str:
        """The next character that is not white space; empty at the end."""
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
        """Read on until twice as much is waiting, so that a long value is not tried again after every block."""
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
            meaning="The items after this line cannot be found.",
            todo='Fix the file or write it again; a file with one value per line is read with items="jsonl".',
        )


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # for the ends of values; int refuses 4,300 digits


def _json_reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return (
            f"byte 0x{error.object[error.start]:02X} at position {error.start + 1} of the line is not {error.encoding}"
        )
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).removeprefix("JSON is malformed: ").rstrip(".")


def read(source: Source, reader: ItemReader, start: Position | None = None) -> Iterator[Read]:
    """The items of a source after a position, in order, with malformed rows where they occur.

    Raises:
        NotFoundError: the file does not exist. UsageError: the source as a whole does not fit the reader.
    """
    start = start or Position()
    found: Iterator[Read]
    match reader.format:
        case "csv":
            found = read_csv(source, reader, start)
        case "jsonl":
            found = read_lines(source, reader, start)
        case "json":
            found = read_array(source, reader, start)
        case "listing":
            found = _listed(source, start)
    if reader.items_max is not None:
        found = islice(found, max(reader.items_max - start.index, 0))
    return _unpacked(found, source.name)


def _unpacked(found: Iterator[Read], name: str) -> Iterator[Read]:
    """The same items; errors of decompression are raised as onefold's own."""
    with unpacking(name):
        yield from found


def _listed(source: Source, start: Position) -> Iterator[Read]:
    for index, entry in enumerate(source.entries(), 1):
        if index > start.index:
            yield Item(entry, None, index, Position(0, index, index))


def count(source: Source, reader: ItemReader) -> int:
    """How many items a source has, malformed ones included. Reads all of it. Raises what `read` raises."""
    return sum(1 for _ in read(source, reader))
