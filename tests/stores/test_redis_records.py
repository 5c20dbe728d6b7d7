"""What is stored on a Redis server: the lists that operators read, the names of keys, and a record as bytes."""

from __future__ import annotations

import msgspec
import pytest
import redis

import onefold
from onefold import errors
from onefold.contracts.ledger import Row
from onefold.contracts.state import Change
from onefold.contracts.store import Hold, ManualDecision, OutboxItem, Record, RecordKey, Unreadable
from onefold.engines.redis import backend, records
from onefold.engines.redis.backend import RedisBackend
from onefold.engines.redis.layout import Names, decode, encode, key_at, text_of_key
from onefold.testing.records import KEPT_MS, KEY, NOW, ask, complete, fail, unknown
from tests.stores.claims import claimed
from tests.stores.redis_books import opened

NAMES = Names()


# -- what operators see ------------------------------------------------------------------------------------------------


def test_a_shelf_names_the_newest_only_but_every_parked_one(
    books: RedisBackend, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LISTED_MAX", 3)
    for status, outcome in (("failed", fail()), ("parked", unknown(parked=True))):
        for number in range(5):
            at_ms = NOW + number
            (hold,) = claimed(books.store.claim([ask(f"{status}-{number}", at_ms=at_ms)], at_ms))
            books.store.write([(hold, outcome)], at_ms)
    assert [record.key.key for record in books.records.scan(status="failed")] == ["failed-4", "failed-3", "failed-2"]
    assert len(books.records.scan(parked=True)) == 5
    # A record that no shelf names exists nevertheless.
    assert len(books.records.find("failed-0")) == 1


def test_a_key_is_looked_for_a_few_jobs_at_a_time(
    books: RedisBackend, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a large set in one command would keep every worker of the server waiting."""
    monkeypatch.setattr(records, "_PAGE", 10)
    monkeypatch.setattr(backend, "_PAGE", 10)
    jobs = [RecordKey(f"tenant-{number:03d}", "job " + "x" * 80, "key") for number in range(200)]
    for number, key in enumerate(jobs):
        books.store.claim([ask(key, at_ms=NOW + number)], NOW + number)
    books.ledger.append([Row(at_ms=NOW, event="told", key=key) for key in jobs])
    direct.config_resetstat()
    assert [record.key for record in books.records.find("key", limit=3)] == jobs[:-4:-1]
    assert books.ledger.find_keys("key", limit=3) == jobs[:3]
    calls = direct.info("commandstats")
    assert "cmdstat_smembers" not in calls
    assert calls["cmdstat_sscan"]["calls"] >= 20


def test_names_of_records_that_went_or_moved_on_are_passed_over(
    books: RedisBackend, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_PAGE", 2)
    for number in range(9):
        (hold,) = claimed(books.store.claim([ask(f"key-{number}", at_ms=NOW + number)], NOW + number))
        books.store.write([(hold, fail())], NOW + number)
    for number in (8, 7, 6, 3):
        direct.delete(NAMES.record(RecordKey("tenant", "job", f"key-{number}")))
    books.store.claim([ask("key-7", at_ms=NOW + 20)], NOW + 20)  # absent, so it is not removed from its old place
    assert [record.key.key for record in books.records.scan(status="failed", limit=3)] == ["key-5", "key-4", "key-2"]
    assert [record.key.key for record in books.records.scan(limit=3)] == ["key-7", "key-5", "key-4"]
    assert len(books.records.scan()) == 6


def test_a_record_stands_on_one_shelf(books: RedisBackend, direct: redis.Redis) -> None:
    for number, outcome in enumerate((complete(), fail(), unknown(), unknown(parked=True))):
        (hold,) = claimed(books.store.claim([ask(f"{number}")], NOW))
        books.store.write([(hold, outcome)], NOW)
    assert books.records.settle(hold.key, ManualDecision(done=False, result=b"", expires_at_ms=NOW + KEPT_MS), NOW)
    assert [direct.zcard(shelf) for shelf in NAMES.shelves] == [0, 1, 1, 1, 1, 0]


def test_the_floor_of_versions_never_falls(books: RedisBackend) -> None:
    state = books.state
    assert (
        state.put([Change("a", b"1", 0), Change("a", b"2", 1), Change("a", b"3", 2), Change("b", b"1", 0)])
        == [True] * 4
    )
    assert state.put([Change("a", None, 3), Change("b", None, 1)]) == [True, True]
    assert state.put([Change("a", b"4", 0)]) == [True]
    assert [one and one.version for one in state.get(["a"])] == [4]


def test_two_prefixes_know_nothing_of_each_other(server: str) -> None:
    with opened(f"{server}?prefix=a") as one, opened(f"{server}?prefix=b", empty=False) as other:
        claimed(one.store.claim([ask()], NOW))
        assert other.store.read([KEY], NOW) == [None]
        assert other.records.scan() == other.records.find("key") == []
        claimed(other.store.claim([ask()], NOW))


# -- names and values --------------------------------------------------------------------------------------------------


def test_no_two_operations_share_a_name_and_every_name_tells_its_operation() -> None:
    texts = ["", "a", "|", "%", "%7C", "a|b", "%25", "a%", "\n", "é"]
    keys = [RecordKey(scope, job, key) for scope in texts for job in texts for key in texts]
    assert len({text_of_key(key) for key in keys}) == len(keys)
    assert [key_at(text_of_key(key)) for key in keys] == keys


def test_a_record_comes_back_as_it_was_whatever_its_result_is(books: RedisBackend, direct: redis.Redis) -> None:
    for number, result in enumerate((b"", b"null", b'{"a":\n1}\n', b"\x00\xff\n")):
        (hold,) = claimed(books.store.claim([ask(f"{number}")], NOW))
        assert books.store.write([(hold, complete(result))], NOW) == [True]
        assert books.store.write([(hold, complete(result))], NOW) == [True]
        (record,) = books.store.read([hold.key], NOW)
        assert record is not None
        assert record.result == result


def test_a_clean_record_is_short_and_fields_of_later_versions_are_passed_over(
    books: RedisBackend, direct: redis.Redis
) -> None:
    (hold,) = claimed(books.store.claim([ask(message_id="m" * 36)], NOW))
    assert books.store.write([(hold, complete())], NOW) == [True]
    value = direct.get(NAMES.record(KEY))
    assert isinstance(value, bytes)
    assert len(value) < 400
    later = value[:16] + b'{"of later versions":[1],' + value[17:]
    assert decode(KEY, later).record == decode(KEY, value).record


def test_every_field_is_kept() -> None:
    names = Record.__struct_fields__
    texts = {"status": "unknown", "owner": "A", "fingerprint": "1" * 32, "message_id": "m"}
    fields: dict[str, object] = {name: texts.get(name, number + 1) for number, name in enumerate(names)}
    fields |= {"key": KEY, "parked": True, "doubt": True, "budget_closed": True, "result": b"1"}
    fields |= {"failure": fail().failure, "outbox": [OutboxItem(queue="q", body="b", attributes={"a": "1"})]}
    record = msgspec.convert({name: fields[name] for name in names}, Record)
    assert decode(KEY, encode(record, b"s" * 16)).record == record


@pytest.mark.parametrize("text", ["something else", "short", ""])
def test_a_value_of_somebody_elses_stops_its_operation_and_no_other(
    books: RedisBackend, direct: redis.Redis, text: str
) -> None:
    direct.set(NAMES.record(KEY), text)
    other = RecordKey(KEY.scope, KEY.job, "other")
    foreign, taken = books.store.claim([ask(), ask(other)], NOW)
    assert isinstance(foreign, Unreadable)
    assert "job 'key' is not a record" in foreign.what
    assert "prefix of its own" in foreign.todo
    assert foreign.meaning.endswith(f"The Redis key is {NAMES.record(KEY)}")
    assert "redis://host:port/db?prefix=NAME:" in foreign.todo
    assert "not known under the new one" in foreign.todo
    assert direct.get(NAMES.record(KEY)) == text.encode()
    (hold,) = claimed([taken])
    assert books.store.write([(hold, complete())], NOW) == [True]
    with pytest.raises(errors.StorageError, match="is not a record"):
        books.store.read([KEY], NOW)
    with pytest.raises(errors.StorageError, match="is not a record"):  # why and status say what a call says
        books.records.find(KEY.key)
    assert [one.key for one in books.records.find("other")] == [other]


def test_history_and_state_of_somebody_elses_are_errors_of_the_store(books: RedisBackend, direct: redis.Redis) -> None:
    direct.zadd(NAMES.history(KEY), {"junk": 1})
    with pytest.raises(errors.StorageError, match="history") as caught:
        books.ledger.of_key(KEY)
    assert NAMES.history(KEY) in caught.value.meaning
    direct.hset(NAMES.state, "operation/pay", "junk")
    with pytest.raises(errors.StorageError, match="state") as caught:
        books.state.get(["operation/pay"])
    assert f"{NAMES.state}, field operation/pay" in caught.value.meaning


def test_a_call_is_not_made_where_something_else_is_stored(books: RedisBackend, direct: redis.Redis) -> None:
    called: list[str] = []

    @onefold.once(key="{order}", name="pay", store=books.store)
    def pay(order: str) -> None:
        called.append(order)

    direct.set(NAMES.record(RecordKey("", "pay", "o-1")), "something else")
    for _ in range(2):
        with pytest.raises(errors.StorageError, match="is not a record"):
            pay("o-1")
    pay("o-2")
    assert called == ["o-2"]


def test_a_run_whose_record_was_overwritten_has_lost_it(books: RedisBackend, direct: redis.Redis) -> None:
    (hold,) = claimed(books.store.claim([ask()], NOW))
    direct.set(NAMES.record(KEY), "something else")
    assert books.store.renew([hold], NOW + 60_000) == [False]
    assert books.store.write([(hold, complete())], NOW) == [False]
    assert direct.get(NAMES.record(KEY)) == b"something else"


@pytest.mark.parametrize("kind", ["list", "hash"])
def test_a_value_of_another_type_stops_its_operation_and_no_other(
    books: RedisBackend, direct: redis.Redis, kind: str
) -> None:
    name, other = NAMES.record(KEY), RecordKey("", "job", "other")
    if kind == "list":
        direct.rpush(name, "something else")
    else:
        direct.hset(name, "something", "else")
    foreign, taken = books.store.claim([ask(), ask(other)], NOW)
    assert isinstance(foreign, Unreadable)
    assert "job 'key' is not a record" in foreign.what
    assert "redis://host:port/db?prefix=NAME:" in foreign.todo
    (hold,) = claimed([taken])
    assert books.store.write([(Hold(KEY, "w", 1), complete()), (hold, complete())], NOW) == [False, True]
    assert direct.type(name) == kind.encode()


@pytest.mark.parametrize("stored", [b"\xff" * 40, b"s" * 16 + b'{"status":"\xff"}', b"[]"])
def test_no_bytes_under_a_records_name_end_a_claim(books: RedisBackend, direct: redis.Redis, stored: bytes) -> None:
    direct.set(NAMES.record(KEY), stored)
    (found,) = books.store.claim([ask()], NOW)
    assert isinstance(found, Unreadable)
