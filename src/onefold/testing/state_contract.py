"""What every State must do, as tests: compare-and-set by version, names by prefix, size limits.

Subclass `StateContract` and set `self.state` to an empty state before each test. Never here: what values mean.
Invariant: a version that was replaced is never current again, not even if its name is deleted and used again.
"""

# ruff: noqa: D102 - the name of a test describes it

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.contracts.state import Change, Versioned
from onefold.errors import UsageError
from onefold.testing.threads import at_once

if TYPE_CHECKING:
    from onefold.contracts.verbs import State


class StateContract:
    """The State contract."""

    state: State

    def put(self, name: str, value: bytes | None, expected: int) -> bool:
        """One change."""
        (done,) = self.state.put([Change(name, value, expected)])
        return done

    def get(self, name: str) -> Versioned | None:
        """One value."""
        (found,) = self.state.get([name])
        return found

    def version(self, name: str) -> int:
        """The stored version; 0 if the name is absent."""
        found = self.get(name)
        return 0 if found is None else found.version

    def test_what_was_put_is_got_in_the_order_asked(self) -> None:
        assert self.state.put([Change("a", b"1", 0), Change("b", b'{"x":2}', 0)]) == [True, True]
        found = self.state.get(["b", "none", "a", "b"])
        assert [one and one.value for one in found] == [b'{"x":2}', None, b"1", b'{"x":2}']
        assert self.version("a") >= 1
        assert self.state.get([]) == []
        assert self.state.put([]) == []

    def test_each_change_needs_the_version_that_stands_and_adds_one(self) -> None:
        assert not self.put("a", b"1", 1)
        assert self.put("a", b"1", 0)
        first = self.version("a")
        assert [self.put("a", b"2", version) for version in (0, first - 1, first + 1)] == [False] * 3
        assert self.get("a") == Versioned(first, b"1")
        assert self.put("a", b"2", first)
        assert self.get("a") == Versioned(first + 1, b"2")
        assert not self.put("a", b"3", first)

    def test_a_value_is_deleted_by_its_version_only(self) -> None:
        assert self.put("a", b"1", 0)
        version = self.version("a")
        assert not self.put("a", None, 0)
        assert not self.put("a", None, version + 1)
        assert self.get("a") == Versioned(version, b"1")
        assert self.put("a", None, version)
        assert self.get("a") is None
        assert not self.put("a", None, version)
        assert self.put("a", None, 0)  # deleting an absent value
        assert self.get("a") is None

    def test_no_old_version_fits_a_name_that_came_back(self) -> None:
        versions = [0]
        for value in (b"1", b"2"):
            assert self.put("a", value, 0)
            versions.append(self.version("a"))
            assert self.put("a", None, versions[-1])
        assert self.put("a", b"3", 0)
        assert [self.put("a", b"stale", version) for version in versions] == [False] * 3
        assert self.put("a", b"4", self.version("a"))

    def test_a_refused_change_leaves_its_neighbours_alone(self) -> None:
        assert self.put("a", b"1", 0)
        changes = [Change("b", b"1", 0), Change("a", b"2", 9), Change("c", b"1", 0), Change("b", b"2", 0)]
        assert self.state.put(changes) == [True, False, True, False]
        assert [one and one.value for one in self.state.get(["a", "b", "c"])] == [b"1", b"1", b"1"]

    def test_changes_of_one_name_are_made_one_after_the_other(self) -> None:
        assert self.put("a", b"1", 0)
        version = self.version("a")
        assert self.state.put([Change("a", b"2", version), Change("a", b"3", version + 1)]) == [True, True]
        assert self.get("a") == Versioned(version + 2, b"3")

    def test_names_are_listed_by_prefix_sorted(self) -> None:
        names = ["b/x", "a/y", "a/x", "a", "a0", "a/\u00e9", "a/\U0001f600", "A/x"]
        assert self.state.put([Change(name, b"1", 0) for name in names]) == [True] * len(names)
        assert self.put("a/gone", b"1", 0)
        assert self.put("a/gone", None, self.version("a/gone"))
        assert self.state.names("a/") == ["a/x", "a/y", "a/\u00e9", "a/\U0001f600"]
        assert self.state.names("") == sorted(names)
        assert self.state.names("c") == []

    def test_sizes_are_kept_to_and_nothing_is_changed_beyond_them(self) -> None:
        most, longest = b"1" * 65_536, "n" * 300
        assert self.put(longest, most, 0)
        assert self.get(longest) == Versioned(self.version(longest), most)
        for name, value in (("", b"1"), ("n" * 301, b"1"), ("big", b"1" * 65_537)):
            try:
                self.state.put([Change("neighbour", b"1", 0), Change(name, value, 0)])
            except UsageError:
                continue
            raise AssertionError(f"a name of {len(name)} characters and {len(value)} bytes were accepted")
        assert self.state.names("") == [longest]

    def test_of_many_threads_one_is_first(self) -> None:
        answers = at_once(8, lambda number: self.put("a", f"{number}".encode(), 0))
        assert (answers.count(True), answers.count(False)) == (1, 7)
