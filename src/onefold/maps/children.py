"""The children of a map run as they are read from its source: items with payload, key and message, and malformed rows.

A row that cannot be read, does not fit the payload's type, or gives no key is malformed; it comes out with the child behind
it, so that a position between two children has every row before it accounted for.
Never here: sending, records. Invariant: reading from behind a child gives the same children as reading through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from onefold import errors
from onefold.contracts.store import RecordKey
from onefold.maps.formats import read
from onefold.maps.jobs import MapJob
from onefold.maps.rules import Batcher
from onefold.maps.sources import Item, Malformed, Position, Source
from onefold.runtime.events import kept_text
from onefold.runtime.outgoing import Outgoing

_MALFORMED_MAX = 200  # after so many malformed rows in a row they come out without waiting for the next child
_SHOWN_CHARS = 2_000
_TAKEN_BYTES = 4 * 1024 * 1024


class MapChild(Struct, frozen=True, gc=False):
    """One child, or only malformed rows.

    Args:
        outgoing: its message; None for rows alone. items: how many it has.
        malformed: rows between the child before and the end of this one.
        end: the position behind it.
    """

    outgoing: Outgoing | None
    items: int
    malformed: tuple[Malformed, ...]
    end: Position

    @property
    def record(self) -> RecordKey:
        """Of a child with a message."""
        assert self.outgoing is not None
        return self.outgoing.record


class _Ready(Struct, frozen=True, gc=False):
    payload: object
    key: str
    size: int
    end: Position
    line: int


def children(mapping: MapJob, run: str, source: Source, start: Position) -> Iterator[MapChild]:
    """The children behind a position that is a child's end, in order.

    Raises:
        as `formats.read`.
    """
    batcher: Batcher[_Ready] | None = Batcher(mapping.spec.batch) if mapping.spec.batch is not None else None
    bad: list[Malformed] = []
    end = start
    for found in read(source, mapping.spec.reader, start):
        ready = found if isinstance(found, Malformed) else _ready(mapping, found)
        end = ready.end
        if isinstance(ready, _Ready):
            some: Sequence[_Ready] | None = [ready]
            if batcher is not None:
                some = batcher.add(ready)
                # A full batch ends before the item that did not fit, and before what is malformed between the two.
                if some is not None:
                    last = some[-1].end
                    yield _child(mapping, run, some, [one for one in bad if one.end.index <= last.index], last)
                    bad = [one for one in bad if one.end.index > last.index]
            elif some:
                yield _child(mapping, run, some, bad, end)
                bad = []
        else:
            bad.append(ready)
        if len(bad) >= _MALFORMED_MAX:
            some = batcher.rest() if batcher is not None else None
            yield _child(mapping, run, some, bad, end)
            bad = []
    some = batcher.rest() if batcher is not None else None
    if some or bad:
        yield _child(mapping, run, some, bad, end)


def taken(stream: Iterator[MapChild], count_max: int, index_max: int | None = None) -> list[MapChild]:
    """The next children, so many at most, and no more than some MB of them.

    Args:
        index_max: not beyond the child that ends behind so many items.
    """
    found: list[MapChild] = []
    size = 0
    while len(found) < count_max and size < _TAKEN_BYTES:
        child = next(stream, None)
        if child is None:
            break
        found.append(child)
        size += len(child.outgoing.entry.body) if child.outgoing is not None else 0
        if index_max is not None and child.end.index >= index_max:
            break
    return found


def _ready(mapping: MapJob, item: Item) -> _Ready | Malformed:
    """An item with its payload and key, or why it is malformed."""
    try:
        payload = mapping.payload_of(item)
        key = mapping.key.of(payload)
        size = len(mapping.item.encode(payload)) if mapping.spec.batch is not None else 0
        return _Ready(payload, key, size, item.end, item.line)
    except errors.PayloadError as error:
        return malformed(item, error)
    except Exception as error:  # noqa: BLE001 - code of the user's types and key function, run on a stranger's data
        return Malformed(
            item.line, f"Reading it raised {type(error).__name__}: {kept_text(error)}", _text(item), item.end
        )


def _child(
    mapping: MapJob, run: str, some: Sequence[_Ready] | None, bad: Sequence[Malformed], end: Position
) -> MapChild:
    if not some:
        return MapChild(None, 0, tuple(bad), end)
    try:
        outgoing = mapping.message(run, [one.payload for one in some], [one.key for one in some])
    except errors.PayloadError as error:
        alone = [Malformed(one.line, _one_line(error), "", one.end) for one in some]
        return MapChild(None, 0, (*bad, *alone), end)
    return MapChild(outgoing, len(some), tuple(bad), end)


def malformed(item: Item, error: errors.OnefoldError) -> Malformed:
    """An item that cannot be one after all."""
    return Malformed(item.line, _one_line(error), _text(item), item.end)


def _one_line(error: errors.OnefoldError) -> str:
    return error.what.rstrip(".")[:500]


def _text(item: Item) -> str:
    if item.text is not None:
        return item.text[:_SHOWN_CHARS]
    return ",".join(str(value) for value in (item.value or {}).values())[:_SHOWN_CHARS]
