"""`why` of operations whose messages a person edited, sent back or sent again: its rows are true, and none is missing."""

from __future__ import annotations

import pytest

import onefold
from onefold.admin import dead_letters, editing, queues, redrive, why
from onefold.admin.dead_letters import Select, find, one_of
from onefold.contracts.admin import Edit
from onefold.contracts.ledger import Row
from onefold.contracts.store import RecordKey
from onefold.errors import PayloadError
from tests.faces.office import Open, Order


def story(there: Open, key: str) -> why.Explanation:
    return next(one for one in why.explain(there.session, key).stories if one.key == key)


def refuse(*_: object) -> None:
    raise PayloadError("It does not fit.")


def send_back(there: Open) -> None:
    redrive.Redrive(there.session, list(find(there.session, Select())), watch=False).run(lambda _: None)


def test_a_message_of_a_repair_is_not_said_to_have_been_there_before(there: Open) -> None:
    there.office.book.send(Order("a"))
    queues.purge(there.session, "orders")
    there.clock.advance(60_000)
    ledger = there.session.engine.ledger
    ledger.append([Row(at_ms=there.clock.now_ms(), event="resent", key=RecordKey("", "book", "a"), queue="orders")])
    there.clock.advance(10)
    there.office.ill["a"] = onefold.PermanentError("no such city")
    there.office.book.send(Order("a"))
    there.world.run()
    there.office.ill.clear()
    there.clock.advance(1_000)
    again = one_of(there.session, Select(key="a")).message_id
    send_back(there)
    there.world.run()
    found = story(there, "a")
    events = [line.event for line in found.lines]
    assert events[:2] == ["removed", "resent"]
    assert found.state == "done"
    assert [line.event for line in found.lines if line.message_id == again] == ["dead-letter", "redrive"]


@pytest.mark.parametrize("edited", [True, False])
def test_why_a_message_without_a_key_was_dead_lettered_stays_known(
    there: Open, edited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.send_foreign("orders", '{"city": "Rome"}' if edited else '{"order_id": "a", "weight": 1}')
    with monkeypatch.context() as before:
        if not edited:  # what the code of before could not read, that of today can
            before.setattr(type(there.office.book.rules.payload), "decode", refuse)
        there.world.run()
    if edited:
        editing.edit(there.session, one_of(there.session, Select()), assignments=["order_id=a"], reason_text="lost")
    there.clock.advance(1_000)
    send_back(there)
    there.clock.advance(1_000)
    there.world.run()
    found = story(there, "a")
    assert [line.event for line in found.lines if line.event != "received"] == [
        *(["edit"] if edited else []),
        "redrive",
        "claimed",
        "started",
        "completed",
    ]
    first, second = found.lines[0], found.lines[1]
    cause = "it had been dead-lettered: PayloadError: "
    assert first.rule.startswith(cause + ("The value does not fit Order" if edited else "It does not fit."))
    assert first.rule.endswith("; reason given: lost" if edited else "; a redrive starts a new count of attempts")
    assert cause not in second.rule


def test_the_key_of_a_malformed_message_is_the_same_before_and_after_its_edit(there: Open) -> None:
    there.office.book.send(Order("a"))
    message_id = next(iter(there.session.every("orders"))).message_id
    malformed = '{"order_id": "a", "city": 5}'
    there.session.engine.queues.edit(
        message_id, Edit(body=malformed, attributes=next(iter(there.session.every("orders"))).attributes)
    )
    there.world.run()
    letter = one_of(there.session, Select())
    shown = dead_letters.show(there.session, letter)
    assert (shown.letter.key, shown.record) == (
        "a",
        "not looked up: the job's key rule cannot be applied to this payload",
    )
    edited = editing.edit(there.session, letter, assignments=["city=Rome"])
    assert (edited.key_before, edited.key_after) == ("a", "a")


def test_another_key_by_hand_is_in_both_stories(there: Open) -> None:
    there.office.book.send(Order("a"))
    there.world.run()
    there.office.book.send(Order("a", city="Rome"))
    there.world.run()
    there.clock.advance(1_000)
    editing.edit(there.session, one_of(there.session, Select()), assignments=["order_id=b"], new_key=True)
    old, new = (story(there, key).lines[-1] for key in ("a", "b"))
    assert (old.event, old.text) == ("edit", "its message was given another key: b")
    assert (new.event, new.text) == ("edit", "payload changed in the dead-letter queue (order_id); its key was a")
