"""The children of a map run: reading them from its source, and tracking those between the first open and the last sent.

A child is one or more items with their payload, key and message. A row that cannot be read, does not fit the payload's
type, or gives no key is malformed; it is returned with the child that follows it, so that a position between two
children accounts for every row before it. In the `Span` of children that were sent, a finished one (done or failed)
takes a few bytes until everything before it is finished; an open one keeps its operation. A record outlives the
redrives of a run: a child whose record failed under the fence that it had before a redrive is not finished in that
redrive, and in a repaired file the same key can have other contents.

Never here: sending, reading records. Invariants: reading that starts after a child gives the same children as reading
from the beginning; children popped and children left add up to children added; a child that is done stays done, even if
the file has changed.
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
from onefold.interrupts import ENDING, let_through_of_types
from onefold.maps.formats import read
from onefold.maps.jobs import MapJob
from onefold.maps.rules import Batcher
from onefold.maps.sources import Item, Malformed, Position, Source
from onefold.runtime.events import kept_text
from onefold.runtime.outgoing import Outgoing

_MALFORMED_MAX = 200  # this many consecutive malformed rows are returned without waiting for the next child
_SHOWN_CHARS = 2_000
_TAKEN_BYTES = 4 * 1024 * 1024


class MapChild(Struct, frozen=True, gc=False):
    """One child, or only malformed rows.

    Args:
        outgoing: its message; None if there are only malformed rows. items: how many it has.
        malformed: the malformed rows between the previous child and the end of this one.
        end: the position after it. rows: of each item the line on which it begins, and its key without the run.
    """

    outgoing: Outgoing | None
    items: int
    malformed: tuple[Malformed, ...]
    end: Position
    rows: tuple[tuple[int, str], ...] = ()

    @property
    def record(self) -> RecordKey:
        """The record of a child that has a message."""
        assert self.outgoing is not None
        return self.outgoing.record


class _Ready(Struct, frozen=True, gc=False):
    payload: object
    key: str
    size: int
    end: Position
    line: int


def children(mapping: MapJob, run: str, source: Source, start: Position) -> Iterator[MapChild]:
    """The children after a position that is the end of a child, in order.

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
                # A full batch ends before the item that did not fit, and before the malformed rows between the two.
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
    """The next children of a stream, until their bodies have some MB.

    Args:
        count_max: how many at most. index_max: stop after the child that ends after this many items.
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
    except (Exception, *ENDING) as error:  # noqa: BLE001 - the user's types and key function run on data from outside
        let_through_of_types(error)
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
    return MapChild(outgoing, len(some), tuple(bad), end, tuple((one.line, one.key) for one in some))


def malformed(item: Item, error: errors.OnefoldError) -> Malformed:
    """An item that turned out to be malformed, because of an error."""
    return Malformed(item.line, _one_line(error), _text(item), item.end)


def _one_line(error: errors.OnefoldError) -> str:
    return error.what.rstrip(".")[:500]


def _text(item: Item) -> str:
    if item.text is not None:
        return item.text[:_SHOWN_CHARS]
    return ",".join(str(value) for value in (item.value or {}).values())[:_SHOWN_CHARS]


# -- children that were sent -----------------------------------------------------------------------------------------


_OPEN, _DONE, _FAILED = 0, 1, 2
_COMPACT = 4_096


class OpenChild(Struct, frozen=True, gc=False):
    """A child that was sent and has not ended.

    Args:
        record: its operation. fingerprint: the fingerprint of its payload. amends: fingerprint of the payload that it
            replaces in a redrive. items: how many it has.
        fence: the fence of its record before it was sent in a redrive; a failure under this fence is an earlier round's.
    """

    record: RecordKey
    fingerprint: str
    amends: str | None
    items: int
    fence: int = 0


class Popped(Struct, frozen=True, gc=False):
    """Ended children taken from the beginning: how many, their items by outcome, and the position after them."""

    children: int
    done: int
    failed: int
    end: Position


class ItemSpan:
    """The children between the first that has not ended and the last that was sent, in order."""

    def __init__(self, first: int) -> None:
        """Make an empty span; `first` is the number of the first child that will be added."""
        self._first = first  # number of the child at index 0 of the arrays
        self._gone = 0  # popped children that are still at the beginning of the arrays
        self._ends = array("q")
        self._items = array("q")
        self._status = array("b")
        self._waiting: dict[int, OpenChild] = {}
        self.done = self.failed = 0  # items that have ended and are not popped yet

    def __len__(self) -> int:
        """How many children were added and not popped."""
        return len(self._status) - self._gone

    @property
    def open(self) -> int:
        """How many children have not ended."""
        return len(self._waiting)

    def add(self, waiting: OpenChild | None, end: Position, *, items: int = 0, failed: bool = False) -> None:
        """Add the next child. With None, a child of `items` items that has already ended, `failed` or done."""
        number = self._first + len(self._status)
        self._ends.extend((end.offset, end.line, end.index))
        self._items.append(items if waiting is None else waiting.items)
        self._status.append(_OPEN)
        if waiting is not None:
            self._waiting[number] = waiting
        else:
            self._over(number, failed=failed)

    def settle(self, number: int, *, failed: bool) -> None:
        """Note that the child with this number has ended."""
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
        """At most `count_max` children that have not ended, in order, without the first `after` of them."""
        return list(islice(self._waiting.items(), after, after + count_max))

    def every(self) -> Iterator[OpenChild]:
        """All children that have not ended."""
        return iter(list(self._waiting.values()))

    def pop(self) -> Popped | None:
        """Remove the ended children from the beginning; None if the first has not ended."""
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
        """Forget the children before number `first` (which was added), since another driver has counted them."""
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


ChildStatus = Literal["done", "failed"] | None  # None: has not ended


def has_failed(record: Record) -> bool:
    """Whether a child failed for good; a redrive opens it again."""
    return record.status == "failed" and record.budget_closed


def status_of(record: Record | None, waiting: OpenChild) -> ChildStatus:
    """The status that a record gives a child that was sent: done, failed for good, or not ended."""
    if record is None:
        return None
    if record.fingerprint != waiting.fingerprint:
        # Another payload under the same key: another row of the file came first, or this payload is replacing it.
        return None if record.fingerprint == waiting.amends and record.status != "completed" else "failed"
    if record.status == "completed":
        return "done"
    if record.status == "unknown" and record.parked:
        return "failed"
    return "failed" if has_failed(record) and record.fence > waiting.fence else None


def is_over(child: MapChild, record: Record) -> bool:
    """Whether a redrive sends nothing for a child, because it is done or cannot be run again."""
    assert child.outgoing is not None
    amends = amended(child.outgoing, record)
    waiting = OpenChild(child.record, child.outgoing.fingerprint, amends, child.items, record.fence)
    return status_of(record, waiting) is not None


def amended(outgoing: Outgoing, record: Record | None) -> str | None:
    """The fingerprint of the payload that a message replaces: its item failed, and has since changed in the file."""
    if record is None or record.fingerprint == outgoing.fingerprint or record.status != "failed":
        return None
    return record.fingerprint


def amending(outgoing: Outgoing, record: Record | None) -> Outgoing:
    """The message with an attribute that names the payload it replaces, if it replaces one."""
    amends = amended(outgoing, record)
    if amends is None:
        return outgoing
    attributes = {**outgoing.entry.attributes, AMENDS_ATTRIBUTE: Attribute(amends)}
    return replace(outgoing, entry=replace(outgoing.entry, attributes=attributes))
