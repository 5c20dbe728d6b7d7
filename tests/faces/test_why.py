"""`why`: the story of a key in every place an operation can stand, at every history level, and for a key nobody knows."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

import onefold
from onefold import limits
from onefold.admin import editing, held, queues, redrive, stuck, why
from onefold.admin.dead_letters import Select, find, one_of
from onefold.contracts.ledger import History, Row
from onefold.contracts.state import Change
from onefold.contracts.store import Failure, RecordKey, Release, Unknown
from onefold.observe.operation_state import HANGS
from onefold.runner import runs
from tests.faces.office import START_MS, Office, Open, Order


def story(there: Open, key: str, **which: str) -> why.Explanation:
    (found,) = why.explain(there.session, key, **which).stories  # type: ignore[arg-type]
    return found


def told(found: why.Explanation) -> list[tuple[str, str, str]]:
    return [(line.event, line.text, line.rule) for line in found.lines]


def test_a_clean_run_is_told_by_its_record(there: Open) -> None:
    there.office.book.send(Order("a"))
    there.clock.advance(2_000)
    there.world.run()
    found = story(there, "a")
    assert (found.state, found.todo, found.result) == ("done", (), '{"label":"L-a"}')
    assert found.text == "Done at 2023-11-14T22:13:22.000Z, with 1 run."
    assert [(line.event, line.at_ms - START_MS) for line in found.lines] == [
        ("sent", 0),
        ("claimed", 2_000),
        ("started", 2_000),
        ("completed", 2_000),
    ]
    assert found.lines[-1].rule == "answers duplicates until 2024-02-12T22:13:22.000Z"
    assert 'App(history="full")' in found.left_out


@pytest.mark.parametrize("fifo", [False, True])
def test_a_delayed_message_that_has_run_was_sent_when_it_was_sent(there: Open, fifo: bool) -> None:
    (there.office.step if fifo else there.office.book).send(Order("a"), delay="10m")
    there.clock.advance(600_000)
    there.world.run()
    sent, claimed, *_ = story(there, "a").lines
    assert (sent.event, sent.at_ms - START_MS) == ("sent", 0)
    assert (claimed.event, claimed.at_ms - START_MS) == ("claimed", 600_000)


def test_a_duplicate_names_the_record_that_answered(there: Open) -> None:
    there.office.book.send(Order("a"))
    there.world.run()
    first = there.session.engine.records.find("a")[0].message_id
    there.clock.advance(1_000)
    there.office.book.send(Order("a"))
    there.world.run()
    assert told(story(there, "a"))[-1] == (
        "duplicate",
        f"duplicate: returned the stored result of message {first}, completed at 2023-11-14T22:13:20.000Z",
        "finished work is not run again",
    )


def test_a_retry_shows_the_arithmetic(there: Open) -> None:
    there.office.ill["a"] = ValueError("odd")
    there.office.book.send(Order("a"))
    there.world.run()
    found = story(there, "a")
    where = r" \(at office.py:[0-9]+ in Office.__init__.<locals>.run\)"
    assert re.search(where, told(found)[-1][1])
    assert tuple(re.sub(where, "", text) for text in told(found)[-1]) == (
        "retry",
        "run 1 failed: ValueError: odd",
        "retry in 1.0 s: attempt 1 of 2, base 1 s x 2^0, no jitter",
    )
    assert found.state == "retrying"
    assert found.text.startswith("Retrying: 1 run failed, the next in 1.0 s, message ")
    there.world.run_for(2_000)
    found = story(there, "a")
    assert tuple(re.sub(where, "", text) for text in told(found)[-1]) == (
        "dead-letter",
        "run 2 failed: ValueError: odd; moved to the dead-letter queue",
        "attempt 2 of 2: no attempt is left",
    )
    assert found.state == "dead"
    assert found.text.endswith("(attempts) ValueError: odd (owner: fulfilment)")
    assert found.todo[0] == f"onefold dlq show {there.dead()['a']}"


def test_without_an_app_the_numbers_of_the_row_remain(there: Open) -> None:
    there.office.ill["a"] = ValueError("odd")
    there.office.book.send(Order("a"))
    there.world.run()
    (found,) = why.explain(there.without_app(), "a").stories
    assert found.lines[-1].rule == "retry in 1.0 s: attempt 1 of 2"


def test_the_whole_way_through_the_dead_letter_queue_is_told(there: Open) -> None:
    there.office.ill["a"] = onefold.PermanentError("no such city")
    there.office.book.send(Order("a"))
    there.world.run()
    there.office.ill.clear()
    there.clock.advance(60_000)
    editing.edit(there.session, one_of(there.session, Select(key="a")), assignments=["city=Paris"], reason_text="typo")
    there.clock.advance(1_000)
    redrive.Redrive(there.session, list(find(there.session, Select())), watch=False).run(lambda _: None)
    there.clock.advance(1_000)
    there.world.run()
    found = story(there, "a")
    assert [line.event for line in found.lines] == [
        "sent",
        "claimed",
        "dead-letter",
        "edit",
        "redrive",
        "started",
        "completed",
    ]
    assert found.lines[0].message_id == found.lines[2].message_id != found.lines[6].message_id
    assert found.lines[3].text == "payload changed in the dead-letter queue (city)"
    assert found.lines[3].rule == "reason given: typo"
    assert found.lines[3].actor == "person:ada"
    assert found.lines[5].text == "run 2 started"
    assert found.lines[5].rule == "fence 2; 1 run before it was sent back"
    assert found.text.endswith("with 2 runs.")


def test_runs_are_counted_on_through_redrives(there: Open) -> None:
    there.office.ill["a"] = ValueError("odd")
    there.office.book.send(Order("a"))
    there.world.run_for(30_000)
    before = [line.text for line in story(there, "a").lines if line.event != "started"]
    for number in range(1, 3):
        redrive.Redrive(there.session, list(find(there.session, Select())), watch=False).run(lambda _: None)
        there.world.run_for(30_000)
        after = [line.text for line in story(there, "a").lines if line.event != "started"]
        assert after[: len(before)] == before, "what the story said before a redrive it says after it"
        assert [text.split(":")[0] for text in after[len(before) + 1 :]] == [
            f"run {2 * number + 1} failed",
            f"run {2 * number + 2} failed",
        ]
        before = after


def test_a_move_by_a_task_is_told_where_it_happened(there: Open) -> None:
    there.office.ill["a"] = onefold.PermanentError("no such city")
    there.office.book.send(Order("a"))
    there.world.run()
    task = there.session.engine.queues.start_move("orders-dead")
    there.clock.advance(1_000)
    there.session.engine.maintain(lambda _: None)
    there.clock.advance(1_000)
    there.world.run()
    lines = story(there, "a").lines
    assert [line.event for line in lines] == ["sent", "claimed", "dead-letter", "redrive", "started", "dead-letter"]
    assert (lines[3].actor, lines[3].at_ms) == (f"move-task:{task.handle}", START_MS + 1_000)


@pytest.mark.parametrize("queue", ["orders", "orders-dead"])
def test_a_purge_is_told_of_each_message(there: Open, queue: str) -> None:
    there.office.ill["a"] = onefold.PermanentError("no such city")
    there.office.book.send(Order("a"))
    if queue == "orders-dead":
        there.world.run()
    there.clock.advance(60_000)
    before = told(story(there, "a"))
    assert queues.purge(there.session, queue, reason_text="a mistake") == 1
    found = story(there, "a")
    assert found.state == "gone"
    assert found.text.endswith("It was removed by ada at 2023-11-14T22:14:20.000Z.")
    assert (found.lines[-1].event, found.lines[-1].at_ms) == ("removed", START_MS + 60_000)
    assert told(found)[:-1] == (before if queue == "orders-dead" else [])
    row = there.session.engine.ledger.of_key(RecordKey("", "book", "a"))[-1]
    assert row.detail == {"reason_text": "a mistake"}


def test_a_purge_is_told_of_every_message_however_many_they_are(there: Open) -> None:
    """Deleted with their rows in bounded transactions: nobody waits for the file until all of them are gone."""
    there.office.book.send_many([Order(f"a-{number}") for number in range(5_001)])
    transactions: list[int] = []
    removes, purges = there.session.engine.queues.remove, there.session.engine.queues.purge

    def counted(message_ids: list[str]) -> list[bool]:
        transactions.append(len(message_ids))
        return removes(message_ids)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(there.session.engine.queues, "remove", counted)
        assert queues.purge(there.session, "orders", reason_text="a mistake") == 5_001
    assert transactions == [1_000] * 5
    assert there.session.engine.queues.depth("orders").visible == 0
    for number in (0, 999, 1_000, 4_999, 5_000):
        row = there.session.engine.ledger.of_key(RecordKey("", "book", f"a-{number}"))[-1]
        assert (row.event, row.actor, row.detail) == ("removed", "person:ada", {"reason_text": "a mistake"})
    assert story(there, "a-5000").state == "gone"
    (row,) = [
        row for row in there.session.engine.ledger.between(0, there.clock.now_ms() + 1, 20_000) if row.event == "purge"
    ]
    assert row.detail == {"count": 5_001, "reason_text": "a mistake"}
    there.office.book.send_many([Order(f"b-{number}") for number in range(1_001)])
    with pytest.raises(onefold.errors.UsageError, match="Only one PurgeQueue operation"):
        queues.purge(there.session, "orders")
    assert there.session.engine.queues.depth("orders").visible == 1_001, "a purge that is refused deletes nothing"
    there.clock.advance(60_000)
    assert purges("orders", only_ask=True) == 0
    assert there.session.engine.queues.depth("orders").visible == 1_001


def test_a_purge_counts_what_has_no_row_of_its_own(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages sent while it goes on, more than one transaction takes: no endless pursuit, and no silence."""
    monkeypatch.setattr(queues, "_NOTED_AT_ONCE", 2)
    there.office.book.send_many([Order(f"a-{number}") for number in range(2)])
    removes = there.session.engine.queues.remove

    def busy(message_ids: list[str]) -> list[bool]:
        there.clock.advance(1)
        there.office.book.send_many([Order(f"late-{number}") for number in range(5)])
        return removes(message_ids)

    monkeypatch.setattr(there.session.engine.queues, "remove", busy)
    assert queues.purge(there.session, "orders") == 7
    (row,) = [
        row for row in there.session.engine.ledger.between(0, there.clock.now_ms() + 1, 20_000) if row.event == "purge"
    ]
    assert row.detail == {"count": 7, "not_noted": 3}


