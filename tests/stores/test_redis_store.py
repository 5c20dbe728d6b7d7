"""What the Redis store must do beyond the contract: few calls, races, lost answers, lost scripts, times to live."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from onefold import errors, limits
from onefold.contracts.ledger import Row
from onefold.contracts.state import Change
from onefold.contracts.store import Answer, Claimed, Completed, ManualDecision, OutboxItem, Running
from onefold.engines.redis import records
from onefold.engines.redis.backend import RedisBackend
from onefold.engines.redis.layout import Names
from onefold.engines.redis.records import GRACE_MS
from onefold.entropy import SystemEntropy
from onefold.testing.records import KEPT_MS, KEY, LEASE_MS, NOW, ask, complete, fail, unknown
from tests.stores.claims import claimed
from tests.stores.redis_books import opened
from tests.stores.wires import lossy

NAMES = Names()


def together(count: int, work: Callable[[int], None]) -> None:
    """Call `work(number)` in this many threads at once; an exception of any of them is raised here."""
    ready = threading.Barrier(count)
    raised: list[BaseException] = []

    def run(number: int) -> None:
        ready.wait(30)
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for error in raised:
        raise error


# -- calls -------------------------------------------------------------------------------------------------------------


def calls(direct: redis.Redis) -> dict[str, int]:
    """Commands that clients have sent since the last call of this; those that a script makes are not counted."""
    stats = direct.info("commandstats")
    direct.config_resetstat()
    inside = ("config", "info", "client", "exists", "get", "set", "zadd", "zrem", "zcard", "sadd", "hincrby", "pexpire")
    names = {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in stats.items()}
    return {name: count for name, count in names.items() if not name.startswith(inside)}


def test_ten_records_cost_one_call_each_way(books: RedisBackend, direct: redis.Redis) -> None:
    batch = [ask(f"key-{number}") for number in range(10)]
    books.store.claim([ask("the script is loaded")], NOW)
    calls(direct)
    holds = claimed(books.store.claim(batch, NOW))
    assert calls(direct) == {"evalsha": 1}
    assert all(books.store.renew(holds, NOW + 2 * LEASE_MS))
    assert calls(direct) == {"evalsha": 1}
    assert all(books.store.write([(hold, complete()) for hold in holds], NOW))
    assert calls(direct) == {"evalsha": 1}
    duplicates = books.store.claim(batch, NOW)
    assert all(isinstance(answer, Completed) for answer in duplicates)
    assert calls(direct) == {"evalsha": 1}


def test_a_takeover_and_another_process_cost_one_call_more(
    books: RedisBackend, server: str, direct: redis.Redis
) -> None:
    batch = [ask(f"key-{number}", start=False) for number in range(10)]
    claimed(books.store.claim(batch, NOW))
    with opened(server, empty=False) as other:
        calls(direct)
        later = [ask(f"key-{number}", "B", at_ms=NOW + LEASE_MS, start=False) for number in range(10)]
        holds = claimed(other.store.claim(later, NOW + LEASE_MS))
        assert calls(direct) == {"evalsha": 2}
        assert all(other.store.start(holds, NOW + LEASE_MS))
        assert calls(direct) == {"evalsha": 1}
        assert all(books.store.write([(hold, complete()) for hold in holds], NOW + LEASE_MS))
        assert calls(direct) == {"evalsha": 2}  # this process had cached other records


def test_a_batch_larger_than_a_call_is_answered_in_order(books: RedisBackend) -> None:
    count = 2 * records.RECORDS_PER_CALL + 5
    holds = claimed(books.store.claim([ask(f"key-{number}") for number in range(count)], NOW))
    assert [hold.key.key for hold in holds] == [f"key-{number}" for number in range(count)]
    assert books.store.write([(hold, complete()) for hold in holds], NOW) == [True] * count


def test_what_changes_nothing_is_not_written(books: RedisBackend, direct: redis.Redis) -> None:
    (hold,) = claimed(books.store.claim([ask()], NOW))
    value = direct.get(NAMES.record(KEY))
    assert books.store.start([hold], NOW) == [True]  # the claim had started it
    assert direct.get(NAMES.record(KEY)) == value
    assert books.store.write([(hold, complete())], NOW) == [True]
    value = direct.get(NAMES.record(KEY))
    assert books.store.write([(hold, complete())], NOW) == [True]
    assert books.store.clear_outbox([hold]) == [True]
    assert direct.get(NAMES.record(KEY)) == value


def test_a_process_remembers_only_what_it_is_in_the_middle_of(
    books: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesses = books.store._changer._guesses
    holds = claimed(books.store.claim([ask(f"key-{number}") for number in range(6)], NOW))
    assert list(guesses) == [hold.key for hold in holds]
    outbox = [OutboxItem(queue="q", body="{}")]
    assert all(books.store.write([(holds[0], complete()), (holds[1], fail()), (holds[2], complete(b"1", outbox))], NOW))
    assert list(guesses) == [hold.key for hold in [*holds[3:], holds[2]]]
    assert books.store.clear_outbox([holds[2]]) == [True]
    assert list(guesses) == [hold.key for hold in holds[3:]]
    monkeypatch.setattr(records, "_GUESSES_MAX", 3)
    books.store.claim([ask("one more")], NOW)
    assert len(guesses) == 3
    assert all(books.store.renew(holds[3:], NOW + LEASE_MS))  # what was forgotten is read again


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_ms", [NOW, NOW + LEASE_MS], ids=["fresh", "takeover"])
def test_of_sixteen_who_claim_one_operation_one_gets_it(server: str, at_ms: int) -> None:
    with opened(server) as first:
        processes = [RedisBackend.open(server, entropy=SystemEntropy()) for _ in range(16)]
        for number in range(20):
            key = f"key-{number}"
            if at_ms > NOW:
                claimed(first.store.claim([ask(key, "dead")], NOW))
            answers: list[Answer] = []

            def work(number: int, key: str = key, answers: list[Answer] = answers) -> None:
                answers.extend(processes[number].store.claim([ask(key, f"owner-{number}", at_ms=at_ms)], at_ms))

            together(16, work)
            holds = [answer.hold for answer in answers if isinstance(answer, Claimed)]
            running = [answer for answer in answers if isinstance(answer, Running)]
            assert (len(holds), len(running)) == (1, 15)
            assert {(one.owner, one.fence) for one in running} == {(holds[0].owner, holds[0].fence)}
            assert holds[0].fence == (1 if at_ms == NOW else 2)
        for process in processes:
            process.close()


def test_of_one_process_sixteen_threads_share_the_work_and_nothing_is_done_twice(
    books: RedisBackend, direct: redis.Redis
) -> None:
    """Threads of one process guess from one cache; still, of two equal claims at one instant only one may succeed."""
    keys = [f"key-{number}" for number in range(60)]
    done: list[str] = []

    def work(number: int) -> None:
        mine = keys[number:] + keys[:number] if number % 2 else keys[number::-1] + keys[:number:-1]
        for first in range(0, len(mine), 10):
            batch = [ask(key, "A") for key in mine[first : first + 10]]
            holds = [answer.hold for answer in books.store.claim(batch, NOW) if isinstance(answer, Claimed)]
            assert all(books.store.start(holds, NOW))
            assert all(books.store.write([(hold, complete()) for hold in holds], NOW))
            done.extend(hold.key.key for hold in holds)

    together(16, work)
    assert sorted(done) == sorted(keys)
    assert books.records.count_completed(NOW, NOW + 1000) == {"job": 60}
    assert {record.attempts for record in books.records.scan(limit=100)} == {1}


def test_a_record_that_never_stands_still_is_given_up(books: RedisBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between each read and each write, somebody else changes the record."""
    hold = claimed(books.store.claim([ask()], NOW))[0]
    other = RedisBackend(books._server, NAMES, SystemEntropy())
    plain = books._server.run

    def run(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(books._server, "run", plain)
        assert other.store.renew([hold], NOW + LEASE_MS) == [True]
        monkeypatch.setattr(books._server, "run", run)
        return plain(*arguments, **options)

    monkeypatch.setattr(books._server, "run", run)
    with pytest.raises(errors.TransientError, match="Others changed a record 50 times"):
        books.store.renew([hold], NOW + LEASE_MS)


# -- lost answers and lost scripts ---------------------------------------------------------------------------------------


@pytest.fixture
def wired(server: str) -> Iterator[tuple[RedisBackend, Callable[[int], None]]]:
    """A store behind a wire, and a function that makes the wire swallow the next answers."""
    with lossy(int(server.rpartition(":")[2])) as wire, opened(f"redis://127.0.0.1:{wire.port}") as books:
        books.store.claim([ask("the scripts are loaded")], NOW)
        books.state.put([Change("the scripts are loaded", None, 0)])
        books.ledger.append([Row(at_ms=0, event="the scripts are loaded")])
        yield books, lambda count: setattr(wire, "losing", count)


def test_a_lost_answer_is_asked_again_and_counts_once(
    wired: tuple[RedisBackend, Callable[[int], None]], direct: redis.Redis
) -> None:
    books, lose = wired
    item = OutboxItem(queue="q", body="{}")
    lose(1)
    (hold,) = claimed(books.store.claim([ask(start=False)], NOW))
    assert hold.fence == 1
    lose(1)
    assert books.store.start([hold], NOW) == [True]
    lose(1)
    assert books.store.renew([hold], NOW + LEASE_MS) == [True]
    lose(1)
    assert books.store.write([(hold, complete(outbox=[item]))], NOW) == [True]
    lose(1)
    assert books.store.clear_outbox([hold]) == [True]
    assert direct.keys("{of:}completed:*") == [NAMES.completed(NOW // limits.MINUTE_MS).encode()]
    (record,) = books.store.read([KEY], NOW)
    assert record is not None
    assert (record.status, record.fence, record.attempts, record.outbox) == ("completed", 1, 1, [])
    assert books.records.count_completed(NOW, NOW + 1000) == {"job": 1}


def test_a_settlement_whose_answer_was_lost_was_made_once(wired: tuple[RedisBackend, Callable[[int], None]]) -> None:
    books, lose = wired
    (hold,) = claimed(books.store.claim([ask()], NOW))
    assert books.store.write([(hold, unknown(parked=True))], NOW) == [True]
    lose(1)
    assert books.records.settle(KEY, ManualDecision(done=True, result=b"1", expires_at_ms=NOW + KEPT_MS), NOW)
    assert books.records.count_completed(NOW, NOW + 1000) == {"job": 1}


def test_an_answer_lost_twice_is_an_error_and_asking_again_is_safe(
    wired: tuple[RedisBackend, Callable[[int], None]],
) -> None:
    books, lose = wired
    (hold,) = claimed(books.store.claim([ask()], NOW))
    lose(2)
    with pytest.raises(errors.TransientError, match="the connection"):
        books.store.write([(hold, complete())], NOW)
    assert books.store.write([(hold, complete())], NOW) == [True]
    assert books.records.count_completed(NOW, NOW + 1000) == {"job": 1}
    for change in (
        lambda: books.state.put([Change("a", b"1", 0)]),
        lambda: books.ledger.append([Row(at_ms=NOW, event="sent")]),
    ):
        lose(1)
        with pytest.raises(errors.TransientError):
            change()
    assert [one and one.value for one in books.state.get(["a"])] == [b"1"]
    assert len(books.ledger.between(NOW, NOW + 1)) == 1


def test_on_a_bad_wire_nobody_gets_what_another_has(wired: tuple[RedisBackend, Callable[[int], None]]) -> None:
    """Sixteen threads of two owners, whose answers are often lost: asking again must not give out a run twice."""
    books, lose = wired
    keys = [f"key-{number}" for number in range(40)]
    mine: dict[str, list[str]] = {key: [] for key in keys}

    def work(number: int) -> None:
        for key in keys:
            if number == 0:
                lose(3)
            try:
                (answer,) = books.store.claim([ask(key, f"owner-{number % 2}")], NOW)
                if isinstance(answer, Claimed):
                    mine[key].append(answer.hold.owner)
                    assert books.store.write([(answer.hold, complete())], NOW) == [True]
            except errors.TransientError:
                continue  # lost twice: a claim that may have been made, or a completion

    together(16, work)
    assert max(len(owners) for owners in mine.values()) == 1
    assert any(mine.values())


def test_a_server_that_forgot_its_scripts_is_taught_them_again(books: RedisBackend, direct: redis.Redis) -> None:
    (hold,) = claimed(books.store.claim([ask()], NOW))
    direct.script_flush()
    assert books.store.write([(hold, complete())], NOW) == [True]
    direct.script_flush()
    assert books.state.put([Change("a", b"1", 0)]) == [True]
    direct.script_flush()
    books.ledger.append([Row(at_ms=NOW, event="sent")])
    assert len(books.ledger.between(NOW, NOW + 1)) == 1


# -- lives -------------------------------------------------------------------------------------------------------------


def life_ms(direct: redis.Redis) -> int | None:
    """How long the server keeps KEY's record, rounded up to a second; None: for ever."""
    left_ms = direct.pttl(NAMES.record(KEY))
    return None if left_ms == -1 else -(-left_ms // 1000) * 1000


def test_redis_forgets_a_record_a_day_after_its_end_and_never_one_that_is_parked(
    books: RedisBackend, direct: redis.Redis
) -> None:
    (hold,) = claimed(books.store.claim([ask()], NOW))
    assert life_ms(direct) == KEPT_MS + GRACE_MS
    assert books.store.renew([hold], NOW + 2 * KEPT_MS) == [True]  # a lease that outlives the record's own end
    assert life_ms(direct) == 2 * KEPT_MS + GRACE_MS
    assert books.store.write([(hold, unknown(parked=True))], NOW) == [True]
    assert life_ms(direct) is None
    now_ms = NOW + 100 * KEPT_MS
    assert books.records.settle(KEY, ManualDecision(done=True, result=b"1", expires_at_ms=now_ms + KEPT_MS), now_ms)
    assert life_ms(direct) == KEPT_MS + GRACE_MS


def test_an_outcome_that_comes_after_the_records_end_is_kept_for_the_grace(
    books: RedisBackend, direct: redis.Redis
) -> None:
    (hold,) = claimed(books.store.claim([ask()], NOW))
    assert books.store.write([(hold, fail())], NOW + 3 * KEPT_MS) == [True]
    assert life_ms(direct) == GRACE_MS


def test_counts_and_history_go_by_themselves(books: RedisBackend, direct: redis.Redis) -> None:
    (hold,) = claimed(books.store.claim([ask()], NOW))
    books.store.write([(hold, complete())], NOW)
    assert 0 < direct.pttl(NAMES.completed(NOW // limits.MINUTE_MS)) <= limits.DAY_MS + 2 * limits.MINUTE_MS
    kept_ms = 90 * limits.DAY_MS
    books.ledger.append([Row(at_ms=NOW, event="a", key=KEY, run="r")])
    assert 0 < direct.pttl(NAMES.history(KEY)) <= kept_ms
    assert 0 < direct.pttl(NAMES.run("r")) <= kept_ms
    books.ledger.append([Row(at_ms=NOW + kept_ms, event="b", key=KEY, run="r")])
    assert len(books.ledger.between(0, 2 * NOW)) == 2
    books.ledger.append([Row(at_ms=NOW + kept_ms + 1, event="c", key=KEY, run="r")])
    for rows in (books.ledger.between(0, 2 * NOW), books.ledger.of_key(KEY), books.ledger.of_run("r")):
        assert [row.event for row in rows] == ["b", "c"]
    # The oldest of several rows counts.
    books.ledger.append([Row(at_ms=NOW + 5 * kept_ms, event="e"), Row(at_ms=NOW + kept_ms + 2, event="d")])
    assert [row.event for row in books.ledger.between(0, 2 * NOW)] == ["b", "c", "d", "e"]


def test_a_clock_that_is_far_ahead_takes_no_history_away(books: RedisBackend, direct: redis.Redis) -> None:
    seconds, _ = direct.time()
    now_ms = 1000 * seconds
    books.ledger.append([Row(at_ms=now_ms, event="a", key=KEY, run="r")])
    books.ledger.append([Row(at_ms=now_ms + 365 * limits.DAY_MS, event="b", key=KEY, run="r")])
    for rows in (books.ledger.between(0, 2 * now_ms), books.ledger.of_key(KEY), books.ledger.of_run("r")):
        assert [row.event for row in rows] == ["a", "b"]
