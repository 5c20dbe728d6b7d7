"""Random histories of several workers on real stores, answer by answer the same as in a dumber store.

The clock moves by steps that meet the ends of leases and lives to the millisecond. What is drawn: batches of claims,
starts, renewals, outcomes under any hold ever given out, deaths of owners, words of a person, sweeps.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onefold.contracts.store import (
    Ask,
    Claimed,
    Complete,
    Fail,
    Failure,
    Hold,
    ManualDecision,
    OutboxItem,
    RecordKey,
    Release,
    Unknown,
)
from onefold.contracts.verbs import Store
from onefold.engines.memory import MemoryStore
from onefold.engines.sqlite.engine import sweep_in
from onefold.engines.sqlite.store import SqliteStore
from onefold.testing.records import NOW
from tests.contract.sqlite_engine import open_engine
from tests.property.store_model import Model

LEASE_MS, KEPT_MS = 10, 40
KEYS = [RecordKey("", "job", "a"), RecordKey("t", "job", "a"), RecordKey("", "job", "b" * 60)]
OWNERS = ["A", "B", "C"]
PRINTS = ["1" * 32, "2" * 32]
FAILURES = [Failure(kind="transient", error="E", summary=text) for text in ("first", "second")]

asks = st.builds(
    lambda key, owner, fingerprint, amends, start, message_id: (
        key,
        owner,
        fingerprint,
        amends,
        start,
        message_id,
    ),
    st.sampled_from(KEYS),
    st.sampled_from(OWNERS),
    st.sampled_from([PRINTS[0], PRINTS[0], PRINTS[1]]),
    st.sampled_from([None, None, *PRINTS]),
    st.booleans(),
    st.sampled_from([None, "m-1", "m-2"]),
)
failures = st.sampled_from(FAILURES)
outcomes = st.one_of(
    st.tuples(st.just(Complete), st.sampled_from([b"1", b"2"]), st.booleans()),
    st.tuples(st.just(Fail), failures, st.booleans()),
    st.tuples(st.just(Unknown), failures, st.booleans(), st.booleans()),
    st.tuples(st.just(Release), st.one_of(st.none(), failures), st.booleans()),
)


class AbstractMachine(ABCMeta, type(RuleBasedStateMachine)):
    """Of a state machine with abstract methods."""


class Workers(RuleBasedStateMachine, metaclass=AbstractMachine):
    """Any number of workers on one store and on the model."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.now_ms = NOW
        self.holds: list[Hold] = []
        self.open_store()

    @abstractmethod
    def open_store(self) -> None:
        """Set `store` to an empty one."""

    @rule(by_ms=st.sampled_from([1, LEASE_MS - 1, LEASE_MS, LEASE_MS + 1, KEPT_MS - LEASE_MS, KEPT_MS]))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(wanted=st.lists(asks, min_size=1, max_size=4))
    def claim(self, wanted: list[tuple[RecordKey, str, str, str | None, bool, str | None]]) -> None:
        batch = [
            Ask(
                key=key,
                fingerprint=fingerprint,
                owner="C" if owner in self.model.dead else owner,
                lease_until_ms=self.now_ms + LEASE_MS,
                start=start,
                probes_now=message_id is None,  # as of a call
                expires_at_ms=self.now_ms + KEPT_MS,
                amends=amends,
                message_id=message_id,
                sent_at_ms=None if message_id is None else self.now_ms - 1,
            )
            for key, owner, fingerprint, amends, start, message_id in wanted
        ]
        answers = self.store.claim(batch, self.now_ms)
        assert answers == [self.model.claim(ask, self.now_ms) for ask in batch]
        self.holds += [answer.hold for answer in answers if isinstance(answer, Claimed)]

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(self.hold(), min_size=1, max_size=3))
        assert self.store.start(chosen, self.now_ms) == [self.model.start(hold, self.now_ms) for hold in chosen]

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), by_ms=st.sampled_from([0, LEASE_MS, 3 * LEASE_MS]))
    def renew(self, data: st.DataObject, by_ms: int) -> None:
        chosen = data.draw(st.lists(self.hold(), min_size=1, max_size=3))
        until_ms = self.now_ms + by_ms
        assert self.store.renew(chosen, until_ms) == [self.model.renew(hold, until_ms) for hold in chosen]

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        drawn = data.draw(st.lists(st.tuples(self.hold(), outcomes), min_size=1, max_size=4))
        writes = [(hold, self.outcome(*parts)) for hold, parts in drawn]
        expected = [self.model.write(hold, outcome, self.now_ms) for hold, outcome in writes]
        assert self.store.write(writes, self.now_ms) == expected

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def clear_outbox(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(self.hold(), min_size=1, max_size=3))
        assert self.store.clear_outbox(chosen) == [self.model.clear_outbox(hold) for hold in chosen]

    @invariant()
    def records_are_equal(self) -> None:
        stories = [self.model.alive(key, self.now_ms) for key in KEYS]
        expected = [None if story is None else story.record() for story in stories]
        assert self.store.read(KEYS, self.now_ms) == expected

    def hold(self) -> st.SearchStrategy[Hold]:
        """Any hold ever given out, the newest more often; sometimes in another owner's name."""
        return st.one_of(
            st.sampled_from(self.holds[-3:]),
            st.sampled_from(self.holds),
            st.builds(
                lambda hold, owner: Hold(hold.key, owner, hold.fence),
                st.sampled_from(self.holds),
                st.sampled_from(OWNERS),
            ),
        )

    def outcome(self, kind: type, *parts: object) -> Complete | Fail | Unknown | Release:
        until_ms = self.now_ms + KEPT_MS
        if kind is Complete:
            outbox = [OutboxItem(queue="q", body="{}")] if parts[1] else []
            return Complete(result=parts[0], expires_at_ms=until_ms, outbox=outbox)
        if kind is Fail:
            return Fail(failure=parts[0], expires_at_ms=until_ms, closes_budget=parts[1])
        if kind is Unknown:
            return Unknown(failure=parts[0], expires_at_ms=until_ms, parked=parts[1], crashed=parts[2])
        return Release(failure=parts[0], expires_at_ms=until_ms, refund=parts[1])


