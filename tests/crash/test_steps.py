"""The crash loop: a process dies before and after every step and every part of a settlement; nothing is lost or doubled.

Each scenario is run once without a death, which shows how many points there are, and then once for each point, with
both ways in which others learn of the death, with one-transaction settlements and with settlements done part by part.
Each scenario says what must be true; what is common to all is in `kept_promise`. The one window, between an external
effect and its record, is checked by the names of its points.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

import onefold
from tests.crash.trial import Point, Trial, every_point, trial

BOTH = pytest.mark.parametrize("one_transaction", [True, False], ids=["one transaction", "part by part"])
Payload = dict[str, Any]


def kept_promise(done: Trial, keys: set[str], *, reruns: bool) -> None:
    """Assert that each external effect happened once, except those in doubt at the death if the policy runs again."""
    counts = Counter(done.booked)
    for key in keys:
        assert done.status(key) == "completed", (key, done.status(key))
        again = key in done.doubted and reruns
        assert counts[key] == (2 if again else 1), (key, counts)
        if again:
            assert {"takeover", "unknown"} <= set(done.told(key)), done.told(key)
    assert set(counts) == keys


class External:
    """One message, one effect outside, by policy."""

    on_unknown: Any = "rerun"

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders")

        @app.job(self.orders, key="{id}", on_unknown=self.on_unknown)
        def ship(order: Payload) -> str:
            done.book(order["id"])
            return "shipped"

        self.ship = ship

    def send(self) -> None:
        self.ship.send({"id": "o-1"})

    def check(self, done: Trial) -> None:
        kept_promise(done, {"o-1"}, reruns=True)


@BOTH
def test_an_external_effect(one_transaction: bool) -> None:
    trials = every_point(External, one_transaction=one_transaction)
    # The window, by name: from the effect until its record is durable, and nowhere else.
    doubled = {one.died for one in trials if one.booked.count("o-1") > 1}
    write = "commit.commit" if one_transaction else "store.write"
    number = trials[0].wire.trace.index("effect")
    assert doubled == {f"after effect (call {number})", f"before {write} (call {number + 1})"}


class Held(External):
    """The same, held when in doubt."""

    on_unknown = "hold"

    def check(self, done: Trial) -> None:
        started = done.status("o-1") == "parked"
        assert done.booked in ([["o-1"], []] if started else [["o-1"]])
        assert len(done.messages("orders-held")) == started
        if started:
            assert {"takeover", "unknown", "held"} <= set(done.told("o-1"))
        else:
            assert done.status("o-1") == "completed"
            assert done.doubted == set()


@BOTH
def test_an_external_effect_that_is_held(one_transaction: bool) -> None:
    trials = every_point(Held, one_transaction=one_transaction)
    held = [one for one in trials if any(event.name == "held" for event in one.events)]
    assert {len(one.booked) for one in held} == {
        0,
        1,
    }  # held once although the effect had not happened, and once because it had


class Probed(External):
    """The same with a probe that asks the partner."""

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.on_unknown = lambda order: onefold.Done("found") if order["id"] in done.booked else onefold.NotDone()
        super().declare(app, done)

    def check(self, done: Trial) -> None:
        kept_promise(done, {"o-1"}, reruns=False)
        if done.doubted:
            assert "probe" in done.told("o-1")


@BOTH
def test_an_external_effect_that_is_asked_for(one_transaction: bool) -> None:
    every_point(Probed, one_transaction=one_transaction)


class Rows:
    """Three messages in one group; their effects are rows in the engine's own file."""

    keys: ClassVar = ["o-1", "o-2", "o-3"]

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders")

        @app.job(self.orders, key="{id}", effect="transactional")
        def ship(order: Payload, ctx: onefold.Context) -> str:
            ctx.connection.execute("INSERT INTO effect (key) VALUES (?)", (order["id"],))
            return "shipped"

        self.ship = ship

    def send(self) -> None:
        self.ship.send_many([{"id": key} for key in self.keys])

    def check(self, done: Trial) -> None:
        assert done.rows() == Counter(self.keys)
        assert {done.status(key) for key in self.keys} == {"completed"}


def test_rows_of_a_group_of_three() -> None:
    trials = every_point(Rows, one_transaction=True)
    assert {"effects.open", "effects.finish", "effects.commit"} <= set(trials[0].wire.trace)


