"""CSV, row by row, with the place of every row in the file.

Python's own csv reads the rows; lines are handed to it one at a time, so that the bytes of a row are known and a row that
cannot be read costs only its own first line: the lines that an unbalanced quote has swallowed are read again. A value that
is open at the end of one of these ends where that row ended, so that is not looked for again: reading takes linear time.
Never here: types (every value is text, as in Step Functions), opening files.
Invariant: every line of the file is in exactly one row, malformed row or header, or is empty.
"""

from __future__ import annotations

import codecs
import csv
from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

from msgspec import Struct

from onefold import errors
from onefold.maps.items import RECORD_BYTES_MAX, Item, Malformed, Position, Read, Source, unpacking
from onefold.maps.rules import DELIMITERS, ItemReader, check_header

_SHOWN_CHARS = 2_000
_OPEN = "unexpected end of data"  # Python's csv, of a value that is not closed
_REASONS = {_OPEN: "a quote is opened and not closed"}  # of Python's csv, where they say little
_BOMS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


class _Readable(Protocol):
    def readline(self, size: int, /) -> bytes: ...


class _Lines:
    """The lines of a file with their bytes; a line may be given back."""

    def __init__(self, file: _Readable, encoding: str, start: Position, *, bytes_max: int | None = None) -> None:
        self._file = file
        self._bytes_max = RECORD_BYTES_MAX if bytes_max is None else bytes_max
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
        if self.size > self._bytes_max or len(raw) > RECORD_BYTES_MAX:
            raise _TooLongError
        return raw.decode(self._encoding)

    def begin(self) -> None:
        """The next row begins here."""
        self.taken = []
        self.size = 0

    def first(self) -> bytes:
        """The line that comes next, which stays to be read; empty at the end of the file."""
        if not self._again:
            raw = self._file.readline(RECORD_BYTES_MAX + 1)
            if not raw:
                return raw
            self._again.append(raw)
        return self._again[0]

    def give_back(self) -> bytes:
        """All lines of this row but the first are to be read again; the first."""
        first, *rest = self.taken
        for raw in reversed(rest):
            self._again.appendleft(raw)
            self.offset -= len(raw)
            self.line -= 1
        return first


class _TooLongError(csv.Error):
    """A row has more bytes than a row may have."""

    def __init__(self) -> None:
        super().__init__(f"the row has more than {RECORD_BYTES_MAX} bytes; is a quote never closed?")


class _Swallowed(Struct, frozen=True):
    """Where a row ended that could not be read, and whose lines but the first are read again.

    A value that is open at the end of one of its lines ends at the same place, since it is in the middle of a value there
    and what follows is the same: whether a line ends inside a value does not depend on what was before the value.

    Args:
        offset: behind the last line that was looked at. line: the first line whose end says nothing any more.
        error: how it ended; None: as a row, of too many bytes; `_TooLongError`: no end was seen.
    """

    offset: int
    line: int
    error: Exception | None

    def fate(self, lines: _Lines, raw: bytes, reader: ItemReader) -> Exception | None:
        """Why the row that begins with the line `raw` cannot be read; None where it has to be read to know."""
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
        lines = _Lines(file, reader.encoding, start, bytes_max=2 * RECORD_BYTES_MAX)  # see `_Swallowed`
        yield from _rows(lines, reader, header, start.index)


def header_of(source: Source, reader: ItemReader) -> tuple[str, ...]:
    """The names of the columns: declared, or the file's first row. Errors as `read_csv`."""
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
        fate = swallowed.fate(lines, lines.first(), reader) if swallowed is not None else None
        try:
            if fate is not None:
                next(lines)
                raise fate
            row = next(rows)
            if lines.size > RECORD_BYTES_MAX:
                raise _TooLongError
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            if fate is None:
                swallowed = _swallowed(lines, error)
            first = lines.give_back()
            rows = _parser(lines, reader)  # the old one may be in the middle of a value
            index += 1
            why = _TooLongError() if lines.size > RECORD_BYTES_MAX else error
            yield Malformed(line, _reason(why, reader), _shown(first), Position(lines.offset, lines.line, index))
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


def _swallowed(lines: _Lines, error: Exception) -> _Swallowed | None:
    """What is known from a row that could not be read, when its lines were not given back yet."""
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
