"""Unknown outcomes settled by a person: the record first, then the messages; nothing is lost, nothing is run twice."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from decimal import Decimal

import pytest

import onefold
from onefold import limits
from onefold.admin import dead_letters, groups, held, redrive, status, why
from onefold.admin.dead_letters import Select
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from onefold.contracts.store import ManualDecision, RecordKey
from tests.faces.office import ACTOR, Open, Order


def park(there: Open, key: str = "p-1", count: int = 1, job: str = "pay", customer: str = "c-1") -> None:
    """Have `count` messages of one operation held: the run whose outcome is unknown, and its duplicates."""
    there.office.ill[key] = onefold.OutcomeUnknown("the bank did not answer")
    for _ in range(count):
        getattr(there.office, job).send(Order(key, customer=customer))
    there.world.run()
    there.office.ran.clear()


def record_of(there: Open, key: str) -> onefold.contracts.store.Record:  # type: ignore[name-defined]
    return there.session.engine.records.find(key)[0]


def test_an_operation_is_listed_once_with_its_duplicates(there: Open) -> None:
    park(there, count=3)
    there.clock.advance(60_000)
    park(there, "p-2")
    first, second = held.listed(there.session)
    assert (first.key, first.job, first.state, len(first.message_ids)) == ("p-1", "pay", "held", 3)
    assert (first.error, first.summary, first.attempts, first.owner) == (
        "OutcomeUnknown",
        "the bank did not answer",
        1,
        "billing",
    )
    assert first.message_ids[0] == record_of(there, "p-1").message_id
    assert second.key == "p-2"
    assert held.listed(there.session, "p-2") == [second]
    assert [body for _, body in held.bodies(there.session, second)] == [
        '{"city":"London","customer":"c-1","order_id":"p-2"}'
    ]


def test_an_effect_without_its_result_is_settled_and_the_gap_is_named(there: Open) -> None:
    """Not every result is known at 2 a.m. It can be given later; nobody should take null for what the job returned."""
    park(there)
    assert held.settle(there.session, "p-1", done=True).lacks_result
    settled = held.settle(there.session, "p-1", done=True, result='{"label": "l-1"}')
    assert (settled.replaced, settled.lacks_result) == ("null", False)
    park(there, "p-2")
    assert not held.settle(there.session, "p-2", done=True, result='{"label": "l-2"}').lacks_result
    park(there, "p-3")
    assert not held.settle(there.session, "p-3", done=False).lacks_result


def test_a_null_result_is_named_where_no_app_says_what_the_job_returns(there: Open) -> None:
    park(there)
    settled = held.settle(there.without_app(), "p-1", done=True)
    assert (settled.is_unchecked, settled.lacks_result) == (True, False)
    park(there, "p-2")
    assert not held.settle(there.without_app(), "p-2", done=True, result='{"label": "l-2"}').is_unchecked
    park(there, "p-3")
    assert not held.settle(there.without_app(), "p-3", done=False).is_unchecked
    park(there, "p-4")
    assert not held.settle(there.session, "p-4", done=True).is_unchecked


def test_what_is_done_is_not_settled_as_not_done_and_the_way_on_is_said(there: Open) -> None:
    park(there)
    held.settle(there.session, "p-1", done=True, result='{"label": "l-1"}')
    with pytest.raises(onefold.errors.NotFoundError, match="pay p-1 is done") as caught:
        held.settle(there.session, "p-1", done=False)
    assert caught.value.todo == (
        "What is done cannot be settled as not done: its duplicates may have been answered. If the effect did not happen, "
        "do it under another key. To correct the result: --done --result JSON."
    )
    with pytest.raises(onefold.errors.NotFoundError) as caught:
        held.settle(there.session, "p-9", done=False)
    assert caught.value.todo == "See `onefold held list` and `onefold why p-9`."


def test_a_result_that_does_not_fit_changes_nothing_and_says_so(there: Open) -> None:
    park(there)
    with pytest.raises(onefold.errors.PayloadError, match="The result is not what pay returns") as caught:
        held.settle(there.session, "p-1", done=True, result="[1]")
    assert caught.value.meaning.endswith("Nothing was changed.")
    assert "Send" not in caught.value.todo
    assert record_of(there, "p-1").parked


def test_settled_as_done_answers_every_duplicate(there: Open) -> None:
    park(there, count=3)
    settled = held.settle(there.session, "p-1", done=True, result='{"label": "from the bank"}', reason_text="I called")
    assert (settled.deleted, settled.sent_back) == (3, ())
    record = record_of(there, "p-1")
    assert (record.status, record.result) == ("completed", b'{"label":"from the bank"}')
    assert held.listed(there.session) == []
    there.office.pay.send(Order("p-1"))
    there.world.run()
    assert there.office.ran == []
    assert there.world.names()[-1] == "duplicate"
    (row,) = there.session.engine.ledger.of_key(record.key)[-2:-1]
    assert (row.event, row.actor, row.detail) == ("settled", ACTOR, {"done": True, "reason_text": "I called"})


def test_settled_as_not_done_runs_once(there: Open) -> None:
    park(there, count=3)
    there.office.ill.clear()
    settled = held.settle(there.session, "p-1", done=False)
    assert (settled.deleted, len(settled.sent_back)) == (2, 1)
    there.world.run()
    assert there.office.ran == ["p-1"]
    assert record_of(there, "p-1").status == "completed"


def test_a_held_message_near_its_end_is_warned_about_and_its_loss_is_said(there: Open) -> None:
    park(there)
    codes = [one.code for one in status.status(there.session).warnings]
    assert "held-expires-soon" not in codes
    there.clock.advance(11 * limits.DAY_MS + 60_000)
    (warned,) = [one for one in status.status(there.session).warnings if one.code == "held-expires-soon"]
    assert warned.text.startswith("The held message of careful expires in 2d23h")
    there.clock.advance(3 * limits.DAY_MS)
    (one,) = held.listed(there.session)
    assert (one.message_ids, one.expires_in_ms, one.message_gone) == ((), None, True)
    (warned,) = [one for one in status.status(there.session).warnings if one.code == "held-message-gone"]
    assert warned.text.startswith(
        "1 held operation without a message, which has expired or was deleted; the first is pay p-1."
    )
    settled = held.settle(there.session, "p-1", done=False)
    assert (settled.sent_back, settled.message_gone) == ((), True)
    assert "held-message-gone" not in [one.code for one in status.status(there.session).warnings]
    there.office.ill.clear()
    there.world.run()
    assert there.office.ran == []
    there.office.pay.send(Order("p-1", customer="c-1"))
    there.world.run()
    assert there.office.ran == ["p-1"]


def test_at_every_moment_of_settling_a_message_is_left(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash after each step, then the same command again: the operation is run, exactly once."""
    queues, state = there.session.engine.queues, there.session.engine.records

    class Crashed(Exception):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crashed

    park(there, count=2)
    there.office.ill.clear()
    for target, name in ((state, "settle"), (queues, "move"), (queues, "remove")):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, crash)
            with pytest.raises(Crashed):
                held.settle(there.session, "p-1", done=False)
        there.world.run()
    (left,) = held.listed(there.session)
    assert (left.state, len(left.message_ids)) == ("left-over", 2), "its record is settled, its messages are still here"
    assert there.office.ran == []
    settled = held.settle(there.session, "p-1", done=False)
    assert (settled.deleted, len(settled.sent_back)) == (1, 1)
    assert held.listed(there.session) == []
    there.world.run()
    assert there.office.ran == ["p-1"]