class MemoryWorkers(Workers):
    """On the memory store."""

    def open_store(self) -> None:
        self.store = MemoryStore()


class SqliteWorkers(Workers):
    """On the SQLite store, with what only it has."""

    def open_store(self) -> None:
        self.engine = open_engine(":memory:")
        self.store = SqliteStore(self.engine)

    @rule(owner=st.sampled_from(["A", "B"]))
    def die(self, owner: str) -> None:
        """The dead claim nothing any more, but what they had may still be finished by a child of theirs."""
        self.model.dead.add(owner)
        query = "INSERT OR IGNORE INTO onefold_dead_owner (owner, at_ms) VALUES (?, ?)"
        self.engine.write(lambda connection: connection.execute(query, (owner, self.now_ms)))

    @rule(key=st.sampled_from(KEYS), done=st.booleans())
    def settle(self, key: RecordKey, done: bool) -> None:
        until_ms = self.now_ms + KEPT_MS
        settled = self.store.settle(key, ManualDecision(done=done, result=b"9", expires_at_ms=until_ms), self.now_ms)
        assert settled == self.model.settle(key, b"9" if done else None, self.now_ms, until_ms)

    @rule()
    def sweep(self) -> None:
        self.engine.write(lambda connection: sweep_in(connection, self.now_ms, limit=100))
        self.model.sweep(self.now_ms)

    def teardown(self) -> None:
        self.engine.close()


HISTORIES = settings(stateful_step_count=40)
TestMemoryWorkers = MemoryWorkers.TestCase
TestMemoryWorkers.settings = HISTORIES
TestSqliteWorkers = SqliteWorkers.TestCase
TestSqliteWorkers.settings = HISTORIES
