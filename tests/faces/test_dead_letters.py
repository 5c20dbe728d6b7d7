"""Looking at dead letters, selecting them, changing and deleting them, on the real engine."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import dead_letters, editing, why
from onefold.admin.dead_letters import Select
from onefold.runner.handlers import AMENDS_ATTRIBUTE
from tests.faces.office import ACTOR, Open, Order


def kill(there: Open, *ids: str, error: Exception | None = None) -> None:
    """Have these orders dead-lettered for good."""
    for order_id in ids:
        there.office.ill[order_id] = error or onefold.PermanentError("no such city")
        there.office.book.send(Order(order_id))
    there.world.run()


def keys(there: Open, **conditions: object) -> list[str | None]:
    return [message.key for message in dead_letters.find(there.session, Select(**conditions))]  # type: ignore[arg-type]


def test_dead_letters_are_grouped_by_how_they_failed(there: Open) -> None:
    kill(there, "a", "b")
    there.clock.advance(5_000)
    kill(there, "c", error=ValueError("odd"))
    there.world.run_for(2_000)
    most, least = dead_letters.failures(there.session, Select())
    assert (most.reason, most.error, most.job, most.count, most.owner) == (
        "permanent",
        "PermanentError",
        "book",
        2,
        "fulfilment",
    )
    assert most.summary == "no such city"
    assert (least.reason, least.error, least.count) == ("attempts", "ValueError", 1)
    assert (most.redrive, least.redrive) == (
        "onefold dlq redrive --reason permanent",
        "onefold dlq redrive --reason attempts",
    )
    # 14 days from when the first of them was buried, 7 s ago
    assert most.expires_in_ms == 14 * 86_400_000 - 7_000


def test_kinds_of_one_reason_can_be_told_apart_and_sent_back_alone(there: Open) -> None:
    kill(there, "a", error=ValueError("odd"))
    kill(there, "b", error=KeyError("k"))
    there.office.ill["c"] = ValueError("odd")
    there.office.pay.send(Order("c"))
    there.world.run_for(120_000)
    kinds = dead_letters.failures(there.session, Select())
    told = {(one.error, one.job, one.redrive.removeprefix("onefold dlq redrive --reason attempts ")) for one in kinds}
    assert told == {
        ("KeyError", "book", "--error KeyError"),
        ("ValueError", "book", "--error ValueError --job book"),
        ("ValueError", "pay", "--error ValueError --job pay"),
    }


def test_a_key_with_brackets_is_itself_and_no_class_of_characters(there: Open) -> None:
    kill(there, "inv[1]", "inv1", "[5]", "5")
    assert keys(there, key="inv[1]") == ["inv[1]"]
    assert keys(there, key="[5]") == ["[5]"]
    assert keys(there, key="inv[*") == ["inv[1]"]
    assert keys(there, key="[15]") == []


def test_a_selection_holds_by_every_condition(there: Open) -> None:
    kill(there, "a", "ab")
    there.clock.advance(60_000)
    kill(there, "b", error=ValueError("odd"))
    there.world.run_for(2_000)
    assert keys(there) == ["a", "ab", "b"]
    assert keys(there, key="a*") == ["a", "ab"]
    assert keys(there, reason="attempts") == ["b"]
    assert keys(there, error="Value*") == ["b"]
    assert keys(there, job="book", key="a") == ["a"]
    assert keys(there, job="pay") == []
    assert keys(there, older_ms=30_000) == ["a", "ab"]
    assert keys(there, newer_ms=30_000) == ["b"]
    assert keys(there, queue="orders") == keys(there, queue="orders-dead") == ["a", "ab", "b"]
    assert keys(there, queue="careful") == []


def test_a_message_is_named_by_its_id_its_end_or_its_beginning(there: Open) -> None:
    kill(there, "a", "b")
    message_id = there.dead()["a"]
    number = message_id.rpartition("-")[2]
    assert keys(there, ids=(message_id,)) == keys(there, ids=(number,)) == ["a"]
    with pytest.raises(onefold.errors.UsageError, match="fits 2 dead letters"):
        keys(there, ids=(message_id[:6],))
    with pytest.raises(onefold.errors.NotFoundError, match="no dead letter 'zzzz'"):
        keys(there, ids=("zzzz",))
    with pytest.raises(onefold.errors.NotFoundError, match="neither a dead-letter queue"):
        keys(there, queue="nowhere")


def test_one_dead_letter_shows_all_that_is_known(there: Open) -> None:
    kill(there, "a")
    detail = dead_letters.show(there.session, dead_letters.one_of(there.session, Select(key="a")))
    assert '"order_id":"a"' in detail.body
    assert detail.attributes == {"onefold.job": "book", "onefold.app": "office"}
    assert detail.record == "failed, 1 run in all, fence 1"
    assert detail.forecast.outcome == "run"
    assert [(step.event, step.rule) for step in detail.history] == [
        ("dead-letter", "permanent error: trying again cannot help")
    ]
    assert detail.letter.attempts == 1
    assert detail.letter.source == "orders"


def test_one_of_several_is_refused(there: Open) -> None:
    kill(there, "a", "b")
    with pytest.raises(onefold.errors.UsageError, match="2 dead letters fit"):
        dead_letters.one_of(there.session, Select(job="book"))
    with pytest.raises(onefold.errors.NotFoundError, match="No dead letter matches"):
        dead_letters.one_of(there.session, Select(key="zzz"))


def test_a_message_without_a_reason_is_listed_too(there: Open) -> None:
    message_id = there.send_foreign("orders-dead", '{"order_id": "x"}')
    (failure,) = dead_letters.failures(there.session, Select(reason="none"))
    assert (failure.count, failure.message_id) == (1, message_id)
    assert "no reason travels with it" in failure.summary


# -- changing --------------------------------------------------------------------------------------------------------


def test_an_edit_is_accepted_by_the_guard_and_runs(there: Open) -> None:
    kill(there, "a")
    message = dead_letters.one_of(there.session, Select(key="a"))
    fingerprint = there.session.engine.records.find("a")[0].fingerprint
    edited = editing.edit(there.session, message, assignments=["city=Paris"], reason_text="it was Paris")
    assert edited.changed == ("city",)
    assert (edited.key_before, edited.key_after) == ("a", "a")
    assert edited.amends == fingerprint
    assert edited.forecast.outcome == "run"
    (row,) = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "edit"]
    assert row.actor == ACTOR
    assert row.detail == {"changed": "city", "amends": fingerprint, "reason_text": "it was Paris"}

    there.office.ill.clear()
    there.session.engine.queues.move([(message.message_id, None, None)])
    there.world.run()
    assert there.session.engine.records.find("a")[0].status == "completed"


def test_an_edit_twice_still_replaces_the_payload_that_the_record_knows(there: Open) -> None:
    kill(there, "a")
    fingerprint = there.session.engine.records.find("a")[0].fingerprint
    for city in ("Paris", "Rome"):
        editing.edit(there.session, dead_letters.one_of(there.session, Select(key="a")), assignments=[f"city={city}"])
    message = dead_letters.one_of(there.session, Select(key="a"))
    assert message.attributes[AMENDS_ATTRIBUTE].value == fingerprint
    back = editing.edit(there.session, message, assignments=["city=London"])
    assert back.amends is None, "the first payload again replaces nothing"


def test_what_was_edited_or_redriven_since_it_was_listed_is_not_deleted(there: Open) -> None:
    kill(there, "a", "b", "c")
    listed = list(dead_letters.find(there.session, Select()))
    editing.edit(there.session, listed[0], assignments=["city=Paris"])
    there.session.engine.queues.move([(listed[1].message_id, None, None)])
    assert dead_letters.remove(there.session, listed) == 1
    assert keys(there) == ["a"]
    (left,) = there.session.engine.queues.peek("orders")
    assert left.key == "b"


def test_many_are_deleted_in_several_transactions_so_that_others_write_meanwhile(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(there, *"abcde")
    monkeypatch.setattr(dead_letters, "_PAGE", 2)
    sizes: list[int] = []
    together = there.session.together

    def counted(write: Any) -> Any:
        rows = together(write)
        sizes.append(len(rows))
        return rows

    listed = list(dead_letters.find(there.session, Select()))
    monkeypatch.setattr(there.session, "together", counted)
    assert dead_letters.remove(there.session, listed) == 5
    assert sizes == [2, 2, 1]
    assert keys(there) == []
    rows = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "removed"]
    assert sorted(row.key.key for row in rows if row.key is not None) == list("abcde")


def test_an_edit_of_what_was_edited_or_redriven_since_it_was_read_is_refused(there: Open) -> None:
    kill(there, "a", "b")
    edited, redriven = dead_letters.find(there.session, Select())
    editing.edit(there.session, edited, assignments=["city=Paris"])
    there.session.engine.queues.move([(redriven.message_id, None, None)])
    for message in (edited, redriven):
        with pytest.raises(errors.TransientError, match="changed meanwhile"):
            editing.edit(there.session, message, assignments=["city=Rome"])
    assert "Paris" in dead_letters.one_of(there.session, Select(key="a")).body
    rows = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "edit"]
    assert len(rows) == 1


def test_a_dry_edit_writes_nothing(there: Open) -> None:
    kill(there, "a")
    message = dead_letters.one_of(there.session, Select(key="a"))
    edited = editing.edit(there.session, message, assignments=["city=Paris"], dry_run=True)
    assert not edited.written
    assert dead_letters.one_of(there.session, Select(key="a")) == message


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("city=3", r"does not fit Order"),
        ("order_id=null", r"does not fit Order"),
        ("order_id=b", r"changes its key from 'a' to 'b'"),
        ("city", r"not of the form FIELD=VALUE"),
        ("city.name=x", r"there is no 'city.name'"),
        ("city=London", r"changes nothing"),
        (
            "citty=Paris",
            r"no field citty. It has order_id, city, customer. Nothing was changed. Did you mean city?",
        ),
    ],
)
def test_a_refused_edit_changes_nothing(there: Open, assignment: str, said: str) -> None:
    kill(there, "a")
    message = dead_letters.one_of(there.session, Select(key="a"))
    with pytest.raises(onefold.errors.UsageError, match=said) as caught:
        editing.edit(there.session, message, assignments=[assignment])
    if "does not fit" in said:
        assert f"`onefold dlq show {message.message_id}`" in caught.value.todo
    assert dead_letters.one_of(there.session, Select(ids=(message.message_id,))) == message


def test_another_key_must_be_meant(there: Open) -> None:
    kill(there, "a")
    message = dead_letters.one_of(there.session, Select(key="a"))
    edited = editing.edit(there.session, message, assignments=["order_id=b"], new_key=True)
    assert (edited.key_before, edited.key_after, edited.amends) == ("a", "b", None)
    assert edited.forecast.why == "Nothing is recorded under its key."
    again = dead_letters.one_of(there.session, Select(key="b"))
    assert dead_letters.letter(there.session, again).key == "b"
    with pytest.raises(onefold.errors.NotFoundError):
        dead_letters.one_of(there.session, Select(key="a"))
    assert "dead-letter queue" in why.explain(there.session, "b").stories[0].text


def test_a_unique_jobs_dead_letter_keeps_its_key(there: Open) -> None:
    kill(there, "u")
    there.office.book.unique = True
    message = dead_letters.one_of(there.session, Select(key="u"))
    with pytest.raises(onefold.errors.UsageError, match="which is unique"):
        editing.edit(there.session, message, assignments=["order_id=v"], new_key=True)
    assert dead_letters.one_of(there.session, Select(key="u")) == message


def test_a_malformed_message_can_be_mended(there: Open) -> None:
    there.send_foreign("careful", '{"order_id": "x"}')
    message_id = there.send_foreign("orders", '{"city": "Rome"}')
    there.world.run()
    message = dead_letters.one_of(there.session, Select(reason="malformed"))
    assert message.message_id == message_id
    edited = editing.edit(there.session, message, assignments=["order_id=m-1"])
    assert (edited.key_before, edited.key_after) == (None, "m-1")
    assert edited.forecast.outcome == "run"


def test_a_done_operation_is_not_amended(there: Open) -> None:
    there.office.book.send(Order("a"))
    there.office.book.send(Order("a", "Rome"))
    there.world.run()
    message = dead_letters.one_of(there.session, Select(reason="conflict"))
    edited = editing.edit(there.session, message, assignments=["city=Oslo"])
    assert edited.amends is None
    assert edited.forecast.outcome == "conflict"
    edited = editing.edit(there.session, dead_letters.one_of(there.session, Select()), assignments=["city=London"])
    assert edited.forecast.outcome == "answered", "the payload of the one that was done"


# -- deleting --------------------------------------------------------------------------------------------------------


def test_what_is_deleted_is_gone_and_says_who_did_it(there: Open) -> None:
    kill(there, "a", "b")
    chosen = list(dead_letters.find(there.session, Select(key="a")))
    assert dead_letters.counts(chosen) == {"orders-dead": 1}
    assert dead_letters.remove(there.session, chosen, reason_text="test order") == 1
    assert keys(there) == ["b"]
    assert dead_letters.remove(there.session, chosen) == 0
    rows = [row for row in there.session.engine.ledger.between(0, 1 << 60) if row.event == "removed"]
    assert [(row.actor, row.key and row.key.key, row.detail) for row in rows] == [
        (ACTOR, "a", {"reason_text": "test order"})
    ]


# -- assignments -----------------------------------------------------------------------------------------------------


def test_assignments_keep_what_they_do_not_name() -> None:
    text = '{"amount":1.10,"big":12345678901234567890,"lines":[{"count":1}],"note":"x"}'
    changed = editing.assigned(text, ["lines.0.count=2", "note=007", 'zip="01234"', 'more={"a":[1]}'])
    assert changed == (
        '{"amount":1.10,"big":12345678901234567890,"lines":[{"count":2}],"note":"007","zip":"01234","more":{"a":[1]}}'
    )
    assert editing.changed_fields(text, changed) == ("lines", "note", "zip", "more")
    assert editing.assigned("no json", []) == "no json"


def test_a_body_that_is_no_json_has_no_fields() -> None:
    with pytest.raises(onefold.errors.UsageError, match="not JSON"):
        editing.assigned("no json", ["a=1"])
    assert editing.changed_fields("no json", "no json") == ()
    assert editing.changed_fields("no json", '{"a": 1}') == ("(all)",)
    assert editing.changed_fields("[1]", "[2]") == ("(all)",)
    assert editing.changed_fields('{"a": 1}', '{"a":1}') == ()
