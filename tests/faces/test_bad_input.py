"""Bad input through the doors people use: a declaration, `send`, the command line. One clear error, and nothing changed."""

from __future__ import annotations

import os
import queue
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import onefold
import onefold.testing
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.file import FileSettings
from onefold.record.error_text import summary_of

PATIENCE_S = 60  # of a process that should end in two seconds


@dataclass
class Order:
    order_id: str
    note: str | None = None


def handle(order: Order) -> str:
    return order.order_id


def make(url: str, **settings: Any) -> tuple[onefold.App, onefold.Job[Order, str]]:
    """An app with one job, on an engine."""
    app = onefold.App("orders", url=url)
    job: onefold.Job[Order, str] = app.job(app.queue("orders", **settings), key="{order_id}")(handle)
    return app, job


def refusal(kind: type[onefold.OnefoldError], call: Callable[[], object]) -> str:
    """The text of an error that says what to do next."""
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.todo
    return str(caught.value)


# -- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: onefold.App("a", hystory="full"), "history"),  # type: ignore[call-arg]
        (lambda: onefold.App("a").queue("q", visibilty="1s"), "visibility"),  # type: ignore[call-arg]
        (lambda: onefold.Retry(atempts=3), "attempts"),  # type: ignore[call-arg]
        (lambda: onefold.DeadLetter(afer=3), "after"),  # type: ignore[call-arg]
        (lambda: onefold.Throttle(concurency=3), "concurrency"),  # type: ignore[call-arg]
    ],
)
def test_an_unknown_option_is_answered_with_the_one_that_was_meant(call: Callable[[], object], meant: str) -> None:
    assert f"Did you mean '{meant}'?" in refusal(onefold.errors.UsageError, call)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a" * 81, "é", "a b", "a\0b", "x.fifo", None, 5])
def test_a_queue_that_cannot_be_is_refused_where_it_is_declared(name: Any) -> None:
    app, book = make("sqlite://:memory:")
    refusal(onefold.errors.UsageError, lambda: app.queue(name))
    assert list(app.queues) == ["orders"]
    with onefold.testing.inline(app) as world:
        book.send(Order("o-1"))
        assert world.depth("orders").visible == 1


@pytest.mark.parametrize(
    ("dead_letter", "said"),
    [
        (onefold.DeadLetter(retention="3d"), "keeps messages for 3 days, its source 'late' for 4 days"),
        (onefold.DeadLetter(name="dead.fifo"), "not declared as a FIFO queue"),
        (onefold.DeadLetter(name="late"), "names itself"),
        (onefold.DeadLetter(after="3"), "dead_letter.after='3'"),  # type: ignore[arg-type]
        (onefold.DeadLetter(after=0), "1 to 1,000"),
    ],
)
def test_a_dead_letter_queue_that_does_not_fit(dead_letter: onefold.DeadLetter, said: str) -> None:
    app = onefold.App("late")
    assert said in refusal(onefold.errors.UsageError, lambda: app.queue("late", dead_letter=dead_letter))
    assert not app.queues


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": "{order_idd}"}, "Did you mean order_id?"),
        ({"key": "constant"}, "names no field"),
        ({"name": "a\x1b[31m"}, "is not a valid name for a job"),
        ({"name": "n" * 129}, "is not a valid name for a job"),
        ({"retry": onefold.Retry(attempts=0)}, "retry.attempts=0"),
        ({"retry": onefold.Retry(attempts="3")}, "retry.attempts='3'"),  # type: ignore[arg-type]
        ({"throttle": onefold.Throttle(concurrency="4")}, "concurrency='4'"),  # type: ignore[arg-type]
        ({"throttle": onefold.Throttle(concurrency=1_501)}, "1 to 1,500"),
        ({"on_unknown": "held"}, "Did you mean 'hold'?"),
        ({"on_unknown": True}, "on_unknown"),
        ({"on_unknown": None}, "on_unknown"),
        ({"on_unknown": 5}, "on_unknown"),
        ({"retry": onefold.Retry(jitter=True)}, "retry.jitter"),  # type: ignore[arg-type]
        ({"retry": onefold.Retry(factor="2")}, "retry.factor='2' is not a number"),  # type: ignore[arg-type]
        ({"keep": "1d"}, "19d = 4d + 14d + 1d"),
        ({"transient": 5}, "transient=5 is not a list of exception classes"),
        ({"permanent": "ValueEror"}, "Did you mean 'ValueError'?"),
    ],
)
def test_a_job_that_cannot_be_is_not_declared(settings: dict[str, Any], said: str) -> None:
    app = onefold.App("orders")
    queue = app.queue("orders")
    options = {"key": "{order_id}", **settings}
    assert said in refusal(onefold.errors.UsageError, lambda: app.job(queue, **options)(handle))
    assert not app.jobs


