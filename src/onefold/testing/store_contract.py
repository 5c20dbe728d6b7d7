"""What every Store must do, as tests that run against each of onefold's stores and any other implementation.

Subclass `StoreContract` and set `self.store` to an empty store before each test; for a store that proves death, also
define `end_owner`. `RecordAdminContract` does the same for the operator's verbs, with `self.records`. Stores read no
clock, so times are plain numbers; every boundary is tested one millisecond before, at, and after it, and every rule
both where it accepts and where it refuses. Tests are skipped only according to a store's declared capabilities.

    class TestMyStore(StoreContract):
        @pytest.fixture(autouse=True)
        def open_store(self):
            self.store = MyStore(...)

Never here: how a store stores records. Invariant: workers can share any store that passes.
"""

# ruff: noqa: D102 - the name of a test describes it

from __future__ import annotations

from msgspec.structs import replace

from onefold.contracts import transitions
from onefold.contracts.admin import RecordAdmin
from onefold.contracts.store import (
    Claimed,
    Complete,
    Completed,
    Failure,
    Held,
    Hold,
    ManualDecision,
    OutboxItem,
    Outcome,
    Record,
    RecordKey,
    Running,
    Status,
    Unknown,
)
from onefold.testing.claim_contract import ClaimContract
from onefold.testing.records import (
    BROKEN,
    F1,
    F2,
    KEPT_MS,
    KEY,
    LEASE_MS,
    NOW,
    OUTCOMES,
    UNSURE,
    StoreHarness,
    ask,
    complete,
    fail,
    release,
    unknown,
)
from onefold.testing.threads import at_once


