"""Dead letters and held operations chosen by run, tenant, cause and age, and many settled by one word."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import dead_letters, held, settling
from onefold.admin.dead_letters import Select, fingerprint_of
from onefold.admin.settling import HeldSelect
from onefold.contracts.store import RecordKey
from tests.faces.conftest import Shell
from tests.faces.office import Open, Order
from tests.faces.test_commands import Terminal


def hold(there: Open, **orders: str) -> None:
    """Orders whose outcome is unknown: `pay`, one after the other, a minute between."""
    for key, said in orders.items():
        there.office.ill[key] = onefold.OutcomeUnknown(said)
        there.office.pay.send(Order(key))
        there.world.run()
        there.clock.advance(60_000)


def keys(there: Open, **select: Any) -> list[str]:
    return [one.key for one in settling.selected(there.session, HeldSelect(**select))]


def test_held_operations_are_chosen(there: Open) -> None:
    hold(there, a="no answer for order 17 in '3.4 s'", b="no answer for order 18 in '9.1 s'", c="another bank")
    office = there.office
    office.ill["d"] = onefold.OutcomeUnknown("no answer")
    office.charge.send(Order("d", customer="acme"))
    there.world.run()
    assert keys(there, job="pay") == ["a", "b", "c"]
    assert keys(there, tenant="ac*") == ["d"]
    assert keys(there, older_ms=120_000) == ["a", "b"]
    assert keys(there, newer_ms=100_000) == ["c", "d"]
    assert keys(there, key="[a]") == []
    assert keys(there, error="Outcome*", queue="careful", job="pay", key="?") == ["a", "b", "c"]
    assert keys(there, queue="careful-held") == ["a", "b", "c", "d"]
    cause = held.find(there.session, "a", None, None).fingerprint
    assert keys(there, fingerprint=cause[:5]) == ["a", "b"]
    assert keys(there, run="*") == ["a", "b", "c", "d"]
    assert keys(there, run="?*") == []
    with pytest.raises(errors.NotFoundError, match="neither a held queue"):
        keys(there, queue="nobody")


def test_dead_letters_are_chosen(there: Open) -> None:
    office = there.office
    for key, text in {"1": "no stock of 17", "2": "no stock of 181", "3": "no street"}.items():
        office.ill[key] = onefold.PermanentError(text)
        office.book.send(Order(key))
    office.ill["4"] = onefold.PermanentError("no stock of 3")
    office.charge.send(Order("4", customer="acme"))
    there.world.run()

    def chosen(**select: Any) -> list[str]:
        return sorted(one.key for one in dead_letters.find(there.session, Select(**select)) if one.key)

    letters = {
        one.key: one
        for one in (dead_letters.letter(there.session, m) for m in dead_letters.find(there.session, Select()))
    }
    assert chosen(fingerprint=letters["1"].fingerprint) == ["1", "2"]
    assert chosen(tenant="acme") == ["4"]
    assert chosen(tenant="*") == ["1", "2", "3", "4"]
    assert chosen(run="nightly") == []
    (together,) = [one for one in dead_letters.failures(there.session, Select()) if one.job == "book"]
    assert (together.count, together.fingerprint) == (3, None)
    apart = [one for one in dead_letters.failures(there.session, Select(), by_text=True) if one.job == "book"]
    assert [(one.count, one.fingerprint) for one in apart] == [
        (2, letters["1"].fingerprint), (1, letters["3"].fingerprint),
    ]  # fmt: skip
    assert apart[0].redrive == f"onefold dlq redrive --fingerprint {letters['1'].fingerprint} --queue orders-dead"


def test_a_fingerprint_is_of_the_cause() -> None:
    first = fingerprint_of("pay", "permanent", "Refused", "order 17 of 'ann' at 5f0c8a1b-22 took 3.4 s")
    assert first == fingerprint_of("pay", "permanent", "Refused", "Order 9 of 'bo' at 00ffaa31 took 12 s")
    assert len(first) == 8
    others = [("charge", "permanent", "Refused"), ("pay", "attempts", "Refused"), ("pay", "permanent", "Other")]
    text = "order 17 of 'ann' at 5f0c8a1b-22 took 3.4 s"
    assert first not in {fingerprint_of(*other, text) for other in others}
    assert first != fingerprint_of("pay", "permanent", "Refused", "order 17 of 'ann' was lost")


def test_a_plan_changes_nothing_and_is_carried_out_as_it_was(there: Open) -> None:
    hold(there, a="x", b="x", c="x")
    plan = settling.plan(there.session, HeldSelect(), done=False)
    assert plan == settling.plan(there.session, HeldSelect(job="pay"), done=False)
    assert plan.digest != settling.plan(there.session, HeldSelect(), done=True).digest
    assert len(held.listed(there.session)) == 3
    held.settle(there.session, "b", done=True)
    there.office.ill.clear()
    many = settling.carry_out(there.session, plan, reason_text="the bank was down")
    assert [one.key for one in many.settled] == ["a", "c"]
    ((left, why),) = [(one.key, one.why) for one in many.left]
    assert left == "b"
    assert "Nothing with the key 'b' is held" in why
    there.world.run()
    assert there.office.ran.count("a") == 2
    assert held.listed(there.session) == []
    rows = there.session.engine.ledger.of_key(RecordKey("", "pay", "a"))
    (row,) = [one for one in rows if one.event == "settled"]
    assert (row.actor, row.detail["reason_text"]) == ("person:ada", "the bank was down")


def test_one_that_ran_again_since_is_left(there: Open) -> None:
    hold(there, a="x", b="x")
    plan = settling.plan(there.session, HeldSelect(), done=True, result='{"label": "L"}')
    held.settle(there.session, "a", done=False)
    there.world.run()
    assert {one.key for one in held.listed(there.session)} == {"a", "b"}
    many = settling.carry_out(there.session, plan, reason_text="found at the bank")
    assert [one.key for one in many.settled] == ["b"]
    assert "now: it is held as" in many.left[0].why
    assert [one.key for one in held.listed(there.session)] == ["a"]


def test_what_one_word_cannot_settle_is_left_out(there: Open) -> None:
    hold(there, a="x")

    @onefold.once(key="{order}", store=there.session.engine.store, name="refund", on_unknown="hold")
    def refund(order: str) -> str:
        raise onefold.OutcomeUnknown("the bank did not answer")

    with pytest.raises(onefold.OutcomeUnknown):
        refund("r-1")
    plan = settling.plan(there.session, HeldSelect(), done=True)
    assert [one.key for one in plan.operations] == ["a"]
    assert [(one.key, one.why) for one in plan.refused] == [
        ("r-1", "refund 'r-1' is a call of a function: what it returned is missing.")
    ]
    with pytest.raises(errors.UsageError, match="did not happen"):
        settling.plan(there.session, HeldSelect(), done=False, result="1")
    with pytest.raises(errors.UsageError, match="needs a reason"):
        settling.carry_out(there.session, plan, reason_text=" ")
    assert len(held.listed(there.session)) == 2


@pytest.mark.slow
def test_as_typed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("c-1", "c-2"):
        shell.send(key, "Nowhere", "charge")
    shell.send("o-1", "Atlantis")
    shell.work()

    letter = shell.json("dlq", "list", "shop:app", "--all", "--where", "job=book")["letters"][0]
    assert shell.json("dlq", "list", "shop:app", "--all", "--fingerprint", letter["fingerprint"])["letters"] == [
        {**letter, "expires_in_ms": pytest.approx(letter["expires_in_ms"], abs=60_000)}
    ]
    assert "None of the 1 dead letter fits" in shell("dlq", "list", "shop:app", "--all", "--run", "nightly/*")
    said = shell.fails("dlq", "list", "shop:app", "--where", "jbo=book", code=2)
    assert "Did you mean job=...?" in " ".join(said.split())
    assert "job is given twice" in shell.fails("dlq", "list", "shop:app", "--job", "a", "--where", "job=b", code=2)

    assert len(shell.json("held", "list", "shop:app", "--job", "charge")["held"]) == 2
    assert "Nothing that is held matches." in shell("held", "list", "shop:app", "--where", "job=book")

    every = ("held", "settle", "shop:app", "--all", "--where", "error=OutcomeUnknown", "--not-done")
    said = shell(*every)
    assert "charge c-1" in said
    assert "2 operations would be settled as not done. Nothing was changed." in said
    digest = shell.json(*every)["plan"]["digest"]
    assert f"--digest {digest} --reason-text TEXT" in said
    assert "needs --reason-text" in shell.fails(*every, "--yes", code=2)
    assert "The digest abc is out of date" in shell.fails(*every, "--digest", "abc", "--reason-text", "no")
    assert "Conditions, --yes and --digest go with --all" in shell.fails(
        "held", "settle", "c-1", "shop:app", "--done", "--where", "job=charge", "--yes", code=2
    )
    assert "--done or --not-done" in shell.fails("held", "settle", "shop:app", "--all", code=2)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", Terminal("n\n"))
        assert f"The same command with --digest {digest} --reason-text TEXT does it" in shell(*every)
        refused = shell.fails(*every, "--reason-text", "the courier has none of them")
        assert "charge c-1" in refused
        assert "Settle 2 operations as not done?" in refused
    assert len(shell.json("held", "list", "shop:app")["held"]) == 2
    said = shell(*every, "--digest", digest, "--reason-text", "the courier has none of them")
    assert "2 operations settled as not done; 2 messages sent back." in said
    assert "Nothing is held." in shell("held", "list", "shop:app")
    assert "the courier has none of them" in shell("why", "c-1", "shop:app")

    shell.work()
    done = shell.json("held", "settle", "shop:app", "--all", "--done", "--yes", "--reason-text", "booked by phone")
    assert sorted(one["key"] for one in done["settled"]) == ["c-1", "c-2"]
    assert json.dumps(done["left"]) == "[]"
