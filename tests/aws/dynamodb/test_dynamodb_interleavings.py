"""Two verbs on one record at the same time, in every order of their calls: as if one had come after the other.

A call of DynamoDB is atomic, a verb is one to three of them (write, read, write again). For each state a record can be in
and each pair of verbs, all orders of the calls are walked; answers and record must be those of a plain store in memory for
one of the two orders of the verbs. A refusal that holds no old item makes verbs longer, so that is what is walked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from typing import Any

import pytest

from onefold.contracts.store import Claimed, Hold, Outcome, Record
from onefold.contracts.verbs import Store
from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.engines.aws.dynamodb.table import Table
from onefold.engines.memory import MemoryStore
from onefold.entropy import SeededEntropy
from onefold.testing.records import KEPT_MS, KEY, LEASE_MS, NOW, ask, complete, fail, release, unknown
from tests.aws.dynamodb.tables import HastyClock, LocalClient, LocalSession
from tests.emulators import dynamodb_stub

LATE = NOW + LEASE_MS
Verb = Callable[[Store], Any]


def claims(owner: str, at_ms: int) -> Verb:
    return lambda store: store.claim([ask(KEY, owner, at_ms=at_ms)], at_ms)


def writes(outcome: Outcome) -> Verb:
    return lambda store: store.write([(HOLD, outcome)], LATE)


HOLD = Hold(KEY, "A", 1)
STATES: dict[str, Outcome | None] = {
    "in progress": None,
    "completed": complete(),
    "failed": fail(),
    "unknown": unknown(),
    "parked": unknown(parked=True),
    "released": release(),
}
VERBS: dict[str, Verb] = {
    "claim B": claims("B", LATE),
    "claim C": claims("C", LATE),
    "claim D early": claims("D", NOW),
    "claim E expired": claims("E", NOW + KEPT_MS),
    "start": lambda store: store.start([HOLD], LATE),
    "renew": lambda store: store.renew([HOLD], LATE + LEASE_MS),
    "complete": writes(complete(b"1", at_ms=NOW)),
    "complete otherwise": writes(complete(b"2", at_ms=NOW)),
    "fail": writes(fail()),
    "crash": writes(unknown(crashed=True)),
    "refund": writes(release(refund=True)),
    "clear": lambda store: store.clear_outbox([HOLD]),
}


def in_state(store: Store, state: str, *, started: bool) -> None:
    (answer,) = store.claim([ask(KEY, "A", start=started)], NOW)
    assert isinstance(answer, Claimed)
    outcome = STATES[state]
    if outcome is not None:
        assert store.write([(answer.hold, outcome)], NOW) == [True]


def stands(store: Store) -> Record | None:
    (record,) = store.read([KEY], NOW)
    return record


class Stage:
    """Two verbs whose calls are made one at a time, in an order given beforehand; what comes after it is the first's."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._turn = threading.Condition()
        self._waiting: set[int] = set()
        self._going = {0, 1}
        self.taken: list[tuple[int, frozenset[int]]] = []  # who went, and who could have gone
        self.me = threading.local()

    def step(self, _: str) -> None:
        """Wait for one's turn. Called before each call, by the thread that makes it."""
        who = getattr(self.me, "who", None)
        if who is None:
            return
        with self._turn:
            self._waiting.add(who)
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: self._next() == who, timeout=30)
            self.taken.append((who, frozenset(self._going)))
            self._waiting.discard(who)
            self._turn.notify_all()

    def _next(self) -> int | None:
        """Whose turn it is, once everyone who goes on is waiting."""
        if self._waiting != self._going:
            return None
        place = len(self.taken)
        wanted = self._order[place] if place < len(self._order) else min(self._going)
        return wanted if wanted in self._going else min(self._going)

    def perform(self, stores: Sequence[Store], verbs: Sequence[Verb]) -> list[Any]:
        answers: list[Any] = [None, None]

        def run(who: int) -> None:
            self.me.who = who
            try:
                answers[who] = verbs[who](stores[who])
            finally:
                with self._turn:
                    self._going.discard(who)
                    self._turn.notify_all()

        threads = [threading.Thread(target=run, args=(who,)) for who in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers


def orders(perform: Callable[[tuple[int, ...]], Stage]) -> int:
    """Walk all orders: after each, the last turn where another could have gone is given to that one. How many."""
    order: tuple[int, ...] | None = ()
    count = 0
    while order is not None:
        stage = perform(order)
        count += 1
        order = None
        for place in range(len(stage.taken) - 1, -1, -1):
            who, could = stage.taken[place]
            if who == 0 and 1 in could:
                order = (*(one for one, _ in stage.taken[:place]), 1)
                break
    return count


def in_one_batch(table: Table) -> Any:
    return lambda writes, riders=(): table._with_retries([*writes, *riders], len(writes))


def sequential(state: str, verbs: Sequence[Verb], *, started: bool, first: int) -> tuple[list[Any], Record | None]:
    store = MemoryStore()
    in_state(store, state, started=started)
    answers: list[Any] = [None, None]
    for who in (first, 1 - first):
        answers[who] = verbs[who](store)
    return answers, stands(store)


@pytest.mark.parametrize("batched", [True, False], ids=["batches", "record by record"])
@pytest.mark.parametrize("started", [True, False], ids=["started", "not started"])
@pytest.mark.parametrize("state", STATES)
def test_every_order_of_calls_is_one_of_the_two_orders_of_verbs(state: str, started: bool, batched: bool) -> None:
    walked = 0
    for names in combinations_with_replacement(VERBS, 2):
        verbs = [VERBS[name] for name in names]
        expected = [sequential(state, verbs, started=started, first=first) for first in (0, 1)]

        def perform(
            order: tuple[int, ...], verbs: list[Verb] = verbs, expected: list[Any] = expected, names: Any = names
        ) -> Stage:
            stage = Stage(order)
            session = LocalSession(LocalClient(dynamodb_stub.Store(old_items=False), stage.step))
            books = [
                DynamoBackend(session, "books", HastyClock(), SeededEntropy(who), batched=batched) for who in (0, 1)
            ]
            if batched:  # one record alone would go by PutItem and UpdateItem, whose refusals hold the old item
                for one in books:
                    one.table.write = in_one_batch(one.table)  # type: ignore[method-assign]
            books[0].create()
            in_state(books[0].store, state, started=started)
            books[1].store.claim([ask("other")], NOW)  # both have noted the job: nothing rides along
            answers = stage.perform([one.store for one in books], verbs)
            became = (answers, stands(books[0].store))
            assert became in expected, (names, [who for who, _ in stage.taken], became, expected)
            return stage

        walked += orders(perform)
    assert walked > 150, walked