class RowsAndFailures(Rows):
    """The same; the second of the group fails temporarily the first time, the third fails for good."""

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders")

        @app.job(self.orders, key="{id}", effect="transactional")
        def ship(order: Payload, ctx: onefold.Context) -> str:
            ctx.connection.execute("INSERT INTO effect (key) VALUES (?)", (order["id"],))
            if order["id"] == "o-2" and ctx.attempt == 1:
                raise onefold.TransientError("not now")
            if order["id"] == "o-3":
                raise onefold.PermanentError("never")
            return "shipped"

        self.ship = ship

    def check(self, done: Trial) -> None:
        assert done.rows() == Counter(["o-1", "o-2"])
        assert [done.status(key) for key in self.keys] == ["completed", "completed", "failed"]
        (letter,) = done.messages("orders-dead")
        assert letter.key == "o-3"


def test_rows_of_a_group_with_failures() -> None:
    every_point(RowsAndFailures, one_transaction=True)


class Outbox(External):
    """The handler sends two letters, each of which is an effect of its own."""

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders, self.letters = app.queue("orders"), app.queue("letters")

        @app.job(self.letters, key="{id}")
        def write(letter: Payload) -> None:
            assert done.status("o-1") == "completed", "a letter of work that is not done"
            done.book(letter["id"])

        @app.job(self.orders, key="{id}")
        def ship(order: Payload) -> str:
            write.send_many([{"id": "l-1"}, {"id": "l-2"}])
            done.book(order["id"])
            return "shipped"

        self.ship = ship

    def check(self, done: Trial) -> None:
        kept_promise(done, {"o-1", "l-1", "l-2"}, reruns=True)


@BOTH
def test_messages_of_a_handler_leave_when_it_completed(one_transaction: bool) -> None:
    trials = every_point(Outbox, one_transaction=one_transaction)
    sent_twice = {one.died for one in trials if any(event.name == "duplicate" for event in one.events)}
    if one_transaction:
        assert not {died for died in sent_twice if died and "commit" not in died}
    else:
        assert any(died and "store.clear_outbox" in died for died in sent_twice)  # their receivers drop them


class RowsAndOutbox(Rows):
    """A transactional handler that sends: rows, letters and record together or not at all."""

    keys: ClassVar = ["o-1", "o-2"]

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders, self.letters = app.queue("orders"), app.queue("letters")

        @app.job(self.letters, key="{id}")
        def write(letter: Payload) -> None:
            assert done.status(letter["id"].removeprefix("letter-")) == "completed"

        @app.job(self.orders, key="{id}", effect="transactional")
        def ship(order: Payload, ctx: onefold.Context) -> str:
            ctx.connection.execute("INSERT INTO effect (key) VALUES (?)", (order["id"],))
            write.send({"id": f"letter-{order['id']}"})
            return "shipped"

        self.ship = ship

    def check(self, done: Trial) -> None:
        super().check(done)
        assert {done.status(f"letter-{key}") for key in self.keys} == {"completed"}
        assert not [event for event in done.events if event.name == "duplicate" and event.queue == "letters"]


def test_rows_and_messages_leave_together() -> None:
    every_point(RowsAndOutbox, one_transaction=True)


class Retried(External):
    """Fails temporarily, without an effect, the first two times."""

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders")
        self.failures = 0

        @app.job(self.orders, key="{id}")
        def ship(order: Payload) -> str:
            if self.failures < 2:
                self.failures += 1
                raise onefold.TransientError("not now")
            done.book(order["id"])
            return "shipped"

        self.ship = ship


@BOTH
def test_a_retry(one_transaction: bool) -> None:
    every_point(Retried, one_transaction=one_transaction)


class Refused(External):
    """Fails for good."""

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders")

        @app.job(self.orders, key="{id}")
        def ship(order: Payload) -> str:
            raise onefold.PermanentError("no such street")

        self.ship = ship

    def check(self, done: Trial) -> None:
        assert done.booked == []
        assert done.status("o-1") == "failed"
        (letter,) = done.messages("orders-dead")
        assert letter.reason is not None
        assert (letter.reason.kind, letter.reason.error, letter.key) == ("permanent", "PermanentError", "o-1")


@BOTH
def test_a_dead_letter(one_transaction: bool) -> None:
    every_point(Refused, one_transaction=one_transaction)


class LostAnswer(External):
    """The effect happens and its answer is lost; the policy is to hold."""

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders")

        @app.job(self.orders, key="{id}", on_unknown="hold")
        def ship(order: Payload) -> str:
            done.book(order["id"])
            raise onefold.OutcomeUnknown("sent, no answer")

        self.ship = ship

    def check(self, done: Trial) -> None:
        assert len(done.booked) <= 1
        assert done.status("o-1") == "parked"
        (held,) = done.messages("orders-held")
        assert held.reason is not None
        assert held.reason.kind == "unknown"


@BOTH
def test_a_lost_answer_that_is_held(one_transaction: bool) -> None:
    every_point(LostAnswer, one_transaction=one_transaction)