def test_a_left_over_of_finished_work_is_cleared_as_done(there: Open) -> None:
    """Where records and messages share no transaction, a crash may leave a duplicate of what is done since."""
    park(there, count=2)
    record = record_of(there, "p-1")
    now_ms = there.clock.now_ms()
    decision = ManualDecision(done=True, result=b"1", expires_at_ms=now_ms + 9_000_000)
    assert there.session.engine.records.settle(record.key, decision, now_ms)
    assert [one.state for one in held.listed(there.session)] == ["left-over"]
    with pytest.raises(onefold.errors.ConflictError, match="not held any more: its record is completed") as caught:
        held.settle(there.session, "p-1", done=False)
    assert "--done" in caught.value.todo
    assert held.settle(there.session, "p-1", done=True).deleted == 2
    assert held.listed(there.session) == []
    there.world.run()
    assert there.office.ran == []


def test_a_call_under_once_is_settled_without_a_message(there: Open) -> None:
    claimed = there.claim("charge_card", "k-1", start=True)
    failure = onefold.contracts.store.Failure(kind="unknown", error="NotRecorded", summary="An earlier call ended.")
    parked = onefold.contracts.store.Unknown(failure=failure, expires_at_ms=there.clock.now_ms() + 1, parked=True)
    there.session.engine.store.write([(claimed.hold, parked)], there.clock.now_ms())
    (one,) = held.listed(there.session)
    assert (one.key, one.queue, one.message_ids, one.expires_in_ms) == ("k-1", None, (), None)
    settled = held.settle(there.session, "k-1", done=False)
    assert (settled.sent_back, settled.deleted) == ((), 0)
    assert record_of(there, "k-1").status == "released"


