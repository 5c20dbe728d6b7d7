"""Groups: rows, record, outbox and message of each handler together or not at all, and one handler's failure its own.

Everything runs on the real runner and the real transaction of the engine (`:memory:`); rows are counted by plain SQL.
"""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold.runner.executors import COMMIT_WITHIN_MS, EFFECT_LIMIT_MS
from tests.run.bench import Bench, Fault, Process, opened

Order = dict[str, Any]


class Books:
    """An app whose handlers write a row each, and then do what the payload says."""

    def __init__(self, effect: Any = "transactional", **options: Any) -> None:
        self.app = onefold.App("books")
        self.orders, self.letters = self.app.queue("orders"), self.app.queue("letters")
        self.calls: list[tuple[str, int]] = []
        self.acts: dict[str, Any] = {}

        @self.app.job(self.letters, key="{id}")
        def write(letter: Order) -> None:
            pass

        @self.app.job(
            self.orders,
            key="{id}",
            effect=effect,
            retry=onefold.Retry(attempts=3, base="1s", jitter="none"),
            **options,
        )
        def ship(order: Order, ctx: onefold.Context) -> Any:
            self.calls.append((order["id"], ctx.attempt))
            act = self.acts.get(order["id"])
            if effect == "transactional" and act != "no rows":
                ctx.connection.execute("INSERT INTO effect (key) VALUES (?)", (order["id"],))
            return act(order, ctx) if callable(act) else "shipped"

        self.ship, self.letter = ship, write

    def send(self, *keys: str) -> None:
        self.ship.send_many([{"id": key} for key in keys])


def started(bench: Bench, **options: Any) -> tuple[Process, list[Any]]:
    """A process with whatever is visible begun."""
    bench.write("CREATE TABLE IF NOT EXISTS effect (key TEXT)")
    process = bench.process(**options)
    return process, process.begin()


def rows(bench: Bench) -> list[str]:
    return [key for (key,) in bench.rows("SELECT key FROM effect ORDER BY key")]


def statuses(bench: Bench, *keys: str) -> list[str | None]:
    found = [bench.record(key) for key in keys]
    return [None if record is None else record.status for record in found]


def raises(error: BaseException) -> Any:
    def act(order: Order, ctx: onefold.Context) -> None:
        raise error

    return act


def test_a_group_commits_once() -> None:
    books = Books()
    with opened(books.app) as bench:
        books.send("o-1", "o-2", "o-3")
        process, runs = started(bench)
        del process.calls[:]
        assert process.grouper.perform(runs) == []
        assert [verb for verb in process.calls if verb != "state.get"] == ["commit.effects"]
        assert rows(bench) == ["o-1", "o-2", "o-3"]
        assert statuses(bench, "o-1", "o-2", "o-3") == ["completed"] * 3
        assert bench.messages("orders") == []
        assert process.names() == ["completed"] * 3


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (onefold.TransientError("not now"), "failed", "retry"),
        (onefold.PermanentError("never"), "failed", "dead-letter"),
        # Its rows are gone, so nothing is unknown about it.
        (onefold.OutcomeUnknown("sent"), "failed", "retry"),
        (onefold.DependencyDown("no key"), "released", "dependency-down"),
        (SystemExit(1), "failed", "retry"),
    ],
)
def test_the_rows_of_one_that_fails_go_and_those_of_the_others_stay(
    error: BaseException, status: str, name: str
) -> None:
    books = Books()
    books.acts["o-2"] = raises(error)
    with opened(books.app) as bench:
        books.send("o-1", "o-2", "o-3")
        process, runs = started(bench)
        process.grouper.perform(runs)
        assert rows(bench) == ["o-1", "o-3"]
        assert statuses(bench, "o-1", "o-2", "o-3") == ["completed", status, "completed"]
        assert sorted(set(process.names()) - {"paused"}) == sorted({"completed", name})


@pytest.mark.parametrize("failing", ["o-1", "o-2", "o-3"])
def test_whichever_fails_the_file_is_free_afterwards(failing: str) -> None:
    books = Books()
    books.acts[failing] = raises(onefold.TransientError("not now"))
    with opened(books.app) as bench:
        books.send("o-1", "o-2", "o-3")
        process, runs = started(bench)
        process.grouper.perform(runs)
        bench.write("INSERT INTO effect (key) VALUES ('somebody else')")
        assert len(rows(bench)) == 3
        books.acts.clear()
        process.run_for(2_000)
        assert rows(bench) == ["o-1", "o-2", "o-3", "somebody else"]


def test_alone_and_failing_the_file_is_free_afterwards() -> None:
    books = Books()
    books.acts["o-1"] = raises(onefold.PermanentError("never"))
    with opened(books.app) as bench:
        books.send("o-1")
        process, runs = started(bench)
        process.grouper.perform(runs)
        bench.write("INSERT INTO effect (key) VALUES ('somebody else')")
        assert rows(bench) == ["somebody else"]
        assert len(bench.messages("orders-dead")) == 1