def test_one_class_of_errors_needs_no_list() -> None:
    app = onefold.App("orders")
    job: Any = app.job(app.queue("orders"), key="{order_id}", transient=KeyError, permanent="ValueError")(handle)
    assert (job.classes["transient"], job.classes["permanent"]) == ((KeyError,), ("ValueError",))


def test_what_runs_nothing_when_it_is_called_is_no_handler() -> None:
    def produces(order: Order) -> Any:
        yield order

    app = onefold.App("orders")
    declare = app.job(app.queue("orders"), key="{order_id}")
    assert "cannot be a handler" in refusal(onefold.errors.UsageError, lambda: declare(produces))
    refusal(onefold.errors.UsageError, lambda: declare(5))  # type: ignore[arg-type]
    assert not app.jobs


# -- sending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "options", "said"),
    [
        ({"order_id": "a"}, {}, "Pass a value of type Order"),
        (Order(3), {}, "Expected `str`, got `int`"),  # type: ignore[arg-type]
        (Order(""), {}, "order_id is empty"),
        (Order("a\0b"), {}, "control characters"),
        (Order("a", "\ud800"), {}, "not valid Unicode"),
        (Order("a", "x" * 1_100_000), {}, "must be shorter than 1048576 bytes"),
        (Order("k" * 513), {}, "513 characters"),
        (Order("a"), {"key": "k" * 513}, "513 characters"),
        (Order("a"), {"key": ""}, "identifies no operation"),
        (Order("a"), {"key": "  "}, "identifies no operation"),
        (Order("a"), {"key": 5}, "identifies no operation"),
        (Order("a"), {"key": "a\x1b[2J"}, "control characters"),
        (Order("a"), {"delay": "-1s"}, "is not a duration"),
        (Order("a"), {"run_at": "tomorrow"}, "is not a valid instant"),
        (Order("a"), {"run_at": datetime(2026, 1, 1)}, "without a time zone"),  # noqa: DTZ001 - that is the point
    ],
)
def test_what_cannot_be_sent_is_not_sent_nor_what_came_with_it(
    payload: Any, options: dict[str, Any], said: str
) -> None:
    app, book = make("sqlite://:memory:")
    with onefold.testing.inline(app) as world:
        assert said in refusal(onefold.errors.UsageError, lambda: book.send(payload, **options))
        if not options:
            refusal(onefold.errors.UsageError, lambda: book.send_many([Order("fits"), payload]))
        assert world.depth("orders").visible == 0


def test_a_key_that_another_producer_chose_too_long_is_malformed() -> None:
    from onefold.contracts.entries import Entry
    from onefold.contracts.queue import JOB_ATTRIBUTE, Attribute
    from onefold.runner.handlers import KEY_ATTRIBUTE

    app, _ = make("sqlite://:memory:")
    with onefold.testing.inline(app) as world:
        attributes = {JOB_ATTRIBUTE: Attribute("handle"), KEY_ATTRIBUTE: Attribute("k" * 513)}
        app.runtime().engine.queues.open("orders").send([Entry(body='{"order_id":"a"}', attributes=attributes)])
        world.run()
        assert "malformed" in world.names()
        assert "completed" not in world.names()


@pytest.mark.parametrize("value", [{1}, object(), float("nan")])
def test_a_result_that_cannot_be_stored_is_an_unknown_outcome(value: object) -> None:
    app = onefold.App("orders")
    declare = app.job(app.queue("orders"), key="{order_id}", name="odd", on_unknown="rerun")
    ran: list[str] = []

    def odd(order: Order) -> Any:
        ran.append(order.order_id)
        return value

    job: onefold.Job[Order, Any] = declare(odd)
    with onefold.testing.inline(app) as world:
        job.send(Order("o-1"))
        world.run_for(60_000)
        assert ran == ["o-1"]  # it would not become storable by running again
        assert world.names().count("held") == 1
        assert "completed" not in world.names()
        (held,) = [event for event in world.events if event.name == "held"]
        said = f"The function ran and returned a value of type {type(value).__name__} that cannot be recorded: "
        assert str(held.detail["summary"]).startswith(said)


