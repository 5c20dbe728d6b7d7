"""Status and its warnings, queues as such, moves, settings that drifted, paused jobs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onefold
from onefold import limits
from onefold.admin import dead_letters, groups, jobs, queues, redrive, status
from onefold.admin.session import SessionJobs
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import REPAIRED_GROUPS, Change
from onefold.contracts.store import RecordKey, Unreadable
from onefold.record.breaker import Breaker
from onefold.runner.admission import breaker_name
from tests.faces.office import ACTOR, Open, Order, file_url, open_session


def codes(there: Open) -> list[str]:
    return [warning.code for warning in status.status(there.session).warnings]


def queue_of(there: Open, name: str) -> queues.QueueStatus:
    (found,) = status.status(there.session, name).queues
    return found


def test_an_idle_engine_needs_nobody(there: Open) -> None:
    found = status.status(there.session)
    assert [one.queue for one in found.queues] == ["careful", "lines.fifo", "orders"]
    assert found.warnings == ()
    assert {one.job for one in found.jobs} == {"book", "pay", "step", "charge", "skipped"}


def test_what_waits_is_counted(there: Open) -> None:
    there.office.book.send_many(Order(f"o-{number}") for number in range(5))
    there.office.book.send(Order("later"), delay="10m")
    there.clock.advance(3_000)
    there.session.engine.queues.open("orders").receive(2)
    found = queue_of(there, "orders")
    assert (found.visible, found.in_flight, found.delayed, found.oldest_age_ms) == (3, 2, 1, 3_000)


def test_messages_given_back_for_a_later_try_are_not_said_to_be_worked_on(there: Open) -> None:
    there.office.ill["a"] = onefold.TransientError("no answer")
    there.office.book.send(Order("a"))
    there.world.run()
    there.office.book.send_many([Order("b"), Order("c")])
    there.session.engine.queues.open("orders").receive(1)
    found = queue_of(there, "orders")
    assert (found.visible, found.in_flight, found.to_retry) == (1, 2, 1)
    assert there.session.engine.queues.depth("orders").to_retry == 1
    there.clock.advance(60_000)
    assert queue_of(there, "orders").to_retry == 0


def test_operations_are_held_and_not_their_duplicates(there: Open) -> None:
    there.office.ill["p"] = onefold.OutcomeUnknown("no answer")
    there.office.pay.send_many([Order("p"), Order("p"), Order("p")])
    there.world.run()
    assert queue_of(there, "careful").held == 3
    for session in (there.session, there.without_app()):
        (warning,) = [one for one in status.status(session).warnings if one.code == "held"]
        assert warning.text == "1 operation of careful held (3 messages): it is unknown whether its effect happened."


def test_records_that_cannot_be_read_are_counted_with_the_way_to_them(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = there.session.engine.store
    read, claim, bad = store.read, store.claim, {RecordKey("", "book", "a"), RecordKey("", "book", "b")}

    def refusing(keys: Any, now_ms: int) -> Any:
        if bad & set(keys):
            raise onefold.errors.StorageError("This is not a record.", todo="Give it a prefix.")
        return read(keys, now_ms)

    def claiming(asks: Any, *args: Any) -> Any:
        answers = iter(claim([ask for ask in asks if ask.key not in bad], *args))
        unreadable = Unreadable(what="This is not a record.", meaning="", todo="")
        return [unreadable if ask.key in bad else next(answers) for ask in asks]

    monkeypatch.setattr(store, "read", refusing)
    monkeypatch.setattr(store, "claim", claiming)
    there.office.book.send_many([Order("a"), Order("b"), Order("c")])
    there.world.run()
    (warning,) = [one for one in status.status(there.session).warnings if one.code == "record-unreadable"]
    assert warning.text == (
        "2 records cannot be read, so nothing runs under their keys and the messages wait, five minutes at a time. "
        "One is that of book a: This is not a record."
    )
    assert warning.todo == "onefold why a"
    there.office.book.send(Order("d"))
    there.clock.advance(62_000)
    assert "nobody-works" in codes(there), "that messages wait for their next try does not hide it"
    bad.clear()
    assert codes(there) == ["nobody-works"]


def test_what_was_done_is_counted_per_job(there: Open) -> None:
    there.office.book.send_many(Order(f"o-{number}") for number in range(3))
    there.world.run()
    there.clock.advance(120_000)
    there.office.book.send(Order("o-9"))
    there.world.run()
    there.clock.advance(1_000)
    (book,) = [one for one in status.status(there.session).jobs if one.job == "book"]
    assert (book.queue, book.done_last_minute, book.done_last_hour) == ("orders", 1, 4)
    (alone,) = status.status(there.without_app()).jobs
    assert (alone.job, alone.queue, alone.done_last_hour) == ("book", None, 4)


def test_messages_that_nobody_takes_are_a_warning(there: Open) -> None:
    there.office.book.send(Order("a"))
    there.clock.advance(59_000)
    assert codes(there) == []
    there.clock.advance(1_000)
    assert codes(there) == ["nobody-works"]
    there.session.engine.queues.open("orders").receive(1)
    assert codes(there) == []


def test_a_queue_that_nobody_takes_from_is_a_warning_while_another_queue_is_worked_on(there: Open) -> None:
    there.office.pay.send(Order("p-1"))  # in the queue careful
    there.clock.advance(60_000)
    there.session.engine.state.put(
        [
            Change(
                breaker_name("book"), msgspec.json.encode(Breaker(pauses=1, until_ms=there.clock.now_ms() + 300_000)), 0
            )
        ]
    )
    assert codes(there) == ["job-paused", "nobody-works"]
    assert [one.queue for one in status.status(there.session).queues if one.visible] == ["careful"]
    there.office.book.send(Order("a"))
    there.clock.advance(60_000)
    (warning,) = [one for one in status.status(there.session).warnings if one.code == "nobody-works"]
    assert "of careful wait" in warning.text  # those of orders wait for the end of the pause
    assert "nobody-works" not in [one.code for one in status.status(there.without_app()).warnings]


def test_dead_letters_about_to_expire_are_a_warning(there: Open) -> None:
    there.office.ill["a"] = onefold.PermanentError("no")
    there.office.book.send(Order("a"))
    there.world.run()
    assert queue_of(there, "orders").dead_expires_in_ms == 14 * 86_400_000
    (warning,) = status.status(there.session).warnings
    assert (warning.code, warning.text) == ("dead-letters", "1 dead letter of orders expires in 14d.")
    assert warning.todo == "onefold dlq list --queue orders"
    there.clock.advance(13 * 86_400_000 + 1)
    (warning,) = status.status(there.session).warnings
    assert warning.code == "expires-soon"
    assert warning.text == "1 dead letter of orders expires in 23h59m."


def test_held_outcomes_are_a_warning(there: Open) -> None:
    there.office.ill["p"] = onefold.OutcomeUnknown("no answer")
    there.office.pay.send(Order("p"))
    there.world.run()
    assert queue_of(there, "careful").held == 1
    (warning,) = status.status(there.session).warnings
    assert (warning.code, warning.todo) == ("held", "onefold held list")


def test_a_run_whose_lease_is_over_is_a_warning(there: Open) -> None:
    there.office.book.send(Order("a"))
    there.claim("book", "a", start=True, message_id=there.session.engine.queues.peek("orders", limit=1)[0].message_id)
    there.claim("charge", "b", start=True)
    assert codes(there) == []
    there.clock.advance(2_000)
    (warning,) = status.status(there.session).warnings
    assert (warning.code, warning.todo) == ("stuck", "onefold stuck")
    assert warning.text.startswith("2 runs are stuck, among them charge b. ")
    assert warning.text.endswith(
        "No message is left to bring it back; repeat the call, or send it again with the same key."
    )
    (warning,) = status.status(there.session, "orders").warnings
    assert warning.text == (
        "1 run is stuck: book a. Its message has been visible for 2s: a worker that receives it takes the run over; "
        "is one running?"
    )
    assert status.status(there.session, "lines.fifo").warnings == ()


def test_a_queue_that_is_its_own_dead_letter_queue_is_shown_with_a_warning(there: Open) -> None:
    admin = there.session.engine.queues
    admin.create(QueueSettings(name="loop"))
    admin.change(QueueSettings(name="loop", dead_letter="loop", receives_max=1), advised=False)
    admin.open("loop").send([Entry(body="x")])
    found = queue_of(there, "loop")
    assert (found.visible, found.dead) == (1, 0)
    assert codes(there) == ["own-dead-letters"]


def test_a_stopped_group_is_a_warning_with_its_way_out(there: Open) -> None:
    there.office.ill["l"] = onefold.PermanentError("no")
    there.office.step.send(Order("l", customer="c-7"))
    there.world.run()
    assert queue_of(there, "lines.fifo").stopped_groups == 1
    warning, dead = status.status(there.session).warnings
    assert (warning.code, warning.todo) == ("group-stopped", "onefold dlq list --all --group c-7")
    assert dead.code == "dead-letters"
    assert warning.text.endswith("; its later messages follow it to the dead-letter queue.")
    assert status.status(there.session, "orders").warnings == ()


def test_a_stopped_group_whose_dead_letters_have_expired_can_go_on(there: Open) -> None:
    there.office.ill["l"] = onefold.PermanentError("no")
    there.office.step.send(Order("l", customer="c-7"))
    there.world.run()
    assert groups.resume_expired(there.session, "c-7") == [], "its dead letter is there"
    there.clock.advance(15 * limits.DAY_MS)
    there.session.engine.maintain(lambda owner: None)
    (warning,) = status.status(there.session).warnings
    assert (warning.code, warning.todo) == ("group-stopped", "onefold dlq redrive --group c-7")
    assert groups.resume_expired(there.session, "c-8") == []
    assert groups.resume_expired(there.session, "c-7", reason_text="expired") == ["lines.fifo"]
    assert codes(there) == []
    (row,) = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "group-resumed"]
    assert (row.queue, row.detail) == ("lines.fifo", {"group": "c-7", "reason_text": "expired"})
    there.office.step.send(Order("m", customer="c-7"))
    there.world.run()
    assert queue_of(there, "lines.fifo").dead == 0


def send_back(there: Open) -> None:
    work = redrive.Redrive(there.session, list(dead_letters.find(there.session, dead_letters.Select(group="c-7"))))
    work.step()


def test_a_stopped_group_that_was_sent_back_is_not_stopped(there: Open) -> None:
    there.office.ill["l"] = onefold.PermanentError("no")
    there.office.step.send_many(Order(name, customer="c-7") for name in ("l", "m", "n"))
    there.world.run()
    warning, _ = status.status(there.session).warnings
    assert warning.text.endswith("; 2 later messages are in the dead-letter queue with it.")
    send_back(there)
    assert queue_of(there, "lines.fifo").stopped_groups == 0
    assert codes(there) == []
    there.world.run()  # it fails again
    assert queue_of(there, "lines.fifo").stopped_groups == 1
    assert codes(there) == ["group-stopped", "dead-letters"]
    there.office.ill.clear()
    send_back(there)
    there.world.run()
    assert (queue_of(there, "lines.fifo").stopped_groups, codes(there)) == (0, [])


def test_an_unknown_queue_is_refused(there: Open) -> None:
    with pytest.raises(onefold.errors.NotFoundError, match="no queue 'ordrs'"):
        status.status(there.session, "ordrs")


# -- paused jobs -----------------------------------------------------------------------------------------------------


def test_a_paused_job_is_a_warning_and_can_go_on(there: Open) -> None:
    there.office.ill["a"] = onefold.DependencyDown("401: the key was rotated")
    there.office.book.send(Order("a"))
    there.world.run()
    (paused,) = jobs.paused(there.session)
    assert (paused.job, paused.pauses) == ("book", 1)
    (warning,) = status.status(there.session).warnings
    assert warning.code == "job-paused"
    assert "the key was rotated" in warning.text
    assert "onefold resume book" in warning.todo
    assert jobs.resume(there.session, "book", reason_text="new key")
    assert jobs.paused(there.session) == []
    assert not jobs.resume(there.session, "book")
    assert not jobs.resume(there.session, "pay")
    (row,) = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "resumed"]
    assert (row.actor, row.detail) == (ACTOR, {"job": "book", "reason_text": "new key"})


def test_a_job_that_goes_on_takes_up_at_once_what_its_pause_has_hidden(there: Open) -> None:
    there.office.ill["a"] = onefold.DependencyDown("401: the key was rotated")
    there.office.book.send(Order("a"))
    there.world.run()
    there.office.book.send(Order("b"))
    there.office.book.send(Order("c"))
    there.office.ill.clear()
    there.office.ran.clear()
    there.world.run()
    assert there.office.ran == []  # one was refused, two came behind it
    assert jobs.resume(there.session, "book")
    there.world.run()
    assert len(there.office.ran) == 3
    assert jobs.paused(there.session) == []


def test_a_breaker_that_workers_keep_changing_is_left(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    open_breaker = msgspec.json.encode(Breaker(pauses=1, until_ms=there.clock.now_ms() + 1_000))
    there.session.engine.state.put([Change(breaker_name("book"), open_breaker, 0)])
    monkeypatch.setattr(there.session.engine.state, "put", lambda changes: [False])
    with pytest.raises(onefold.TransientError, match="being changed by workers"):
        jobs.resume(there.session, "book")


# -- queues ----------------------------------------------------------------------------------------------------------


def test_queues_are_listed_with_their_companions(there: Open) -> None:
    views = queues.views(there.session)
    assert [(one.settings.name, one.role, one.serves) for one in views[:3]] == [
        ("careful", "source", ()),
        ("careful-dead", "dead-letter", ("careful",)),
        ("careful-held", "held", ("careful",)),
    ]


def test_a_look_is_no_receive(there: Open) -> None:
    there.office.charge.send(Order("x", customer="acme"))
    for _ in range(20):
        (seen,) = queues.look(there.session, "careful", limit=5)
    assert (seen.job, seen.tenant, seen.key, seen.state, seen.receive_count) == (
        "charge",
        "acme",
        "x",
        "visible",
        0,
    )
    assert seen.body is None
    assert queues.look(there.session, "careful", bodies=True)[0].body == (
        '{"city":"London","customer":"acme","order_id":"x"}'
    )
    with pytest.raises(onefold.errors.NotFoundError, match="no queue 'x'"):
        queues.look(there.session, "x")


def test_a_queue_is_emptied_once_a_minute_and_that_is_written_down(there: Open) -> None:
    there.office.book.send_many([Order("a"), Order("b")])
    assert queues.purge(there.session, "orders", reason_text="load test") == 2
    with pytest.raises(onefold.errors.UsageError, match="every 60 seconds"):
        queues.purge(there.session, "orders")
    (row,) = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "purge"]
    assert (row.queue, row.actor, row.detail) == ("orders", ACTOR, {"count": 2, "reason_text": "load test"})


def test_a_dead_letter_queue_moves_as_a_whole(there: Open) -> None:
    for number in range(3):
        there.office.ill[f"o-{number}"] = onefold.PermanentError("no")
        there.office.book.send(Order(f"o-{number}"))
    there.world.run()
    told = []
    task = queues.start_move(there.session, "orders-dead")
    task = queues.carry_move(there.session, task, told.append)
    assert (task.status, task.moved, task.to_move) == ("COMPLETED", 3, 3)
    assert told[-1] == task
    assert queues.move_tasks(there.session) == queues.move_tasks(there.session, "orders-dead") == [task]
    assert there.world.depth("orders").visible == 3
    with pytest.raises(onefold.errors.UsageError, match="COMPLETED"):
        queues.cancel_move(there.session, task.handle)
    with pytest.raises(onefold.errors.UsageError, match="Dead Letter Queue"):
        queues.start_move(there.session, "orders")


# -- settings --------------------------------------------------------------------------------------------------------


def test_settings_that_drifted_are_shown_and_applied(tmp_path: Path) -> None:
    url = file_url(tmp_path)
    before = onefold.App("drift", url=url)
    before.queue("orders", visibility="30s")
    before.runtime()
    before.close()
    after = onefold.App("drift", url=url)
    declared = after.queue("orders", visibility="60s", dead_letter=onefold.DeadLetter(after=4))
    wanted = [declared.dead_letter, declared.held, declared.settings]
    after.runtime()
    after.close()
    session = open_session(
        url,
        actor=ACTOR,
        jobs=SessionJobs(named=after.jobs, of=after.registry.job_of, history="brief", queues=tuple(wanted)),
    )
    (drift,) = queues.drift(session, wanted)
    assert drift.queue == "orders"
    assert drift.differences == ("visibility is 30s, declared 1m", "dead_letter's after is 10, declared 4")
    (warning,) = status.status(session).warnings
    assert (warning.code, warning.text, warning.todo) == ("settings-differ", drift.text, "onefold queue apply")
    assert queues.apply(session, wanted) == [drift]
    assert queues.drift(session, wanted) == queues.apply(session, wanted) == []
    (row,) = session.engine.ledger.between(0, 1 << 60)
    assert (row.event, row.queue, row.actor) == ("settings", "orders", ACTOR)
    session.close()
    after.runtime()
    after.close()


def test_a_desk_on_a_file_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(onefold.errors.NotFoundError, match="There is no file"):
        open_session(file_url(tmp_path), actor=ACTOR)
    assert list(tmp_path.iterdir()) == []


def test_messages_whose_group_was_repaired_are_a_warning(tmp_path: Path) -> None:
    url = file_url(tmp_path)
    app = onefold.App("repaired", url=url)
    steps = app.queue("steps.fifo", fifo=True)
    queue = app.runtime().engine.queues.open(steps.name)
    (sent,) = queue.send([Entry(body="{}", group="g", dedup_id="1")])
    app.close()
    damaged = sqlite3.connect(tmp_path / "office.db")
    damaged.executescript("DELETE FROM onefold_group; PRAGMA user_version = 3")
    damaged.close()
    session = open_session(url, actor=ACTOR)
    assert isinstance(sent, Sent)
    (warning,) = status.status(session).warnings
    assert (warning.code, warning.todo) == ("groups-repaired", f"onefold why {sent.message_id}")
    assert warning.text.startswith("1 FIFO message had lost the group's row")
    assert warning.text.endswith("Still there: 1.")
    assert [one.code for one in status.status(session, "steps.fifo").warnings] == ["groups-repaired"]
    queue = session.engine.queues.open("steps.fifo")
    (delivery,) = queue.receive(10)
    assert queue.delete([delivery.receipt]) == [True]
    (warning,) = status.status(session).warnings
    assert (warning.todo, warning.text[-15:]) == ("Check whether their order mattered.", "Still there: 0.")
    assert status.status(session, "steps.fifo").warnings == ()
    (noted,) = session.engine.state.get([REPAIRED_GROUPS])
    assert noted is not None
    long_ago = msgspec.json.encode(msgspec.json.decode(noted.value) | {"at_ms": session.now_ms() - 15 * 86_400_000})
    assert session.engine.state.put([Change(REPAIRED_GROUPS, long_ago, noted.version)]) == [True]
    assert status.status(session).warnings == ()
    session.close()
