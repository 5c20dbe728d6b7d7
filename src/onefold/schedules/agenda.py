"""What a scheduler has to look at and when: a heap of instants.

Never here: what is looked at, clocks. Invariant: a place has one instant at most; an older one that is still in the heap
counts for nothing.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple


class Due(NamedTuple):
    """When something is to be looked at.

    Args:
        at_ms: the instant. place: its name in State.
    """

    at_ms: int
    place: str


class Agenda:
    """Places by the instant at which they are to be looked at. For one thread."""

    def __init__(self) -> None:
        self._heap: list[Due] = []
        self._instants: dict[str, int] = {}

    def note(self, place: str, at_ms: int | None) -> None:
        """Look at a place then, instead of when it was noted for before; None: not at all."""
        if at_ms is None:
            self._instants.pop(place, None)
        elif self._instants.get(place) != at_ms:
            self._instants[place] = at_ms
            heapq.heappush(self._heap, Due(at_ms, place))

    def take(self, now_ms: int, count_max: int) -> list[str]:
        """Take off what is due, the earliest first."""
        due: list[str] = []
        while self._heap and self._heap[0].at_ms <= now_ms and len(due) < count_max:
            at_ms, place = heapq.heappop(self._heap)
            if self._instants.get(place) == at_ms:
                del self._instants[place]
                due.append(place)
        return due

    def put_back(self, places: list[str], at_ms: int) -> None:
        """Note places that were taken, unless they were noted again since."""
        for place in places:
            if place not in self._instants:
                self.note(place, at_ms)

    def first_ms(self) -> int | None:
        """When there is something to look at next, or earlier; None: never."""
        return self._heap[0].at_ms if self._heap else None

    def has(self, place: str) -> bool:
        """Whether a place is to be looked at some time."""
        return place in self._instants

    def next(self, count: int, prefix: str = "") -> list[Due]:
        """What is due next, in order; at most `count`, of the places that begin with `prefix`."""
        places = (Due(at_ms, place) for place, at_ms in self._instants.items() if place.startswith(prefix))
        return heapq.nsmallest(count, places)