class StoreContract(ClaimContract):
    """The Store contract: the outcomes of a claim."""

    # -- start -----------------------------------------------------------------------------------------------------

    def test_start_counts_an_attempt_and_ends_the_doubt(self) -> None:
        _, second = self.taken_over()
        assert self.store.start([second.hold], NOW + LEASE_MS + 7) == [True]
        record = self.record()
        assert (record.attempts, record.attempts_total, record.doubt) == (2, 2, False)
        assert (record.started_fence, record.started_at_ms) == (record.fence, NOW + LEASE_MS + 7)

    def test_start_twice_under_one_hold_counts_once(self) -> None:
        hold = self.claim(start=False).hold
        assert self.store.start([hold, hold], NOW) == [True, True]
        assert self.store.start([hold], NOW + 1) == [True]
        assert (self.record().attempts, self.record().started_at_ms) == (1, NOW)

    def test_only_the_holder_of_a_running_operation_starts(self) -> None:
        first, second = self.taken_over()
        others = self.other_holds(first, second.hold)
        before = self.record()
        assert self.store.start(others, NOW) == [False] * 4
        assert self.record() == before
        assert self.write(second.hold, release())
        assert self.store.start([second.hold], NOW) == [False]

    # -- write -----------------------------------------------------------------------------------------------------

    def test_a_completed_operation_answers_from_its_record(self) -> None:
        hold = self.claim(message_id="m-1").hold
        item = OutboxItem(queue="q", body="{}", attributes={"a": "1"}, key="k", delay_ms=5)
        assert self.write(hold, complete(b"[1]", [item]), NOW + 3)
        answer = self.ask("B", NOW + 9, message_id="m-2")
        assert answer == Completed(result=b"[1]", completed_at_ms=NOW + 3, hold=hold, outbox=[item], message_id="m-1")
        record = self.record()
        assert (record.status, record.result, record.outbox) == ("completed", b"[1]", [item])
        assert (record.updated_at_ms, record.expires_at_ms) == (NOW + 3, NOW + KEPT_MS)

    def test_the_outbox_is_cleared_by_the_run_that_completed(self) -> None:
        hold = self.claim().hold
        item = OutboxItem(queue="q", body="{}")
        assert self.store.clear_outbox([hold]) == [False]  # not completed yet
        assert self.write(hold, complete(outbox=[item]))
        before = self.record()
        assert self.store.clear_outbox([Hold(KEY, "B", hold.fence), Hold(KEY, "A", hold.fence + 1)]) == [
            False,
            False,
        ]
        assert self.record().outbox == [item]
        assert self.store.clear_outbox([hold]) == [True]
        assert self.store.clear_outbox([hold]) == [True]
        assert self.record().outbox == []
        assert self.record().updated_at_ms == before.updated_at_ms

    def test_the_same_complete_again_is_true_and_changes_nothing(self) -> None:
        hold = self.claim().hold
        assert self.write(hold, complete(outbox=[OutboxItem(queue="q", body="{}")]))
        assert self.store.clear_outbox([hold]) == [True]
        before = self.record()
        assert self.write(hold, complete(outbox=[OutboxItem(queue="q", body="{}")]), NOW + 5)
        assert self.record() == before
        assert not self.write(hold, complete(b'"other"'))
        assert not self.write(Hold(KEY, "B", hold.fence), complete())
        assert not self.write(Hold(KEY, "A", hold.fence + 1), complete())
        assert self.record() == before

    def test_nothing_else_is_written_twice(self) -> None:
        for number, first in enumerate(OUTCOMES):
            for second in OUTCOMES:
                answer = self.claim(key=f"{number}-{OUTCOMES.index(second)}")
                repeated = isinstance(first, Complete) and isinstance(second, Complete)
                assert self.write(answer.hold, first)
                assert self.write(answer.hold, second) == repeated, (first, second)

    def test_the_same_hold_twice_in_one_write_is_written_once(self) -> None:
        hold = self.claim().hold
        assert self.store.write([(hold, fail()), (hold, complete())], NOW) == [True, False]
        assert self.record().status == "failed"

    def test_a_late_finisher_is_refused_and_changes_nothing(self) -> None:
        first, second = self.taken_over()
        before = self.record()
        for outcome in OUTCOMES:
            assert not self.write(first, outcome), outcome
            assert not self.write(Hold(KEY, "B", first.fence), outcome)
            assert not self.write(Hold(KEY, "A", second.hold.fence), outcome)
        assert self.record() == before
        assert self.write(second.hold, complete(b"2"))
        assert not self.write(first, complete(b"2"))
        assert self.record().result == b"2"

    def test_a_refused_write_leaves_its_neighbours_alone(self) -> None:
        first, second = self.taken_over()
        other = self.claim(key="other")
        writes: list[tuple[Hold, Outcome]] = [
            (first, complete()),
            (other.hold, complete(b"7")),
            (second.hold, complete(b"8")),
            (first, fail()),
        ]
        assert self.store.write(writes, NOW) == [False, True, True, False]
        assert [r and r.result for r in self.store.read([other.hold.key, KEY], NOW)] == [b"7", b"8"]

    def test_of_several_that_complete_together_each_has_its_own_answer(self) -> None:
        first, second = self.taken_over()
        a, b, c = (self.claim(key=name).hold for name in "abc")
        assert self.store.write([(a, complete()), (b, complete(b"1"))], NOW) == [True, True]
        writes = [
            (a, complete()),
            (first, complete()),
            (c, complete(b"2")),
            (c, complete(b"2")),
            (second.hold, complete(b"3")),
        ]
        assert self.store.write(writes, NOW) == [True, False, True, True, True]
        found = self.store.read([a.key, b.key, c.key, KEY], NOW)
        assert [one and (one.status, one.result) for one in found] == [
            ("completed", complete().result), ("completed", b"1"), ("completed", b"2"), ("completed", b"3"),
        ]  # fmt: skip

    def test_a_write_to_what_is_not_there_is_refused(self) -> None:
        assert self.store.write([(Hold(KEY, "A", 1), outcome) for outcome in OUTCOMES], NOW) == [False] * 5
        assert self.store.read([KEY], NOW) == [None]

    def test_a_lease_that_is_over_but_not_taken_over_still_takes_its_outcome(self) -> None:
        hold = self.claim().hold
        assert self.write(hold, complete(), NOW + LEASE_MS + 1)

    def test_a_run_in_doubt_completes_without_a_start(self) -> None:
        _, second = self.taken_over()  # a probe found that the effect had happened
        assert self.write(second.hold, complete())
        assert (self.record().doubt, self.record().attempts) == (False, 1)

    def test_a_failed_operation_is_claimable_at_once_and_keeps_its_attempts(self) -> None:
        first = self.claim()
        assert self.write(first.hold, fail(), NOW + 1)
        second = self.claim("B", NOW + 1)
        assert (second.found, second.failure, second.previous_owner) == ("failed", BROKEN, None)
        assert (second.attempts, second.crashes, second.doubt) == (2, 0, False)
        assert second.hold.fence == first.hold.fence + 1
        assert not self.write(first.hold, complete())

    def test_a_completed_operation_has_no_failure(self) -> None:
        assert self.write(self.claim().hold, fail())
        second = self.claim("B")
        assert self.record().failure == BROKEN
        assert self.write(second.hold, complete())
        assert self.record().failure is None

    # -- records that the store has lost------------------------------------------------------------------------------

    def gone(self, owner: str = "A", key: RecordKey | str = KEY, *, start: bool = True, fence: int = 1) -> Record:
        """The record of a claim that a caller still has and the store has lost."""
        asked = ask(key, owner, start=start, message_id="m-1", sent_at_ms=NOW - 5)
        answer = Claimed(
            hold=Hold(asked.key, owner, fence), found="absent", doubt=False, started=start, attempts=int(start), crashes=0,
            first_at_ms=NOW,
        )  # fmt: skip
        return transitions.claimed(answer, asked, NOW + 1, started=start, lease_until_ms=asked.lease_until_ms)

    def test_a_claim_whose_record_is_gone_is_put_back_and_goes_on(self) -> None:
        gone = self.gone(fence=7)
        hold = Hold(KEY, "A", 7)
        assert not self.write(hold, complete())
        assert self.store.restore([gone]) == [True]
        assert self.record() == gone
        assert self.ask("B") == Running(until_ms=NOW + LEASE_MS, owner="A", fence=7)
        assert self.store.renew([hold], NOW + 2 * LEASE_MS) == [True]
        assert self.write(hold, complete(b"[1]"), NOW + 3)
        answer = self.ask("B", NOW + 9)
        assert answer == Completed(result=b"[1]", completed_at_ms=NOW + 3, hold=hold, outbox=[], message_id="m-1")

    def test_a_run_that_was_put_back_and_dies_is_in_doubt(self) -> None:
        for start in (True, False):
            gone = self.gone(key=f"{start}", start=start)
            assert self.store.restore([gone]) == [True]
            claimed = self.claim("B", NOW + LEASE_MS, key=f"{start}")
            assert (claimed.found, claimed.doubt, claimed.crashed) == ("in_progress", start, start)
            assert (claimed.hold.fence, claimed.previous_owner) == (2, "A")

    def test_nothing_is_put_back_over_what_is_there(self) -> None:
        for number, outcome in enumerate((None, *OUTCOMES)):
            hold = self.claim("B", key=f"k{number}").hold
            assert outcome is None or self.write(hold, outcome)
            before = self.store.read([hold.key], NOW)
            for owner, fence in (("A", 1), ("A", 7), ("B", 7)):
                assert self.store.restore([self.gone(owner, hold.key, fence=fence)]) == [False], (outcome, owner, fence)
            assert self.store.read([hold.key], NOW) == before

    def test_a_lease_that_another_took_over_stays_lost(self) -> None:
        first, second = self.taken_over()
        before = self.record()
        assert self.store.restore([self.gone(fence=first.fence)]) == [False]
        assert self.record() == before
        assert self.write(second.hold, complete(b"2"))
        assert self.store.restore([self.gone(fence=first.fence)]) == [False]
        assert not self.write(first, complete(b"1"))
        assert self.record().result == b"2"

    def test_what_is_put_back_twice_is_there_once(self) -> None:
        gone = self.gone()
        assert self.store.restore([gone, gone]) == [True, True]
        assert self.store.renew([Hold(KEY, "A", 1)], NOW + 5 * LEASE_MS) == [True]
        before = self.record()
        assert self.store.restore([gone]) == [True]
        assert self.record() == before
        assert self.write(Hold(KEY, "A", 1), fail())
        assert self.store.restore([gone]) == [False]  # its outcome is kept
        assert self.record().status == "failed"

    def test_of_several_that_are_put_back_each_has_its_own_answer(self) -> None:
        self.claim("B", key="b")
        keys = ["a", "b", "c", "a"]
        records = [self.gone(owner, key) for owner, key in zip("AAAC", keys, strict=True)]
        assert self.store.restore(records) == [True, False, True, False]
        owners = [one and one.owner for one in self.store.read([one.key for one in records], NOW)]
        assert owners == ["A", "B", "A", "A"]
        assert self.store.restore([]) == []

    def test_of_a_claim_and_one_put_back_at_once_only_one_has_the_operation(self) -> None:
        def compete(number: int) -> bool:
            owner = f"owner-{number}"
            if number % 2:
                return self.store.restore([self.gone(owner)]) == [True]
            return isinstance(self.store.claim([ask(owner=owner)], NOW)[0], Claimed)

        answers = at_once(8, compete)
        assert answers.count(True) == 1
        assert self.record().owner == f"owner-{answers.index(True)}"

    # -- attempts and budgets --------------------------------------------------------------------------------------

    def test_a_closed_budget_is_opened_anew_by_the_next_claim(self) -> None:
        _, second = self.taken_over()
        self.store.start([second.hold], NOW)
        assert self.write(second.hold, fail(closes_budget=True))
        record = self.record()
        assert (record.budget_closed, record.attempts, record.crashes) == (True, 2, 1)
        third = self.claim("C")
        assert (third.attempts, third.crashes) == (1, 0)
        record = self.record()
        assert (record.budget_closed, record.attempts_total, record.crashes_total) == (False, 3, 1)
        assert record.fence == second.hold.fence + 1

    def test_release_keeps_row_fence_and_failure(self) -> None:
        assert self.write(self.claim().hold, fail())
        second = self.claim("B", start=False)
        assert self.write(second.hold, release())
        third = self.claim("C", start=False)
        assert (third.found, third.attempts, third.failure) == ("released", 1, BROKEN)
        assert third.hold.fence == second.hold.fence + 1
        assert not self.write(second.hold, complete())
        assert self.write(third.hold, release(failure=UNSURE))
        assert self.record().failure == UNSURE

    def test_a_refund_takes_back_the_attempt_of_a_started_run(self) -> None:
        for refund, attempts in ((False, 1), (True, 0)):
            answer = self.claim(key=f"started-{refund}")
            assert self.write(answer.hold, release(refund=refund))
            (record,) = self.store.read([answer.hold.key], NOW)
            assert record is not None
            assert (record.attempts, record.attempts_total) == (attempts, attempts)

    def test_a_refund_of_what_never_started_takes_nothing(self) -> None:
        assert self.write(self.claim().hold, fail())
        assert self.write(self.claim(start=False).hold, release(refund=True))
        assert (self.record().attempts, self.record().attempts_total) == (1, 1)

    # -- unknown ---------------------------------------------------------------------------------------------------

    def test_an_unknown_outcome_leaves_the_next_claim_in_doubt(self) -> None:
        for crashed in (False, True):
            first = self.claim(key=f"crashed-{crashed}")
            assert self.write(first.hold, unknown(crashed=crashed))
            second = self.claim("B", key=f"crashed-{crashed}")
            assert (second.found, second.doubt, second.started) == ("unknown", True, False)
            assert (second.attempts, second.crashes) == (1, int(crashed))
            assert (second.previous_owner, second.failure) == ("A", UNSURE)

    def test_doubt_outlives_release_and_failure(self) -> None:
        outcomes: tuple[Outcome, ...] = (release(), fail(), fail(closes_budget=True))
        _, claimed = self.taken_over()
        for owner, outcome in zip("CDE", outcomes, strict=True):
            assert self.write(claimed.hold, outcome)
            claimed = self.claim(owner)
            assert (claimed.doubt, claimed.started) == (True, False)
        self.store.start([claimed.hold], NOW)
        assert self.write(claimed.hold, fail())
        assert not self.claim("F").doubt

    def test_a_failure_says_whether_the_run_took_effect(self) -> None:
        for took_effect in (False, True):
            hold = self.claim(key=f"{took_effect}").hold
            failure = Failure(kind="unknown", error="PayloadError", summary="no JSON form", took_effect=took_effect)
            outcome = Unknown(failure=failure, expires_at_ms=NOW + KEPT_MS, parked=True)
            assert self.write(hold, outcome)
            (record,) = self.store.read([hold.key], NOW)
            assert record is not None
            assert record.failure == failure

    def test_a_parked_operation_is_held_for_ever(self) -> None:
        hold = self.claim().hold
        assert self.write(hold, unknown(parked=True), NOW + 5)
        record = self.record()
        assert (record.parked, record.doubt, record.expires_at_ms) == (True, True, None)
        for at_ms in (NOW + 5, NOW + KEPT_MS + 1, NOW + 1000 * KEPT_MS):
            assert self.ask("B", at_ms) == Held(since_ms=NOW + 5)
            assert self.ask("B", at_ms, fingerprint=F2, amends=F1) == Held(since_ms=NOW + 5)
            assert self.record(at_ms) == record
        assert not self.write(hold, complete())


