"""What every Ledger must do, as tests: append rows, find them by operation, run and time, in order, and keep them.

Subclass `LedgerContract` and set `self.ledger` to an empty ledger before each test. Never here: what rows mean.
Invariant: rows of one instant come back in the order in which they were appended.
"""

# ruff: noqa: D102 - the name of a test describes it

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.contracts.ledger import Row
from onefold.contracts.store import RecordKey

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger

NOW = 1_700_000_000_000
KEY = RecordKey("tenant", "job", "key")


def row(event: str, at_ms: int = NOW, key: RecordKey | None = KEY, run: str | None = None) -> Row:
    """A row with only the fields that the tests need."""
    return Row(at_ms=at_ms, event=event, key=key, run=run)


def events(rows: list[Row]) -> list[str]:
    """The events of rows, in order."""
    return [row.event for row in rows]


class LedgerContract:
    """The Ledger contract."""

    ledger: Ledger

    def test_a_row_comes_back_as_it_was_appended(self) -> None:
        full = Row(
            at_ms=NOW,
            event="retry",
            key=KEY,
            queue="orders",
            message_id="m-1",
            run="billing#2026-11",
            actor="person:ada",
            detail={"attempt": 2, "last": False, "why": "é \x00", "none": None},
        )
        bare = Row(at_ms=NOW, event="purge")
        self.ledger.append([full, bare])
        assert self.ledger.between(NOW, NOW + 1) == [full, bare]
        assert self.ledger.of_key(KEY) == [full]
        assert self.ledger.of_run("billing#2026-11") == [full]

    def test_nothing_appended_nothing_found(self) -> None:
        self.ledger.append([])
        assert self.ledger.of_key(KEY) == []
        assert self.ledger.of_run("run") == []
        assert self.ledger.between(0, 2 * NOW) == []
        assert self.ledger.find_keys("key") == []

    def test_rows_come_oldest_first_and_those_of_one_instant_as_appended(self) -> None:
        self.ledger.append([row("c", NOW + 5, run="r"), row("a", run="r"), row("b", run="r")])
        self.ledger.append([row("d", NOW + 5, run="r"), row("early", NOW - 5, run="r")])
        expected = ["early", "a", "b", "c", "d"]
        assert events(self.ledger.of_key(KEY)) == expected
        assert events(self.ledger.of_run("r")) == expected
        assert events(self.ledger.between(NOW - 5, NOW + 6)) == expected

    def test_an_operation_has_its_own_rows_only(self) -> None:
        keys = [
            RecordKey("", "a", "k"),
            RecordKey("t", "a", "k"),
            RecordKey("", "b", "k"),
            RecordKey("", "a", "k2"),
        ]
        self.ledger.append([row(f"{number}", key=key) for number, key in enumerate(keys)])
        self.ledger.append([row("about no operation", key=None)])
        assert [events(self.ledger.of_key(key)) for key in keys] == [["0"], ["1"], ["2"], ["3"]]

    def test_a_run_has_its_own_rows_page_by_page(self) -> None:
        self.ledger.append([row(f"{number}", NOW + number, run="r") for number in range(5)])
        self.ledger.append([row("other", run="r2"), row("none")])
        assert events(self.ledger.of_run("r", limit=2)) == ["0", "1"]
        assert events(self.ledger.of_run("r", limit=2, after=2)) == ["2", "3"]
        assert events(self.ledger.of_run("r", after=4)) == ["4"]
        assert self.ledger.of_run("r", after=5) == []

    def test_a_run_is_walked_from_end_to_end(self) -> None:
        self.ledger.append([row(f"{number}", NOW + number, run="r") for number in range(5)])
        self.ledger.append([row("other", run="r2"), row("none")])
        self.ledger.append([row(f"{number}", NOW + 5, run="r", key=None) for number in range(5, 8)])
        assert [events(page) for page in self.ledger.walk_run("r", page=2)] == [
            ["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"],
        ]  # fmt: skip
        assert [events(page) for page in self.ledger.walk_run("r")] == [[f"{number}" for number in range(8)]]
        assert list(self.ledger.walk_run("nobody's")) == []

    def test_a_row_that_is_written_while_a_run_is_walked_moves_no_other(self) -> None:
        self.ledger.append([row(f"{number}", NOW + number // 3, run="r") for number in range(7)])
        pages = self.ledger.walk_run("r", page=2)
        found = events(next(pages))
        self.ledger.append([row("late", NOW - 5, run="r")])
        found += [event for page in pages for event in events(page)]
        assert [event for event in found if event != "late"] == [f"{number}" for number in range(7)]

    def test_a_span_of_time_begins_with_its_first_millisecond_and_ends_before_its_last(self) -> None:
        self.ledger.append([row(f"{offset}", NOW + offset) for offset in (-1, 0, 1, 9, 10, 11)])
        assert events(self.ledger.between(NOW, NOW + 10)) == ["0", "1", "9"]
        assert events(self.ledger.between(NOW, NOW + 10, limit=2)) == ["0", "1"]
        assert self.ledger.between(NOW, NOW) == []

    def test_the_oldest_rows_of_an_operation_come_when_there_are_too_many(self) -> None:
        self.ledger.append([row(f"{number}", NOW + number) for number in range(5)])
        assert events(self.ledger.of_key(KEY, limit=3)) == ["0", "1", "2"]

    def test_operations_are_found_by_their_exact_key_once_each(self) -> None:
        long = "x" * 200
        keys = [RecordKey(scope, job, key) for key in ("k", "k2", long) for scope in ("", "t") for job in ("a", "b")]
        self.ledger.append([row(event, key=key) for key in keys for event in ("sent", "retry")])
        for text in ("k", long):
            found = self.ledger.find_keys(text)
            assert len(found) == 4
            assert set(found) == {key for key in keys if key.key == text}
        assert len(self.ledger.find_keys("k", limit=3)) == 3
        assert self.ledger.find_keys("K") == []

    def test_a_run_is_tallied_by_the_last_row_that_tells_how_each_operation_stands(self) -> None:
        done, dead, retried, waiting, under_way = (RecordKey("", "j", name) for name in "abcde")
        self.ledger.append([row("dispatched", key=key, run="r") for key in (done, dead, retried, waiting)])
        self.ledger.append([row("retry", NOW + 1, key=key, run="r") for key in (done, dead, retried)])
        self.ledger.append(
            [row("completed", NOW + 2, key=done, run="r"), row("dead-letter", NOW + 2, key=dead, run="r")]
        )
        self.ledger.append([row("started", NOW + 3, key=under_way, run="r")])
        assert self.ledger.tally("r") == {"completed": 1, "dead-letter": 1, "retry": 1, "dispatched": 1, "started": 1}

    def test_what_says_nothing_about_an_outcome_takes_none_back(self) -> None:
        self.ledger.append([row("completed", run="r")])
        self.ledger.append([row("lease-lost", NOW + 1, run="r"), row("dispatched", NOW + 2, run="r")])
        assert self.ledger.tally("r") == {"completed": 1}

    def test_another_message_under_the_key_of_what_is_done_takes_nothing_back(self) -> None:
        done, known, refused = (RecordKey("", "j", name) for name in "abc")
        self.ledger.append([row("conflict", key=refused, run="r"), row("completed", NOW + 1, key=done, run="r")])
        self.ledger.append([row("duplicate", NOW + 1, key=known, run="r"), row("conflict", NOW + 2, key=done, run="r")])
        self.ledger.append([row(event, NOW + 3, key=known, run="r") for event in ("dead-letter", "redrive", "retry")])
        assert self.ledger.tally("r") == {"completed": 1, "duplicate": 1, "conflict": 1}
        self.ledger.append([row("completed", NOW + 4, key=refused, run="r")])
        assert self.ledger.tally("r") == {"completed": 2, "duplicate": 1}

    def test_a_dead_letter_that_was_sent_again_stands_as_what_came_of_it(self) -> None:
        self.ledger.append([row("dead-letter", run="r"), row("redrive", NOW + 1, run="r")])
        assert self.ledger.tally("r") == {"redrive": 1}
        self.ledger.append([row("completed", NOW + 2, run="r")])
        assert self.ledger.tally("r") == {"completed": 1}

    def test_a_tally_counts_its_own_run_and_rows_of_operations_only(self) -> None:
        self.ledger.append([row("completed", run="r"), row("worker-stopped", key=None, run="r")])
        self.ledger.append([row("retry", NOW + 1, run="r2"), row("retry", NOW + 2)])
        assert self.ledger.tally("r") == {"completed": 1}
        assert self.ledger.tally("r2") == {"retry": 1}
        assert self.ledger.tally("nobody's") == {}

    def test_operations_that_differ_only_in_scope_or_job_are_tallied_apart(self) -> None:
        keys = [RecordKey(scope, job, "k") for scope in ("", "t") for job in ("a", "b")]
        self.ledger.append([row("completed", key=key, run="r") for key in keys])
        assert self.ledger.tally("r") == {"completed": 4}
