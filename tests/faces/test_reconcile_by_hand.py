"""Looking at a run by hand, and its repair: a planted missing, duplicate and stuck operation, each found, on a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

import onefold
from onefold.admin import reconcile, runs
from onefold.admin.session import AdminSession
from onefold.reconcile import findings
from onefold.reconcile.findings import ReconcileOutcome
from tests.faces.month import ACTOR, DUE_MS, RUN, Month, opened

Opened = Callable[..., AbstractContextManager[Month]]


@pytest.fixture
def month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.chdir(tmp_path)
    return partial(opened, tmp_path)


def look(there: Month) -> ReconcileOutcome:
    (found,) = reconcile.reconcile(there.session, there.app, RUN)
    return found


def plan(there: Month) -> reconcile.RepairPlan:
    return reconcile.Repair(there.session, there.app, RUN).plan


def test_a_run_that_is_as_it_should_be(month: Opened) -> None:
    with month("a b c") as there:
        there.fire()
        found = look(there)
        assert (found.verdict, found.name, found.look, found.done) == ("agrees", "reconcile-monthly_billing", 0, 3)
        assert found.own is not None
        assert (found.own.expected, found.own.found) == (3, 3)
        assert findings.read(there.session.engine.state, RUN) == found
        row = there.session.engine.ledger.of_run(RUN)[-1]
        assert (row.event, row.actor, row.detail["own_found"]) == ("reconciled", ACTOR, 3)
        assert there.events[-1].name == "reconciled"
        nothing = plan(there)
        assert (nothing.resend, nothing.refused, nothing.whole) == ((), (), True)


def test_a_planted_missing_one_is_found_and_sent_again(month: Opened) -> None:
    with month("a b c") as there:
        there.dispatch()
        there.lose("b")
        there.world.run()
        found = look(there)
        assert (found.verdict, found.done, found.missing) == ("disagrees", 2, 1)
        assert [(one.key, one.state) for one in found.examples] == [("2026-06/b", "missing")]
        assert found.own is not None
        assert (found.own.missing, found.own.differences[0].key) == (1, "2026-06/b")

        work = reconcile.Repair(there.session, there.app, RUN)
        assert [(one.key, one.queue) for one in work.plan.resend] == [("2026-06/b", "bills")]
        assert work.plan.refused == ()
        assert there.world.depth("bills").visible == 0  # a plan sends nothing
        done = work.send("the queue was purged")
        assert (done.sent, done.whole) == (1, True)
        row = there.session.engine.ledger.of_key(there.bill("b"))[-1]
        assert (row.event, row.run, row.actor, row.queue) == ("resent", RUN, ACTOR, "bills")
        assert row.detail["reason_text"] == "the queue was purged"
        waiting = look(there)
        assert (waiting.verdict, waiting.waiting, waiting.missing) == ("late", 1, 0)
        assert plan(there).resend == ()  # a second repair finds nothing to do
        there.world.run()
        assert look(there).verdict == "agrees"


def test_what_took_effect_between_plan_and_repair_is_not_done_twice(
    month: Opened,
) -> None:
    with month("a b") as there:
        there.dispatch()
        there.lose("b")
        there.world.run()
        work = reconcile.Repair(there.session, there.app, RUN)
        there.module.charge.send(there.module.Bill("2026-06", "b"))
        there.world.run()
        work.send()
        there.world.run()
        assert (look(there).verdict, there.module.read("statements").count("2026-06/b")) == ("agrees", 1)


def test_a_planted_duplicate_is_found_by_the_users_own_count(month: Opened, tmp_path: Path) -> None:
    with month("a b c") as there:
        there.fire()
        with (tmp_path / "statements").open("a", encoding="utf-8") as file:
            file.write("2026-06/b\n2026-05/z\n")
        found = look(there)
        assert found.verdict == "disagrees"
        assert found.findings == (
            "Your own check expected 3 keys and found 5: 1 too many, 1 that were never dispatched.",
        )
        assert found.own is not None
        assert [(one.key, one.found, one.expected) for one in found.own.differences] == [
            ("2026-06/b", 2, 1),
            ("2026-05/z", 1, 0),
        ]


def test_a_statement_that_is_gone_is_found_by_the_users_own_count(month: Opened, tmp_path: Path) -> None:
    with month("a b c") as there:
        there.fire()
        (tmp_path / "statements").write_text("2026-06/a\n2026-06/c\n", encoding="utf-8")
        found = look(there)
        assert (found.verdict, found.missing) == ("disagrees", 0)
        assert found.findings == ("Your own check expected 3 keys and found 2: 1 missing.",)
        assert plan(there).resend == ()  # its record says done: sending it again would only be answered


def test_a_planted_stuck_one_is_found_and_sent_again(month: Opened) -> None:
    with month("a b c") as there:
        there.dispatch()
        there.die("b")
        found = look(there)
        assert (found.verdict, found.stuck) == ("disagrees", 1)
        assert plan(there).resend == ()  # its message is still there, and takes it over
        there.lose("b")
        assert [(one.key, one.why) for one in plan(there).resend] == [
            ("2026-06/b", "a run of it went silent; no message is left to take it over")
        ]
        reconcile.Repair(there.session, there.app, RUN).send()
        there.world.run()
        found = look(there)
        assert (found.stuck, found.done, found.doubtful, found.verdict) == (0, 3, 1, "agrees")


def test_dead_letters_are_left_to_their_own_commands(month: Opened) -> None:
    with month("a b! c") as there:
        there.fire()
        found = look(there)
        (example,) = found.examples
        assert (example.state, example.why, example.queue) == ("dead", "PermanentError: no such card", "bills-dead")
        assert (example.owner, example.message_id is not None) == ("billing", True)
        wanted = plan(there)
        assert (wanted.resend, wanted.dead, wanted.whole) == ((), 1, False)


def test_what_the_dispatcher_does_not_yield_any_more_is_refused(month: Opened, tmp_path: Path) -> None:
    with month("a b c") as there:
        there.dispatch()
        there.lose("a", "b")
        (tmp_path / "customers").write_text("b c", encoding="utf-8")
        found = plan(there)
        assert [one.key for one in found.resend] == ["2026-06/b"]
        assert [(one.key, one.why) for one in found.refused] == [
            ("2026-06/a", "its data has changed: its message is no longer produced")
        ]
        assert not reconcile.Repair(there.session, there.app, RUN).send().whole


def test_another_payload_than_the_one_that_was_claimed_is_refused(month: Opened, tmp_path: Path) -> None:
    with month("a b") as there:
        there.dispatch()
        there.die("b")
        there.lose("b")
        (tmp_path / "customers").write_text("a b!", encoding="utf-8")
        found = plan(there)
        assert found.resend == ()
        assert found.refused[0].why.startswith("its payload would differ from the one that was claimed")


def test_a_dispatcher_that_fails_when_asked_again_sends_nothing(month: Opened, tmp_path: Path) -> None:
    with month("a b c") as there:
        there.dispatch()
        there.lose("b", "c")
        (tmp_path / "customers").write_text("a b RAISE c", encoding="utf-8")
        again = r"failed when it was run again: ConnectionError: the customer"
        with pytest.raises(onefold.errors.UsageError, match=again):
            plan(there)
        assert there.world.depth("bills").visible == 1


def test_a_generator_is_asked_no_longer_than_needed(month: Opened, tmp_path: Path) -> None:
    with month("a b c") as there:
        there.dispatch()
        there.lose("a", "b")
        (tmp_path / "customers").write_text("a b RAISE", encoding="utf-8")
        assert [one.key for one in plan(there).resend] == ["2026-06/a", "2026-06/b"]


def test_a_repair_takes_a_bounded_number_at_once(month: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "MISSING_MAX", 2)
    with month("a b c") as there:
        there.dispatch()
        there.lose("a", "b", "c")
        done = reconcile.Repair(there.session, there.app, RUN).send()
        assert (done.sent, done.more, done.whole) == (2, True, False)
        done = reconcile.Repair(there.session, there.app, RUN).send()
        assert (done.sent, done.more, done.whole) == (1, False, True)


def test_a_check_that_fails_writes_nothing(month: Opened, tmp_path: Path) -> None:
    with month("a") as there:
        there.fire()
        (tmp_path / "unreadable").touch()
        with pytest.raises(onefold.errors.UsageError, match="failed: ConnectionError: the statements are away"):
            look(there)
        assert findings.read(there.session.engine.state, RUN) is None


def test_without_an_app_records_alone_are_looked_at(month: Opened) -> None:
    with month("a b") as there:
        there.dispatch()
        there.lose("b")
        there.world.run()
        bare = AdminSession(there.session._runtime, actor=ACTOR)
        (found,) = reconcile.reconcile(bare, None, RUN)
        assert (found.name, found.verdict, found.missing, found.own) == ("", "disagrees", 1, None)


def test_runs_are_named_in_full_or_by_a_beginning(month: Opened) -> None:
    with month("a") as there:
        there.fire()
        assert runs.find_run(there.session, RUN) == RUN
        assert runs.find_run(there.session, "monthly_billing/2026-06") == RUN
        with pytest.raises(onefold.errors.NotFoundError, match="There is no run 'monthly_biling/2026-06'"):
            runs.find_run(there.session, "monthly_biling/2026-06")
        there.clock.advance(31 * 86_400_000)
        there.fire()
        with pytest.raises(onefold.errors.UsageError, match="2 runs begin with 'monthly'"):
            runs.find_run(there.session, "monthly")


def test_the_job_comes_to_the_same_as_the_hand(month: Opened) -> None:
    with month("a b! c") as there:
        there.fire()
        there.clock.advance(30 * 60_000)
        there.world.run()
        by_job = findings.read(there.session.engine.state, RUN)
        assert by_job is not None
        by_hand = look(there)
        assert (by_job.look, by_hand.look) == (1, 0)
        assert (by_job.verdict, by_job.findings, by_job.examples) == (
            by_hand.verdict,
            by_hand.findings,
            by_hand.examples,
        )
        assert by_job.at_ms == DUE_MS + 30 * 60_000
