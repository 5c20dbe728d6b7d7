"""What every Commit must do, as tests: write all parts of a settlement or none, and let handlers' rows join it.

Subclass `CommitContract` and, before each test, set `clock`, `commit`, `store`, `records`, `ledger`, `state` and
`queues` to parts of one empty backend on that clock. For level 4 subclass `EffectContract`, which also needs `insert`
(writes a handler's row through the connection of an open transaction) and `rows` (those rows as others see them).
Never here: what a settlement should contain. Invariant: after each call either all of a settlement is written, or
nothing.
"""

# ruff: noqa: D102 - the name of a test describes it

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from onefold import limits
from onefold.contracts.admin import QueueAdmin, RecordAdmin
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.entries import Entry
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Ack, Attribute, Delivery, Leave, MoveTo, Reason, RetryIn, Settle
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import Change
from onefold.contracts.store import (
    Completed,
    Hold,
    OutboxItem,
    Outcome,
)
from onefold.errors import NotFoundError, TransientError, UsageError
from onefold.manual_clock import ManualClock
from onefold.testing.records import StoreHarness, complete, fail

if TYPE_CHECKING:
    from onefold.contracts.verbs import Commit, EffectTransaction, Ledger, State

LIMIT_MS = 1000
WORK, NEXT, FIFO, DEAD = "work", "next", "next.fifo", "work-dead"
ITEM = OutboxItem(queue=NEXT, body="{}", attributes={"a": "1"}, key="child")
BOTH, NEITHER = Verdict(True, True), Verdict(False, False)


class CommitHarness(StoreHarness):
    """One backend with four queues, and work that was received and claimed."""

    clock: ManualClock
    commit: Commit
    records: RecordAdmin
    ledger: Ledger
    state: State
    queues: QueueAdmin

    def create_queues(self) -> None:
        """Create the queues of these tests."""
        self.queues.create(QueueSettings(name=DEAD, retention_ms=limits.RETENTION_MS_MAX))
        self.queues.create(QueueSettings(name=NEXT))
        self.queues.create(QueueSettings(name=FIFO, fifo=True))
        self.queues.create(QueueSettings(name=WORK, dead_letter=DEAD, receives_max=5))

    def begin(self, name: str, queue: str = WORK, owner: str = "A") -> tuple[Delivery, Hold]:
        """Send, receive and claim one message."""
        in_group = queue == FIFO
        entry = Entry(body=name, group="g" if in_group else None, dedup_id=name if in_group else None)
        self.queues.open(queue).send([entry])
        (delivery,) = self.queues.open(queue).receive(1)
        now_ms = self.clock.now_ms()
        return delivery, self.claim(owner, now_ms, key=name).hold

    def settlement(
        self,
        delivery: Delivery | None,
        hold: Hold | None,
        outcome: Outcome | None,
        settle: Settle | None = None,
    ) -> Settlement:
        """A settlement with one row for the history."""
        return Settlement(
            write=None if hold is None or outcome is None else (hold, outcome),
            queue=None if delivery is None else delivery.queue,
            receipt=None if delivery is None else delivery.receipt,
            settle=settle or Ack(),
            rows=(Row(at_ms=self.clock.now_ms(), event="told", key=None if hold is None else hold.key),),
        )

    def settle(self, *settlements: Settlement) -> list[Verdict]:
        """Commit them together."""
        return self.commit.commit(settlements, self.clock.now_ms())

    def messages(self, queue: str) -> list[str]:
        """The bodies of all messages in a queue, in any state."""
        return [peeked.body for peeked in self.queues.peek(queue)]

    def history_rows(self) -> int:
        """How many rows the history has."""
        return len(self.ledger.between(0, 2 * self.clock.now_ms()))

    def statuses(self, holds: Sequence[Hold]) -> list[str | None]:
        """The records' states."""
        found = self.store.read([hold.key for hold in holds], self.clock.now_ms())
        return [None if record is None else record.status for record in found]

    def take_over(self, name: str) -> Hold:
        """Let the lease and visibility of this message end, and let another worker receive and claim it."""
        self.clock.advance(30_000)
        assert [delivery.body for delivery in self.queues.open(WORK).receive(1)] == [name]
        return self.claim("B", self.clock.now_ms(), key=name).hold


