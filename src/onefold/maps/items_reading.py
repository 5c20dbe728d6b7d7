"""One way to read items, whatever their format: from a position on, and how many there are.

Never here: the formats themselves. Invariant: `count` and `read` agree on what an item is, malformed ones included.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from onefold.maps.items import Item, Position, Read, Source, unpacking
from onefold.maps.items_csv import read_csv
from onefold.maps.items_json import read_array, read_lines
from onefold.maps.rules import ItemReader


def read(source: Source, reader: ItemReader, start: Position | None = None) -> Iterator[Read]:
    """The items of a source behind a position, in order; malformed rows in their places.

    Raises:
        NotFoundError: there is no such file. UsageError: the source as a whole is not what the reader says.
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
    """The same; what compression finds wrong with the file is said as an error of ours."""
    with unpacking(name):
        yield from found


def _listed(source: Source, start: Position) -> Iterator[Read]:
    for index, entry in enumerate(source.entries(), 1):
        if index > start.index:
            yield Item(entry, None, index, Position(0, index, index))


def count(source: Source, reader: ItemReader) -> int:
    """How many items a source has, malformed ones included. Reads all of it. Errors as `read`."""
    return sum(1 for _ in read(source, reader))
