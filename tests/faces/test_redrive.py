"""Sending back: what each message would do, waves, stopping by itself, FIFO groups as a whole and in order."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

import onefold
from onefold.admin import dead_letters, editing, groups, held, queues, redrive, why
from onefold.admin.dead_letters import Select
from onefold.admin.redrive import Redrive, Tally
from onefold.cli.commands import dlq
from onefold.contracts.queue import Delivery, MoveTo, Reason, RetryIn
from onefold.contracts.store import RecordKey
from tests.faces.office import ACTOR, Office, Open, Order


def kill(there: Open, count: int, error: Exception | None = None) -> None:
    """Have `o-0`, `o-1` ... dead-lettered for good."""
    for number in range(count):
        there.office.ill[f"o-{number}"] = error or onefold.PermanentError("no such city")
    there.office.book.send_many(Order(f"o-{number}") for number in range(count))
    there.world.run()
    there.office.ran.clear()


def begin(there: Open, select: Select | None = None, **settings: object) -> Redrive:
    messages = list(dead_letters.find(there.session, select or Select()))
    return Redrive(there.session, messages, **settings)  # type: ignore[arg-type]


def carry(there: Open, work: Redrive, *, steps: int = 500, step_ms: int = 250, works: bool = True) -> Tally:
    """Step until it ends, with a worker beside it unless told otherwise; each step takes `step_ms`."""
    for _ in range(steps):
        work.step()
        if work.tally.end:
            return work.tally
        if works:
            there.world.run()
        there.clock.advance(step_ms)
    raise AssertionError(f"did not end: {work.tally}")


# -- foreseeing ------------------------------------------------------------------------------------------------------


def outcomes(there: Open, *, app: bool = True) -> dict[str | None, tuple[str, str]]:
    session = there.session if app else there.without_app()
    found = redrive.foresee(session, list(dead_letters.find(session, Select())))
    return {one.letter.key: (one.forecast.outcome, one.forecast.why) for one in found}


def test_each_message_is_foreseen(there: Open) -> None:
    kill(there, 1)
    there.office.book.send(Order("done"))
    there.office.book.send(Order("done", "Rome"))  # a conflict, whose key is done
    there.send_foreign("orders-dead", '{"city": "Rome"}')
    there.world.run()
    found = outcomes(there)
    assert found["o-0"] == ("run", "Its record is failed; this would be attempt 1.")
    assert found["done"][0] == "conflict"
    assert "used before with another payload" in found["done"][1]
    assert found[None][0] == "no-job", "it names none, and the dead-letter queue has none"


def test_a_duplicate_of_finished_work_is_answered(there: Open) -> None:
    kill(there, 1)
    there.office.ill.clear()
    there.office.book.send(Order("o-0"))
    there.world.run()
    there.clock.advance(3_000)
    outcome, why = outcomes(there)["o-0"]
    assert outcome == "answered"
    assert why.startswith("Done 3s ago by message ")


def test_the_second_of_one_operation_is_answered_by_the_first(there: Open) -> None:
    kill(there, 1)
    there.office.book.send(Order("o-0"))
    there.world.run()
    messages = list(dead_letters.find(there.session, Select()))
    first, second = redrive.foresee(there.session, messages)
    assert first.forecast.outcome == "run"
    assert second.forecast.outcome == "answered"
    assert messages[0].message_id in second.forecast.why


def test_a_run_in_doubt_is_foreseen_by_the_policy_of_its_job(there: Open) -> None:
    there.office.ill["p-1"] = there.office.ill["b-1"] = onefold.PermanentError("no")
    there.office.pay.send(Order("p-1"))
    there.office.book.send(Order("b-1"))
    there.world.run()
    for job, key in (("pay", "p-1"), ("book", "b-1")):
        record = there.session.engine.records.find(key)[0]
        there.session.engine.store.claim([ask_again(there, record.key, record.fingerprint)], there.clock.now_ms())
        assert record.key.job == job
    found = outcomes(there)
    assert found["p-1"][0] == found["b-1"][0] == "waits"
    there.clock.advance(2_000)
    found = outcomes(there)
    assert found["p-1"][0] == "unknown"
    assert found["p-1"][1].startswith("Would be held for a person (on_unknown=hold). The run ended, or lost its lease")
    assert found["b-1"] == (
        "unknown",
        "An earlier run's outcome is unknown; it would run again (on_unknown=rerun).",
    )
    assert outcomes(there, app=False)["p-1"] == (
        "unknown",
        "An earlier run's outcome is unknown; the job's on_unknown decides. Name the app.",
    )


def ask_again(there: Open, key: onefold.contracts.store.RecordKey, fingerprint: str) -> onefold.contracts.store.Ask:  # type: ignore[name-defined]
    from onefold.contracts.store import Ask

    now_ms = there.clock.now_ms()
    return Ask(
        key=key, fingerprint=fingerprint, owner="gone", lease_until_ms=now_ms + 1_000, start=True,
        expires_at_ms=now_ms + 10_000_000,
    )  # fmt: skip


def test_without_an_app_the_record_still_tells(there: Open) -> None:
    kill(there, 1)
    there.office.book.send(Order("done"))
    there.office.book.send(Order("done", "Rome"))
    there.world.run()
    found = outcomes(there, app=False)
    assert found["o-0"][0] == "run"
    assert found["done"][0] == "conflict"


def test_a_foreseen_fate_is_what_then_happens(there: Open) -> None:
    kill(there, 3)
    there.office.ill.pop("o-1")
    there.office.book.send(Order("o-1"))
    there.world.run()
    there.office.ran.clear()
    found = outcomes(there)
    assert {key: outcome for key, (outcome, _) in found.items()} == {"o-0": "run", "o-1": "answered", "o-2": "run"}
    there.office.ill.clear()
    carry(there, begin(there))
    assert there.office.ran == ["o-0", "o-2"]
    assert there.world.names().count("duplicate") == 1


# -- sending ---------------------------------------------------------------------------------------------------------


def test_what_is_mended_is_done_and_told(there: Open) -> None:
    kill(there, 30)
    there.office.ill.clear()
    tally = carry(there, begin(there, reason_text="city added"))
    assert (tally.end, tally.sent, tally.done, tally.came_back) == ("done", 30, 30, 0)
    assert sorted(there.office.ran) == sorted(f"o-{number}" for number in range(30))
    rows = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "redrive"]
    assert len(rows) == 30
    assert {row.actor for row in rows} == {ACTOR}
    assert {row.detail["to"] for row in rows} == {"orders"}
    assert {row.detail["reason_text"] for row in rows} == {"city added"}
    assert {row.key.key for row in rows if row.key} == set(there.office.ran)


def test_it_stops_by_itself_when_replays_fail_again(there: Open) -> None:
    kill(there, 200)
    tally = carry(there, begin(there, per_second=500, stop_after=5))
    assert tally.end == "failing-again"
    assert tally.came_back >= 5
    assert tally.sent <= 10, "never more under way than twice the failures that stop it"
    assert len(tally.examples) == 5
    assert there.world.depth("orders-dead").visible == 200


def test_it_never_stops_when_told_so(there: Open) -> None:
    kill(there, 40)
    tally = carry(there, begin(there, per_second=500, stop_after=0))
    assert (tally.end, tally.sent, tally.came_back) == ("done", 40, 40)


def test_messages_that_are_parked_count_as_failed_again(there: Open) -> None:
    for number in range(12):
        there.office.ill[f"p-{number}"] = onefold.PermanentError("no")
        there.office.pay.send(Order(f"p-{number}"))
    there.world.run()
    for number in range(12):
        there.office.ill[f"p-{number}"] = onefold.OutcomeUnknown("bank says nothing")
    tally = carry(there, begin(there, stop_after=3))
    assert tally.end == "failing-again"
    assert 3 <= tally.held <= 6


def test_it_goes_slowly_first(there: Open) -> None:
    kill(there, 100)
    there.office.ill.clear()
    work = begin(there, per_second=16)
    sent = []
    for _ in range(12):
        work.step()
        there.world.run()
        there.clock.advance(250)
        sent.append(work.tally.sent)
    per_second = [sent[3], sent[7] - sent[3], sent[11] - sent[7]]
    assert per_second[0] <= 3  # an eighth of 16, growing
    assert per_second[0] < per_second[1] < per_second[2] <= 16


def test_without_a_worker_it_says_so(there: Open) -> None:
    kill(there, 50)
    tally = carry(there, begin(there, per_second=500), works=False)
    assert (tally.end, tally.sent, tally.waiting) == ("no-worker", 10, 10)


def test_unwatched_it_only_sends(there: Open) -> None:
    kill(there, 50)
    tally = carry(there, begin(there, per_second=500, watch=False), works=False)
    assert (tally.end, tally.sent, tally.done) == ("done", 50, 0)
    assert there.world.depth("orders").visible == 50


def test_retries_that_go_on_are_left_to_themselves(there: Open) -> None:
    kill(there, 2)
    for number in range(2):
        there.office.ill[f"o-{number}"] = onefold.TransientError("busy", retry_in_ms=3_600_000)
    tally = carry(there, begin(there))
    assert (tally.end, tally.sent, tally.under_way) == ("under-way", 2, 2)


def test_a_message_that_is_gone_is_counted_apart(there: Open) -> None:
    kill(there, 2)
    work = begin(there, watch=False)
    there.session.engine.queues.remove([there.dead()["o-0"]])
    tally = carry(there, work, works=False)
    assert (tally.sent, tally.gone) == (1, 1)


def test_run_waits_on_the_clock_and_tells_each_step(there: Open) -> None:
    kill(there, 1)
    told: list[Tally] = []
    tally = begin(there, watch=False).run(told.append)
    assert told == [tally]


@pytest.mark.parametrize("settings", [{"per_second": 0}, {"per_second": 501}, {"stop_after": -1}])
def test_numbers_out_of_range_are_refused(there: Open, settings: dict[str, int]) -> None:
    with pytest.raises(onefold.errors.UsageError, match="out of range"):
        Redrive(there.session, [], **settings)  # type: ignore[arg-type]


def unwritten(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the history cannot be written."""

    def append(_rows: object) -> None:
        raise onefold.errors.StorageBusy("the disk is full")

    monkeypatch.setattr(there.session.engine.ledger, "append", append)