def test_a_held_call_is_settled_with_what_it_returned(there: Open) -> None:
    guard = functools.partial(
        onefold.once, key="{order}", name="bank", store=there.session.engine.store, on_unknown="hold"
    )

    @guard(clock=there.clock)
    def pay(order: str) -> str:
        raise onefold.OutcomeUnknown("the bank did not answer")

    with pytest.raises(onefold.OutcomeUnknown):
        pay("k 1")
    with pytest.raises(onefold.OutcomeUnknown, match=r"onefold held settle 'k 1' --done --result JSON --url URL"):
        pay("k 1")
    bare = there.without_app()
    with pytest.raises(onefold.errors.UsageError, match=r"what it returned is missing.*--result"):
        held.settle(bare, "k 1", done=True)
    with pytest.raises(onefold.errors.UsageError, match=r"The result is not JSON.*Text needs quotes of its own"):
        held.settle(bare, "k 1", done=True, result='"oops')
    held.settle(bare, "k 1", done=True, result="null")  # meant so, and wrong
    with pytest.raises(
        onefold.errors.PayloadError, match=r"bank 'k 1'.*settled by hand.*onefold held settle 'k 1' --done --result"
    ):
        pay("k 1")
    held.settle(bare, "k 1", done=True, result='"r-1"')
    held.settle(bare, "k 1", done=True, result='"r-2"', reason_text="the bank's own number")
    assert pay("k 1") == "r-2"
    assert [row.event for row in bare.engine.ledger.of_key(RecordKey("", "bank", "k 1"))].count("settled") == 3
    with pytest.raises(onefold.errors.NotFoundError):
        held.settle(bare, "k 1", done=False)


def unstored(there: Open, key: str) -> Callable[[str], object]:
    """A call that took effect, and whose result has no place in a record."""

    @onefold.once(key="{order}", name=f"bank-{key}", store=there.session.engine.store, clock=there.clock)
    def pay(order: str) -> object:
        return Decimal("5.00")

    with pytest.raises(onefold.errors.PayloadError, match="Its effect has happened"):
        pay(key)
    return pay