def test_messages_that_a_schedules_handler_returns_are_no_unknown_outcome() -> None:
    app = onefold.App("billing")
    job = app.job(app.queue("bills"), key="{order_id}", name="bill")(lambda order: None)

    @app.schedule("cron(0 2 1 * ? *)", name="listed")
    def listed(tick: onefold.Tick) -> Any:
        return [job.message({"order_id": "1"})]

    @app.schedule("cron(0 2 1 * ? *)", name="lazy")
    def lazy(tick: onefold.Tick) -> Any:
        return (job.message({"order_id": number}) for number in "12")

    @app.schedule("cron(0 2 1 * ? *)", name="single")
    def single(tick: onefold.Tick) -> Any:
        return job.message({"order_id": "1"})

    names = ("listed", "lazy", "single")
    with onefold.testing.inline(app) as world:
        app.runtime().send([app.schedules[name].outgoing_at("2026-06-01T02:00:00Z") for name in names])
        world.run_for(60_000)
        told = [event for event in world.events if event.name == "dead-letter"]
        dead = {event.key.job: str(event.detail["summary"]) for event in told if event.key is not None}
        assert "held" not in world.names()
        yields = "A schedule's handler sends the messages that it yields: yield job.message(payload)."
        assert dead == {
            "listed": f"listed returned messages, and no message was sent. {yields}",
            "lazy": f"lazy returned a generator, and no message was sent. {yields}",
            "single": f"single returned messages, and no message was sent. {yields}",
        }


def test_a_schedules_handler_that_makes_messages_and_yields_none_has_run_and_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = onefold.App("billing")
    job = app.job(app.queue("bills"), key="{order_id}", name="bill")(lambda order: None)
    elsewhere: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sent: list[Any] = []

    def send_all() -> None:
        while (made := elsewhere.get()) is not None:
            sent.extend(job.deliver(made))

    thread = threading.Thread(target=send_all)
    thread.start()

    @app.schedule("cron(0 2 1 * ? *)", name="forgot")
    def forgot(tick: onefold.Tick) -> None:
        for number in "12":
            job.message({"order_id": number})

    @app.schedule("cron(0 2 1 * ? *)", name="delivered")
    def delivered(tick: onefold.Tick) -> None:
        job.deliver([job.message({"order_id": "3"})])

    @app.schedule("cron(0 2 1 * ? *)", name="handed_over")
    def handed_over(tick: onefold.Tick) -> None:
        elsewhere.put([job.message({"order_id": "4"})])
        elsewhere.put(None)
        thread.join()

    names = ("forgot", "delivered", "handed_over")
    with onefold.testing.inline(app) as world:
        app.runtime().send([app.schedules[name].outgoing_at("2026-06-01T02:00:00Z") for name in names])
        world.run_for(60_000)
        assert [event.name for event in world.events if event.name in ("dead-letter", "held")] == []
        assert world.names().count("completed") == 5
    assert len(sent) == 1
    made = [text for text in caplog.messages if "with message()" in text]
    assert [text.partition(" ")[0] for text in made] == ["forgot", "handed_over"]
    assert made[0].startswith("forgot made 2 messages with message() in its run forgot")
    assert made[0].endswith("A schedule's handler sends the messages that it yields: yield job.message(payload).")


def test_a_plain_jobs_messages_and_generators_are_named_as_what_they_are() -> None:
    app = onefold.App("orders")
    orders = app.queue("orders")
    job = app.job(orders, key="{order_id}", name="job")(lambda order: None)

    @app.job(orders, key="{order_id}")
    def listed(order: dict[str, str]) -> Any:
        return [job.message(order)]

    @app.job(orders, key="{order_id}")
    def lazy(order: dict[str, str]) -> Any:
        return (part for part in order)

    with onefold.testing.inline(app) as world:
        listed.send({"order_id": "1"})
        lazy.send({"order_id": "1"})
        world.run_for(60_000)
        said = {
            event.key.job: (event.name, str(event.detail["summary"]))
            for event in world.events
            if "summary" in event.detail
        }
        assert said["listed"][0] == "held"
        assert (
            "listed returned messages, and no message was sent. The handler ran. Send with ctx.send"
            in said["listed"][1]
        )
        assert said["lazy"][0] == "held"
        assert "lazy returned a generator, and no message was sent. The handler ran; what is left" in said["lazy"][1]


def test_what_an_exception_says_cannot_steer_a_terminal() -> None:
    assert summary_of(ValueError("\x1b[31mred\0")) == r"\x1b[31mred\x00"
    assert summary_of(ValueError("größer als 日本 🎉")) == "größer als 日本 🎉"


