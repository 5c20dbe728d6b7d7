"""The children of a map run between the first that is not over and the last that was sent: small, whatever stands in it.

A child that is over costs some bytes here until everything before it is over; one that is not has its operation beside it.
Never here: storage, positions' meaning. Invariant: the sums of what was popped and what is left are those of what was added.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from onefold.contracts.store import RecordKey
from onefold.maps.items import Position

_OPEN, _DONE, _FAILED = 0, 1, 2
_COMPACT = 4_096


class Waiting(Struct, frozen=True, gc=False):
    """A child that is not over.

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
    """Children at the beginning that are over: how many, their items by outcome, and the position behind them."""

    children: int
    done: int
    failed: int
    end: Position


class Span:
    """Children in order."""

    def __init__(self, first: int) -> None:
        """`first`: number of the first child that will be added."""
        self._first = first  # number of the child at place 0 of the arrays
        self._gone = 0  # children at the beginning of the arrays that were popped
        self._ends = array("q")
        self._items = array("q")
        self._fates = array("b")
        self._waiting: dict[int, Waiting] = {}
        self.done = self.failed = 0  # items that are over, and not popped yet

    def __len__(self) -> int:
        """Children that were added and not popped."""
        return len(self._fates) - self._gone

    @property
    def open(self) -> int:
        """Children that are not over."""
        return len(self._waiting)

    def add(self, waiting: Waiting | None, end: Position, *, items: int = 0, failed: bool = False) -> None:
        """Add the next child; None: it is over, `failed` or done, with so many items."""
        number = self._first + len(self._fates)
        self._ends.extend((end.offset, end.line, end.index))
        self._items.append(items if waiting is None else waiting.items)
        self._fates.append(_OPEN)
        if waiting is not None:
            self._waiting[number] = waiting
        else:
            self._over(number, failed=failed)

    def settle(self, number: int, *, failed: bool) -> None:
        """A child is over."""
        del self._waiting[number]
        self._over(number, failed=failed)

    def _over(self, number: int, *, failed: bool) -> None:
        place = number - self._first
        self._fates[place] = _FAILED if failed else _DONE
        if failed:
            self.failed += self._items[place]
        else:
            self.done += self._items[place]

    def waiting(self, count_max: int, after: int = 0) -> list[tuple[int, Waiting]]:
        """Children that are not over, from the first on, passing over `after` of them."""
        return list(islice(self._waiting.items(), after, after + count_max))

    def every(self) -> Iterator[Waiting]:
        """All children that are not over."""
        return iter(list(self._waiting.values()))

    def pop(self) -> Popped | None:
        """Take what is over from the beginning; None where the first is not over."""
        begin = place = self._gone
        done = failed = 0
        while place < len(self._fates) and self._fates[place] != _OPEN:
            if self._fates[place] == _DONE:
                done += self._items[place]
            else:
                failed += self._items[place]
            place += 1
        if place == begin:
            return None
        end = Position(*self._ends[3 * place - 3 : 3 * place])
        self._gone = place
        self.done -= done
        self.failed -= failed
        self._compact()
        return Popped(place - begin, done, failed, end)

    def drop(self, first: int) -> None:
        """Forget the children before the one of that number, which was added: somebody else has counted them."""
        for number in range(self._first + self._gone, first):
            if number in self._waiting:
                self.settle(number, failed=False)
            place = number - self._first
            if self._fates[place] == _DONE:
                self.done -= self._items[place]
            else:
                self.failed -= self._items[place]
            self._gone += 1
        self._compact()

    def _compact(self) -> None:
        if self._gone >= _COMPACT:
            del self._ends[: 3 * self._gone], self._items[: self._gone], self._fates[: self._gone]
            self._first += self._gone
            self._gone = 0
