"""`app.admin`: the calls of the command line and the page, from a program."""

from __future__ import annotations

import sys

import pytest

import onefold
from onefold import errors
from onefold.admin import Admin, HeldSelect, Select
from tests.faces.office import Open, Order


@pytest.fixture
def admin(there: Open) -> Admin:
    """Of an office with a dead letter and two held operations."""
    office = there.office
    office.ill["d"] = onefold.PermanentError("no such city")
    office.book.send(Order("d"))
    for key in ("h-1", "h-2"):
        office.ill[key] = onefold.OutcomeUnknown("no answer")
        office.pay.send(Order(key))
    there.world.run()
    return office.app.admin


def test_it_looks(there: Open, admin: Admin) -> None:
    assert "orders" in [one.queue for one in admin.status().queues]
    assert {one.settings.name for one in admin.queues()} >= {"orders", "orders-dead", "careful-held"}
    assert [one.key for one in admin.dead_letters()] == ["d"]
    assert admin.dead_letters(Select(job="pay")) == []
    (group,) = admin.failures(by_text=True)
    assert admin.dead_letter(group.message_id).letter.fingerprint == group.fingerprint
    assert "no such city" in admin.why("d").stories[0].lines[-1].text + group.summary
    assert sorted(one.key for one in admin.held(HeldSelect(key="h-*"))) == ["h-1", "h-2"]
    assert admin.runs().runs == ()
    assert admin.stuck() == []
    assert admin.alarms().alarms == ()
    assert admin.check_payloads().fits
    with pytest.raises(errors.NotFoundError):
        admin.run("nightly/2026")


def test_in_a_function_it_is_said_to_be_left_out(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onefold.admin.api", None)
    with pytest.raises(errors.UsageError, match="not in a function's package"):
        there.office.app.admin.held()


def test_a_redrive_is_planned_and_carried_out(there: Open, admin: Admin) -> None:
    plan = admin.plan_redrive(Select(error="Permanent*"))
    assert plan.counts == {"run": 1}
    assert plan == admin.plan_redrive(plan.select)
    with pytest.raises(errors.UsageError, match="needs a reason"):
        admin.redrive(plan, reason="")
    there.office.ill["e"] = onefold.PermanentError("no such city")
    there.office.book.send(Order("e"))
    there.world.run()
    with pytest.raises(errors.ConflictError, match="is out of date"):
        admin.redrive(plan, reason="the city is back")
    there.office.ill.clear()
    tally = admin.redrive(admin.plan_redrive(Select(key="d")), reason="the city is back")
    assert (tally.sent, tally.end) == (1, "done")
    there.world.run()
    assert there.office.ran.count("d") == 2
    with pytest.raises(errors.NotFoundError, match="No dead letter matches"):
        admin.plan_redrive(Select(key="d"))
    with pytest.raises(errors.UsageError, match="No condition says"):
        admin.delete(Select(), reason="all")
    assert admin.delete(Select(key="e"), reason="a test order") == 1


def test_held_operations_are_settled(there: Open, admin: Admin) -> None:
    (first,) = admin.held(HeldSelect(key="h-1"))
    with pytest.raises(errors.ConflictError, match="is not held as 9@9 now"):
        admin.settle("h-1", done=True, reason="seen", hold="9@9")
    settled = admin.acting_as("ada").settle("h-1", done=True, result='{"label": "L-1"}', reason="seen", hold=first.hold)
    assert settled.done
    plan = admin.plan_settle(HeldSelect(job="pay"), done=False)
    assert [one.key for one in plan.operations] == ["h-2"]
    there.office.ill.clear()
    assert [one.key for one in admin.settle_all(plan, reason="the bank has none").settled] == ["h-2"]
    there.world.run()
    assert admin.held() == []
    said = {
        key: next(row for row in there.session.engine.ledger.of_key(one) if row.event == "settled")
        for key in ("h-1", "h-2")
        for one in [there.session.engine.records.find(key, 1)[0].key]
    }
    assert {key: row.actor for key, row in said.items()} == {"h-1": "person:ada", "h-2": "program:office"}
    assert said["h-2"].detail["reason_text"] == "the bank has none"