def test_what_took_effect_is_the_same_everywhere(there: Open) -> None:
    pay = unstored(there, "k-1")
    with pytest.raises(onefold.OutcomeUnknown, match="took effect, and its result could not be recorded") as caught:
        pay("k-1")
    assert "--not-done" not in str(caught.value)
    assert "unknown whether" not in str(caught.value)
    (listed,) = held.listed(there.session)
    assert (listed.took_effect, listed.error) == (True, "PayloadError")
    (warning,) = [one for one in status.status(there.session).warnings if one.code == "held-calls"]
    assert warning.text == "1 call held: its effect happened, and its result could not be recorded."
    park(there, "k-2", job="pay")
    (mixed,) = [one for one in status.status(there.without_app()).warnings if one.code.startswith("held-calls")]
    assert mixed.text == warning.text
    (told,) = why.explain(there.session, "k-1").stories
    assert "the effect happened, and its result could not be recorded" in told.text
    assert "took effect, and its result could not be recorded" in " ".join(line.text for line in told.lines)


def test_what_took_effect_is_settled_as_not_done_only_with_a_reason(there: Open) -> None:
    pay = unstored(there, "k-1")
    before = record_of(there, "k-1")
    for reason in (None, ""):
        with pytest.raises(onefold.errors.UsageError, match=r"took effect.*--done --result JSON.*--reason-text TEXT"):
            held.settle(there.session, "k-1", done=False, reason_text=reason)
    assert record_of(there, "k-1") == before
    held.settle(there.session, "k-1", done=False, reason_text="the bank has refunded it")
    assert record_of(there, "k-1").status == "released"
    with pytest.raises(onefold.errors.PayloadError, match="Its effect has happened"):
        pay("k-1")
    held.settle(there.session, "k-1", done=True, result='"5.00"')
    assert pay("k-1") == "5.00"


def test_what_a_call_returned_is_not_corrected_by_hand(there: Open) -> None:
    @onefold.once(key="{order}", name="bank", store=there.session.engine.store, clock=there.clock)
    def pay(order: str) -> str:
        return f"paid {order}"

    pay("k-1")
    with pytest.raises(onefold.errors.NotFoundError, match="Nothing with the key 'k-1' is held"):
        held.settle(there.session, "k-1", done=True, result='"other"')
    assert pay("k-1") == "paid k-1"


def test_which_of_several_must_be_said(there: Open) -> None:
    park(there, "x", job="charge", customer="acme")
    park(there, "x", job="charge", customer="umbrella")
    park(there, "x", job="pay")
    with pytest.raises(onefold.errors.UsageError, match="3 operations with the key 'x'"):
        held.settle(there.session, "x", done=True)
    with pytest.raises(onefold.errors.UsageError, match="2 operations"):
        held.settle(there.session, "x", done=True, job="charge")
    settled = held.settle(there.session, "x", done=True, job="charge", tenant="acme")
    assert (settled.tenant, settled.deleted) == ("acme", 1)
    assert {(one.job, one.tenant) for one in held.listed(there.session)} == {("charge", "umbrella"), ("pay", "")}


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"done": False, "result": "1"}, onefold.errors.UsageError, "did not happen"),
        ({"done": True, "result": "{"}, onefold.errors.UsageError, "not JSON"),
        ({"done": True, "result": "3"}, onefold.errors.PayloadError, "does not fit"),
        ({"done": True, "job": "book"}, onefold.errors.NotFoundError, "Nothing with the key 'p-1' is held"),
    ],
)
def test_bad_input_settles_nothing(there: Open, settings: dict[str, object], error: type[Exception], said: str) -> None:
    park(there)
    before = held.listed(there.session)
    with pytest.raises(error, match=said):
        held.settle(there.session, "p-1", **settings)  # type: ignore[arg-type]
    assert held.listed(there.session) == before
    assert record_of(there, "p-1").parked