class CommitContract(CommitHarness):
    """The Commit contract without handlers' rows."""

    def test_all_parts_of_a_settlement_stand(self) -> None:
        delivery, hold = self.begin("w")
        assert self.settle(self.settlement(delivery, hold, complete(b"1", [ITEM]))) == [BOTH]
        (record,) = self.store.read([hold.key], self.clock.now_ms())
        assert record is not None
        assert (record.status, record.result, record.outbox) == ("completed", b"1", [])
        assert self.messages(WORK) == []
        (sent,) = self.queues.peek(NEXT)
        assert (sent.body, sent.key, sent.attributes) == ("{}", "child", {"a": Attribute("1")})
        assert self.history_rows() == 1
        assert self.records.count_completed(self.clock.now_ms(), self.clock.now_ms() + 1) == {"job": 1}

    def test_a_lost_lease_takes_its_whole_settlement_with_it_and_no_other(self) -> None:
        stale = self.begin("stale")
        self.take_over("stale")
        fresh = self.begin("fresh")
        settlements = [
            self.settlement(*stale, complete(b"1", [ITEM])),
            self.settlement(*fresh, complete(b"2", [ITEM])),
        ]
        assert self.settle(*settlements) == [NEITHER, BOTH]
        assert self.statuses([stale[1], fresh[1]]) == ["in_progress", "completed"]
        assert (self.messages(WORK), self.messages(NEXT), self.history_rows()) == (["stale"], ["{}"], 1)

    def test_nothing_to_settle_is_nothing(self) -> None:
        assert self.settle() == []

    def test_a_record_without_a_message_and_a_message_without_a_record(self) -> None:
        hold = self.claim("A", self.clock.now_ms(), key="alone").hold
        delivery, _ = self.begin("duplicate")
        assert self.settle(self.settlement(None, hold, complete()), self.settlement(delivery, None, None)) == [
            BOTH,
            BOTH,
        ]
        assert (self.statuses([hold]), self.messages(WORK), self.history_rows()) == (["completed"], [], 2)

    def test_a_message_to_be_seen_again_is_hidden_for_its_delay(self) -> None:
        delivery, hold = self.begin("w")
        assert self.settle(self.settlement(delivery, hold, fail(), RetryIn(5000))) == [BOTH]
        self.clock.advance(4999)
        assert self.queues.open(WORK).receive(1) == []
        self.clock.advance(1)
        assert [again.receive_count for again in self.queues.open(WORK).receive(1)] == [2]

    def test_what_waits_for_its_next_run_can_be_woken_and_nothing_else(self) -> None:
        """`QueueAdmin.wake`: a message that was settled by hiding it is not being processed."""
        waiting, in_hand = self.begin("waiting"), self.begin("in hand")
        self.settle(self.settlement(*waiting, fail(), RetryIn(60_000)))
        ids = [in_hand[0].message_id, waiting[0].message_id]
        assert self.queues.wake(ids) == [False, True]
        assert self.queues.wake(ids) == [False, False], "it is visible already"
        (again,) = self.queues.open(WORK).receive(2)
        assert (again.message_id, again.receive_count) == (waiting[0].message_id, 2)
        assert self.queues.wake(ids) == [False, False], "it is in flight again"

    def test_a_woken_message_keeps_its_place_in_its_group(self) -> None:
        first = self.begin("first", FIFO)
        self.queues.open(FIFO).send([Entry(body="second", group="g", dedup_id="second")])
        self.settle(self.settlement(*first, fail(), RetryIn(60_000)))
        second = self.queues.peek(FIFO)[1]
        assert self.queues.open(FIFO).receive(2) == []
        assert self.queues.wake([second.message_id, first[0].message_id]) == [False, True]
        assert [one.body for one in self.queues.open(FIFO).receive(2)][:1] == ["first"]

    def test_a_buried_message_stands_in_the_dead_letter_queue_with_its_reason(self) -> None:
        delivery, hold = self.begin("w")
        reason = Reason(kind="permanent", summary="no such address", attempts=1)
        assert self.settle(self.settlement(delivery, hold, fail(), MoveTo("dead-letter", reason))) == [BOTH]
        (dead,) = self.queues.peek(DEAD)
        assert (dead.body, dead.reason, dead.source) == ("w", reason, WORK)
        assert (self.messages(WORK), self.statuses([hold])) == ([], ["failed"])

    def test_a_message_that_is_left_stays_as_it_is(self) -> None:
        delivery, _ = self.begin("w")
        assert self.settle(self.settlement(delivery, None, None, Leave())) == [BOTH]
        (peeked,) = self.queues.peek(WORK)
        assert (peeked.state, peeked.visible_at_ms) == ("in_flight", self.clock.now_ms() + 30_000)

    def test_an_expired_receipt_is_told_and_the_record_stands(self) -> None:
        delivery, hold = self.begin("w", FIFO)
        self.clock.advance(30_000)
        assert self.settle(self.settlement(delivery, hold, complete(b"1", [ITEM]))) == [Verdict(True, False)]
        assert (self.statuses([hold]), self.messages(FIFO), self.messages(NEXT)) == (
            ["completed"],
            ["w"],
            ["{}"],
        )

    def test_a_queue_that_was_dropped_has_no_message_to_settle(self) -> None:
        delivery, hold = self.begin("w")
        self.queues.drop(WORK)
        assert self.settle(self.settlement(delivery, hold, complete())) == [Verdict(True, False)]

    def test_a_repeated_settlement_sends_counts_and_tells_nothing_again(self) -> None:
        delivery, hold = self.begin("w")
        settlement = self.settlement(delivery, hold, complete(b"1", [ITEM]))
        assert self.settle(settlement) == [BOTH]
        assert self.settle(settlement) == [BOTH]
        assert (self.messages(NEXT), self.history_rows()) == (["{}"], 1)
        assert self.records.count_completed(self.clock.now_ms(), self.clock.now_ms() + 1) == {"job": 1}

    def test_an_outbox_left_in_a_record_is_sent_by_one_replay_only(self) -> None:
        delivery, hold = self.begin("w")
        assert self.write(hold, complete(b"1", [ITEM]), self.clock.now_ms())  # and then its worker died
        answer = self.ask("B", self.clock.now_ms(), key="w")
        assert isinstance(answer, Completed)
        replay = Settlement(
            write=None,
            queue=WORK,
            receipt=delivery.receipt,
            settle=Ack(),
            clear=answer.hold,
            outbox=tuple(answer.outbox),
        )
        assert self.settle(replay, replay) == [BOTH, BOTH]
        assert self.settle(replay) == [BOTH]
        assert (self.messages(NEXT), self.messages(WORK)) == (["{}"], [])
        (record,) = self.store.read([hold.key], self.clock.now_ms())
        assert record is not None
        assert record.outbox == []

    def test_changes_of_state_stand_or_fall_with_their_settlement(self) -> None:
        stale = self.begin("stale")
        self.take_over("stale")
        done = structs.replace(self.settlement(*self.begin("a"), complete()), changes=(Change("a", b"1", 0),))
        lost = structs.replace(self.settlement(*stale, complete()), changes=(Change("lost", b"1", 0),))
        late = structs.replace(self.settlement(*self.begin("b"), complete()), changes=(Change("a", b"2", 0),))
        assert self.settle(done, lost, late) == [
            BOTH,
            NEITHER,
            BOTH,
        ]  # a change that comes too late is ignored
        assert [found and found.value for found in self.state.get(["a", "lost"])] == [b"1", None]

    def test_an_outbox_that_cannot_be_sent_leaves_everything_as_it_was(self) -> None:
        bad = [
            OutboxItem(queue="nowhere", body="{}"),
            OutboxItem(queue=FIFO, body="{}"),  # without a group
            OutboxItem(queue=NEXT, body=""),
        ]
        for number, item in enumerate(bad):
            good, refused = self.begin(f"good-{number}"), self.begin(f"refused-{number}")
            sent = self.messages(NEXT)
            settlements = [
                self.settlement(*good, complete(b"1", [ITEM])),
                self.settlement(*refused, complete(b"2", [ITEM, item])),
            ]
            rows = self.history_rows()
            for chosen in (settlements, settlements[1:]):
                self._refused(chosen, NotFoundError if item.queue == "nowhere" else UsageError)
                assert self.statuses([good[1], refused[1]]) == ["in_progress"] * 2
                assert (self.messages(NEXT), self.history_rows()) == (sent, rows)
            assert self.settle(settlements[0]) == [BOTH]
            assert self.settle(self.settlement(*refused, fail())) == [BOTH]  # its hold is still valid

    def test_a_burial_that_cannot_be_made_leaves_everything_as_it_was(self) -> None:
        delivery, hold = self.begin("w", NEXT)  # this queue has no dead-letter queue
        move = MoveTo("dead-letter", Reason(kind="permanent", summary="no"))
        self._refused([self.settlement(delivery, hold, fail(), move)], UsageError)
        assert (self.statuses([hold]), self.messages(NEXT), self.history_rows()) == (["in_progress"], ["w"], 0)

    def _refused(self, settlements: Sequence[Settlement], error: type[UsageError]) -> None:
        try:
            self.settle(*settlements)
        except error:
            return
        raise AssertionError(f"no {error.__name__} was raised")


