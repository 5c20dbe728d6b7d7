"""CSV, row by row, with the place of every row in the file.

Python's own csv reads the rows; lines are handed to it one at a time, so that the bytes of a row are known and a row that
cannot be read costs only its own first line: the lines that an unbalanced quote has swallowed are read again.
Never here: types (every value is text, as in Step Functions), opening files.
Invariant: every line of the file is in exactly one row, malformed row or header, or is empty.
"""

from __future__ import annotations

import codecs
import csv
from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

from onefold import errors
from onefold.decide.mapplan import DELIMITERS, ItemReader, check_header
from onefold.maps.items import RECORD_BYTES_MAX, Item, Malformed, Position, Read, Source, unpacking

_SHOWN_CHARS = 2_000
_REASONS = {"unexpected end of data": "a quote is opened and not closed"}  # of Python's csv, where they say little
_BOMS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


class _Readable(Protocol):
    def readline(self, size: int, /) -> bytes: ...


class _Lines:
    """The lines of a file with their bytes; a line may be given back."""

    def __init__(self, file: _Readable, encoding: str, start: Position) -> None:
        self._file = file
        self._encoding = encoding
        self._again: deque[bytes] = deque()
        self.offset = start.offset
        self.line = start.line
        self.taken: list[bytes] = []  # of the row that is being read
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
        if self.size > RECORD_BYTES_MAX:
            raise csv.Error(f"the row has more than {RECORD_BYTES_MAX} bytes; is a quote never closed?")
        return raw.decode(self._encoding)

    def begin(self) -> None:
        """The next row begins here."""
        self.taken = []
        self.size = 0

    def give_back(self) -> bytes:
        """All lines of this row but the first are to be read again; the first."""
        first, *rest = self.taken
        for raw in reversed(rest):
            self._again.appendleft(raw)
            self.offset -= len(raw)
            self.line -= 1
        return first


def read_csv(source: Source, reader: ItemReader, start: Position) -> Iterator[Read]:
    """The rows of a CSV file behind a position, each as a dict of text.

    Raises:
        UsageError: the file is empty, its header cannot be read or names a column twice.
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
        yield from _rows(_Lines(file, reader.encoding, start), reader, header, start.index)


def header_of(source: Source, reader: ItemReader) -> tuple[str, ...]:
    """The names of the columns: declared, or the file's first row. Errors as `read_csv`."""
    return reader.header if reader.header is not None else _header_in(source, reader)[0]


def _header_in(source: Source, reader: ItemReader) -> tuple[tuple[str, ...], Position]:
    with unpacking(source.name), source.open(0) as file:
        return _header(file, source.name, reader)


def _rows(lines: _Lines, reader: ItemReader, header: tuple[str, ...], index: int) -> Iterator[Read]:
    width = len(header)
    rows = _parser(lines, reader)
    while True:
        lines.begin()
        line = lines.line + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            first = lines.give_back()
            rows = _parser(lines, reader)  # the old one may be in the middle of a value
            index += 1
            yield Malformed(line, _reason(error, reader), _shown(first), Position(lines.offset, lines.line, index))
            continue
        if not row:
            continue  # an empty line is no row, as for Python's csv
        index += 1
        end = Position(lines.offset, lines.line, index)
        if len(row) != width:
            if reader.ragged == "quarantine":
                reason = f"the row has {len(row)} cells, the header {width}"
                yield Malformed(line, reason, _shown(b"".join(lines.taken)), end)
                continue
            row = (row + [""] * width)[:width]
        yield Item(dict(zip(header, row, strict=True)), None, line, end)


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
            meaning="It is text in UTF-16 without a byte order mark, or no text at all (a binary file).",
            todo=f"Text is converted first, for example: iconv -f UTF-16{order} -t UTF-8.",
        )


class _Joined:
    """Bytes that were read already, and the file behind them."""

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
        return f"byte 0x{byte:02X} at place {error.start + 1} of the line is not {reader.encoding}"
    return _REASONS.get(str(error), str(error))


def _shown(raw: bytes) -> str:
    return raw[:_SHOWN_CHARS].decode("utf-8", "replace").rstrip("\r\n")