def test_rows_outbox_and_record_are_one() -> None:
    books = Books()
    books.acts["o-1"] = lambda order, ctx: books.letter.send({"id": "l-1"}) and None

    def send_and_fail(order: Order, ctx: onefold.Context) -> None:
        books.letter.send({"id": "l-2"})
        raise onefold.TransientError("not now")

    books.acts["o-2"] = send_and_fail
    with opened(books.app) as bench:
        books.send("o-1", "o-2")
        process, runs = started(bench)
        process.grouper.perform(runs)
        assert [message.key for message in bench.messages("letters")] == ["l-1"]
        assert rows(bench) == ["o-1"]


def test_a_handler_without_rows_settles_with_the_others() -> None:
    books = Books()
    books.acts["o-2"] = "no rows"
    with opened(books.app) as bench:
        books.send("o-1", "o-2")
        process, runs = started(bench)
        process.grouper.perform(runs)
        assert rows(bench) == ["o-1"]
        assert statuses(bench, "o-1", "o-2") == ["completed", "completed"]


def test_a_result_that_cannot_be_stored_takes_its_rows_back() -> None:
    books = Books()
    books.acts["o-1"] = lambda order, ctx: object()
    with opened(books.app) as bench:
        books.send("o-1")
        process, runs = started(bench)
        process.grouper.perform(runs)
        assert (rows(bench), process.names()) == ([], ["dead-letter"])
        (letter,) = bench.messages("orders-dead")
        assert letter.reason is not None
        assert (letter.reason.kind, letter.reason.error) == ("permanent", "PayloadError")


def test_a_lost_lease_takes_its_rows_back() -> None:
    books = Books()
    with opened(books.app) as bench:
        books.send("o-1", "o-2")
        process, runs = started(bench)
        bench.write("UPDATE onefold_record SET fence = fence + 1, owner = 'another' WHERE key = 'o-2'")
        process.grouper.perform(runs)
        assert rows(bench) == ["o-1"]
        assert sorted(process.names()) == ["completed", "lease-lost"]
        assert [message.key for message in bench.messages("orders")] == ["o-2"]


def test_an_outbox_to_a_queue_that_is_gone_takes_its_rows_back() -> None:
    books = Books()

    def send(order: Order, ctx: onefold.Context) -> None:
        books.letter.send({"id": "l-1"})
        if order["id"] == "o-1":
            return

    books.acts["o-2"] = send
    with opened(books.app) as bench:
        books.send("o-1", "o-2", "o-3")
        process, runs = started(bench)
        bench.runtime.engine.queues.drop("letters")
        process.grouper.perform(runs)
        assert rows(bench) == ["o-1", "o-3"]
        assert sorted(process.names()) == ["completed", "completed", "dead-letter"]
        (letter,) = bench.messages("orders-dead")
        assert letter.key == "o-2"


def test_a_handler_that_keeps_the_connection_too_long_fails_alone() -> None:
    books = Books()

    def slow(order: Order, ctx: onefold.Context) -> None:
        bench.clock.advance(EFFECT_LIMIT_MS + 1)
        ctx.connection.execute("INSERT INTO effect (key) VALUES ('too late')")

    books.acts["o-2"] = slow
    with opened(books.app) as bench:
        books.send("o-1", "o-2", "o-3")
        process, runs = started(bench)
        process.grouper.perform(runs)
        assert rows(bench) == ["o-1", "o-3"]
        assert sorted(process.names()) == ["completed", "completed", "retry"]


def test_a_handler_that_returns_too_late_fails_too() -> None:
    books = Books()
    books.acts["o-1"] = lambda order, ctx: bench.clock.advance(EFFECT_LIMIT_MS + 1)
    with opened(books.app) as bench:
        books.send("o-1")
        process, runs = started(bench)
        process.grouper.perform(runs)
        assert (rows(bench), process.names()) == ([], ["retry"])
        assert "ctx.connection" in str(process.of("retry").detail["summary"])


def test_who_is_done_does_not_wait_for_slow_siblings() -> None:
    books = Books()
    seen: list[list[str | None]] = []

    def slow(order: Order, ctx: onefold.Context) -> None:
        bench.clock.advance(COMMIT_WITHIN_MS)

    books.acts["o-1"] = slow
    books.acts["o-2"] = lambda order, ctx: seen.append(statuses(bench, "o-1"))
    with opened(books.app) as bench:
        books.send("o-1", "o-2")
        process, runs = started(bench)
        process.grouper.perform(runs)
        assert seen == [["completed"]]