class EffectContract(CommitHarness, ABC):
    """The EffectTransaction contract: handlers' rows commit with their records or not at all."""

    @abstractmethod
    def insert(self, connection: object, text: str) -> None:
        """Write a row as a handler would."""

    @abstractmethod
    def rows(self) -> list[str]:
        """The rows of all handlers as seen from other transactions, sorted."""

    def run(self, effects: EffectTransaction, name: str) -> Settlement:
        """Run a handler that writes one row; returns its settlement."""
        delivery, hold = self.begin(name)
        return self.perform(effects, name, delivery, hold)

    def perform(self, effects: EffectTransaction, name: str, delivery: Delivery, hold: Hold) -> Settlement:
        """Run that handler for work that was begun before."""
        self.insert(effects.open(), name)
        return self.settlement(delivery, hold, complete(name.encode(), [ITEM]))

    def finish(self, effects: EffectTransaction, settlement: Settlement) -> Verdict:
        """Finish now."""
        return effects.finish(settlement, self.clock.now_ms())

    def test_rows_and_record_are_seen_at_once(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        begun = [self.begin(name) for name in "ab"]
        for name, (delivery, hold) in zip("ab", begun, strict=True):
            assert self.finish(effects, self.perform(effects, name, delivery, hold)) == BOTH
        effects.commit()
        assert self.rows() == ["a", "b"]
        assert self.statuses([hold for _, hold in begun]) == ["completed"] * 2
        assert (self.messages(WORK), self.messages(NEXT), self.history_rows()) == ([], ["{}", "{}"], 2)

    def test_a_second_call_answers_the_same_connection(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        connection = effects.open()
        self.insert(connection, "x")
        assert effects.open() is connection
        effects.undo()
        effects.commit()
        assert self.rows() == []

    def test_what_is_undone_goes_and_what_was_kept_stays(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        (first, second, third) = (self.begin(name) for name in "abc")
        assert self.finish(effects, self.perform(effects, "a", *first)) == BOTH
        self.perform(effects, "b", *second)
        effects.undo()
        assert self.finish(effects, self.perform(effects, "c", *third)) == BOTH
        effects.commit()
        assert self.rows() == ["a", "c"]
        assert self.statuses([first[1], second[1], third[1]]) == ["completed", "in_progress", "completed"]
        assert self.settle(self.settlement(*second, fail())) == [BOTH]

    def test_a_lost_lease_undoes_its_rows_and_leaves_the_others(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        stale = self.begin("stale")
        self.take_over("stale")
        first, last = self.begin("a"), self.begin("b")
        assert self.finish(effects, self.perform(effects, "a", *first)) == BOTH
        assert self.finish(effects, self.perform(effects, "stale", *stale)) == NEITHER
        assert self.finish(effects, self.perform(effects, "b", *last)) == BOTH
        effects.commit()
        assert self.rows() == ["a", "b"]
        assert (self.messages(WORK), self.history_rows()) == (["stale"], 2)

    def test_an_outbox_that_cannot_be_sent_undoes_its_rows_and_leaves_the_others(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        first, second = self.begin("a"), self.begin("b")
        assert self.finish(effects, self.perform(effects, "a", *first)) == BOTH
        self.insert(effects.open(), "b")
        try:
            self.finish(effects, self.settlement(*second, complete(b"1", [OutboxItem(queue="nowhere", body="{}")])))
        except NotFoundError:
            effects.commit()
        else:
            raise AssertionError("a message to a queue that does not exist was sent")
        assert self.rows() == ["a"]
        assert self.statuses([first[1], second[1]]) == ["completed", "in_progress"]

    def test_a_handler_that_never_asked_is_finished_too(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        delivery, hold = self.begin("a")
        assert self.finish(effects, self.settlement(delivery, hold, complete())) == BOTH
        effects.commit()
        assert self.statuses([hold]) == ["completed"]

    def test_a_rollback_takes_back_all_that_was_not_committed(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        begun = [self.begin(name) for name in "abc"]
        assert self.finish(effects, self.perform(effects, "a", *begun[0])) == BOTH
        effects.commit()
        assert self.finish(effects, self.perform(effects, "b", *begun[1])) == BOTH
        self.perform(effects, "c", *begun[2])
        effects.rollback()
        effects.commit()
        assert self.rows() == ["a"]
        assert self.statuses([hold for _, hold in begun]) == ["completed", "in_progress", "in_progress"]
        assert (self.messages(WORK), self.history_rows()) == (["b", "c"], 1)

    def test_ends_without_a_beginning_do_nothing(self) -> None:
        effects = self.commit.effects(LIMIT_MS)
        effects.commit()
        effects.undo()
        effects.rollback()
        assert self.finish(effects, self.run(effects, "a")) == BOTH
        effects.commit()
        assert self.rows() == ["a"]

    def test_a_handler_has_the_connection_for_its_limit_and_no_longer(self) -> None:
        for again in (False, True):
            for over_ms in (-1, 0, 1):
                effects = self.commit.effects(LIMIT_MS)
                name = f"{again}{over_ms}"
                first, second = self.begin(f"first-{name}"), self.begin(name)
                assert self.finish(effects, self.perform(effects, f"first-{name}", *first)) == BOTH
                settlement = self.perform(effects, name, *second)
                self.clock.advance(LIMIT_MS + over_ms)
                try:
                    if again:
                        effects.open()
                    self.finish(effects, settlement)
                except TransientError:
                    assert over_ms > 0
                else:
                    assert over_ms <= 0
                effects.commit()
                assert f"first-{name}" in self.rows()
                assert (name in self.rows()) == (over_ms <= 0)
                assert self.statuses([second[1]]) == ["completed" if over_ms <= 0 else "in_progress"]

    def test_an_old_transaction_is_committed_before_the_next_handler_gets_it(self) -> None:
        for over_ms in (0, 1):
            effects = self.commit.effects(LIMIT_MS)
            first, second = self.begin(f"first{over_ms}"), self.begin(f"second{over_ms}")
            assert self.finish(effects, self.perform(effects, f"first{over_ms}", *first)) == BOTH
            self.clock.advance(LIMIT_MS + over_ms)
            self.perform(effects, f"second{over_ms}", *second)
            effects.rollback()
            assert (f"first{over_ms}" in self.rows()) == (over_ms > 0)
