"""The children of a map run: reading them from its source, and tracking those between the first open and the last sent.

A child is one or more items with their payload, key and message. A row that cannot be read, does not fit the payload's type,
or gives no key is malformed; it is returned with the child that follows it, so that a position between two children accounts
for every row before it. In the `Span` of children that were sent, a finished one (done or failed) costs a few bytes until
everything before it is finished; an open one keeps its operation. A record outlives the redrives of a run: a child that
failed under the fence it had before a redrive is not finished in that redrive, and the same key may have other contents in a
repaired file.

Never here: sending, reading records. Invariants: reading that starts after a child gives the same children as reading from
the beginning; children popped and children left add up to children added; a child that is done stays done, even if the file
has changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.contracts.queue import AMENDS_ATTRIBUTE, Attribute
from onefold.contracts.store import Record, RecordKey
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


# -- children that were sent -----------------------------------------------------------------------------------------------


_OPEN, _DONE, _FAILED = 0, 1, 2
_COMPACT = 4_096


class OpenChild(Struct, frozen=True, gc=False):
    """A child that was sent and is not over.

    Args:
        record: its operation. fingerprint: of its payload. amends: of the payload that it replaces in a redrive.
        items: how many it has. fence: of its record before it was sent in a redrive; what failed under it is not over.
    """

    record: RecordKey
    fingerprint: str
    amends: str | None
    items: int
    fence: int = 0


class Popped(Struct, frozen=True, gc=False):
    """Children taken from the beginning because they are over: how many, their items by outcome, the position after them."""

    children: int
    done: int
    failed: int
    end: Position


class Span:
    """The children that are in flight, in order."""

    def __init__(self, first: int) -> None:
        """`first`: number of the first child that will be added."""
        self._first = first  # number of the child at index 0 of the arrays
        self._gone = 0  # children at the beginning of the arrays that were popped
        self._ends = array("q")
        self._items = array("q")
        self._status = array("b")
        self._waiting: dict[int, OpenChild] = {}
        self.done = self.failed = 0  # items that are over, and not popped yet

    def __len__(self) -> int:
        """Children that were added and not popped."""
        return len(self._status) - self._gone

    @property
    def open(self) -> int:
        """Children that are not over."""
        return len(self._waiting)

    def add(self, waiting: OpenChild | None, end: Position, *, items: int = 0, failed: bool = False) -> None:
        """Add the next child; with None it has ended already, `failed` or done, with this many items."""
        number = self._first + len(self._status)
        self._ends.extend((end.offset, end.line, end.index))
        self._items.append(items if waiting is None else waiting.items)
        self._status.append(_OPEN)
        if waiting is not None:
            self._waiting[number] = waiting
        else:
            self._over(number, failed=failed)

    def settle(self, number: int, *, failed: bool) -> None:
        """A child has ended."""
        del self._waiting[number]
        self._over(number, failed=failed)

    def _over(self, number: int, *, failed: bool) -> None:
        index = number - self._first
        self._status[index] = _FAILED if failed else _DONE
        if failed:
            self.failed += self._items[index]
        else:
            self.done += self._items[index]

    def waiting(self, count_max: int, after: int = 0) -> list[tuple[int, OpenChild]]:
        """Children that are not over, from the first on, passing over `after` of them."""
        return list(islice(self._waiting.items(), after, after + count_max))

    def every(self) -> Iterator[OpenChild]:
        """All children that are not over."""
        return iter(list(self._waiting.values()))

    def pop(self) -> Popped | None:
        """Take the ended children from the beginning; None if the first has not ended."""
        begin = index = self._gone
        done = failed = 0
        while index < len(self._status) and self._status[index] != _OPEN:
            if self._status[index] == _DONE:
                done += self._items[index]
            else:
                failed += self._items[index]
            index += 1
        if index == begin:
            return None
        end = Position(*self._ends[3 * index - 3 : 3 * index])
        self._gone = index
        self.done -= done
        self.failed -= failed
        self._compact()
        return Popped(index - begin, done, failed, end)

    def drop(self, first: int) -> None:
        """Forget the children before number `first`, which was added: another driver has counted them."""
        for number in range(self._first + self._gone, first):
            if number in self._waiting:
                self.settle(number, failed=False)
            index = number - self._first
            if self._status[index] == _DONE:
                self.done -= self._items[index]
            else:
                self.failed -= self._items[index]
            self._gone += 1
        self._compact()

    def _compact(self) -> None:
        if self._gone >= _COMPACT:
            del self._ends[: 3 * self._gone], self._items[: self._gone], self._status[: self._gone]
            self._first += self._gone
            self._gone = 0


ChildStatus = Literal["done", "failed"] | None  # None: not over


def has_failed(record: Record) -> bool:
    """Whether it failed for good; a redrive opens it again."""
    return record.status == "failed" and record.budget_closed


def status_of(record: Record | None, waiting: OpenChild) -> ChildStatus:
    """What a record says of a child that was sent: done, failed for good, or not over."""
    if record is None:
        return None
    if record.fingerprint != waiting.fingerprint:
        # Another payload under the same key: another row of the file was first, or this one replaces it now.
        return None if record.fingerprint == waiting.amends and record.status != "completed" else "failed"
    if record.status == "completed":
        return "done"
    if record.status == "unknown" and record.parked:
        return "failed"
    return "failed" if has_failed(record) and record.fence > waiting.fence else None


def is_over(child: MapChild, record: Record) -> bool:
    """Whether a redrive has nothing to send for a child: it is done, or nothing can be done for it."""
    assert child.outgoing is not None
    amends = amended(child.outgoing, record)
    waiting = OpenChild(child.record, child.outgoing.fingerprint, amends, child.items, record.fence)
    return status_of(record, waiting) is not None


def amended(outgoing: Outgoing, record: Record | None) -> str | None:
    """The payload that a message replaces: its item failed before, and is different in the file now."""
    if record is None or record.fingerprint == outgoing.fingerprint or record.status != "failed":
        return None
    return record.fingerprint


def amending(outgoing: Outgoing, record: Record | None) -> Outgoing:
    """The message, saying which payload it replaces."""
    amends = amended(outgoing, record)
    if amends is None:
        return outgoing
    attributes = {**outgoing.entry.attributes, AMENDS_ATTRIBUTE: Attribute(amends)}
    return replace(outgoing, entry=replace(outgoing.entry, attributes=attributes))