def test_another_payload_is_never_deleted_as_a_duplicate(there: Open) -> None:
    park(there)
    queue = there.session.engine.queues.open("careful-held")
    queue.send(
        [
            Entry(
                body='{"order_id":"p-1","city":"Rome"}',
                attributes={"onefold.job": Attribute("pay")},
                key="p-1",
            )
        ]
    )
    settled = held.settle(there.session, "p-1", done=True)
    assert (settled.deleted, settled.left) == (1, 1)
    (stray,) = held.listed(there.session)
    assert stray.state == "left-over"
    assert held.bodies(there.session, stray)[0][1] == '{"order_id":"p-1","city":"Rome"}'


def test_without_an_app_it_settles_too(there: Open) -> None:
    park(there, count=2)
    bare = there.without_app()
    assert [one.key for one in held.listed(bare)] == ["p-1"]
    there.office.ill.clear()
    assert held.settle(bare, "p-1", done=False).deleted == 1
    there.world.run()
    assert there.office.ran == ["p-1"]


# -- FIFO ------------------------------------------------------------------------------------------------------------


def stop_by_doubt(there: Open) -> None:
    """A line whose outcome is unknown is held and stops its group; two more follow to the dead-letter queue."""
    there.office.ill["l-0"] = onefold.OutcomeUnknown("no answer")
    there.office.step.send_many(Order(f"l-{number}") for number in range(3))
    there.world.run()
    assert there.office.ran == ["l-0"]
    assert list(there.dead()) == ["l-1", "l-2"]
    there.office.ill.clear()
    there.office.ran.clear()


def test_what_waits_behind_a_held_message_cannot_overtake_it(there: Open) -> None:
    stop_by_doubt(there)
    with pytest.raises(onefold.errors.UsageError, match="is held: its outcome is unknown"):
        redrive.Redrive(there.session, list(dead_letters.find(there.session, Select())))


def test_settled_as_done_the_group_goes_on_behind_it(there: Open) -> None:
    stop_by_doubt(there)
    settled = held.settle(there.session, "l-0", done=True)
    assert (settled.deleted, settled.group_restarted, settled.sent_back) == (1, 2, ())
    there.world.run()
    assert there.office.ran == ["l-1", "l-2"]
    assert groups.stopped(there.session) == []


