"""Two layouts of a table: no process works in one that is not the table's, and moving between them loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from onefold import errors
from onefold.contracts.ledger import Row
from onefold.contracts.store import Claimed, Complete, Completed, Fail, RecordKey, Unknown
from onefold.engines.aws.dynamodb import migration, schema
from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.engines.aws.dynamodb.items import MARKER
from onefold.testing.records import BROKEN, KEPT_MS, LEASE_MS, NOW, ask
from tests.aws.dynamodb.tables import OpenBooks

LATER = NOW + LEASE_MS + 1


def silent(_: str) -> None:
    """Nobody is told."""


def reopened(books: DynamoBackend, url: str, open_books: OpenBooks, layout: int) -> DynamoBackend:
    return open_books(url, table=books.table.name, batched=False, layout=layout)


def old_table(url: str, open_books: OpenBooks, *, marked: bool) -> DynamoBackend:
    """A table as earlier versions left it: none of them marked it."""
    books = open_books(url, batched=False)
    if not marked:
        books.table.call("delete_item", Key=MARKER)
    return books


def work(books: DynamoBackend, number: int) -> None:
    """Records of each kind, of three tenants and two jobs, with keys that need care."""
    for place in range(number):
        key = RecordKey(
            ("", "-t", "~u")[place % 3], ("book", "ship#x")[place % 2], f"k{place}" + "x" * (place % 4 * 700)
        )
        (answer,) = books.store.claim([ask(key)], NOW)
        assert isinstance(answer, Claimed)
        outcomes = (
            Complete(result=b'{"at":%d}' % place, expires_at_ms=NOW + KEPT_MS),
            Fail(failure=BROKEN, expires_at_ms=NOW + KEPT_MS),
            Unknown(failure=BROKEN, parked=True, crashed=False, expires_at_ms=NOW + KEPT_MS),
        )
        if place % 5 != 4:  # every fifth process died
            assert books.store.write([(answer.hold, outcomes[place % 5 % 3])], NOW) == [True]
    books.ledger.append([Row(at_ms=NOW, event="held", key=RecordKey("", "book", "k0"), run="r")])
    books.records.count_completed(NOW, NOW + 1)


def standing(books: DynamoBackend) -> list[Any]:
    found = books.records.scan(limit=1_000)
    return sorted(found, key=lambda record: (record.key.scope, record.key.job, record.key.key))


@pytest.fixture(params=["moto", "ministack"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_a_process_of_layout_2_refuses_a_table_that_was_used_in_layout_1(moto: str, open_books: OpenBooks) -> None:
    for marked in (True, False):
        books = old_table(moto, open_books, marked=marked)
        (answer,) = books.store.claim([ask("a")], NOW)
        assert isinstance(answer, Claimed)
        new = reopened(books, moto, open_books, 2)
        for _ in range(2):
            with pytest.raises(errors.UsageError, match=r"layout 1.*onefold records migrate"):
                new.store.claim([ask("a", "B")], LATER)
            with pytest.raises(errors.UsageError, match="layout 1"):
                new.check()
        assert new.table.bare().get(MARKER) == books.table.get(schema.MARKER)
        (again,) = reopened(books, moto, open_books, 1).store.claim([ask("a", "B")], LATER)
        assert isinstance(again, Claimed)
        assert again.hold.fence == 2


def test_a_process_of_layout_1_refuses_a_table_of_layout_2(moto: str, open_books: OpenBooks) -> None:
    books = open_books(moto, batched=False, layout=2)
    books.store.claim([ask("a")], NOW)
    with pytest.raises(errors.UsageError, match=r"layout 2.*layout=2"):
        reopened(books, moto, open_books, 1).store.claim([ask("a")], NOW)


def test_the_first_process_on_an_empty_table_makes_it_one_of_layout_2(url: str, open_books: OpenBooks) -> None:
    books = open_books(url, batched=False, layout=2)
    books.table.call("delete_item", Key=MARKER)  # as CloudFormation makes a table
    first, second = (reopened(books, url, open_books, 2) for _ in range(2))
    (answer,) = first.store.claim([ask("a")], NOW)
    assert isinstance(answer, Claimed)
    (other,) = second.store.claim([ask("a", "B")], NOW)
    assert not isinstance(other, Claimed)
    item = books.table.get(MARKER)
    assert item is not None
    assert item["layout"] == {"N": "2"}


def test_a_table_that_create_makes_has_its_layout_at_once(moto: str, open_books: OpenBooks) -> None:
    for layout in (1, 2):
        books = open_books(moto, create=False, layout=layout)
        schema.create(books.table.bare())
        item = books.table.bare().get(MARKER)
        assert item is not None
        assert item["layout"] == {"N": str(layout)}


def test_the_layout_is_asked_for_once(moto: str, open_books: OpenBooks) -> None:
    books = reopened(open_books(moto, batched=False, layout=2), moto, open_books, 2)
    calls: list[str] = []
    client = books.table.bare().client
    client.meta.events.register("before-call.dynamodb", lambda model, **_: calls.append(model.name))
    books.store.claim([ask("a"), ask("b")], NOW)
    books.store.read([RecordKey("", "job", "a")], NOW)
    assert calls[0] == "GetItem"
    assert calls.count("GetItem") == 1


def test_records_of_one_tenant_have_partitions_of_their_own(moto: str, open_books: OpenBooks) -> None:
    books = open_books(moto, batched=False, layout=2)
    books.store.claim([ask(f"k{number}") for number in range(20)], NOW)
    items = [item for item in books.table.scan(1) if "fence" in item]
    assert len({item["pk"]["S"] for item in items}) == 20
    books.ledger.append([Row(at_ms=NOW, event="held", key=RecordKey("", "job", f"k{number}")) for number in range(40)])
    days = {item["pk"]["S"] for item in books.table.scan(1) if item["pk"]["S"].startswith("~day#")}
    assert len(days) > 8


def test_a_table_is_migrated_and_nothing_is_done_again(url: str, open_books: OpenBooks) -> None:
    old = old_table(url, open_books, marked=False)
    work(old, 30)
    before, held = standing(old), old.records.scan(parked=True, limit=100)
    counted, story = old.records.count_completed(NOW, NOW + 1), old.ledger.of_run("r")
    bare = old.table.bare()
    bare.clock.advance(LATER - bare.clock.now_ms())  # type: ignore[attr-defined]
    looked = migration.survey(bare, silent)
    assert (looked.records, looked.copied, looked.running) == (30, 0, 0)
    assert reopened(old, url, open_books, 1).store.read([before[0].key], NOW) == [before[0]], "looking changes nothing"

    done = migration.migrate(bare, silent)
    assert (done.records, done.copied) == (30, 0), "the last pass found each beside its copy"
    new = reopened(old, url, open_books, 2)
    assert standing(new) == before
    assert {one.key for one in new.records.scan(parked=True, limit=100)} == {one.key for one in held} != set()
    assert new.records.count_completed(NOW, NOW + 1) == counted != {}
    assert new.ledger.of_run("r") == new.ledger.between(NOW, NOW + 1) == story
    assert new.records.find("k0") == [one for one in before if one.key.key == "k0"] != []
    for record in before:
        (answer,) = new.store.claim([ask(record.key, "B", at_ms=LATER)], LATER)
        assert isinstance(answer, Completed) == (record.status == "completed"), record
        if isinstance(answer, Completed):
            assert answer.result == record.result
    with pytest.raises(errors.UsageError, match="layout 2"):
        reopened(old, url, open_books, 1).store.claim([ask("new")], LATER)
    assert migration.migrate(bare, silent).done
    assert migration.survey(bare, silent).done


class KilledError(BaseException):
    """The process ends here."""


def test_a_migration_that_is_killed_at_any_call_goes_on_at_the_next_try(moto: str, open_books: OpenBooks) -> None:
    old = old_table(moto, open_books, marked=True)
    work(old, 12)
    before = standing(old)
    bare = old.table.bare()
    bare.clock.advance(LATER - bare.clock.now_ms())  # type: ignore[attr-defined]
    left = -1

    def before_call(**_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    bare.client.meta.events.register("before-call.dynamodb", before_call)
    kills = 0
    for number in range(1, 1_000):
        left = number
        try:
            found = migration.migrate(bare, silent)
        except KilledError:
            kills += 1
            left = -1
            item = bare.get(MARKER)
            assert item is not None
            assert item["layout"] == {"N": "1"}, "never called migrated before it is"
        else:
            break
    assert kills > 5
    left = -1
    assert found.done or found.records == 12
    new = reopened(old, moto, open_books, 2)
    assert standing(new) == before
    for record in before:
        (answer,) = new.store.claim([ask(record.key, "B", at_ms=LATER)], LATER)
        assert isinstance(answer, Completed) == (record.status == "completed")


def test_a_lease_stops_a_migration_and_the_table_stays_as_it_was(moto: str, open_books: OpenBooks) -> None:
    old = old_table(moto, open_books, marked=False)
    (running,) = old.store.claim([ask("a")], NOW)
    assert isinstance(running, Claimed)
    bare = old.table.bare()
    bare.clock.advance(NOW - bare.clock.now_ms())  # type: ignore[attr-defined]
    with pytest.raises(errors.UsageError, match=r"1 of the records .* hold a lease"):
        migration.migrate(bare, silent)
    with pytest.raises(errors.UsageError, match="layout 1"):
        reopened(old, moto, open_books, 2).store.claim([ask("a")], NOW)
    finished = Complete(result=b"1", expires_at_ms=NOW + KEPT_MS)
    assert reopened(old, moto, open_books, 1).store.write([(running.hold, finished)], NOW) == [True]
    assert migration.migrate(bare, silent).records == 1


def test_a_record_that_changes_while_copies_are_made_is_copied_again(moto: str, open_books: OpenBooks) -> None:
    """By a process of layout 1 that nobody stopped; a run that it begins ends the attempt."""
    old = old_table(moto, open_books, marked=False)
    (held,) = old.store.claim([ask("a")], NOW)
    assert isinstance(held, Claimed)
    bare = old.table.bare()
    bare.clock.advance(LATER - bare.clock.now_ms())  # type: ignore[attr-defined]
    told: list[str] = []

    def tell(text: str) -> None:
        if text == "comparing" and text not in told:  # copied by now
            done = Complete(result=b'"late"', expires_at_ms=NOW + KEPT_MS)
            assert old.store.write([(held.hold, done)], NOW) == [True]
        told.append(text)

    migration.migrate(bare, tell)
    assert told.count("comparing") == 2
    (answer,) = reopened(old, moto, open_books, 2).store.claim([ask("a", "B", at_ms=LATER)], LATER)
    assert isinstance(answer, Completed)
    assert answer.result == b'"late"'


def test_a_run_that_begins_meanwhile_opens_the_table_again(moto: str, open_books: OpenBooks) -> None:
    old = old_table(moto, open_books, marked=False)
    old.store.claim([ask("a")], NOW)
    bare = old.table.bare()
    bare.clock.advance(LATER - bare.clock.now_ms())  # type: ignore[attr-defined]

    def tell(text: str) -> None:
        if text == "comparing":
            with pytest.raises(errors.UsageError, match="being moved to layout 2"):
                reopened(old, moto, open_books, 1).store.claim([ask("c")], LATER)
            old.store.claim([ask("b", at_ms=LATER)], LATER)

    with pytest.raises(errors.UsageError, match="hold a lease"):
        migration.migrate(bare, tell)
    assert [record.key.key for record in standing(old)] == ["a", "b"], "copies are no records of layout 1"
    (answer,) = reopened(old, moto, open_books, 1).store.claim([ask("c", at_ms=LATER)], LATER)
    assert isinstance(answer, Claimed)
    with pytest.raises(errors.UsageError, match="layout 1"):
        reopened(old, moto, open_books, 2).store.claim([ask("c")], LATER)


def test_a_copy_that_layout_2_has_used_is_never_overwritten(moto: str, open_books: OpenBooks) -> None:
    """Two migrations at once: the slower one is still copying when the table is in use already."""
    old = old_table(moto, open_books, marked=False)
    old.store.claim([ask("a")], NOW)
    bare = old.table.bare()
    bare.clock.advance(LATER - bare.clock.now_ms())  # type: ignore[attr-defined]
    slow = list(bare.scan(1))
    migration.migrate(bare, silent)
    new = reopened(old, moto, open_books, 2)
    (answer,) = new.store.claim([ask("a", "B", at_ms=LATER)], LATER)
    assert isinstance(answer, Claimed)
    with pytest.raises(errors.StorageError, match="written by another process"):
        migration._copied(bare, [item for item in slow if "fence" in item])
    assert new.store.write([(answer.hold, Complete(result=b"1", expires_at_ms=LATER + KEPT_MS))], LATER) == [True]
