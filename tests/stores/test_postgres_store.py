"""What only the PostgreSQL store must do: many threads, lost connections, locks, texts, the sweep, its checks."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest

from onefold import errors
from onefold.contracts.commit import Settlement
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Leave
from onefold.contracts.state import Change
from onefold.contracts.store import (
    Answer,
    Claimed,
    Completed,
    Failure,
    Hold,
    OutboxItem,
    Outcome,
    RecordKey,
    Running,
    Unreadable,
    key_range,
)
from onefold.engines.postgres import backend
from onefold.engines.postgres.backend import PostgresBackend
from onefold.engines.postgres.connection import Pool, PostgresAddress
from onefold.engines.postgres.record_sql import ident, packed, unpacked
from onefold.engines.postgres.records import ROUNDS
from onefold.manual_clock import ManualClock
from onefold.testing.records import KEPT_MS, KEY, LEASE_MS, NOW, ask, complete, fail, unknown
from onefold.testing.threads import at_once
from tests.emulators.servers import free_port
from tests.stores.claims import claimed
from tests.stores.postgres_books import books, sql

pytestmark = pytest.mark.slow

THREADS = 16


# -- many at once ------------------------------------------------------------------------------------------------------


def test_of_sixteen_threads_one_claims_and_one_takes_over(opened: PostgresBackend) -> None:
    def one(key: str, at_ms: int) -> Callable[[int], Answer]:
        return lambda number: opened.store.claim([ask(key, f"{number}", at_ms=at_ms)], at_ms)[0]

    for round_ in range(20):
        for at_ms, fence in ((NOW, 1), (NOW + LEASE_MS, 2)):
            answers = at_once(THREADS, one(f"key-{round_}", at_ms))
            assert Counter(type(answer) for answer in answers) == {Claimed: 1, Running: THREADS - 1}
            (winner,) = [answer for answer in answers if isinstance(answer, Claimed)]
            assert winner.hold.fence == fence
            assert {(one.owner, one.fence) for one in answers if isinstance(one, Running)} == {
                (winner.hold.owner, fence)
            }


def test_of_a_finisher_and_sixteen_who_take_over_one_is_first(opened: PostgresBackend) -> None:
    for round_ in range(20):
        key = RecordKey("", "job", f"{round_}")
        (hold,) = claimed(opened.store.claim([ask(key)], NOW))

        def work(number: int, key: RecordKey = key, hold: Hold = hold) -> object:
            if number == 0:
                return opened.store.write([(hold, complete(b"0"))], NOW + LEASE_MS)[0]
            return opened.store.claim([ask(key, f"{number}", at_ms=NOW + LEASE_MS)], NOW + LEASE_MS)[0]

        finished, *answers = at_once(THREADS, work)
        kinds = Counter(type(answer) for answer in answers)
        if finished is True:
            assert kinds == {Completed: THREADS - 1}
        else:
            assert kinds == {Claimed: 1, Running: THREADS - 2}
        (record,) = opened.store.read([key], NOW + LEASE_MS)
        assert record is not None
        assert (record.status, record.fence) == (("completed", 1) if finished is True else ("in_progress", 2))


def test_batches_in_any_order_never_deadlock_and_each_record_has_one_holder(opened: PostgresBackend, url: str) -> None:
    names = [f"key-{number}" for number in range(40)]
    at_ms = NOW
    for round_ in range(6):
        at_ms += LEASE_MS
        outcome: Outcome = complete() if round_ == 5 else fail()

        def work(number: int, at_ms: int = at_ms, outcome: Outcome = outcome):
            mine = names[number * 5 :] + names[: number * 5]
            mine = mine[::-1] if number % 2 else mine
            answers = opened.store.claim([ask(name, f"{number}", at_ms=at_ms) for name in mine], at_ms)
            holds = [answer.hold for answer in answers if isinstance(answer, Claimed)]
            assert all(opened.store.start(holds, at_ms))
            assert all(opened.store.renew(holds[::-1], at_ms + LEASE_MS))
            written = opened.store.write([(hold, outcome) for hold in holds], at_ms)
            return [(hold.key.key, wrote) for hold, wrote in zip(holds, written, strict=True)]

        done = [pair for answer in at_once(8, work) for pair in answer]
        assert all(wrote for _, wrote in done)
        assert {name for name, _ in done} == set(names)
    assert Counter(name for name, _ in done) == dict.fromkeys(names, 1)  # the last round completed each one once
    assert sql(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


def test_first_claims_of_the_same_keys_in_opposite_orders_never_deadlock(opened: PostgresBackend, url: str) -> None:
    for round_ in range(8):
        names = [f"{round_}-{number}" for number in range(400)]

        def work(number: int, names: list[str] = names) -> int:
            asks = [ask(name, f"{number}") for name in (names[::-1] if number % 2 else names)]
            return sum(isinstance(answer, Claimed) for answer in opened.store.claim(asks, NOW))

        assert sum(at_once(4, work)) == len(names)
    assert sql(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


def test_a_heartbeat_beside_transactions_that_lock_in_another_order_never_deadlocks(
    opened: PostgresBackend, url: str
) -> None:
    holds = claimed(opened.store.claim([ask(f"key-{number}") for number in range(10)], NOW))
    over = threading.Event()

    def beat() -> bool:
        kept = True
        while not over.is_set():
            kept = kept and all(opened.store.renew(holds[:9], NOW + LEASE_MS))
        return kept

    def work() -> int:
        """Transactions not overtaken by a renewal twenty times in a row; that is reported, and is not a deadlock."""
        done = 0
        for _ in range(40):
            effects = opened.effects(10_000)
            with suppress(errors.StorageBusy):
                for hold in reversed(holds):
                    effects.open().execute("SELECT 1")
                    settlement = Settlement(write=(hold, complete()), queue=None, receipt=None, settle=Leave())
                    assert effects.finish(settlement, NOW).written
                done += 1
            effects.rollback()
        return done

    with ThreadPoolExecutor(3) as pool:
        beats = [pool.submit(beat) for _ in range(2)]
        try:
            assert work() > 0
        finally:
            over.set()
        assert [one.result(30) for one in beats] == [True, True]
    assert sql(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


# -- locks and lost connections ----------------------------------------------------------------------------------------


def test_a_record_that_somebody_has_locked_keeps_no_other_one_waiting(opened: PostgresBackend, url: str) -> None:
    holds = claimed(opened.store.claim([ask(f"key-{number}") for number in range(3)], NOW))
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM onefold.record WHERE key = 'key-1' FOR UPDATE")
        assert opened.store.renew([holds[0], holds[2]], NOW + 1) == [True, True]
        with pytest.raises(errors.StorageBusy) as raised:
            opened.store.renew(holds, NOW + 2)
    assert "lock" in raised.value.what
    found = [record and record.lease_until_ms for record in opened.store.read([hold.key for hold in holds], NOW)]
    assert found == [NOW + 2, NOW + LEASE_MS, NOW + 2]
    assert opened.store.renew(holds, NOW + 3) == [True] * 3


def test_what_was_changed_each_time_it_was_to_be_written_is_told(
    opened: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hold,) = claimed(opened.store.claim([ask()], NOW))
    replace = opened.store.amender._replace
    tries = 0

    def meddle(*arguments):
        nonlocal tries
        tries += 1
        assert opened.store.renew([hold], NOW + LEASE_MS + tries) == [True]
        return replace(*arguments)

    monkeypatch.setattr(opened.store.amender, "_replace", meddle)
    with pytest.raises(errors.StorageBusy):
        opened.store.write([(hold, fail())], NOW)
    assert tries == ROUNDS
    monkeypatch.undo()
    assert opened.store.write([(hold, fail())], NOW) == [True]


def test_an_idle_connection_that_was_closed_by_the_server_is_not_used(opened: PostgresBackend, url: str) -> None:
    opened.store.claim([ask()], NOW)
    for _ in range(3):
        sql(url, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'onefold'")
        assert isinstance(opened.store.claim([ask(owner="B")], NOW)[0], Running)


def test_a_connection_killed_in_the_middle_is_a_transient_error_and_nothing_answered_is_lost(
    opened: PostgresBackend, url: str
) -> None:
    over = threading.Event()

    def cut() -> int:
        cuts = 0
        with psycopg.connect(url, autocommit=True) as link:
            while not over.is_set():
                cuts += len(
                    link.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'onefold'"
                        " AND datname = current_database() AND state = 'active' LIMIT 1"
                    ).fetchall()
                )
        return cuts

    def work(number: int) -> tuple[list[Hold], int]:
        completed, lost = [], 0
        for turn in range(60):
            asks = [ask(RecordKey("", "job", f"{number}-{turn}-{one}"), f"{number}") for one in range(5)]
            try:
                holds = claimed(opened.store.claim(asks, NOW))
                done = opened.store.write([(hold, complete()) for hold in holds], NOW)
                assert all(done)
                completed += holds
            except errors.TransientError:
                lost += 1
        return completed, lost

    with ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(cut)
        answers = at_once(4, work)
        over.set()
        assert cutting.result(30) > 0
    completed = [hold for holds, _ in answers for hold in holds]
    assert completed
    found = opened.store.read([hold.key for hold in completed], NOW)
    assert [record and (record.status, record.fence) for record in found] == [("completed", 1)] * len(completed)


def test_a_server_that_is_not_there_is_a_transient_error_without_the_password() -> None:
    url = f"postgresql://ada:hush-hush@127.0.0.1:{free_port()}/shop"
    store = PostgresBackend(url)
    for call in (store.check, lambda: store.store.claim([ask()], NOW), lambda: store.store.read([KEY], NOW)):
        with pytest.raises(errors.TransientError, match="No connection") as raised:
            call()
        assert "hush" not in str(raised.value)
    store.close()


def test_a_connection_that_takes_no_settings_is_closed(url: str) -> None:
    made: list[psycopg.Connection] = []

    class Refusing(psycopg.Connection):
        def execute(self, *_: object, **__: object) -> psycopg.Cursor:
            made.append(self)
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.raises(errors.TransientError, match="closed the connection"):
        Pool(PostgresAddress(url), Refusing).take()
    assert [one.closed for one in made] == [True]


def test_a_forked_process_uses_connections_of_its_own(opened: PostgresBackend) -> None:
    opened.store.claim([ask()], NOW)
    child = os.fork()
    if child == 0:
        answer = opened.store.claim([ask(owner="B")], NOW)
        os._exit(0 if isinstance(answer[0], Running) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert opened.store.renew(claimed(opened.store.claim([ask("other")], NOW)), NOW) == [True]


def test_a_closed_store_says_so(url: str) -> None:
    with books(url) as opened:
        opened.store.claim([ask()], NOW)
    opened.close()
    with pytest.raises(errors.UsageError, match="closed"):
        opened.store.read([KEY], NOW)


def test_transactions_that_must_be_serializable_by_default_are_not_ours(url: str) -> None:
    sql(url, "ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
    try:
        with books(url) as opened:
            answers = at_once(8, lambda n: opened.store.claim([ask(owner=f"{n}")], NOW)[0])
    finally:
        sql(url, "ALTER ROLE postgres RESET default_transaction_isolation")
    assert Counter(type(answer) for answer in answers) == {Claimed: 1, Running: 7}


# -- texts and values --------------------------------------------------------------------------------------------------

TEXTS = ["", "a", "\x00", "\\", "\\0", "\\\x00", "\x00\\", "\\\\0", "a\\0\x00b", "é\U0001f600", "'; --"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_stored_as_it_is(opened: PostgresBackend, text: str) -> None:
    assert unpacked(packed(text)) == text
    assert "\x00" not in packed(text)
    key = RecordKey(text, text or "j", text or "k")
    item = OutboxItem(queue="q", body=text, attributes={"a": text})
    (hold,) = claimed(opened.store.claim([ask(key, text, message_id=text, fingerprint=text)], NOW))
    assert opened.store.write([(hold, complete(text.encode(), [item]))], NOW) == [True]
    (record,) = opened.store.read([key], NOW)
    assert record is not None
    assert (record.key, record.owner, record.message_id, record.fingerprint) == (key, text, text, text)
    assert (record.result, record.outbox, opened.records.find(key.key)) == (text.encode(), [item], [record])
    failure = Failure(kind=text, error=text, summary=text)
    (other,) = claimed(opened.store.claim([ask("f", text)], NOW))
    opened.store.write([(other, fail())], NOW)
    row = Row(at_ms=NOW, event=text, key=key, queue=text, message_id=text, run=text, actor=text, detail={text: text})
    opened.ledger.append([row])
    assert (opened.ledger.of_key(key), opened.ledger.of_run(text), opened.ledger.find_keys(key.key)) == (
        [row],
        [row],
        [key],
    )
    assert opened.state.put([Change(f"n{text}", failure.kind.encode(), 0)]) == [True]
    assert opened.state.names(f"n{text}") == [f"n{text}"]


def test_texts_differ_when_packed() -> None:
    texts = {first + second + third for first in TEXTS for second in TEXTS for third in TEXTS}
    assert len({packed(text) for text in texts}) == len(texts)


def test_idents_differ_wherever_scope_job_or_key_do_and_keys_lie_together() -> None:
    texts = ["", "a", "b", "ab", "a\x00", "\x00", "\x01", "x" * 47, "x" * 48, "x" * 49, "x" * 47 + "\x00"]
    keys = [RecordKey(scope, job, key) for scope in texts for job in texts for key in texts]
    assert len({ident(key) for key in keys}) == len(keys)
    for text in texts:
        first, after = key_range(text)
        found = {key.key for key in keys if first <= ident(key) < after}
        assert text in found
        assert len(found) == 1 or any("\x00" in other for other in found)  # which the query then tells apart
    assert max(len(ident(RecordKey("s" * 999, "j" * 120, "\U0001f600" * 512))), 65) == 65


# -- the sweep ---------------------------------------------------------------------------------------------------------


def test_the_sweep_removes_expired_records_and_no_others_a_few_at_a_time(opened: PostgresBackend, url: str) -> None:
    store = opened.store
    names = ("running", "done", "failed", "parked")
    holds = claimed(store.claim([ask(name) for name in names], NOW))
    store.write(list(zip(holds[1:], (complete(), fail(), unknown(parked=True)), strict=True)), NOW)
    store.claim([ask(f"later-{number}", at_ms=NOW + 1) for number in range(5)], NOW + 1)
    assert opened.sweep(NOW + KEPT_MS - 1) == 0
    assert store.renew(holds[:1], NOW + KEPT_MS + 1) == [True]
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM onefold.record WHERE key = 'failed' FOR UPDATE")
        assert opened.sweep(NOW + KEPT_MS) == 1  # not what is running, nor what somebody has locked
    assert opened.sweep(NOW + KEPT_MS) == 1
    assert [opened.sweep(NOW + KEPT_MS + 1, limit=4) for _ in range(3)] == [4, 2, 0]
    assert [record.key.key for record in opened.records.scan()] == ["parked"]
    assert opened.sweep(NOW + 10 * KEPT_MS) == 0


def test_upkeep_sweeps_now_and_then_and_goes_on_while_there_is_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(NOW)
    with books(url, clock) as opened:
        opened.store.claim([ask("a")], NOW)
        clock.advance(KEPT_MS)
        assert opened.upkeep() == 1
        opened.store.claim([ask("b")], NOW)
        clock.advance(backend.SWEEP_MS - 1)
        assert opened.upkeep() == 0
        clock.advance(1)
        assert opened.upkeep() == 1
        clock.advance(backend.SWEEP_MS)
        left = [backend.SWEEP_ROWS_MAX, backend.SWEEP_ROWS_MAX, 3, 0]
        monkeypatch.setattr(opened, "sweep", lambda _: left.pop(0))
        assert [opened.upkeep() for _ in range(4)] == [backend.SWEEP_ROWS_MAX, backend.SWEEP_ROWS_MAX, 3, 0]
        assert left == [0]


def test_the_sweep_removes_old_history_names_and_counts(url: str) -> None:
    with books(url, ManualClock(NOW)) as opened:
        opened.ledger.append([Row(at_ms=NOW, event="sent"), Row(at_ms=NOW + 1, event="sent")])
        opened.state.put([Change("kept", b"1", 0), Change("gone", b"1", 0), Change("gone", None, 1)])
        (hold,) = claimed(opened.store.claim([ask()], NOW))
        opened.store.write([(hold, complete(at_ms=NOW + 10**12))], NOW)

        def sizes() -> list[int]:
            tables = ("ledger", "state", "completed", "record")
            return [sql(url, f"SELECT count(*) FROM onefold.{name}")[0][0] for name in tables]

        for now_ms, left in (
            (NOW + backend.DELETED_NAMES_KEPT_MS, [2, 2, 1, 1]),
            (NOW + backend.DELETED_NAMES_KEPT_MS + 1, [2, 1, 1, 1]),
            (NOW + backend.COUNTS_KEPT_MS + 1000, [2, 1, 0, 1]),
            (NOW + backend.LEDGER_KEPT_MS, [2, 1, 0, 1]),
            (NOW + backend.LEDGER_KEPT_MS + 1, [1, 1, 0, 1]),
        ):
            opened.sweep(now_ms)
            assert sizes() == left


def test_a_claim_and_a_sweep_of_one_expired_record_leave_one_holder(opened: PostgresBackend) -> None:
    later = NOW + KEPT_MS
    for round_ in range(30):
        key = f"{round_}"
        opened.store.claim([ask(key)], NOW)

        def work(number: int, key: str = key) -> object:
            if number < 2:
                return opened.sweep(later)
            return opened.store.claim([ask(key, f"{number}", at_ms=later)], later)[0]

        answers = at_once(6, work)[2:]
        assert Counter(type(answer) for answer in answers) == {Claimed: 1, Running: 3}


@pytest.mark.parametrize("damage", ["failure = '[[['", "outbox = '{'", "status = 'completed', result = NULL"])
def test_a_record_that_cannot_be_read_is_the_answer_of_its_own_claim_only(
    opened: PostgresBackend, url: str, damage: str
) -> None:
    (hold,) = claimed(opened.store.claim([ask("bad", "A", at_ms=NOW)], NOW))
    assert opened.store.write([(hold, fail())], NOW) == [True]
    sql(url, f"UPDATE onefold.record SET {damage}")
    asks = [ask(key, "A", at_ms=NOW) for key in ("good", "bad", "other")]
    answers = opened.store.claim(asks, NOW)
    assert [type(answer) for answer in answers] == [Claimed, Unreadable, Claimed]
    assert isinstance(answers[1], Unreadable)
    assert "'bad' cannot be read" in answers[1].what
    with pytest.raises(errors.StorageError, match="cannot be read"):
        opened.store.read([hold.key], NOW)