class RecordAdminContract(StoreHarness):
    """The operator's view of a store. Set `self.records` in addition to `self.store`."""

    records: RecordAdmin

    def test_records_are_scanned_newest_change_first(self) -> None:
        holds = [self.claim(at_ms=NOW + number, key=f"key-{number}").hold for number in range(5)]
        assert self.write(holds[1], fail(), NOW + 10)
        names = [record.key.key for record in self.records.scan(limit=4)]
        assert names == ["key-1", "key-4", "key-3", "key-2"]

    def test_records_are_scanned_by_status_and_parking(self) -> None:
        for name, outcome in zip("cfupr", OUTCOMES, strict=True):
            assert self.write(self.claim(key=name).hold, outcome)
        self.claim(key="i")

        def found(status: Status | None = None, *, parked: bool | None = None) -> str:
            return "".join(sorted(record.key.key for record in self.records.scan(status=status, parked=parked)))

        statuses: tuple[Status, ...] = ("completed", "failed", "unknown", "released", "in_progress")
        assert [found(status) for status in statuses] == ["c", "f", "pu", "r", "i"]
        assert [found(parked=True), found(parked=False)] == ["p", "cfiru"]
        assert [found("unknown", parked=True), found("unknown", parked=False)] == ["p", "u"]
        assert [found("failed", parked=True), found("failed", parked=False), found()] == ["", "f", "cfipru"]

    def test_records_are_found_by_their_exact_key(self) -> None:
        long = "x" * 200
        keys = [RecordKey(scope, job, key) for key in ("k", "k2", long) for scope in ("", "t") for job in ("a", "b")]
        self.store.claim([ask(key) for key in keys], NOW)
        for text in ("k", long):
            found = {record.key for record in self.records.find(text)}
            assert found == {key for key in keys if key.key == text}
        assert len(self.records.find("k", limit=3)) == 3
        assert self.records.find("K") == []

    def test_a_parked_operation_is_settled_as_done(self) -> None:
        hold = self.claim().hold
        assert self.write(hold, unknown(parked=True))
        assert self.records.settle(KEY, ManualDecision(done=True, result=b"5", expires_at_ms=NOW + KEPT_MS), NOW + 9)
        answer = self.ask("B", NOW + 9)
        assert answer == Completed(result=b"5", completed_at_ms=NOW + 9, hold=hold, outbox=[])
        record = self.record()
        assert (record.parked, record.doubt, record.failure) == (False, False, None)
        assert self.store.read([KEY], NOW + KEPT_MS) == [None]

    def test_a_result_is_corrected_where_it_is_still_the_one(self) -> None:
        hold = self.claim().hold
        decision = ManualDecision(done=True, result=b"6", expires_at_ms=NOW + KEPT_MS)
        corrects_5 = replace(decision, corrects=b"5")
        assert not self.records.settle(KEY, corrects_5, NOW + 9)  # it is running
        assert self.write(hold, complete(b"5"))
        assert not self.records.settle(KEY, replace(decision, corrects=b"4"), NOW + 9)
        assert not self.records.settle(KEY, decision, NOW + 9)  # nothing is parked
        assert self.records.settle(KEY, corrects_5, NOW + 9)
        assert self.ask("B", NOW + 9) == Completed(result=b"6", completed_at_ms=NOW + 9, hold=hold, outbox=[])

    def test_a_parked_operation_is_settled_as_not_done(self) -> None:
        hold = self.claim().hold
        assert self.write(hold, unknown(parked=True, crashed=True))
        assert self.records.settle(KEY, ManualDecision(done=False, result=b"", expires_at_ms=NOW + KEPT_MS), NOW + 9)
        assert not self.write(hold, complete())
        record = self.record()
        assert (record.status, record.result, record.expires_at_ms) == ("released", None, NOW + KEPT_MS)
        claimed = self.claim("B", NOW + 9)
        assert (claimed.found, claimed.doubt, claimed.started) == ("released", False, True)
        assert (claimed.attempts, claimed.crashes, claimed.failure) == (1, 0, UNSURE)

    def test_only_what_is_parked_is_settled(self) -> None:
        def settle(key: RecordKey) -> list[bool]:
            return [
                self.records.settle(key, ManualDecision(done=done, result=b"5", expires_at_ms=NOW + KEPT_MS), NOW)
                for done in (True, False)
            ]

        assert settle(KEY) == [False, False]
        for outcome in OUTCOMES:
            if isinstance(outcome, Unknown) and outcome.parked:
                continue
            key = f"{OUTCOMES.index(outcome)}"
            hold = self.claim(key=key).hold
            assert self.write(hold, outcome)
            before = self.store.read([hold.key], NOW)
            assert settle(hold.key) == [False, False]
            assert self.store.read([hold.key], NOW) == before

    def test_only_the_hold_that_was_judged_is_settled(self) -> None:
        """A person looked at one run; meanwhile it was settled, ran again and was parked again."""
        assert self.write(self.claim().hold, unknown(parked=True))
        judged = self.record()
        seen = (judged.fence, judged.updated_at_ms)
        again = ManualDecision(done=False, result=b"", expires_at_ms=NOW + KEPT_MS)
        assert self.records.settle(KEY, replace(again, judged=seen), NOW + 1)
        assert self.write(self.claim("B", NOW + 2).hold, unknown(parked=True), NOW + 3)
        later = self.record()
        assert (later.parked, later.fence > judged.fence) == (True, True)
        for done in (True, False):
            decision = ManualDecision(done=done, result=b"5", expires_at_ms=NOW + KEPT_MS)
            for other in (seen, (later.fence, judged.updated_at_ms), (judged.fence, later.updated_at_ms), (0, 0)):
                assert not self.records.settle(KEY, replace(decision, judged=other), NOW + 9)
                assert self.record() == later
        decision = ManualDecision(
            done=True, result=b"5", expires_at_ms=NOW + KEPT_MS, judged=(later.fence, later.updated_at_ms)
        )
        assert self.records.settle(KEY, decision, NOW + 9)
        assert self.record().status == "completed"
        assert not self.records.settle(KEY, decision, NOW + 9)

    def test_completed_runs_are_counted_by_job_and_second(self) -> None:
        second_ms = NOW // 1000 * 1000
        for number, at_ms in enumerate((second_ms - 1, second_ms, second_ms, second_ms + 999, second_ms + 1000)):
            for job in ("a", "b") if number == 1 else ("a",):
                hold = self.claim(at_ms=at_ms, key=RecordKey("", job, f"{number}")).hold
                assert self.write(hold, complete(), at_ms)
                assert self.write(hold, complete(), at_ms)  # a repeat is counted once
                assert self.store.write([(hold, complete())] * 2, at_ms) == [True, True]
        assert self.write(self.claim(at_ms=second_ms, key=RecordKey("", "c", "f")).hold, fail(), second_ms)
        assert self.records.count_completed(second_ms, second_ms + 1000) == {"a": 3, "b": 1}
        assert self.records.count_completed(second_ms - 1, second_ms) == {"a": 1}
        assert self.records.count_completed(second_ms - 1, second_ms + 1001) == {"a": 5, "b": 1}
        assert self.records.count_completed(second_ms + 2000, second_ms + 9000) == {}

    def test_a_settled_operation_counts_as_completed_when_it_is_done(self) -> None:
        for done in (True, False):
            hold = self.claim(key=f"{done}").hold
            assert self.write(hold, unknown(parked=True))
            assert self.records.settle(
                hold.key, ManualDecision(done=done, result=b"5", expires_at_ms=NOW + KEPT_MS), NOW
            )
        assert self.records.count_completed(NOW, NOW + 1000) == {"job": 1}
