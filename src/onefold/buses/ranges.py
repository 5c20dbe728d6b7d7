"""Ranges of numbers, asked which of them a number lies in: a centered interval tree, made once.

A question costs the depth of the tree and what it finds, not the number of ranges. Bounds belong to their range; who means
an open one asks again. Never here: what a range is for. Invariant: every range that holds the number is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Range(NamedTuple):
    """From `low` to `high`, both inside; infinities for no bound. `place` is the caller's."""

    low: float
    high: float
    place: int


class RangeTree:
    """Ranges around a center, and trees of those below and above it.

    Args:
        ranges: at least one, low <= high each.
    """

    __slots__ = ("_above", "_below", "_by_high", "_by_low", "_center")

    def __init__(self, ranges: Sequence[Range]) -> None:
        bounds = sorted(bound for one in ranges for bound in (one.low, one.high))
        center = self._center = bounds[len(bounds) // 2]
        here = [one for one in ranges if one.low <= center <= one.high]  # not empty: the center is somebody's bound
        below = [one for one in ranges if one.high < center]
        above = [one for one in ranges if one.low > center]
        self._by_low = sorted(here, key=lambda one: one.low)
        self._by_high = sorted(here, key=lambda one: -one.high)
        self._below = RangeTree(below) if below else None
        self._above = RangeTree(above) if above else None

    def find(self, number: float, found: set[int]) -> None:
        """Add the places of all ranges that hold a number."""
        if number < self._center:
            for one in self._by_low:
                if one.low > number:
                    break
                found.add(one.place)
            farther = self._below
        else:
            for one in self._by_high:
                if one.high < number:
                    break
                found.add(one.place)
            farther = self._above
        if farther is not None:
            farther.find(number, found)