class Pair(External):
    """Two messages of one key in one batch."""

    def send(self) -> None:
        self.ship.send_many([{"id": "o-1"}, {"id": "o-1"}])

    def check(self, done: Trial) -> None:
        super().check(done)
        assert "duplicate" in done.told("o-1")


@BOTH
def test_two_of_one_key_in_one_batch(one_transaction: bool) -> None:
    every_point(Pair, one_transaction=one_transaction)


class Fifo(External):
    """Three messages of one group, in order."""

    fails: Any = None
    after_failure: Any = "stop"

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders", fifo=True)
        self.failed: set[str] = set()

        @app.job(self.orders, key="{id}", group="{customer}", after_failure=self.after_failure)
        def ship(order: Payload) -> str:
            if self.fails is not None and order["id"] == "o-1" and "o-1" not in self.failed:
                if self.fails is onefold.TransientError:
                    self.failed.add("o-1")
                raise self.fails("not this one")
            done.book(order["id"])
            return "shipped"

        self.ship = ship

    def send(self) -> None:
        self.ship.send_many([{"id": f"o-{number}", "customer": "c"} for number in (1, 2, 3)])

    def check(self, done: Trial) -> None:
        kept_promise(done, {"o-1", "o-2", "o-3"}, reruns=True)
        assert done.booked == sorted(done.booked)


@BOTH
def test_a_group_of_three_in_order(one_transaction: bool) -> None:
    every_point(Fifo, one_transaction=one_transaction)


class FifoRetry(Fifo):
    """The first of the group fails temporarily; the others wait for it."""

    fails = onefold.TransientError


@BOTH
def test_a_group_waits_for_its_first(one_transaction: bool) -> None:
    every_point(FifoRetry, one_transaction=one_transaction)


class FifoStopped(Fifo):
    """The first of the group fails for good; the others follow it, in order, and none of them runs."""

    fails = onefold.PermanentError

    def check(self, done: Trial) -> None:
        assert done.booked == []
        letters = done.messages("orders-dead.fifo")
        assert [letter.key for letter in letters] == ["o-1", "o-2", "o-3"]
        assert [letter.reason and letter.reason.kind for letter in letters] == [
            "permanent",
            "group-stopped",
            "group-stopped",
        ]


@BOTH
def test_a_group_is_stopped_by_its_first(one_transaction: bool) -> None:
    every_point(FifoStopped, one_transaction=one_transaction)


class FifoOnSecondThought(Fifo):
    """The first of the group fails for good in the first process, and does not in the second, if it gets there."""

    fails = onefold.PermanentError

    def declare(self, app: onefold.App, done: Trial) -> None:
        super().declare(app, done)
        self.app = app
        first = self.ship.handler

        def second(order: Payload) -> str:
            done.book(order["id"])
            return "shipped"

        def either(order: Payload) -> str:
            return str(first(order) if done.died is None else second(order))

        self.ship.handler = either

    def check(self, done: Trial) -> None:
        letters = [letter.key for letter in done.messages("orders-dead.fifo")]
        if not letters:
            kept_promise(done, {"o-1", "o-2", "o-3"}, reruns=True)
            assert done.booked == ["o-1", "o-2", "o-3"]
            assert self.app.runtime().engine.state.names("stopped/") == []
        else:
            assert (done.booked, letters) == ([], ["o-1", "o-2", "o-3"])


@BOTH
def test_a_group_goes_on_when_what_stopped_it_is_done_after_all(one_transaction: bool) -> None:
    trials = every_point(FifoOnSecondThought, one_transaction=one_transaction)
    assert {len(one.booked) for one in trials} == {0, 3}


class FifoSkipped(Fifo):
    """The first of the group fails for good and is skipped."""

    fails = onefold.PermanentError
    after_failure = "skip"

    def check(self, done: Trial) -> None:
        kept_promise(done, {"o-2", "o-3"}, reruns=True)
        assert done.booked == sorted(done.booked)
        assert [letter.key for letter in done.messages("orders-dead.fifo")] == ["o-1"]


@BOTH
def test_a_group_passes_over_its_first(one_transaction: bool) -> None:
    every_point(FifoSkipped, one_transaction=one_transaction)


# -- the test of the test ----------------------------------------------------------------------------------


class Forgetful(External):
    """A handler that forgets its effect when it is called by the second process."""

    def declare(self, app: onefold.App, done: Trial) -> None:
        self.orders = app.queue("orders")

        @app.job(self.orders, key="{id}")
        def ship(order: Payload) -> str:
            if done.died is None:
                done.book(order["id"])
            return "shipped"

        self.ship = ship


def test_a_lost_effect_is_found() -> None:
    trial(Forgetful, Point(None), one_transaction=True)
    with pytest.raises(AssertionError, match=r"died before .*'o-1', Counter"):
        every_point(Forgetful, one_transaction=True)
