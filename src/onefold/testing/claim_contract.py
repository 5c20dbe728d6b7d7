"""What every Store must do, first half: claims, leases, takeover, expiry and conflicts. See `store_contract.py`.

Never here: running handlers. Invariant: every boundary is tested one millisecond before, at and after it.
"""

# ruff: noqa: D102 - the name of a test describes it

from __future__ import annotations

from unittest import SkipTest

from onefold.contracts.ledger import Row
from onefold.contracts.store import (
    Claimed,
    Completed,
    Conflict,
    Held,
    Hold,
    Outcome,
    Record,
    RecordKey,
    Running,
)
from onefold.testing.records import (
    F1,
    F2,
    F3,
    KEPT_MS,
    KEY,
    LEASE_MS,
    NOW,
    OUTCOMES,
    StoreHarness,
    ask,
    complete,
    fail,
    release,
    unknown,
)
from onefold.testing.threads import at_once


class ClaimContract(StoreHarness):
    """Claims, leases, takeover, expiry, conflicts."""

    # -- claim -----------------------------------------------------------------------------------------------------

    def test_the_first_claim_is_fresh_and_started_when_asked(self) -> None:
        claimed = self.claim(message_id="m-1", sent_at_ms=NOW - 5)
        assert claimed == Claimed(
            hold=Hold(KEY, "A", claimed.hold.fence),
            found="absent",
            doubt=False,
            started=True,
            attempts=1,
            crashes=0,
            first_at_ms=NOW,
        )
        assert claimed.hold.fence >= 1
        assert self.record() == Record(
            key=KEY,
            status="in_progress",
            fence=claimed.hold.fence,
            owner="A",
            lease_until_ms=NOW + LEASE_MS,
            fingerprint=F1,
            parked=False,
            doubt=False,
            started_fence=claimed.hold.fence,
            attempts=1,
            attempts_total=1,
            crashes=0,
            crashes_total=0,
            budget_closed=False,
            created_at_ms=NOW,
            started_at_ms=NOW,
            updated_at_ms=NOW,
            expires_at_ms=NOW + KEPT_MS,
            result=None,
            failure=None,
            outbox=[],
            message_id="m-1",
            sent_at_ms=NOW - 5,
        )

    def test_a_claim_without_start_counts_no_attempt(self) -> None:
        claimed = self.claim(start=False)
        record = self.record()
        assert (claimed.started, claimed.attempts) == (False, 0)
        assert (record.started_at_ms, record.attempts, record.attempts_total) == (None, 0, 0)
        assert record.started_fence != record.fence

    def test_nothing_asked_nothing_answered(self) -> None:
        assert self.store.claim([], NOW) == []
        assert self.store.start([], NOW) == []
        assert self.store.renew([], NOW) == []
        assert self.store.write([], NOW) == []
        assert self.store.clear_outbox([]) == []
        assert self.store.read([], NOW) == []

    def test_two_asks_of_one_key_are_answered_one_after_the_other(self) -> None:
        first, second = self.store.claim([ask(owner="A"), ask(owner="B")], NOW)
        assert isinstance(first, Claimed)
        assert second == Running(until_ms=NOW + LEASE_MS, owner="A", fence=first.hold.fence)

    def test_answers_come_in_the_order_of_the_asks(self) -> None:
        held, done, free = (self.claim(key=name).hold for name in ("held", "done", "free"))
        self.claim(key="other")
        ends: list[tuple[Hold, Outcome]] = [
            (held, unknown(parked=True)),
            (done, complete()),
            (free, release()),
        ]
        assert self.store.write(ends, NOW) == [True, True, True]
        asks = [ask(name) for name in ("held", "new", "done", "other", "free")]
        asks.insert(3, ask("other", fingerprint=F2))
        kinds = [type(answer) for answer in self.store.claim(asks, NOW)]
        assert kinds == [Held, Claimed, Completed, Conflict, Running, Claimed]

    def test_a_large_batch_is_claimed_as_a_whole(self) -> None:
        asks = [ask(f"key-{number}") for number in range(257)]
        first = self.store.claim([*asks, asks[0]], NOW)
        assert [type(answer) for answer in first] == [Claimed] * 257 + [Running]
        assert {type(answer) for answer in self.store.claim(asks, NOW)} == {Running}

    def test_operations_are_told_apart_by_scope_job_and_key(self) -> None:
        keys = [
            RecordKey("", "j", "k"),
            RecordKey("j", "", "k"),
            RecordKey("a", "bc", "k"),
            RecordKey("ab", "c", "k"),
            RecordKey("", "j", "k\x00"),
            RecordKey("", "j", "K"),
            RecordKey("", "j", " k"),
            RecordKey("", "j", "é"),
            RecordKey("", "j", "e\u0301"),
            *(RecordKey("", "j", "x" * length) for length in (31, 32, 33, 47, 48, 49, 511, 512)),
            RecordKey("", "j", "x" * 511 + "y"),
            RecordKey("", "j", "é" * 256),
        ]
        answers = self.store.claim([ask(key) for key in keys], NOW)
        assert [type(answer) for answer in answers] == [Claimed] * len(keys)
        assert [record and record.key for record in self.store.read(keys, NOW)] == keys

    def test_of_many_threads_one_claims(self) -> None:
        answers = at_once(8, lambda number: self.store.claim([ask(owner=f"owner-{number}")], NOW)[0])
        assert sorted(type(answer).__name__ for answer in answers) == ["Claimed"] + ["Running"] * 7

    # -- leases and takeover ---------------------------------------------------------------------------------------

    def test_a_lease_holds_until_its_last_millisecond(self) -> None:
        until_ms = NOW + LEASE_MS
        for offset_ms in (-1, 0, 1):
            key = f"key{offset_ms}"
            self.claim(key=key)
            answer = self.ask("B", until_ms + offset_ms, key=key)
            assert isinstance(answer, Running if offset_ms < 0 else Claimed), offset_ms

    def test_a_renewed_lease_holds_until_its_new_end(self) -> None:
        hold = self.claim().hold
        until_ms = NOW + 2 * LEASE_MS
        assert self.store.renew([hold], until_ms) == [True]
        answer = self.ask("B", until_ms - 1)
        assert answer == Running(until_ms=until_ms, owner="A", fence=hold.fence)
        assert self.claim("B", until_ms).found == "in_progress"

    def test_only_the_holder_of_a_running_operation_renews(self) -> None:
        first, second = self.taken_over()
        others = self.other_holds(first, second.hold)
        assert self.store.renew(others, NOW + 10 * LEASE_MS) == [False] * 4
        assert self.record().lease_until_ms == NOW + 2 * LEASE_MS
        assert self.store.renew([second.hold], NOW + 3 * LEASE_MS) == [True]
        assert self.write(second.hold, fail())
        assert self.store.renew([second.hold], NOW + 10 * LEASE_MS) == [False]

    def test_a_started_run_that_is_taken_over_is_in_doubt_and_counts_a_crash(self) -> None:
        first, second = self.taken_over()
        assert second == Claimed(
            hold=Hold(KEY, "B", first.fence + 1),
            found="in_progress",
            doubt=True,
            started=False,
            attempts=1,
            crashes=1,
            first_at_ms=NOW,
            crashed=True,
            previous_owner="A",
        )
        record = self.record()
        assert (record.doubt, record.crashes, record.crashes_total, record.attempts) == (True, 1, 1, 1)

    def test_rows_about_a_claim_that_found_a_record_are_written_with_it(self) -> None:
        self.claim("A")
        asked: set[tuple[int, int]] = set()

        def rows_of(index: int, claimed: Claimed) -> list[Row]:
            asked.add((index, claimed.hold.fence))
            return [Row(at_ms=NOW, event="takeover", key=claimed.hold.key, detail={"fence": claimed.hold.fence})]

        over_ms = NOW + LEASE_MS
        self.store.claim([ask("new", "B", at_ms=over_ms), ask(KEY, "B", at_ms=over_ms)], over_ms, rows_of)
        (late,) = self.store.claim([ask(KEY, "C", at_ms=over_ms)], over_ms, rows_of)
        assert isinstance(late, Running)
        if not self.store.capabilities.notes_claims:
            assert asked == set()
            return
        assert asked == {(1, 2)}
        assert [row.detail for row in self.ledger.of_key(KEY)] == [{"fence": 2}]

    def test_an_unstarted_claim_that_is_taken_over_is_fresh_work(self) -> None:
        first = self.claim("A", start=False).hold
        second = self.claim("B", NOW + LEASE_MS)
        assert (second.found, second.previous_owner) == ("in_progress", "A")
        assert (second.doubt, second.started, second.attempts, second.crashes) == (False, True, 1, 0)
        assert second.hold.fence == first.fence + 1
        assert not second.crashed

    def test_doubt_outlives_a_takeover_that_never_started(self) -> None:
        self.taken_over()
        third = self.claim("C", NOW + 2 * LEASE_MS)
        assert (third.doubt, third.started, third.crashes, third.attempts) == (True, False, 1, 1)
        assert not third.crashed  # the previous claim has counted it

    def test_a_claim_that_ended_while_its_probe_was_asked_counts_as_a_crash(self) -> None:
        _, claimed = self.taken_over()
        for number, owner in ((2, "C"), (3, "D")):
            claimed = self.claim(owner, NOW + number * LEASE_MS, probes_now=True)
            assert (claimed.doubt, claimed.started, claimed.attempts) == (True, False, 1)
            assert (claimed.crashes, claimed.crashed) == (number, False)  # the run in doubt is still the first one
            assert (self.record().crashes, self.record().crashes_total) == (number, number)
        assert self.store.start([claimed.hold], NOW + 3 * LEASE_MS) == [True]
        after = self.claim("E", NOW + 4 * LEASE_MS, probes_now=True)
        assert (after.crashes, after.crashed) == (4, True)  # its run had started: once, not twice

    def test_what_ended_without_doubt_or_said_how_it_ended_is_no_crash_of_a_probe(self) -> None:
        self.claim("A", key="unstarted", start=False)
        assert self.claim("B", NOW + LEASE_MS, key="unstarted", start=False, probes_now=True).crashes == 0
        _, second = self.taken_over()
        assert self.write(second.hold, release())
        third = self.claim("C", NOW + 2 * LEASE_MS, probes_now=True)
        assert (third.doubt, third.crashes) == (True, 1)

    def test_each_crash_of_a_started_run_counts(self) -> None:
        _, second = self.taken_over()
        assert self.store.start([second.hold], NOW + LEASE_MS) == [True]
        third = self.claim("C", NOW + 2 * LEASE_MS)
        assert (third.doubt, third.crashes, third.attempts, third.crashed) == (True, 2, 2, True)

    def test_the_lease_of_a_dead_owner_is_over(self) -> None:
        if not self.store.capabilities.proves_death:
            raise SkipTest("the store does not prove death")
        self.store.claim([ask("of-a"), ask("of-a-2", start=False), ask("of-b", "B")], NOW)
        self.end_owner("A")
        answers = self.store.claim([ask("of-a", "C"), ask("of-a-2", "C"), ask("of-b", "C")], NOW)
        started, unstarted, other = answers
        assert isinstance(started, Claimed)
        assert (started.doubt, started.crashes, started.previous_owner) == (True, 1, "A")
        assert isinstance(unstarted, Claimed)
        assert (unstarted.doubt, unstarted.started) == (False, True)
        assert isinstance(other, Running)

    # -- expiry ----------------------------------------------------------------------------------------------------

    def test_an_expired_record_is_absent(self) -> None:
        outcomes: tuple[Outcome | None, ...] = (None, complete(), fail(), unknown(), release())
        for number, outcome in enumerate(outcomes):
            for offset_ms in (-1, 0, 1):
                name = f"{number}{offset_ms}"
                first = self.claim(key=name)
                assert outcome is None or self.write(first.hold, outcome)
                at_ms = NOW + KEPT_MS + offset_ms
                (record,) = self.store.read([first.hold.key], at_ms)
                assert (record is None) == (offset_ms >= 0), (outcome, offset_ms)
                second = self.ask("B", at_ms, key=name)
                fresh = isinstance(second, Claimed) and second.found == "absent"
                assert fresh == (offset_ms >= 0), (outcome, offset_ms)

    def test_what_was_forgotten_starts_from_nothing(self) -> None:
        first, second = self.taken_over()
        assert self.write(second.hold, fail())
        at_ms = NOW + KEPT_MS
        third = self.claim("C", at_ms, fingerprint=F2)
        assert (third.attempts, third.crashes, third.doubt, third.failure) == (1, 0, False, None)
        assert third.first_at_ms == at_ms
        record = self.record(at_ms)
        assert (record.attempts_total, record.crashes_total, record.fingerprint) == (1, 0, F2)
        for hold in (first, second.hold):
            assert not self.write(hold, complete())

    # -- conflict --------------------------------------------------------------------------------------------------

    def test_another_payload_is_a_conflict_in_every_state(self) -> None:
        statuses = ["in_progress", "completed", "failed", "unknown", "unknown", "released"]
        for number, (outcome, status) in enumerate(zip((None, *OUTCOMES), statuses, strict=True)):
            first = self.claim(key=f"{number}", message_id="m-1")
            assert outcome is None or self.write(first.hold, outcome)
            before = self.store.read([first.hold.key], NOW)
            answer = self.ask("B", key=f"{number}", fingerprint=F2)
            assert answer == Conflict(fingerprint=F1, status=status, message_id="m-1")  # type: ignore[arg-type]
            assert self.store.read([first.hold.key], NOW) == before
            answer = self.ask("B", key=f"{number}")
            assert not isinstance(answer, Conflict)

    def test_an_amended_payload_takes_the_place_of_the_first(self) -> None:
        assert self.write(self.claim().hold, fail(closes_budget=True))
        answer = self.ask(fingerprint=F2, amends=F3)
        assert isinstance(answer, Conflict)
        second = self.claim(fingerprint=F2, amends=F1)
        assert self.record().fingerprint == F2
        answer = self.ask(fingerprint=F1)
        assert isinstance(answer, Conflict)
        assert self.write(second.hold, fail())
        assert self.claim(fingerprint=F2, amends=F1).found == "failed"  # the amended message is delivered again

    def test_a_running_or_completed_operation_is_not_amended(self) -> None:
        hold = self.claim().hold
        answer = self.ask("B", fingerprint=F2, amends=F1)
        assert isinstance(answer, Running)
        assert self.record().fingerprint == F1
        assert self.write(hold, complete())
        answer = self.ask("B", fingerprint=F2, amends=F1)
        assert answer == Conflict(fingerprint=F1, status="completed")
        assert isinstance(self.ask("B", amends=F3), Completed)

    # -- read ------------------------------------------------------------------------------------------------------

    def test_records_are_read_in_the_order_asked(self) -> None:
        names = [f"key-{number}" for number in range(120)]
        self.store.claim([ask(name) for name in names], NOW)
        keys = [RecordKey("tenant", "job", name) for name in ("no", *reversed(names), "key-7", "no")]
        found = [record and record.key.key for record in self.store.read(keys, NOW)]
        assert found == [None, *reversed(names), "key-7", None]