def test_what_has_no_row_in_the_history_was_not_sent_back(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(there, 2)
    work = begin(there)
    unwritten(there, monkeypatch)
    with pytest.raises(onefold.errors.StorageBusy):
        work.step()
    assert len(list(dead_letters.find(there.session, Select()))) == 2


def test_what_has_no_row_in_the_history_was_not_deleted(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(there, 2)
    messages = list(dead_letters.find(there.session, Select()))
    unwritten(there, monkeypatch)
    with pytest.raises(onefold.errors.StorageBusy):
        dead_letters.remove(there.session, messages)
    assert list(dead_letters.find(there.session, Select())) == messages


def test_what_is_edited_settled_or_purged_without_a_row_in_the_history_is_as_it_was(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(there, 1)
    (message,) = dead_letters.find(there.session, Select())
    there.office.ill["o-9"] = onefold.OutcomeUnknown("the bank did not answer")
    there.office.pay.send(Order("o-9"))
    there.world.run()  # and it is held
    there.office.book.send(Order("o-10"))
    unwritten(there, monkeypatch)
    with pytest.raises(onefold.errors.StorageBusy):
        editing.edit(there.session, message, assignments=["city=York"])
    with pytest.raises(onefold.errors.StorageBusy):
        held.settle(there.session, "o-9", done=True)
    with pytest.raises(onefold.errors.StorageBusy):
        queues.purge(there.session, "orders")
    assert list(dead_letters.find(there.session, Select())) == [message]
    assert [one.key for one in held.listed(there.session)] == ["o-9"]
    assert there.world.depth("orders").visible == 1


def test_keys_are_read_while_the_file_is_free(tmp_path: Path) -> None:
    """Key functions are the user's own: they may take their time, and may use the file."""
    office, path = Office(), tmp_path / "office.db"
    tried: list[str] = []

    def key(order: Order) -> str:
        with closing(sqlite3.connect(path, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.rollback()
        tried.append(order.order_id)
        return order.order_id

    def fail(order: Order) -> None:
        raise onefold.PermanentError("no such city")

    by_function = office.app.job(office.orders, key=key, name="by-function")(fail)
    with office.opened(f"sqlite:///{path}") as there:
        by_function.send(Order("o-1"))
        there.world.run_for(60_000)
        tried.clear()
        assert carry(there, begin(there, watch=False), works=False).sent == 1
    assert tried


def test_an_operator_sees_only_one_of_two_redrives_send(there: Open) -> None:
    kill(there, 3)
    first, second = begin(there, watch=False), begin(there, watch=False)
    carry(there, first, works=False)
    tally = carry(there, second, works=False)
    assert (tally.sent, tally.gone) == (0, 3)
    assert there.world.depth("orders").visible == 3


# -- FIFO groups -----------------------------------------------------------------------------------------------------


def stop_group(there: Open) -> None:
    """Five lines of one customer; the second is dead-lettered, so three follow it; another customer's are done."""
    there.office.ill["l-1"] = onefold.PermanentError("bad line")
    there.office.step.send_many(Order(f"l-{number}", customer="c-1") for number in range(5))
    there.office.step.send_many(Order(f"m-{number}", customer="c-2") for number in range(2))
    there.world.run()
    assert sorted(there.office.ran) == ["l-0", "l-1", "m-0", "m-1"]
    there.office.ran.clear()


def test_a_stopped_group_is_known(there: Open) -> None:
    stop_group(there)
    (one,) = groups.stopped(there.session)
    assert (one.queue, one.group) == ("lines.fifo", "c-1")
    assert one.by == there.dead()["l-1"]
    assert groups.stopped(there.session, "lines.fifo") == [one]
    assert groups.stopped(there.session, "orders") == []
    assert list(there.dead()) == ["l-1", "l-2", "l-3", "l-4"]


def test_a_stopped_group_goes_back_whole_and_in_order(there: Open) -> None:
    stop_group(there)
    there.office.ill.clear()
    there.office.step.send(Order("l-5", customer="c-1"))  # sent while it is stopped
    tally = carry(there, begin(there, Select(group="c-1")))
    assert (tally.end, tally.sent, tally.done) == ("done", 4, 4)
    assert there.office.ran == ["l-1", "l-2", "l-3", "l-4", "l-5"]
    assert groups.stopped(there.session) == []
    there.office.step.send(Order("l-6", customer="c-1"))
    there.world.run()
    assert there.office.ran[-1] == "l-6"


def test_a_group_that_fails_again_stops_again_in_order(there: Open) -> None:
    stop_group(there)
    tally = carry(there, begin(there, Select(group="c-1")))
    assert tally.came_back == 4
    assert there.office.ran == ["l-1"]
    assert list(there.dead()) == ["l-1", "l-2", "l-3", "l-4"]
    there.office.ill.clear()
    carry(there, begin(there, Select(group="c-1")))
    assert there.office.ran == ["l-1", "l-1", "l-2", "l-3", "l-4"]


def test_part_of_a_stopped_group_is_refused(there: Open) -> None:
    stop_group(there)
    with pytest.raises(onefold.errors.UsageError, match="3 of its 4 dead letters are not selected") as caught:
        begin(there, Select(key="l-1"))
    assert "--group c-1" in caught.value.todo
    assert there.world.depth("lines-dead.fifo").visible == 4


def test_a_dry_run_refuses_what_the_run_refuses(there: Open) -> None:
    stop_group(there)
    for select in (Select(reason="group-stopped"), Select(key="l-1")):
        messages = list(dead_letters.find(there.session, select))
        with pytest.raises(onefold.errors.UsageError, match="not selected") as caught:
            redrive.foresee(there.session, messages, select=select)
        assert "--group c-1" in caught.value.todo
    with pytest.raises(onefold.errors.UsageError, match="1 of its 4 dead letters is not selected"):
        redrive.foresee(there.session, list(dead_letters.find(there.session, Select(group="c-1")))[1:])
    whole = redrive.foresee(there.session, list(dead_letters.find(there.session, Select(group="c-1"))))
    assert [one.forecast.outcome for one in whole] == ["run"] * 4


def test_what_is_recommended_for_a_stopped_group_is_not_refused(there: Open) -> None:
    stop_group(there)
    failures = dead_letters.failures(there.session, Select())
    assert [(one.reason, one.count, one.redrive) for one in failures] == [
        ("permanent", 1, "onefold dlq redrive --group c-1"), ("group-stopped", 3, "onefold dlq redrive --group c-1")
    ]  # fmt: skip
    for key in ("l-1", "l-2"):
        message = dead_letters.one_of(there.session, Select(key=key))
        assert dead_letters.show(there.session, message).redrive == "onefold dlq redrive --group c-1"
        (story,) = why.explain(there.session, key).stories
        assert story.todo[-2:] == ("onefold dlq redrive --group c-1 --dry-run", "onefold dlq redrive --group c-1")
    edited = editing.edit(there.session, message, assignments=['city="Oslo"'], dry_run=True)
    assert edited.redrive == "onefold dlq redrive --group c-1"


def test_behind_a_held_message_settling_is_recommended(there: Open) -> None:
    there.office.ill["l-1"] = onefold.OutcomeUnknown("no answer")
    there.office.step.send_many(Order(f"l-{number}", customer="c-1") for number in range(3))
    there.world.run()
    messages = list(dead_letters.find(there.session, Select(group="c-1")))
    assert messages
    with pytest.raises(onefold.errors.UsageError, match="which is held"):
        redrive.foresee(there.session, messages)
    assert all(one.redrive.startswith("onefold held list ") for one in dead_letters.failures(there.session, Select()))


def test_what_should_not_run_is_deleted_and_the_rest_goes_on(there: Open) -> None:
    stop_group(there)
    dead_letters.remove(there.session, list(dead_letters.find(there.session, Select(key="l-1"))))
    assert groups.stopped(there.session), "the others of the group still wait for a person"
    carry(there, begin(there, Select(group="c-1")))
    assert there.office.ran == ["l-2", "l-3", "l-4"]


def test_a_group_of_which_nothing_is_left_goes_on(there: Open) -> None:
    stop_group(there)
    dead_letters.remove(there.session, list(dead_letters.find(there.session, Select(group="c-1"))))
    assert groups.stopped(there.session) == []
    there.office.step.send(Order("l-9", customer="c-1"))
    there.world.run()
    assert there.office.ran == ["l-9"]


def hurried(there: Open, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Let the session's waits be over at once, with time passing, and something happening meanwhile."""

    class Hurried:
        now_ms, monotonic_ms = there.clock.now_ms, there.clock.monotonic_ms

        def wait(self, waiter: object, timeout_ms: int) -> bool:
            there.clock.advance(timeout_ms)
            meanwhile()
            return False

    there.session.clock = Hurried()  # type: ignore[assignment]


def test_a_group_in_a_workers_hands_is_left_alone(there: Open) -> None:
    stop_group(there)
    there.office.step.send(Order("l-9", customer="c-1"))
    there.session.engine.queues.open("lines.fifo").receive(1, 3_600_000)
    hurried(there)
    with pytest.raises(onefold.TransientError, match="Workers kept receiving messages of group 'c-1'"):
        groups.start_again(there.session, "lines.fifo", "c-1")
    assert there.world.depth("lines-dead.fifo").visible == 4
    assert groups.stopped(there.session)


def test_a_group_that_takes_long_to_read_is_given_up_after_ten_seconds_too(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def is_free(_group: object) -> bool:
        looks.append(there.clock.now_ms())
        there.clock.advance(1_000)
        return False

    stop_group(there)
    hurried(there)
    monkeypatch.setattr(groups._Group, "is_free", is_free)
    with pytest.raises(onefold.TransientError, match="for 10 s"):
        groups.start_again(there.session, "lines.fifo", "c-1")
    assert len(looks) == 10


class Crashed(Exception):
    """The command ends here."""


@pytest.mark.parametrize("verb", ["move", "put"])
def test_a_crash_while_a_group_is_sent_back_leaves_it_stopped_and_in_order(
    there: Open, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    stop_group(there)
    there.office.ill.clear()
    target = there.session.engine.queues if verb == "move" else there.session.engine.state

    def crash(*_: object) -> None:
        raise Crashed

    with monkeypatch.context() as patched:
        patched.setattr(target, verb, crash)
        with pytest.raises(Crashed):
            groups.start_again(there.session, "lines.fifo", "c-1")
    there.office.step.send(Order("l-9", customer="c-1"))
    there.world.run()
    assert there.office.ran == []
    assert list(there.dead()) == ["l-1", "l-2", "l-3", "l-4", "l-9"]
    carry(there, begin(there, Select(group="c-1")))
    assert there.office.ran == ["l-1", "l-2", "l-3", "l-4", "l-9"]


def between_looking_and_moving(there: Open, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Have something happen once, after the group was looked at and before its transaction begins."""
    together, happened = there.session.engine.together, []

    def late(calls: Sequence[Callable[[], object]], **settings: bool) -> list[object]:
        if not happened:
            happened.append(True)
            meanwhile()
        return together(calls, **settings)

    monkeypatch.setattr(there.session.engine, "together", late)


def test_what_follows_in_the_last_moment_goes_back_in_order(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_group(there)
    there.office.ill.clear()
    work = begin(there, Select(group="c-1"))

    def followed() -> None:
        there.office.step.send(Order("n-1", customer="c-1"))
        there.world.run()
        there.office.step.send(Order("n-2", customer="c-1"))

    between_looking_and_moving(there, monkeypatch, followed)
    hurried(there)
    tally = carry(there, work)
    assert (tally.sent, tally.done) == (4, 4)
    assert there.office.ran == ["l-1", "l-2", "l-3", "l-4", "n-1", "n-2"]
    assert groups.stopped(there.session) == []


def test_a_group_taken_in_the_last_moment_is_waited_for(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker received the next message while the flag stood, and has it bury after the group was looked at."""
    stop_group(there)
    there.office.ill.clear()
    there.office.step.send(Order("n-1", customer="c-1"))
    there.office.step.send(Order("n-2", customer="c-1"))
    lines = there.session.engine.queues.open("lines.fifo")
    in_hand: list[Delivery] = []
    between_looking_and_moving(there, monkeypatch, lambda: in_hand.extend(lines.receive(1)))

    def move_aside() -> None:
        reason = Reason(kind="group-stopped", summary="follows")
        lines.move_aside([(one.receipt, MoveTo("dead-letter", reason)) for one in in_hand])
        in_hand.clear()

    hurried(there, move_aside)
    groups.start_again(there.session, "lines.fifo", "c-1")
    there.world.run()
    assert there.office.ran == ["l-1", "l-2", "l-3", "l-4", "n-1", "n-2"]


def test_what_followed_since_it_was_chosen_goes_with_its_group(there: Open) -> None:
    stop_group(there)
    there.office.ill.clear()
    messages = list(dead_letters.find(there.session, Select()))
    there.office.step.send(Order("n-1", customer="c-1"))
    there.world.run()
    assert len(there.dead()) == 5
    carry(there, Redrive(there.session, messages, select=Select()))
    assert there.office.ran == ["l-1", "l-2", "l-3", "l-4", "n-1"]


def test_its_history_is_written_with_the_move(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_group(there)

    def crash(*_: object) -> None:
        raise Crashed

    with monkeypatch.context() as patched:
        patched.setattr(there.session.engine.ledger, "append", crash)
        with pytest.raises(Crashed):
            groups.start_again(there.session, "lines.fifo", "c-1")
    assert len(there.dead()) == 4
    groups.start_again(there.session, "lines.fifo", "c-1", reason_text="fixed")
    for number in range(1, 5):
        rows = there.session.engine.ledger.of_key(RecordKey("", "step", f"l-{number}"))
        (row,) = [row for row in rows if row.event == "redrive"]
        assert (row.actor, row.detail["reason_text"]) == (ACTOR, "fixed")


def test_a_purge_lets_a_group_go_only_when_nothing_is_about_to_follow(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker holds a follower while the dead letters are purged: what comes after it must not overtake it."""
    stop_group(there)
    there.office.step.send(Order("n-1", customer="c-1"))
    there.office.step.send(Order("n-2", customer="c-1"))
    lines = there.session.engine.queues.open("lines.fifo")
    in_hand = lines.receive(1)

    def move_aside() -> None:
        reason = Reason(kind="group-stopped", summary="follows")
        lines.move_aside([(one.receipt, MoveTo("dead-letter", reason)) for one in in_hand])
        in_hand.clear()

    hurried(there, move_aside)
    dead_letters.remove(there.session, list(dead_letters.find(there.session, Select(group="c-1"))))
    assert groups.stopped(there.session), "n-1 has followed since, and n-2 may not pass it"
    there.office.ill.clear()
    there.world.run()
    assert there.office.ran == []
    carry(there, begin(there, Select(group="c-1")))
    assert there.office.ran == ["n-1", "n-2"]


def test_a_move_task_is_refused_while_it_would_tear_a_stopped_group_apart(there: Open) -> None:
    stop_group(there)
    for target in (None, "lines.fifo"):
        with pytest.raises(onefold.errors.UsageError, match="holds messages of group 'c-1'") as told:
            queues.start_move(there.session, "lines-dead.fifo", to=target)
        assert "--group c-1" in told.value.todo
    assert there.session.engine.queues.moves("lines-dead.fifo") == []
    there.office.ill.clear()
    carry(there, begin(there, Select(group="c-1")))
    assert queues.start_move(there.session, "lines-dead.fifo").to_move == 0


def test_a_move_task_that_runs_when_a_group_stops_leaves_the_group_whole(there: Open) -> None:
    """Four skipped dead letters of two customers go back, one a second, when the first customer's group stops."""
    for number in range(4):
        there.office.ill[f"s-{number}"] = onefold.PermanentError("bad line")
    there.office.skipped.send_many(Order(f"s-{number}", customer=f"c-{number % 2 + 1}") for number in range(4))
    there.world.run()
    there.office.ran.clear()
    assert queues.start_move(there.session, "lines-dead.fifo", per_second=1).to_move == 4
    there.office.ill.clear()
    stop_group(there)
    for _ in range(9):
        there.session.engine.queues.step_moves()
        there.world.run()
        there.clock.advance(1_000)
    assert there.office.ran == ["s-1", "s-3"], "customer c-2's; nothing of c-1 went back alone"
    task = there.session.engine.queues.moves("lines-dead.fifo")[0]
    assert (task.status, task.moved) == ("FAILED", 2)
    assert "dlq redrive --group" in str(task.failure)
    there.office.ran.clear()
    there.office.ill.clear()
    carry(there, begin(there, Select(group="c-1")))
    assert there.office.ran == ["s-0", "s-2", "l-1", "l-2", "l-3", "l-4"]


def test_a_redrive_that_is_under_way_when_a_group_stops_leaves_the_group_whole(there: Open) -> None:
    """Its messages were chosen one by one; from now on they go back as a whole."""
    for number in range(4):
        there.office.ill[f"s-{number}"] = onefold.PermanentError("bad line")
    there.office.skipped.send_many(Order(f"s-{number}", customer=f"c-{number % 2 + 1}") for number in range(4))
    there.world.run()
    there.office.ran.clear()
    work = begin(there, per_second=1)
    there.office.ill.clear()
    stop_group(there)
    tally = carry(there, work, step_ms=1_000)
    assert there.office.ran == ["s-1", "s-3"]
    assert (tally.sent, tally.done, tally.gone, tally.stopped) == (2, 2, 0, 2)
    there.office.ran.clear()
    there.office.ill.clear()
    carry(there, begin(there, Select(group="c-1")))
    assert there.office.ran == ["s-0", "s-2", "l-1", "l-2", "l-3", "l-4"]


@pytest.mark.parametrize("again", [False, True])
def test_a_stopped_group_goes_on_behind_a_message_of_a_job_that_stops_none(there: Open, again: bool) -> None:
    """It lies first in the dead-letter queue, so the redrive begins with it, whether it succeeds then or not."""
    there.office.ill["s-0"] = onefold.PermanentError("bad line")
    there.office.skipped.send(Order("s-0"))
    there.world.run()
    there.office.ran.clear()
    stop_group(there)
    del there.office.ill["l-1"]
    if not again:
        there.office.ill.clear()
    carry(there, begin(there, Select(group="c-1"), stop_after=0))
    assert there.office.ran == ["s-0", "l-1", "l-2", "l-3", "l-4"]
    assert groups.stopped(there.session) == []
    assert list(there.dead()) == (["s-0"] if again else [])


# -- FIFO groups without transactions ----------------------------------------------------------------------------------


@pytest.fixture
def apart(there: Open, monkeypatch: pytest.MonkeyPatch) -> Open:
    """The same office where queues and records share no transaction, as on SQS."""
    monkeypatch.setattr(there.session.engine, "commit", None)
    return there


def test_without_transactions_a_group_is_sent_back_only_while_its_queue_is_idle(apart: Open) -> None:
    stop_group(apart)
    apart.office.ill.clear()
    apart.office.step.send(Order("n-1", customer="c-1"))
    with pytest.raises(onefold.errors.UsageError, match="is stopped, and its queue is not in this") as told:
        begin(apart, Select(group="c-1"))
    assert "--idle" in told.value.todo
    in_hand = apart.session.engine.queues.open("lines.fifo").receive(1)
    with pytest.raises(onefold.TransientError, match="A consumer holds messages of"):
        begin(apart, Select(group="c-1"), idle=True)
    assert len(apart.dead()) == 4
    apart.session.engine.queues.open("lines.fifo").set_visible_in([(one.receipt, RetryIn(0)) for one in in_hand])
    carry(apart, begin(apart, Select(group="c-1"), idle=True))
    assert apart.office.ran == ["l-1", "l-2", "l-3", "l-4", "n-1"]


def test_without_transactions_a_long_group_goes_back_ten_at_a_time(
    apart: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS shows ten messages of a group, so that is all one look can move."""
    apart.office.ill["l-0"] = onefold.PermanentError("bad line")
    apart.office.step.send_many(Order(f"l-{number}", customer="c-1") for number in range(35))
    apart.world.run()
    apart.office.ill.clear()
    apart.office.ran.clear()
    apart.office.step.send_many(Order(f"n-{number}", customer="c-1") for number in range(23))
    of_group = apart.session.engine.queues.of_group
    monkeypatch.setattr(apart.session.engine.queues, "of_group", lambda *place, limit=10: of_group(*place, limit=limit))
    groups.start_again(apart.session, "lines.fifo", "c-1", idle=True)
    apart.world.run()
    assert apart.office.ran == [f"l-{number}" for number in range(35)] + [f"n-{number}" for number in range(23)]


def test_without_transactions_an_edit_keeps_a_message_in_its_place_or_is_refused(apart: Open) -> None:
    stop_group(apart)
    for key, is_last in (("l-1", False), ("l-4", True)):
        message = dead_letters.one_of(apart.session, Select(key=key))
        if is_last:
            assert editing.edit(apart.session, message, assignments=["city=Rome"]).written
            continue
        assert not editing.edit(apart.session, message, assignments=["city=Rome"], dry_run=True).written
        with pytest.raises(onefold.errors.UsageError, match="has others of its group 'c-1' behind it"):
            editing.edit(apart.session, message, assignments=["city=Rome"])


def test_without_transactions_a_held_message_is_settled_only_while_its_queue_is_idle(apart: Open) -> None:
    apart.office.ill["l-0"] = onefold.OutcomeUnknown("no answer")
    apart.office.step.send_many(Order(f"l-{number}", customer="c-1") for number in range(3))
    apart.world.run()
    apart.office.ran.clear()
    (one,) = held.listed(apart.session)
    with pytest.raises(onefold.errors.UsageError, match="--idle"):
        held.settle(apart.session, one.key, done=True)
    assert [one.state for one in held.listed(apart.session)] == ["held"], "nothing was settled"
    assert held.settle(apart.session, one.key, done=True, idle=True).group_restarted == 2
    apart.world.run()
    assert apart.office.ran == ["l-1", "l-2"]


def test_a_long_redrive_without_a_terminal_reports_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    report = dlq._in_lines(1_200, 100)
    for sent in range(0, 1_201, 100):
        report(Tally(selected=1_200, sent=sent, per_second=100))
    assert capsys.readouterr().err.splitlines() == [
        "1,200 dead letters at 100 a second at most (--rate): 12s", "sent 500 of 1,200, done 0, back 0",
        "sent 1,000 of 1,200, done 0, back 0",
    ]  # fmt: skip
    dlq._in_lines(500, 100)(Tally(selected=500, sent=500, per_second=100))
    assert capsys.readouterr().err == ""