def test_a_run_after_a_settlement_as_not_done_is_told(there: Open) -> None:
    there.office.ill["p"] = onefold.OutcomeUnknown("no answer")
    there.office.pay.send(Order("p"))
    there.world.run()
    there.office.ill.clear()
    there.clock.advance(1_000)
    held.settle(there.session, "p", done=False)
    there.clock.advance(1_000)
    there.world.run()
    lines = story(there, "p").lines
    assert [line.event for line in lines[-4:]] == ["settled", "redrive", "started", "completed"]
    assert lines[-1].text == "run 2 completed; its record is kept"


def test_a_takeover_and_its_doubt_are_told(there: Open) -> None:
    there.office.book.send(Order("a"))
    message = there.session.engine.queues.peek("orders")[0]
    fingerprint = there.office.book.outgoing(Order("a")).fingerprint
    now_ms = there.clock.now_ms()
    ask = onefold.contracts.store.Ask(
        key=RecordKey("", "book", "a"), fingerprint=fingerprint, owner="w-dead", lease_until_ms=now_ms + 5_000, start=True,
        expires_at_ms=now_ms + 10_000_000, message_id=message.message_id, sent_at_ms=message.sent_at_ms,
    )  # fmt: skip
    there.session.engine.store.claim([ask], now_ms)
    there.clock.advance(2_000)
    running = story(there, "a")
    assert running.state == "running"
    assert running.text == (
        "Running: run 1, for 2s, by owner w-dead (fence 1); its lease holds for 3.0 s unless renewed."
    )
    there.clock.advance(4_000)
    silent = story(there, "a")
    assert silent.state == "silent"
    assert "has not renewed its lease for 1s. The next delivery takes it over" in silent.text
    (one,) = stuck.runs(there.session)
    assert (one.key, one.owner, one.silent_ms, one.resolves) == ("a", "w-dead", 1_000, True)
    there.world.run()
    found = story(there, "a")
    assert told(found)[2:] == [
        (
            "takeover",
            "taken over from a run that ended without reporting an outcome",
            "the lease of w-dead had expired or its process had died; fence 2; it had started, so its outcome is unknown",
        ),
        (
            "unknown",
            "redelivered; it is unknown whether the previous run took effect",
            "on_unknown=rerun: the handler runs again",
        ),
        ("started", "run 2 started", "fence 2"),
        (
            "completed",
            "run 2 completed; its record is kept",
            "answers duplicates until 2024-02-12T22:13:26.000Z",
        ),
    ]
    owner = there.session.engine.records.find("a")[0].owner
    assert [line.actor for line in found.lines] == [None, None, owner, owner, owner, owner]
    assert stuck.runs(there.session) == []


