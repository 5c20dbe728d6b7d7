"""What every Archive must do, as tests: keep an event once, return events by time in pages, drop them after retention.

Subclass `ArchiveContract` and set `self.archive` to an empty archive and `self.clock` to its clock before each test.
Never here: what events contain. Invariant: an event is read back character for character.
"""

# ruff: noqa: D102 - the name of a test describes it

from __future__ import annotations

from onefold.contracts.archive import Archive, Archived, Holdings
from onefold.manual_clock import ManualClock

_LAST = 2**62


def _event(event_id: str, time_ms: int, text: str = "{}", expires_at_ms: int | None = None) -> Archived:
    return Archived(0, event_id, time_ms, text, expires_at_ms)


class ArchiveContract:
    """The Archive contract."""

    archive: Archive
    clock: ManualClock

    def ids(self, from_ms: int = 0, to_ms: int = 10_000, last: int = _LAST) -> list[str]:
        """The ids of the events in a range of time."""
        return [one.event_id for one in self.archive.read("a", from_ms, to_ms, last=last, limit=100)]

    def test_events_come_by_time_then_in_the_order_they_were_kept(self) -> None:
        self.archive.keep("a", [_event("c", 3), _event("a", 1), _event("b1", 2)])
        self.archive.keep("a", [_event("b2", 2)])
        assert self.ids() == ["a", "b1", "b2", "c"]
        assert self.archive.names() == ["a"]

    def test_a_range_takes_its_start_and_not_its_end(self) -> None:
        self.archive.keep("a", [_event(str(time_ms), time_ms) for time_ms in (1, 2, 3)])
        assert self.ids(2, 3) == ["2"]
        assert self.ids(4, 9) == []

    def test_an_event_is_kept_once_by_its_id(self) -> None:
        self.archive.keep("a", [_event("x", 1, "first")])
        self.archive.keep("a", [_event("x", 2, "second"), _event("y", 2)])
        assert self.ids() == ["x", "y"]
        assert self.archive.read("a", 0, 10, last=_LAST, limit=1)[0].text == "first"
        self.archive.keep("b", [_event("x", 1)])
        assert self.archive.names() == ["a", "b"]

    def test_a_text_comes_back_as_it_was(self) -> None:
        text = '{"detail": {"n": 1.0, "t": "é\U0001f600\\u0000"}}'
        self.archive.keep("a", [_event("x", 1, text, expires_at_ms=self.clock.now_ms() + 1)])
        (found,) = self.archive.read("a", 0, 10, last=_LAST, limit=1)
        assert (found.text, found.time_ms, found.expires_at_ms) == (text, 1, self.clock.now_ms() + 1)

    def test_pages_go_on_after_the_last_one_read(self) -> None:
        self.archive.keep("a", [_event(f"{number:02}", number // 3) for number in range(20)])
        found: list[str] = []
        after: tuple[int, int] | None = None
        while page := self.archive.read("a", 0, 10, after=after, last=_LAST, limit=7):
            found += [one.event_id for one in page]
            after = (page[-1].time_ms, page[-1].position)
        assert found == [f"{number:02}" for number in range(20)]

    def test_what_was_kept_later_is_left_out_by_position(self) -> None:
        self.archive.keep("a", [_event("old", 5)])
        last = self.archive.holdings("a").position
        self.archive.keep("a", [_event("new", 1)])
        assert self.ids(last=last) == ["old"]
        assert self.archive.holdings("a").position > last

    def test_holdings_are_of_all_or_of_a_range(self) -> None:
        assert self.archive.holdings("a") == Holdings(0, 0, None, None, 0)
        self.archive.keep("a", [_event("x", 1, "é"), _event("y", 5, "yy")])
        whole = self.archive.holdings("a")
        assert (whole.count, whole.size, whole.first_ms, whole.last_ms) == (2, 4, 1, 5)
        assert self.archive.holdings("a", 2, 6).count == 1
        assert self.archive.holdings("b").count == 0

    def test_what_expired_is_gone(self) -> None:
        now_ms = self.clock.now_ms()
        self.archive.keep("a", [_event("x", 1, expires_at_ms=now_ms + 1_000), _event("y", 2)])
        self.clock.advance(999)
        assert self.ids() == ["x", "y"]
        self.clock.advance(1)
        assert self.ids() == ["y"]
        assert self.archive.holdings("a").count == 1
