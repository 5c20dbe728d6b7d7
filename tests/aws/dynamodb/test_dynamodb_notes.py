"""What people look for is found at any size of the table, and costs the workers no call."""

from __future__ import annotations

from typing import Any

import pytest

from onefold import errors
from onefold.contracts.store import Claimed, ManualDecision, RecordKey
from onefold.engines.aws.dynamodb import notes
from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.testing.records import KEPT_MS, NOW, ask, complete, unknown
from tests.aws.dynamodb.tables import OpenBooks
from tests.emulators.dynamodb_stub import Stub

NAMES = [f"key-{number}" for number in range(10)]


def finish(books: DynamoBackend, names: list[str], at_ms: int = NOW) -> None:
    answers = books.store.claim([ask(name, at_ms=at_ms) for name in names], at_ms)
    holds = [answer.hold for answer in answers if isinstance(answer, Claimed)]
    assert books.store.write([(hold, complete(at_ms=at_ms)) for hold in holds], at_ms) == [True] * len(names)


def statements(stub: Stub) -> list[str]:
    """The statements of batches from now on, each as `INSERT pk` or `UPDATE pk`."""
    seen: list[str] = []

    def note(operation: str, request: dict[str, Any], carry_out: Any) -> Any:
        for one in request.get("Statements", ()):
            is_insert = one["Statement"].startswith("INSERT")
            seen.append(f"INSERT {one['Parameters'][0]['S']}" if is_insert else "UPDATE")
        return carry_out()

    stub.interfere = note
    return seen


def test_a_job_is_noted_once_by_a_process_and_counts_ride_with_the_next_claims(
    stub: Stub, open_books: OpenBooks
) -> None:
    books = open_books(stub.url)
    stub.calls.clear()
    seen = statements(stub)
    finish(books, NAMES)
    assert seen == ["INSERT tenant"] * 10 + ["INSERT ~jobs"] + ["UPDATE"] * 10
    seen.clear()
    finish(books, [f"{name}-2" for name in NAMES])
    assert seen == ["INSERT tenant"] * 10 + ["INSERT ~done#2023-11-14T22"] + ["UPDATE"] * 10
    assert stub.calls == {"BatchExecuteStatement": 4}


def test_few_runs_are_noted_when_they_are_ten_seconds_old(stub: Stub, open_books: OpenBooks) -> None:
    books = open_books(stub.url)
    finish(books, ["a", "b"])
    seen = statements(stub)
    finish(books, ["c", "d"], NOW + 9_000)
    assert "INSERT ~done#2023-11-14T22" not in seen
    finish(books, ["e", "f"], NOW + 10_000)
    assert seen.count("INSERT ~done#2023-11-14T22") == 2  # one for each second


def test_a_full_batch_takes_no_riders(stub: Stub, open_books: OpenBooks) -> None:
    books = open_books(stub.url)
    stub.calls.clear()
    names = [f"{number}" for number in range(25)]
    finish(books, names)
    assert stub.calls == {"BatchExecuteStatement": 2}
    seen = statements(stub)
    finish(books, ["later"])
    assert seen.count("INSERT ~jobs") == 1


def test_a_note_that_was_not_written_is_written_later_and_nobody_waits(stub: Stub, open_books: OpenBooks) -> None:
    books = open_books(stub.url)
    finish(books, NAMES)
    plain, failing = stub.store._statement, [True]

    def statement(one: dict[str, Any]) -> dict[str, Any]:
        if failing and str(one["Parameters"][0].get("S")).startswith("~done"):
            return {"Error": {"Code": "ThrottlingError", "Message": "no"}}
        return plain(one)

    stub.store._statement = statement  # type: ignore[method-assign]
    finish(books, ["a", "b"])  # what people want to know is no reason for a worker to fail
    assert books.table.clock.waits_ms == []  # type: ignore[attr-defined]
    failing.clear()
    seen = statements(stub)
    finish(books, ["c", "d"])
    assert seen.count("INSERT ~done#2023-11-14T22") == 1