def test_a_step_names_the_process_that_took_it_and_no_later_one(there: Open) -> None:
    """The run that died was of another worker than the one that found it dead; nobody who sent is a worker."""
    there.office.pay.send(Order("a"))
    (message,), now_ms = there.session.engine.queues.peek(there.office.pay.policy.queue), there.clock.now_ms()
    ask = onefold.contracts.store.Ask(
        key=RecordKey("", "pay", "a"), fingerprint=there.office.pay.outgoing(Order("a")).fingerprint, owner="w-dead",
        lease_until_ms=now_ms + 5_000, start=True, expires_at_ms=now_ms + 10_000_000, message_id=message.message_id,
        sent_at_ms=message.sent_at_ms,
    )  # fmt: skip
    there.session.engine.store.claim([ask], now_ms)
    there.clock.advance(6_000)
    there.world.run()
    found = story(there, "a")
    assert [(line.event, line.actor) for line in found.lines][:3] == [
        ("sent", None), ("claimed", None), ("started", None),
    ]  # fmt: skip
    assert [line.event for line in found.lines][3:] == ["takeover", "unknown", "held"]
    assert "w-dead" in found.lines[3].rule
    assert found.lines[3].actor == there.session.engine.records.find("a")[0].owner != "w-dead"


def test_a_run_past_its_timeout_is_named(there: Open) -> None:
    """Its lease is renewed for as long as its handler runs, so nothing else would show that it may hang."""
    there.office.book.send(Order("a"))
    now_ms = there.clock.now_ms()
    timeout_ms = there.office.app.jobs["book"].policy.timeout_ms
    ask = onefold.contracts.store.Ask(
        key=RecordKey("", "book", "a"), fingerprint=there.office.book.outgoing(Order("a")).fingerprint, owner="w-late",
        lease_until_ms=now_ms + 10 * timeout_ms, start=True, expires_at_ms=now_ms + 1_000_000_000,
        message_id=there.session.engine.queues.peek("orders")[0].message_id, sent_at_ms=now_ms,
    )  # fmt: skip
    there.session.engine.store.claim([ask], now_ms)
    there.clock.advance(timeout_ms - 1)
    assert "timeout" not in story(there, "a").text
    assert stuck.runs(there.session) == []
    there.clock.advance(1)
    late = story(there, "a")
    assert late.state == "running"
    assert "has passed its timeout of" in late.text
    assert "nothing else runs this key" in late.text
    assert late.todo == (HANGS,)
    (one,) = stuck.runs(there.session)
    assert (one.key, one.owner, one.silent_ms, one.resolves) == ("a", "w-late", 0, False)
    assert "past its timeout of" in one.explanation