@pytest.mark.parametrize("done", [True, False])
def test_a_settling_that_ends_early_is_finished_by_the_next(
    there: Open, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Killed after any step, or workers do not let go of the group: settled again, the group goes on in its order."""
    stop_by_doubt(there)
    queues, state = there.session.engine.queues, there.session.engine.records

    class Crashed(Exception):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crashed

    for target, name in ((state, "settle"), (groups, "start_again"), (queues, "remove")):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, crash)
            with contextlib.suppress(Crashed, onefold.errors.NotFoundError):
                held.settle(there.session, "l-0", done=done)
    with contextlib.suppress(onefold.errors.NotFoundError):
        held.settle(there.session, "l-0", done=done)
    assert held.listed(there.session) == []
    there.world.run()
    assert there.office.ran == (["l-1", "l-2"] if done else ["l-0", "l-1", "l-2"])
    assert groups.stopped(there.session) == []
    assert there.dead() == {}


def test_settled_as_not_done_it_runs_before_its_group(there: Open) -> None:
    stop_by_doubt(there)
    settled = held.settle(there.session, "l-0", done=False)
    assert (settled.group_restarted, len(settled.sent_back)) == (2, 1)
    there.world.run()
    assert there.office.ran == ["l-0", "l-1", "l-2"]


def test_the_record_of_a_settled_operation_lives_as_long_as_its_job_says(there: Open) -> None:
    park(there)
    held.settle(there.session, "p-1", done=True)
    record = there.session.engine.store.read([RecordKey("", "pay", "p-1")], there.clock.now_ms())[0]
    assert record is not None
    assert record.expires_at_ms == there.clock.now_ms() + there.office.pay.policy.keep_ms


def twice_held(there: Open) -> None:
    """One key of two tenants, held."""
    for customer in ("acme", "beta"):
        park(there, "p-1", job="charge", customer=customer)


def test_a_key_of_two_tenants_is_settled_as_the_commands_say(there: Open) -> None:
    twice_held(there)
    with pytest.raises(onefold.errors.UsageError) as caught:
        held.settle(there.session, "p-1", done=True)
    assert caught.value.todo == "Say which, with --job charge --tenant acme or --job charge --tenant beta."
    held.settle(there.session, "p-1", done=True, job="charge", tenant="beta")
    held.settle(there.session, "p-1", done=False)
    with pytest.raises(onefold.errors.NotFoundError) as none:
        held.settle(there.session, "p-1", done=False)
    assert (
        none.value.what == "Nothing with the key 'p-1' is held: charge acme/p-1 is released; charge beta/p-1 is done."
    )
    with pytest.raises(onefold.errors.NotFoundError, match=r"Nothing with the key 'p-2' is held\. Nothing was changed"):
        held.settle(there.session, "p-2", done=False)


def test_the_command_of_a_held_call_names_its_function_and_tenant(there: Open) -> None:
    @onefold.once(
        key="{order}",
        tenant="{whose}",
        name="bank",
        store=there.session.engine.store,
        clock=there.clock,
        on_unknown="hold",
    )
    def pay(whose: str, order: str) -> str:
        raise onefold.OutcomeUnknown("the bank did not answer")

    for _ in range(2):
        with pytest.raises(onefold.OutcomeUnknown) as caught:
            pay("acme", "k-1")
    assert "onefold held settle k-1 --done --result JSON --url URL --job bank --tenant acme" in caught.value.todo


def test_another_result_by_hand_shows_the_one_before(there: Open) -> None:
    park(there)
    assert held.settle(there.session, "p-1", done=True, result='{"label":"x"}').replaced is None
    assert held.settle(there.session, "p-1", done=True, result='{"label":"y"}').replaced == '{"label":"x"}'
    (story,) = why.explain(there.session, "p-1").stories
    settled = [line.text for line in story.lines if line.event == "settled"]
    assert settled == ["settled as done", "settled as done, with another result than before"]


def test_what_was_found_out_about_one_run_does_not_settle_a_later_one(there: Open) -> None:
    """Somebody looks at a hold. It is settled as not done, runs again, and is held again: nobody has judged that run."""
    park(there)
    (seen,) = held.listed(there.session)
    held.settle(there.session, "p-1", done=False, hold=seen.hold)
    there.world.run()
    (later,) = held.listed(there.session)
    assert later.hold != seen.hold
    for done in (True, False):
        for hold in (seen.hold, "0@0", "x"):
            with pytest.raises(onefold.errors.ConflictError, match=f"pay p-1 is not held as {hold} now") as caught:
                held.settle(there.session, "p-1", done=done, hold=hold, result='{"label":"l"}' if done else None)
            assert f"it is held as {later.hold}, since 20" in caught.value.what
            assert "onefold held show p-1" in caught.value.todo
    assert held.listed(there.session) == [later]
    held.settle(there.session, "p-1", done=True, hold=later.hold, result='{"label":"l"}')
    with pytest.raises(onefold.errors.NotFoundError, match="pay p-1 is done"):  # no correction of what another has said
        held.settle(there.session, "p-1", done=True, hold=later.hold, result='{"label":"other"}')


def test_a_run_that_is_held_while_somebody_settles_is_not_settled(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the write of one call: the store compares."""
    park(there)
    records = there.session.engine.records
    settle = records.settle

    def late(key: RecordKey, decision: ManualDecision, now_ms: int) -> bool:
        monkeypatch.undo()
        held.settle(there.session, "p-1", done=False)
        there.world.run()
        return settle(key, decision, now_ms)

    monkeypatch.setattr(records, "settle", late)
    with pytest.raises(onefold.errors.ConflictError, match="it is held as"):
        held.settle(there.session, "p-1", done=True)
    assert record_of(there, "p-1").parked
    assert len(held.listed(there.session)[0].message_ids) == 1