@pytest.fixture
def books(ministack: str, open_books: OpenBooks) -> DynamoBackend:
    return open_books(ministack)


def test_counts_of_several_processes_and_hours_are_added(
    books: DynamoBackend, ministack: str, open_books: OpenBooks
) -> None:
    other = open_books(ministack, table=books.table.name)
    hour_ms = 3_600_000
    for number, at_ms in enumerate((NOW, NOW + hour_ms, NOW + 2 * hour_ms)):
        finish(books, [f"a-{number}"], at_ms)
        finish(other, [f"b-{number}", f"c-{number}"], at_ms)
    other.close()
    assert books.records.count_completed(NOW, NOW + 2 * hour_ms + 1) == {"job": 9}
    assert books.records.count_completed(NOW + 1_000, NOW + 2 * hour_ms) == {"job": 3}
    assert books.records.count_completed(NOW - 90 * 86_400_000, NOW + 1) == {"job": 3}


def test_closing_writes_what_is_still_to_be_noted(books: DynamoBackend, ministack: str, open_books: OpenBooks) -> None:
    finish(books, ["a"])
    books.close()
    books.close()
    other = open_books(ministack, table=books.table.name, create=False)
    assert other.records.count_completed(NOW, NOW + 1) == {"job": 1}


def test_only_what_is_parked_is_listed_as_parked(books: DynamoBackend) -> None:
    answers = books.store.claim([ask(name) for name in NAMES], NOW)
    holds = [answer.hold for answer in answers if isinstance(answer, Claimed)]
    assert books.store.write([(hold, unknown(parked=True)) for hold in holds[:4]], NOW) == [True] * 4
    assert books.store.write([(holds[0], unknown(parked=True)), (holds[4], unknown())], NOW) == [False, True]
    assert books.records.settle(holds[1].key, ManualDecision(done=True, result=b"1", expires_at_ms=NOW + KEPT_MS), NOW)
    assert {record.key for record in books.records.scan(parked=True)} == {holds[place].key for place in (0, 2, 3)}
    assert books.records.scan(parked=True, status="completed") == []
    assert len(books.records.scan(parked=True, status="unknown", limit=2)) == 2


def test_a_lost_lease_leaves_a_note_that_lists_nothing(books: DynamoBackend) -> None:
    (answer,) = books.store.claim([ask("a")], NOW)
    assert isinstance(answer, Claimed)
    lost = answer.hold.__class__(answer.hold.key, "other", 1)
    assert books.store.write([(lost, unknown(parked=True))], NOW) == [False]
    assert books.records.scan(parked=True) == []


def test_more_tenants_than_can_be_looked_through_are_said(
    books: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    books.store.claim([ask(RecordKey(f"tenant-{number}", "job", "k")) for number in range(4)], NOW)
    monkeypatch.setattr(notes, "PAIRS_MAX", 3)
    with pytest.raises(errors.UsageError, match="more than 3 tenants and jobs"):
        books.records.find("k")


def test_a_key_is_found_whatever_its_tenant_and_job_are_called(books: DynamoBackend) -> None:
    keys = [
        RecordKey(scope, job, "k")
        for scope in ("", "~state", "a#b", "\u20ac" * 512)
        for job in ("j", "a#b%", "\u20ac" * 120)
    ]
    books.store.claim([ask(key) for key in keys[:6]], NOW)
    books.store.claim([ask(key) for key in keys[6:]], NOW)
    for _ in range(2):  # five notes go along with one call
        books.store.claim([ask(key) for key in keys], NOW)
    assert {record.key for record in books.records.find("k")} == set(keys)


def test_a_table_too_large_to_be_read_whole_is_said(books: DynamoBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(books, NAMES)
    assert len(books.records.scan()) == 10
    plain = books.table.client.scan
    monkeypatch.setattr(books.table.client, "scan", lambda **request: plain(Limit=2, **request))
    assert len(books.records.scan(status="completed")) == 10
    monkeypatch.setattr("onefold.engines.aws.dynamodb.records.PAGES_MAX", 3)
    with pytest.raises(errors.UsageError, match="more than 3 MB"):
        books.records.scan()