def test_a_silent_run_without_a_message_is_explained(there: Open) -> None:
    there.claim("charge_card", "k", start=True)
    there.clock.advance(10_000)
    (one,) = stuck.runs(there.session)
    assert (one.silent_ms, one.resolves) == (9_000, False)
    found = story(there, "k")
    assert found.state == "silent"
    assert "no message is left that would take it over" in found.text
    assert found.todo == (
        "Call it again with the same key; the on_unknown policy of the function decides what happens then.",
    )
    key = RecordKey("", "charge_card", "k")
    there.session.engine.ledger.append([Row(at_ms=START_MS + 10_000, event="unknown", key=key)])
    assert "called again; it is unknown whether the previous run took effect" in [
        line.text for line in story(there, "k").lines
    ]


def test_a_delayed_message_was_sent_when_it_was_sent(there: Open) -> None:
    there.office.book.send(Order("a"), delay="20h")
    there.office.step.send(
        Order("l", customer="c-1"), run_at=datetime.fromtimestamp(START_MS // 1_000 + 72_000, tz=UTC)
    )
    there.clock.advance(600_000)
    for key, queue in (("a", "orders"), ("l", "lines.fifo")):
        (line,) = story(there, key).lines
        assert (line.event, line.at_ms) == ("sent", START_MS)
        assert line.rule.endswith(", 20h later")
        (waiting,) = queues.look(there.session, queue)
        assert (waiting.state, waiting.sent_at_ms) == ("delayed", START_MS)


def test_a_run_has_one_number_after_a_crash_that_a_person_settled(there: Open) -> None:
    there.office.pay.send(Order("a"))
    now_ms = there.clock.now_ms()
    ask = onefold.contracts.store.Ask(
        key=RecordKey("", "pay", "a"), fingerprint=there.office.pay.outgoing(Order("a")).fingerprint, owner="w-dead",
        lease_until_ms=now_ms + 1_000, start=True, expires_at_ms=now_ms + 10_000_000,
    )  # fmt: skip
    there.session.engine.store.claim([ask], now_ms)
    there.clock.advance(1_000)
    there.world.run()
    there.office.ill["a"] = onefold.PermanentError("account closed")
    held.settle(there.session, "a", done=False)
    there.clock.advance(1_000)
    there.world.run()
    texts = [line.text for line in story(there, "a").lines]
    assert "run 2 started" in texts
    assert any(text.startswith("run 2 failed: PermanentError: account closed") for text in texts), texts


def test_what_a_person_settled_as_done_says_so_first(there: Open) -> None:
    there.office.ill["a"] = onefold.OutcomeUnknown("no answer")
    there.office.pay.send(Order("a"))
    there.world.run()
    held.settle(there.session, "a", done=True)
    assert re.match(r"Settled manually as done at \S+ by ada", story(there, "a").text)


def test_a_held_one_says_how_to_settle_it(there: Open) -> None:
    there.office.ill["p 1"] = onefold.OutcomeUnknown("the bank did not answer")
    there.office.pay.send(Order("p 1"))
    there.office.pay.send(Order("p 1"))
    there.world.run()
    found = story(there, "p 1")
    assert found.state == "held"
    assert "it is unknown whether the effect happened. OutcomeUnknown: the bank did not answer" in found.text
    assert found.todo[1:] == ("onefold held settle 'p 1' --done --result JSON", "onefold held settle 'p 1' --not-done")
    assert [event for event, _, _ in told(found)][-3:] == ["unknown", "held", "held"]
    held.settle(there.session, "p 1", done=True, reason_text="saw it")
    found = story(there, "p 1")
    assert found.state == "done"
    assert told(found)[-1] == ("settled", "settled as done", "reason given: saw it")


def test_waiting_in_each_way(there: Open) -> None:
    there.office.book.send(Order("now"))
    there.office.book.send(Order("later"), delay="2h")
    assert story(there, "now").text.startswith("Waiting for a worker for 0s; message ")
    later = story(there, "later")
    assert later.state == "waiting"
    assert later.text.startswith("Waiting: not before 2023-11-15T00:13:20.000Z, in 2h; message ")
    assert later.lines[0].text == "sent to orders"
    there.clock.advance(61_000)
    assert story(there, "now").todo == ("Is a worker running? See `onefold status`.",)
    there.session.engine.queues.open("orders").receive(1, 30_000)
    in_hand = story(there, "now")
    assert in_hand.state == "waiting"
    assert "received, and hidden for another 30.0 s" in in_hand.text


def test_one_of_a_paused_job_says_what_it_waits_for(there: Open) -> None:
    there.office.ill["a"] = onefold.DependencyDown("401: the key was rotated")
    there.office.book.send(Order("a"))
    there.world.run()
    found = story(there, "a")
    assert found.state == "waiting"
    assert found.text.startswith("Waiting: job book is paused by its circuit breaker, next try in 30s; message ")
    assert found.todo[1] == "onefold resume book"
    assert told(found)[-1][:2] == ("paused", "the job is paused by its circuit breaker: 401: the key was rotated")


def test_one_that_was_deleted_is_gone_and_says_by_whom(there: Open) -> None:
    from onefold.admin.dead_letters import remove

    there.office.ill["a"] = onefold.PermanentError("no")
    there.office.book.send(Order("a"))
    there.world.run()
    remove(there.session, list(find(there.session, Select())))
    found = story(there, "a")
    assert found.state == "gone"
    assert found.text == (
        "Not done, and no message is left: its record says failed. It was removed by ada at 2023-11-14T22:13:20.000Z."
    )
    assert found.todo


def test_a_conflict_stands_with_the_one_that_was_first(there: Open) -> None:
    there.office.book.send(Order("a"))
    there.world.run()
    there.office.book.send(Order("a", "Rome"))
    there.world.run()
    found = story(there, "a")
    assert found.state == "done"
    assert "1 message of this key in a dead-letter queue" in found.text
    assert found.todo == (f"onefold dlq show {there.dead()['a']}",)
    assert told(found)[-1][:2] == (
        "conflict",
        "came with another payload; moved to the dead-letter queue, not run",
    )


def test_several_operations_have_one_story_each(there: Open) -> None:
    there.office.book.send(Order("x"))
    there.office.pay.send(Order("x"))
    there.office.charge.send(Order("x", customer="acme"))
    there.office.charge.send(Order("x", customer="umbrella"))
    there.world.run()
    found = why.explain(there.session, "x").stories
    assert {(one.job, one.tenant) for one in found} == {
        ("book", ""),
        ("pay", ""),
        ("charge", "acme"),
        ("charge", "umbrella"),
    }
    assert story(there, "x", job="charge", tenant="acme").tenant == "acme"
    none = why.explain(there.session, "x", job="step")
    assert none.stories == ()
    assert none.meanings[0].startswith("The key is known, but not for job step: it belongs to ")


def test_a_message_id_tells_the_story_of_its_operation(there: Open) -> None:
    there.office.book.send(Order("a"))
    message_id = there.session.engine.queues.peek("orders")[0].message_id
    assert story(there, message_id).key == "a"
    there.send_foreign("orders", '{"city": 1}')
    there.world.run()
    (malformed,) = find(there.session, Select(reason="malformed"))
    found = story(there, malformed.message_id)
    assert (found.state, found.key) == ("dead", malformed.message_id)
    assert "malformed" in found.text


def test_a_key_that_nobody_knows(there: Open) -> None:
    there.office.book.send_many([Order("order-17"), Order("order-18")])
    there.world.run()
    there.office.pay.send(Order("order-71"))
    answer = why.explain(there.session, "ordr-17")
    assert answer.stories == ()
    assert len(answer.meanings) == 5
    assert answer.near[0] == "order-17"
    assert why.explain(there.session, "ORDER-17").near[0] == "order-17"
    assert why.explain(there.session, "something else").near == ()
    there.office.book.send(Order("nightly/2026-06-01/c5"))
    assert why.explain(there.session, "c5").near == ("nightly/2026-06-01/c5",), "an item, without its run"


@pytest.mark.parametrize(
    ("history", "events", "left_out"),
    [
        ("full", ["started", "retry", "started", "completed"], ""),
        ("brief", ["retry", "started", "completed"], "History is brief"),
        ("off", ["started", "completed"], "History is off"),
    ],
)
def test_each_history_level_tells_what_it_has(
    office: Office, history: History, events: list[str], left_out: str
) -> None:
    with office.opened(history=history) as there:
        office.ill["a"] = ValueError("odd")
        office.book.send(Order("a"))
        there.world.run()
        office.ill.clear()
        there.world.run_for(2_000)
        found = story(there, "a")
        assert found.state == "done"
        kept = [line.event for line in found.lines]
        assert [event for event in kept if event in ("retry", "started", "completed")] == events
        assert kept.count("completed") == 1
        assert found.left_out.startswith(left_out)
        assert bool(found.left_out) == bool(left_out)


def test_the_last_failure_is_told_by_the_record_when_history_is_off(office: Office) -> None:
    with office.opened(history="off") as there:
        office.ill["a"] = ValueError("odd")
        office.book.send(Order("a"))
        there.world.run()
        assert told(story(there, "a"))[-1] == ("failed", "failed: ValueError: odd", "kind transient")


def test_asking_changes_nothing(there: Open) -> None:
    there.office.ill["a"] = onefold.PermanentError("no")
    there.office.book.send_many([Order("a"), Order("b")])
    there.world.run()
    queues = there.session.engine.queues
    before = [queues.peek(settings.name) for settings in queues.settings()]
    rows = there.session.engine.ledger.between(0, 1 << 60)
    for key in ("a", "b", "zzz"):
        why.explain(there.session, key)
    assert [queues.peek(settings.name) for settings in queues.settings()] == before
    assert there.session.engine.ledger.between(0, 1 << 60) == rows


def test_a_released_record_without_a_message_says_so(there: Open) -> None:
    claimed = there.claim("charge_card", "k", start=False)
    failure = Failure(kind="released", error="Drain", summary="given back")
    now_ms = there.clock.now_ms()
    there.session.engine.store.write([(claimed.hold, Release(expires_at_ms=now_ms + 10_000, failure=failure))], now_ms)
    found = story(there, "k")
    assert (found.state, found.text) == (
        "gone",
        "Not done; the record says released (Drain: given back); the next call with this key runs it.",
    )


def test_an_unknown_record_without_a_message_is_not_said_to_be_not_done(there: Open) -> None:
    claimed = there.claim("charge_card", "k", start=True)
    failure = Failure(kind="unknown", error="KeyboardInterrupt", summary="KeyboardInterrupt")
    now_ms = there.clock.now_ms()
    outcome = Unknown(parked=False, crashed=False, failure=failure, expires_at_ms=now_ms + 10_000)
    there.session.engine.store.write([(claimed.hold, outcome)], now_ms)
    found = story(there, "k")
    assert found.text.startswith(
        "Unknown: the outcome of the last call was not recorded (KeyboardInterrupt); it may have"
    )


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_result_that_could_not_be_recorded_is_known_to_have_happened(there: Open, *, took_effect: bool) -> None:
    """By what the record says; a handler's own class may be called PayloadError as well."""
    claimed = there.claim("charge_card", "k", start=True)
    failure = Failure(kind="unknown", error="PayloadError", summary="The function ran", took_effect=took_effect)
    now_ms = there.clock.now_ms()
    outcome = Unknown(parked=True, crashed=False, failure=failure, expires_at_ms=now_ms + 10_000)
    there.session.engine.store.write([(claimed.hold, outcome)], now_ms)
    found = story(there, "k")
    assert ("the effect happened, and its result could not be recorded" in found.text) is took_effect
    assert ("it is unknown whether the effect happened" in found.text) is not took_effect
    assert found.todo[1] == "onefold held settle k --done --result JSON"
    assert len(found.todo) == (2 if took_effect else 3)


def test_a_run_whose_record_was_lost_is_not_said_to_be_not_done(there: Open) -> None:
    key = RecordKey("", "charge_card", "k")
    row = Row(at_ms=there.clock.now_ms(), event="lease-lost", key=key, detail={"attempt": 1})
    there.session.engine.ledger.append([row])
    assert story(there, "k").text.startswith(
        "Unknown: a run lost its lease or its record, and no record of this key is left"
    )


def test_a_call_whose_record_is_gone_gets_no_advice_that_is_for_an_app(there: Open) -> None:
    """Nor is it said to wait for a worker: a store for records has no messages, and its calls wait for none."""
    bare = there.without_app()
    for event, begins in (
        ("lease-lost", "Unknown: a run lost its lease or its record"),
        ("failed", "No record of this key is left (expired, deleted, flushed); the next call with this key runs it."),
    ):
        key = RecordKey("", "bank", event)
        bare.engine.ledger.append([Row(at_ms=there.clock.now_ms(), event=event, key=key, detail={"attempt": 1})])
        (found,) = why.explain(bare, event).stories
        assert found.text.startswith(begins)
        assert found.left_out == "Of calls that went well only the last one is known, from its record."
        said = " ".join((found.text, *found.todo))
        assert not any(one in said for one in ("worker", "onefold status", "App(", "Send it", "message of it waits"))


# -- what is no key ------------------------------------------------------------------------------------------------


def test_the_id_of_a_message_that_is_gone_leads_to_its_key(there: Open) -> None:
    receipt = there.office.book.send(Order("a"))
    there.world.run()
    there.office.book.send_many(Order(f"o-{number}") for number in range(5))
    there.clock.advance(limits.HOUR_MS)
    assert receipt.message_id is not None
    assert there.session.engine.queues.find([receipt.message_id]) == [None]
    assert story(there, receipt.message_id) == story(there, "a")
    no_such = why.explain(there.session, "0123456789abcdef-99")
    assert no_such.stories == ()
    assert "ask by its key" in no_such.meanings[-1]


def test_the_id_of_a_message_that_only_the_history_names_leads_to_its_key(there: Open) -> None:
    receipt = there.office.book.send(Order("a"))
    there.world.run()
    again = there.office.book.send(Order("a"))  # answered from the record, which names the first
    there.world.run()
    assert again.message_id not in (None, receipt.message_id)
    assert [story(there, str(one.message_id)).key for one in (receipt, again)] == ["a", "a"]


def test_the_name_of_a_schedule_or_a_run_is_no_unseen_key(there: Open) -> None:
    state, session = there.session.engine.state, there.session
    run = runs.RunState(name="n/bad", kind="map", title="n", started_at_ms=START_MS)
    tick = runs.RunState(name="settle/2023-11", kind="tick", title="settle", started_at_ms=START_MS)
    state.put([Change(runs.state_name(one.name), runs.encode(one), 0) for one in (run, tick)])
    state.put([Change("map/n/bad", b"{}", 0), Change("schedule/settle", b"{}", 0)])
    asked = {name: why.explain(session, name).instead for name in ("n/bad", "settle/2023-11", "settle", "other")}
    assert {name: one and (one.kind, one.todo) for name, one in asked.items()} == {
        "n/bad": ("map-run", ("onefold map show n/bad",)),
        "settle/2023-11": ("run", ("onefold runs show settle/2023-11",)),
        "settle": ("schedule", ("onefold why settle 2023-11-14", "onefold runs list")),
        "other": None,
    }
    declared = why.explain(session, "nightly", schedules=["nightly"]).instead
    assert declared is not None
    assert declared.text == "'nightly' is a schedule: ask about it on a date."
    assert why.explain(session, "x" * 400).instead is None


@pytest.mark.parametrize("fifo", [False, True])
def test_a_run_whose_message_was_received_too_often_is_told_with_its_dead_letter(there: Open, fifo: bool) -> None:
    job, name = (there.office.step, "lines.fifo") if fifo else (there.office.book, "orders")
    receipt = job.send(Order("a"))
    there.claim(job.name, "a", start=True, message_id=receipt.message_id)
    queue = there.session.engine.queues.open(name)
    receives_max = there.session.settings()[name].receives_max
    assert receives_max is not None
    for _ in range(receives_max):
        assert len(queue.receive(1, visible_ms=1_000)) == 1
        there.clock.advance(5_000)
    assert queue.receive(1) == []  # it has been moved
    moved_ms = there.clock.now_ms()
    there.clock.advance(9_000)
    (letter,) = find(there.session, Select())
    found = story(there, "a")
    assert found.state == "dead"
    assert "has not renewed its lease" in found.text
    assert f"the outcome of that run is unknown. Its message is in the dead-letter queue {letter.queue}" in found.text
    assert f"onefold dlq show {letter.message_id}" in found.todo
    (line,) = [line for line in found.lines if line.event == "dead-letter"]
    assert line.at_ms == moved_ms
    (run,) = stuck.runs(there.session)
    assert run.resolves is False
    assert f"its message is in {letter.queue}, from which no worker takes it over" in run.explanation
    assert f"onefold dlq redrive {letter.message_id}" in run.explanation
