"""The embedded queue against a dumb model: plain lists, one thing after the other, every rule written out.

Hypothesis draws sends, receives, settlements by fresh and stale receipts, deaths, sweeps and the passing of time; after
each step the engine must answer what the model answers, count what it counts, and have its tables in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onefold import errors, limits
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Ack, Delivery, Leave, MoveTo, Reason, RetryIn, Settle
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.queue import end_visibilities_in, settle_in
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock

CAP, WORN = 12, 3
VISIBLE, RETENTION, DEAD_RETENTION = 30_000, 1_000_000, 1_500_000
REASON = Reason(kind="operator", summary="buried by the test")
OWNERS = ("worker-1", "worker-2")

steps = st.sampled_from([1, 1, 1_000, 1_000, 10_000, 29_999, 30_000, 60_000, 299_999, 300_000, 1_000_000])
delays = st.sampled_from([0, 0, 1, 1_000, 30_000, 60_000, limits.VISIBILITY_MS_MAX])
which = st.one_of(st.integers(1, 4), st.integers(1, 4), st.integers(1, 50))  # mostly receipts of the last receives


IN_ORDER = {  # queries that find what must not be
    "a message stands in exactly one place": """
        SELECT id FROM onefold_message m WHERE
            (SELECT count(*) FROM onefold_waiting w
             WHERE (w.id, w.queue, w.visible_at_ms, w.sent_at_ms) = (m.id, m.queue, m.visible_at_ms, m.sent_at_ms))
            + (SELECT count(*) FROM onefold_received r
               WHERE (r.id, r.queue, r.sent_at_ms) = (m.id, m.queue, m.sent_at_ms)) <> 1""",
    "nothing waits without its message": """
        SELECT id FROM onefold_waiting WHERE id NOT IN (SELECT id FROM onefold_message)""",
    "nothing is received without its message": """
        SELECT id FROM onefold_received WHERE id NOT IN (SELECT id FROM onefold_message)""",
    "what is scheduled is in no group yet": """
        SELECT id FROM onefold_scheduled WHERE id NOT IN (SELECT id FROM onefold_message WHERE grp IS NULL)""",
    "a group without messages has no row": """
        SELECT id FROM onefold_group WHERE id NOT IN (SELECT grp FROM onefold_message WHERE grp IS NOT NULL)""",
    "a group with messages has a row": """
        SELECT id FROM onefold_message WHERE grp IS NOT NULL AND grp NOT IN (SELECT id FROM onefold_group)""",
    "nobody overlooks a group: it is ready no later than its head is visible": """
        SELECT g.id FROM onefold_group g WHERE ready_at_ms > max(:now, (
            SELECT coalesce(r.visible_at_ms, m.visible_at_ms) FROM onefold_message m
            LEFT JOIN onefold_received r ON r.id = m.id WHERE m.grp = g.id ORDER BY m.position LIMIT 1))""",
    "the cap is not overlooked: its bound is never below the count in flight": """
        SELECT id FROM onefold_queue q WHERE receives_total - receives_base <
            (SELECT count(*) FROM onefold_received r WHERE r.queue = q.id AND r.visible_at_ms > :now
             AND r.sent_at_ms > :now - json_extract(q.settings, '$.retention_ms'))""",
}


@dataclass(eq=False)
class Message:
    id: str
    body: str
    sent: int
    visible: int
    group: str | None = None
    dedup: str | None = None
    received: bool = False
    receives: int = 0
    delivery: int = 0
    received_at: int = 0
    owner: str | None = None
    accepted: int = 0  # of a scheduled one: when it was sent, which people are shown

    @property
    def number(self) -> int:
        return int(self.id.rpartition("-")[2])


@dataclass
class Model:
    """One queue as lists. `messages` is in order of arrival; a scheduled FIFO message arrives when it is due."""

    fifo: bool
    retention: int
    dead: Model | None = None
    messages: list[Message] = field(default_factory=list)
    scheduled: list[Message] = field(default_factory=list)
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)

    def at(self, now: int) -> None:
        """Let time do its work: scheduled messages arrive, expired ones go."""
        for message in sorted(self.scheduled, key=lambda m: (m.sent, m.number)):
            if message.sent <= now:
                self.scheduled.remove(message)
                if self.first_of(message.dedup, message.sent, message.id) is None:
                    self.messages.append(message)
        self.messages = [m for m in self.messages if m.sent + self.retention > now]

    def first_of(self, dedup: str | None, at: int, message: str) -> str | None:
        if dedup is None:
            return None
        known = self.seen.get(dedup)
        if known and at < known[0] + 300_000:
            return known[1]
        self.seen[dedup] = (at, message)
        return None

    def in_flight(self, now: int) -> list[Message]:
        return [m for m in self.messages if m.received and m.visible > now]

    def to_dead(self, message: Message, now: int, *, restarts: bool) -> None:
        self.messages.remove(message)
        message.sent = message.visible = now if restarts else message.sent
        message.owner = None
        if self.fifo:
            message.dedup = message.id
        assert self.dead is not None
        self.dead.messages.append(message)

    def choose_standard(self, count: int, now: int) -> list[Message]:
        for _ in range(10):
            again = [m for m in self.messages if m.received and m.visible <= now]
            again = sorted(again, key=lambda m: (m.visible, m.number))[:count]
            worn = [m for m in again if self.dead and m.receives >= WORN]
            for message in worn:
                self.to_dead(message, now, restarts=False)
            again = [m for m in again if m not in worn]
            if not worn:
                break
        front = [m for m in again if m.receives < 3]
        rest = [m for m in again if m.receives >= 3]
        rest += [m for m in self.messages if not m.received and m.visible <= now]
        return (front + sorted(rest, key=lambda m: (m.visible, m.number)))[:count]

    def open_heads(self, now: int) -> dict[str | None, list[Message]]:
        """For each group, the messages that can be seen from its head on."""
        heads: dict[str | None, list[Message]] = {}
        closed = set()
        for message in self.messages:
            if message.visible > now:
                closed.add(message.group)
            elif message.group not in closed:
                heads.setdefault(message.group, []).append(message)
        return heads

    def settle(self, message: Message | None, delivery: int, settle: Settle, now: int) -> bool:
        """What one receipt can do; `message` is None when it is not in this queue any more."""
        if isinstance(settle, Leave):
            return True
        valid = message is not None and message.delivery >= delivery
        if self.fifo:
            valid = valid and message.delivery == delivery and message.visible > now
        if isinstance(settle, RetryIn):
            return valid and self.hide(message, delivery, settle, now)
        if not valid:
            return not self.fifo
        if isinstance(settle, Ack):
            self.messages.remove(message)
        else:
            self.to_dead(message, now, restarts=True)
        return True

    def hide(self, message: Message, delivery: int, change: RetryIn, now: int) -> bool:
        if message.visible > now:
            if now + change.delay_ms > message.received_at + limits.VISIBILITY_MS_MAX:
                return False
            message.visible = now + change.delay_ms
            if message.delivery == delivery:
                message.owner = None
        if change.uncounted and message.delivery == delivery and message.receives:
            message.receives -= 1
        return True


class QueueMachine(RuleBasedStateMachine):
    """A queue with its dead-letter queue, standard or FIFO."""

    fifo = False

    @initialize(count=st.integers(6, 30), groups=st.integers(1, 6))
    def begin(self, count: int, groups: int) -> None:
        self.clock = ManualClock()
        self.engine = Database(":memory:", self.clock)
        self.queues = {owner: SqliteQueues(self.engine, owner=owner, entropy=SeededEntropy(7)) for owner in OWNERS}
        end = ".fifo" if self.fifo else ""
        self.dead_name, self.name = f"dead{end}", f"main{end}"
        admin = self.queues[OWNERS[0]]
        admin.create(QueueSettings(name=self.dead_name, fifo=self.fifo, retention_ms=DEAD_RETENTION))
        admin.create(
            QueueSettings(
                name=self.name, fifo=self.fifo, retention_ms=RETENTION, visibility_ms=VISIBLE,
                dead_letter=self.dead_name, receives_max=WORN, in_flight_max=CAP,
            )
        )  # fmt: skip
        self.dead = Model(self.fifo, DEAD_RETENTION)
        self.main = Model(self.fifo, RETENTION, self.dead)
        self.models = {self.name: self.main, self.dead_name: self.dead}
        self.receipts: list[Delivery] = []
        self.count = 0
        self.send(count, groups, 0, 1_000)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()

    # -- rules -----------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 12), groups=st.integers(1, 6), dedups=st.sampled_from([0, 0, 3]), ahead=steps)
    def send_some(self, count: int, groups: int, dedups: int, ahead: int) -> None:
        self.send(count, groups, dedups, ahead)

    def send(self, count: int, groups: int, dedups: int, ahead: int) -> None:
        now = self.clock.now_ms()
        entries = []
        for number in range(self.count, self.count + count):
            late = ahead if number % 4 == 0 else 0
            entries.append(
                Entry(
                    body=f"body {number}",
                    group=f"g{number % groups}" if self.fifo else None,
                    dedup_id=(f"d{number % dedups}" if dedups else f"unique {number}".replace(" ", "-"))
                    if self.fifo
                    else None,
                    run_at_ms=now + late if late and number % 8 == 0 else None,
                    delay_ms=min(late, limits.DELAY_MS_MAX) if late and number % 8 and not self.fifo else None,
                )
            )
        self.count += count
        for entry, answer in zip(entries, self.open().send(entries), strict=True):
            sent = now if entry.run_at_ms is None else entry.run_at_ms
            message = Message(
                answer.message_id, entry.body, sent, sent + (entry.delay_ms or 0), entry.group, entry.dedup_id
            )
            message.accepted = now if sent > now else 0
            if self.fifo and sent > now:
                assert not answer.duplicate
                self.main.scheduled.append(message)
                continue
            first = self.main.first_of(entry.dedup_id, now, answer.message_id)
            assert answer.duplicate == (first is not None)
            assert answer.message_id == (first or answer.message_id)
            if first is None:
                self.main.messages.append(message)

    @rule(
        count=st.integers(1, 12),
        visible=st.sampled_from([None, None, 0, 1_000, 400_000]),
        owner=st.sampled_from(OWNERS),
        dead=st.sampled_from([False, False, False, True]),
    )
    def receive(self, count: int, visible: int | None, owner: str, dead: bool) -> None:
        name = self.dead_name if dead else self.name
        model, now = self.models[name], self.clock.now_ms()
        room = count if dead else min(count, CAP - len(model.in_flight(now)))
        queue = self.open(name, owner)
        if room <= 0 and not self.fifo:
            # After an empty receive a queue object first looks whether there is anything at all.
            try:
                assert queue.receive(count, visible) == []
                assert not model.choose_standard(1, now)
            except errors.OverLimitError:
                pass
            return
        deliveries = queue.receive(count, visible)
        chosen = self.check_fifo(model, deliveries, max(0, room), now) if self.fifo else None
        if chosen is None:
            chosen = model.choose_standard(room, now)
            assert [delivery.message_id for delivery in deliveries] == [message.id for message in chosen]
        for delivery, message in zip(deliveries, chosen, strict=True):
            message.received = True
            message.receives += 1
            message.delivery += 1
            message.received_at = now
            message.visible = now + delivery.visible_ms
            message.owner = owner
            assert delivery.body == message.body
            assert delivery.receive_count == message.receives
            assert (delivery.group, delivery.sent_at_ms) == (message.group, message.sent)
            assert delivery.visible_ms == (VISIBLE if visible is None else visible)
        self.receipts += deliveries

    def check_fifo(self, model: Model, deliveries: list[Delivery], room: int, now: int) -> list[Message]:
        """The order among groups is free; the rest is not."""
        if model.dead is not None:
            self.take_over_worn(model, now)
        heads = {
            group: [m for m in messages if not (model.dead and m.receives >= WORN)]
            for group, messages in model.open_heads(now).items()
        }
        by_id = {message.id: message for messages in heads.values() for message in messages}
        chosen = [by_id[delivery.message_id] for delivery in deliveries]
        full = {group: messages[:10] for group, messages in heads.items()}
        assert len(chosen) == min(room, sum(map(len, full.values())))
        order = list(dict.fromkeys(message.group for message in chosen))
        for group in order:
            of_group = [message for message in chosen if message.group == group]
            assert of_group == full[group][: len(of_group)]
            assert group == order[-1] or of_group == full[group]
        assert chosen == [m for group in order for m in chosen if m.group == group]
        return chosen

    def take_over_worn(self, model: Model, now: int) -> None:
        """Which worn out heads a receive met depends on the groups it came to: do what the engine did, if it may."""
        there = {peeked.message_id for peeked in self.admin.peek(self.dead_name, limit=10_000)}
        known = {message.id for message in self.dead.messages}
        for message in [m for m in model.messages if m.id in there - known]:
            assert message.receives >= WORN
            assert message in model.open_heads(now)[message.group]
            model.to_dead(message, now, restarts=True)

    @precondition(lambda self: self.receipts)
    @rule(picks=st.lists(which, min_size=1, max_size=6), delay=delays, uncounted=st.booleans(), kinds=st.data())
    def settle(self, picks: list[int], delay: int, uncounted: bool, kinds: Any) -> None:
        now = self.clock.now_ms()
        picked = [self.receipts[-(pick % len(self.receipts))] for pick in picks]
        name = picked[0].queue
        deliveries = list({one.message_id: one for one in picked if one.queue == name}.values())
        model = self.models[name]
        choices = [Ack(), RetryIn(delay, uncounted), Leave()] + ([MoveTo("dead-letter", REASON)] if model.dead else [])
        all_acks = kinds.draw(st.integers(0, 3)) == 3
        fates = [Ack() if all_acks else kinds.draw(st.sampled_from(choices)) for _ in deliveries]
        settlements = [(one.receipt, fate) for one, fate in zip(deliveries, fates, strict=True)]
        answers = self.engine.write(
            lambda connection: settle_in(connection, self.admin.row_in(connection, name), settlements, now)
        )
        self.compare(model, deliveries, fates, answers, now)

    def compare(
        self, model: Model, deliveries: list[Delivery], fates: list[Settle], answers: list[bool], now: int
    ) -> None:
        for delivery, fate, answer in zip(deliveries, fates, answers, strict=True):
            number = int(delivery.receipt.split(":")[1])
            here = next((m for m in model.messages if m.id == delivery.message_id), None)
            elsewhere = any(
                m.id == delivery.message_id for one in self.models.values() if one is not model for m in one.messages
            )
            expected = model.settle(here, number, fate, now)
            if here is None and not elsewhere and isinstance(fate, Ack | MoveTo):
                # Gone. (One that expired in the other queue may not have been swept yet.)
                assert answer or self.fifo
            else:
                assert answer == expected, (delivery, fate)

    @rule(by=steps)
    def pass_time(self, by: int) -> None:
        self.clock.advance(by)
        for model in self.models.values():
            model.at(self.clock.now_ms())

    @rule(owner=st.sampled_from(OWNERS))
    def die(self, owner: str) -> None:
        now = self.clock.now_ms()
        self.engine.write(lambda connection: end_visibilities_in(connection, owner, now))
        for model in self.models.values():
            for message in model.in_flight(now):
                if message.owner == owner:
                    message.visible, message.owner = now, None

    @rule()
    def sweep(self) -> None:
        self.admin.sweep()

    # -- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        now = self.clock.now_ms()
        for name, model in self.models.items():
            messages = model.messages + model.scheduled
            shown = [m for m in messages if m.received or m.visible <= now]
            depth = self.admin.depth(name)
            assert depth.visible == sum(m.visible <= now for m in messages)
            assert depth.in_flight == sum(m.received and m.visible > now for m in messages)
            assert depth.delayed == sum(not m.received and m.visible > now for m in messages)
            assert depth.oldest_age_ms == (now - min(m.sent for m in shown) if shown else None)

    @invariant()
    def peek_agrees(self) -> None:
        now = self.clock.now_ms()
        for name, model in self.models.items():
            peeked = {one.message_id: one for one in self.admin.peek(name, limit=10_000)}
            messages = {m.id: m for m in model.messages + model.scheduled}
            assert peeked.keys() == messages.keys()
            for one in peeked.values():
                message = messages[one.message_id]
                assert (one.receive_count, one.visible_at_ms) == (message.receives, message.visible)
                assert (one.sent_at_ms, one.owner) == (
                    message.accepted or message.sent,
                    message.owner if message.visible > now else None,
                )

    @invariant()
    def tables_are_in_order(self) -> None:
        now = self.clock.now_ms()
        for name, query in IN_ORDER.items():
            found = self.engine.read(lambda connection, query=query: connection.execute(query, {"now": now}).fetchall())
            assert found == [], name

    @property
    def admin(self) -> SqliteQueues:
        return self.queues[OWNERS[0]]

    def open(self, name: str | None = None, owner: str = OWNERS[0]) -> Any:
        return self.queues[owner].open(name or self.name)


class FifoMachine(QueueMachine):
    """The same, FIFO."""

    fifo = True


@pytest.mark.slow
@pytest.mark.parametrize("machine", [QueueMachine, FifoMachine])
def test_the_queue_does_what_the_model_does(machine: type[QueueMachine]) -> None:
    machine.TestCase.settings = hypothesis_settings(
        stateful_step_count=40, max_examples=2 * hypothesis_settings.default.max_examples
    )
    case = machine.TestCase()
    case.runTest()