def test_a_job_with_a_slow_run_now_and_then_does_not_keep_the_transaction_of_others_open() -> None:
    """Its last runs were quick, so they say nothing of the next one."""
    books = Books()
    seen: list[list[str | None]] = []

    def slow(order: Order, ctx: onefold.Context) -> None:
        seen.append(statuses(bench, "o-1", "o-3"))
        bench.clock.advance(900)

    books.acts["o-2"] = books.acts["o-4"] = slow
    with opened(books.app) as bench:
        books.send("o-1", "o-2", "o-3", "o-4", "o-5")
        process, runs = started(bench)
        process.grouper.perform(runs[:1])
        process.grouper.perform(runs[1:])
        assert seen == [["completed", "in_progress"], ["completed", "completed"]]
        bench.clock.advance(11 * 60_000)
        books.send(*(f"p-{number}" for number in range(3)))
        runs = process.begin()
        del process.calls[:]
        process.grouper.perform(runs)  # together again
        assert [verb for verb in process.calls if verb != "state.get"] == ["commit.effects"]
        assert statuses(bench, "p-0", "p-1", "p-2") == ["completed"] * 3


def test_a_commit_that_fails_lets_all_of_it_run_again() -> None:
    books = Books()
    with opened(books.app) as bench:
        books.send("o-1", "o-2")
        process, runs = started(bench)
        database: Any = bench.runtime.engine.database  # type: ignore[attr-defined]  # SQLite's own
        real = database.end_exclusive
        left = [1]

        def end_exclusive(*, commit: bool) -> None:
            if commit and left:
                left.pop()
                real(commit=False)
                raise onefold.errors.StorageBusy("the disk is full")
            real(commit=commit)

        database.end_exclusive = end_exclusive
        process.grouper.perform(runs)
        assert (rows(bench), process.names()) == ([], ["retry", "retry"])
        process.run_for(2_000)
        assert rows(bench) == ["o-1", "o-2"]
        assert process.names()[2:] == ["completed", "completed"]
        assert books.calls == [("o-1", 1), ("o-2", 1), ("o-1", 2), ("o-2", 2)]


def test_a_rerun_counts_as_the_run_it_is() -> None:
    # The takeover's own start is the second run of two: when its rows cannot be kept, no attempt is left.
    books = Books(on_unknown="rerun")
    with opened(books.app) as bench:
        books.send("o-1")
        started(bench)
        bench.clock.advance(30_000)
        bench.write("UPDATE onefold_record SET attempts = 2, attempts_total = 2")
        books.acts["o-1"] = lambda order, ctx: bench.clock.advance(EFFECT_LIMIT_MS + 1)
        second, runs = started(bench)
        second.grouper.perform(runs)
        assert books.calls == [("o-1", 3)]
        assert second.names() == ["takeover", "dead-letter"]
        (letter,) = bench.messages("orders-dead")
        assert letter.reason is not None
        assert (letter.reason.kind, letter.reason.attempts) == ("attempts", 3)


def test_repeatable_jobs_are_settled_together_too() -> None:
    books = Books(effect="repeatable")
    books.acts["o-2"] = raises(onefold.TransientError("not now"))
    with opened(books.app) as bench:
        books.send("o-1", "o-2", "o-3")
        process, runs = started(bench)
        del process.calls[:]
        process.grouper.perform(runs)
        assert [verb for verb in process.calls if verb != "state.get"] == ["commit.commit"]
        assert process.names() == ["completed", "retry", "completed"]


def test_what_waits_behind_a_group_comes_back_to_be_performed() -> None:
    books = Books()
    with opened(books.app) as bench:
        books.send("o-1", "o-1", "o-2")
        books.acts["o-1"] = raises(onefold.TransientError("not now"))
        process, runs = started(bench)
        (again,) = process.grouper.perform(runs)
        books.acts.clear()
        assert process.grouper.perform([again]) == []
        assert rows(bench) == ["o-1", "o-2"]


def test_a_process_that_ends_in_a_handler_takes_its_rows_with_it() -> None:
    books = Books()
    books.acts["o-2"] = raises(KeyboardInterrupt())
    with opened(books.app) as bench:
        books.send("o-1", "o-2")
        process, runs = started(bench)
        with pytest.raises(KeyboardInterrupt):
            process.grouper.perform(runs)
        bench.write("INSERT INTO effect (key) VALUES ('somebody else')")
        assert rows(bench) == ["somebody else"]


def test_without_one_transaction_there_is_no_connection() -> None:
    books = Books()
    with opened(books.app) as bench:
        books.send("o-1")
        process, runs = started(bench, one_transaction=False)
        process.grouper.perform(runs)
        assert process.names() == ["dead-letter"]
        assert "not transactional" in str(process.of("dead-letter").detail["summary"])


def test_a_plain_job_has_no_connection() -> None:
    app = onefold.App("books")
    orders = app.queue("orders")

    @app.job(orders, key="{id}")
    def ship(order: Order, ctx: onefold.Context) -> None:
        ctx.connection.execute("SELECT 1")

    with opened(app) as bench:
        ship.send({"id": "o-1"})
        process = bench.process(fault=Fault("no verb", times=0))
        process.run()
        assert process.names() == ["dead-letter"]
        assert 'effect="transactional"' in str(process.of("dead-letter").detail["summary"])