# -- files and engines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///", "names no file"),
        ("sqlite://:memory", "names no file"),
        ("sqlite:///a\0b.db", "more than a path"),
        ("sqlite:///x.db?mode=ro", "more than a path"),
        ("mysql://host/x", "no engine 'mysql'"),
        ("postgresql://host/x", "an app needs queues too"),
        ("aws://shop", "names no region"),
        ("aws://eu-west-1?tabel=shop", "Did you mean 'table'"),
        ("aws://eu-west-1?create=maybe", "neither yes nor no"),
        ("aws://eu-west-1?sqs=localhost:9324", "is not a URL"),
        ("/tmp/x.db", "not an engine URL"),
    ],
)
def test_an_engine_that_cannot_be(url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app, _ = make(url)
    assert said in refusal(onefold.errors.UsageError, app.runtime)
    assert not list(tmp_path.iterdir())


def corrupt(file: Path) -> None:
    file.write_bytes(b"no database at all, " * 500)


def foreign(file: Path) -> None:
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE theirs (x)")
    other.close()


def newer(file: Path) -> None:
    app, book = make(f"sqlite:///{file}")
    book.send(Order("before"))
    app.close()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA user_version = 99")
    other.close()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (corrupt, "is not a usable database"),
        (foreign, "is a database of another program"),
        (newer, "has schema version 99"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_send_and_command(
    spoil: Callable[[Path], None],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onefold.cli.main import main

    file = tmp_path / "orders.db"
    spoil(file)
    before = file.read_bytes()
    _, book = make(f"sqlite:///{file}")
    assert said in refusal(onefold.errors.StorageError, lambda: book.send(Order("o-1")))
    monkeypatch.setattr(sys, "argv", ["onefold", "status", "--url", f"sqlite:///{file}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert said in shown.err
    assert "to do: " in shown.err
    assert "Traceback" not in shown.err
    assert file.read_bytes() == before


def test_a_locked_file_is_told_and_takes_the_message_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SqliteEngine.__init__.__kwdefaults__, "settings", FileSettings(busy_ms=20))
    file = tmp_path / "orders.db"
    app, book = make(f"sqlite:///{file}")
    app.runtime()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "is locked by another process" in refusal(onefold.errors.StorageBusy, lambda: book.send(Order("o-1")))
    other.execute("ROLLBACK")
    other.close()
    assert book.send(Order("o-1")).message_id
    assert app.runtime().engine.queues.open("orders").depth().visible == 1
    app.close()


def test_two_versions_of_one_app_do_not_change_each_others_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    first, book = make(url)
    book.send(Order("o-1"))
    second, changed = make(url, visibility="45s")
    assert changed.send(Order("o-2")).message_id  # during a deployment both versions run
    (warning,) = caplog.messages
    assert "visibility is 30s, declared 45s. The queue's own settings count." in warning
    assert "onefold queue apply" in warning
    assert book.send(Order("o-3")).message_id
    engine = first.runtime().engine
    assert engine.queues.open("orders").depth().visible == 3
    assert engine.queues.setting("orders").visibility_ms == 30_000
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dead_letter": onefold.DeadLetter(name="gone")}, "dead_letter is orders-dead, declared gone"),
        ({"dead_letter": onefold.DeadLetter(after=6, name="gone")}, "dead_letter's after is 10, declared 6"),
    ],
)
def test_a_queue_whose_messages_would_go_elsewhere_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    first, book = make(url)
    book.send(Order("o-1"))
    _, changed = make(url, **changes)
    text = refusal(onefold.errors.ConflictError, lambda: changed.send(Order("o-2")))
    assert said in text
    assert "`onefold queue apply MODULE:APP`" in text
    first.close()


# -- handlers --------------------------------------------------------------------------------------------------------


INTERRUPTED = """
import os, onefold
app = onefold.App("rude", url="sqlite:///rude.db")
@app.job(app.queue("rude"), key="{name}")
def rude(payload: dict[str, str]) -> None:
    if "RUDE" in os.environ:
        raise KeyboardInterrupt
"""


def test_a_handler_that_raises_an_interrupt_ends_its_run_and_not_the_worker(tmp_path: Path) -> None:
    (tmp_path / "rude.py").write_text(INTERRUPTED)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}

    def onefold_command(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "onefold", *words],
            cwd=tmp_path, env=kept | more, text=True, capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    assert onefold_command("send", "rude:app", "rude", '{"name": "n"}').returncode == 0
    found = onefold_command("worker", "rude:app", "--until-empty", RUDE="1")
    assert found.returncode == 0, found.stderr
    assert "KeyboardInterrupt" in found.stderr
    story = onefold_command("why", "n", "rude:app", "--json").stdout
    assert '"unknown"' in story, "where it struck, nobody knows"
