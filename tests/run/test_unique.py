"""Jobs whose known keys are not sent again: what was accepted once is known, and what never was is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import dead_letters, queues
from onefold.admin.dead_letters import Select
from onefold.admin.session import AdminSession, SessionJobs
from onefold.admin.why import explain
from onefold.contracts.store import Ask, RecordKey
from onefold.limits import DAY_MS
from onefold.testing import World, inline
from tests.run.ticking import Crash, Loose


class Mill:
    """An app with one unique job, whose queue can be made to fail."""

    def __init__(self) -> None:
        self.app = onefold.App("mill")
        self.done: list[str] = []

        @self.app.job(self.app.queue("orders"), key="{id}", unique=True)
        def grind(order: dict[str, str]) -> None:
            self.done.append(order["id"])

        self.grind = grind

    def fail(self, error: BaseException | None) -> None:
        """What the next sends raise; None: they are as they were."""
        queues: Any = self.app.runtime().engine.queues
        if error is None:
            del queues.open
            return

        class Failing:
            def send(self, entries: object, *, whole: bool) -> Any:
                raise error

        queues.open = lambda name: Failing()


@pytest.fixture
def mill() -> Mill:
    return Mill()


def without_transactions(mill: Mill) -> None:
    """As where messages are on SQS and records elsewhere."""
    runtime: Any = mill.app.runtime()
    runtime._opened.engine = Loose(runtime.engine)


@pytest.fixture(params=["one transaction", "none"])
def world(request: pytest.FixtureRequest, mill: Mill) -> Iterator[World]:
    with inline(mill.app) as opened:
        if request.param == "none":
            without_transactions(mill)
        yield opened


@pytest.fixture
def loose(mill: Mill) -> Iterator[World]:
    with inline(mill.app) as opened:
        without_transactions(mill)
        yield opened


def die_while_sending(mill: Mill) -> None:
    """A sender has reserved its key, and then nothing more is heard of it."""
    store: Any = mill.app.runtime().engine.store
    write, claim = store.write, store.claim

    class Dying:
        def send(self, entries: object, *, whole: bool) -> Any:
            store.write = store.claim = lambda *given: (_ for _ in ()).throw(Crash())
            raise Crash

    queues: Any = mill.app.runtime().engine.queues
    queues.open = lambda name: Dying()
    with pytest.raises(Crash):
        mill.grind.send({"id": "1"})
    store.write, store.claim = write, claim
    del queues.open


def test_a_key_is_sent_once_whether_it_waits_or_is_done(mill: Mill, world: World) -> None:
    first, again = mill.grind.send_many([{"id": "1"}, {"id": "1"}])
    assert (first.duplicate, again.duplicate, again.message_id) == (False, True, None)
    assert mill.grind.send({"id": "1"}).duplicate
    assert world.depth("orders").visible == 1
    world.run()
    assert mill.grind.send({"id": "1"}).duplicate
    world.run()
    assert mill.done == ["1"]
    assert "takeover" not in world.names()


def test_a_receipt_says_what_was_known(mill: Mill, world: World) -> None:
    assert [one.found for one in mill.grind.send_many([{"id": "1"}, {"id": "1"}])] == ["new", "waiting"]
    assert mill.grind.send({"id": "1"}).found == "waiting"
    world.run()
    assert mill.grind.send({"id": "1"}).found == "done"


def test_another_payload_under_a_known_key_is_a_conflict(mill: Mill, world: World) -> None:
    other = {"id": "1", "note": "another"}
    with pytest.raises(errors.ConflictError, match=r"Key '1' of the unique job grind is known with another payload"):
        mill.grind.send_many([{"id": "0"}, {"id": "1"}, other])
    assert world.depth("orders").visible == 0, "none of the call was sent"
    assert mill.grind.send({"id": "1"}).found == "new"
    with pytest.raises(errors.ConflictError, match=r"\(waiting\)"):
        mill.grind.send_many([{"id": "0"}, other])
    world.run()
    with pytest.raises(errors.ConflictError, match=r"\(done\)"):
        mill.grind.send(other)
    assert mill.grind.send({"id": "0"}).found == "new", "nothing stayed reserved"
    world.run()
    assert mill.done == ["1", "0"]


def test_a_send_that_failed_leaves_its_key_unknown(mill: Mill, world: World) -> None:
    mill.fail(errors.StorageBusy("The file is locked.", todo="Try again."))
    with pytest.raises(errors.StorageBusy):
        mill.grind.send({"id": "1"})
    mill.fail(None)
    assert not mill.grind.send({"id": "1"}).duplicate
    world.run()
    assert mill.done == ["1"]


def test_a_sender_that_died_in_a_transaction_has_sent_nothing(mill: Mill) -> None:
    with inline(mill.app) as world:
        die_while_sending(mill)
        assert not mill.grind.send({"id": "1"}).duplicate
        world.run()
        assert mill.done == ["1"]


def test_whether_a_sender_that_died_has_sent_is_open_for_a_minute(mill: Mill, loose: World) -> None:
    die_while_sending(mill)
    with pytest.raises(errors.TransientError, match=r"Key '1' of job grind is being sent by another process"):
        mill.grind.send_many([{"id": "0"}, {"id": "1"}])
    assert not mill.grind.send({"id": "0"}).duplicate
    loose.clock.advance(60_000)
    assert not mill.grind.send({"id": "1"}).duplicate
    loose.run()
    assert mill.done == ["0", "1"]


def test_of_two_senders_at_a_time_one_sends_and_the_other_is_told_to_ask_again(mill: Mill, loose: World) -> None:
    die_while_sending(mill)
    store: Any = mill.app.runtime().engine.store
    store.read = lambda keys, now_ms: [None] * len(keys)  # it asked before the other had reserved
    with pytest.raises(errors.TransientError, match=r"Key '1'"):
        mill.grind.send_many([{"id": "0"}, {"id": "1"}])
    del store.read
    assert not mill.grind.send({"id": "0"}).duplicate, "what this call had reserved is free again"
    with pytest.raises(errors.TransientError, match=r"Key '1'"):
        mill.grind.send({"id": "1"})


def test_a_worker_that_is_quicker_than_the_sender_s_last_word_runs_the_job(mill: Mill, loose: World) -> None:
    engine: Any = mill.app.runtime().engine
    opened, names = engine.queues.open, list[str]()

    class Quick:
        """A queue whose messages are taken before their sender hears that they are there."""

        def __init__(self, name: str) -> None:
            self._queue = opened(name)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._queue, name)

        def send(self, entries: Any, *, whole: bool) -> Any:
            answers = self._queue.send(entries, whole=whole)
            engine.queues.open = opened
            loose.run()
            names.extend(loose.names())
            return answers

    engine.queues.open = Quick
    assert not mill.grind.send({"id": "1"}).duplicate
    assert mill.done == ["1"]
    assert "running-elsewhere" not in names
    loose.clock.advance(3_600_000)
    assert mill.grind.send({"id": "1"}).duplicate


def test_a_key_that_waits_for_a_worker_stays_known(mill: Mill, loose: World) -> None:
    mill.grind.send({"id": "1"})
    loose.clock.advance(24 * 3_600_000)
    assert mill.grind.send({"id": "1"}).duplicate
    loose.run()
    assert mill.done == ["1"]


# -- messages that are gone ------------------------------------------------------------------------------------------


class Desk:
    """An operator of a mill whose records and messages are in one file."""

    def __init__(self, mill: Mill, world: World) -> None:
        self.mill, self.world = mill, world
        self.session = AdminSession(
            mill.app.runtime(),
            actor="person:ada",
            jobs=SessionJobs(named=mill.app.jobs, of=mill.app.registry.job_of, history="all"),
        )
        self.failing = False

    def send(self) -> str:
        return self.mill.grind.send({"id": "1"}).found

    def why(self) -> str:
        (story,) = explain(self.session, "1").stories
        return " ".join((story.text, *story.todo))


@pytest.fixture
def desk(mill: Mill) -> Iterator[Desk]:
    with inline(mill.app) as world:
        yield Desk(mill, world)


def test_a_key_whose_waiting_message_was_purged_is_free(desk: Desk) -> None:
    assert desk.send() == "new"
    assert queues.purge(desk.session, "orders") == 1
    assert "Send it again with the same key; nothing prevents it." in desk.why()
    assert [desk.send(), desk.send()] == ["new", "waiting"]
    desk.world.run()
    assert [desk.mill.done, desk.send()] == [["1"], "done"]


def test_a_key_whose_dead_letter_was_purged_is_free(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.mill, "done", None)  # the handler fails
    desk.send()
    desk.world.run_for(DAY_MS, DAY_MS // 8)
    assert desk.send() == "failed", "its message is in the dead-letter queue"
    assert dead_letters.remove(desk.session, list(dead_letters.find(desk.session, Select()))) == 1
    assert "Send it again with the same key; nothing prevents it." in desk.why()
    desk.mill.done = []
    assert [desk.send(), desk.send()] == ["new", "waiting"]
    desk.world.run()
    assert [desk.mill.done, desk.send()] == [["1"], "done"]


def test_a_key_whose_message_s_retention_has_ended_is_free(desk: Desk) -> None:
    desk.send()
    desk.world.clock.advance(5 * DAY_MS)
    assert [desk.send(), desk.send()] == ["new", "waiting"]
    desk.world.run()
    assert desk.mill.done == ["1"]


def test_a_message_that_was_sent_on_under_another_id_keeps_its_key(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.mill, "done", None)
    desk.send()
    desk.world.run_for(DAY_MS, DAY_MS // 8)
    (letter,) = dead_letters.find(desk.session, Select())
    desk.mill.done = []
    (moved,) = desk.session.engine.queues.move([(letter.message_id, None, None)])
    assert moved is not None
    assert moved.new_message_id != letter.message_id
    assert desk.send() == "failed", "it waits in its queue"
    desk.world.run()
    assert desk.mill.done == ["1"]


def test_a_key_whose_message_is_gone_takes_another_payload_if_nothing_has_run(desk: Desk) -> None:
    desk.send()
    queues.purge(desk.session, "orders")
    assert desk.mill.grind.send({"id": "1", "note": "another"}).found == "new"
    desk.world.run()
    assert desk.mill.done == ["1"]


def test_a_key_that_runs_stays_known_without_its_message_until_its_lease_ends(desk: Desk) -> None:
    desk.send()
    engine = desk.session.engine
    assert queues.kept_keys(desk.session, "orders") is None, "a send looks whether the message is there"
    key = RecordKey("", "grind", "1")
    (record,) = engine.store.read([key], desk.session.now_ms())
    assert record is not None
    desk.world.clock.advance(1)
    ask = Ask(
        key=key, fingerprint=record.fingerprint, owner="a-worker", lease_until_ms=desk.session.now_ms() + 60_000, start=True,
        expires_at_ms=desk.session.now_ms() + DAY_MS, message_id=record.message_id,
    )  # fmt: skip
    engine.store.claim([ask], desk.session.now_ms())
    queues.purge(desk.session, "orders")
    assert desk.send() == "running"
    desk.world.clock.advance(60_001)
    assert [desk.send(), desk.send()] == ["new", "running"]
    (record,) = engine.store.read([key], desk.session.now_ms())
    assert (record and record.status, record and record.owner) == ("in_progress", "a-worker"), "its next run judges it"
    desk.world.run()
    assert desk.mill.done == ["1"]
    assert "takeover" in desk.world.names()


def test_a_dead_letter_that_an_operator_deletes_frees_its_key_where_nobody_can_look(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_transactions(desk.mill)
    desk.session.engine = desk.mill.app.runtime().engine
    monkeypatch.setattr(desk.mill, "done", None)
    desk.send()
    desk.world.run_for(DAY_MS, DAY_MS // 8)
    assert dead_letters.remove(desk.session, list(dead_letters.find(desk.session, Select()))) == 1
    desk.mill.done = []
    assert [desk.send(), desk.send()] == ["new", "waiting"]
    desk.world.run()
    assert desk.mill.done == ["1"]


def test_where_nobody_can_look_a_key_is_free_when_its_message_must_have_expired(mill: Mill, loose: World) -> None:
    settings = mill.app.runtime().settings
    dead = settings[settings["orders"].dead_letter or ""]
    longest_ms = settings["orders"].retention_ms + dead.retention_ms
    mill.grind.send({"id": "1"})
    session = Desk(mill, loose).session
    queues.purge(session, "orders")
    assert "the keys of grind stay known. One that" in (queues.kept_keys(session, "orders") or "")
    assert "the keys of jobs with unique=True stay" in (
        queues.kept_keys(AdminSession(mill.app.runtime(), actor="a"), "x") or ""
    )
    (story,) = explain(session, "1").stories
    assert story.todo[0].startswith(
        "Its job has unique=True, and on these queues a send cannot see that the message is gone:"
    )
    (story,) = explain(AdminSession(mill.app.runtime(), actor="person:ada"), "1").stories
    assert story.todo[0].startswith(
        "Send it again with the same key. If its job has unique=True, the key is known until"
    )
    loose.clock.advance(longest_ms)
    assert mill.grind.send({"id": "1"}).found == "waiting", "it may be there still, as far as anybody knows"
    loose.clock.advance(DAY_MS)
    assert mill.grind.send({"id": "1"}).found == "new"
    loose.run()
    assert mill.done == ["1"]


def test_a_job_that_is_not_unique_is_sent_without_a_look_at_records(monkeypatch: pytest.MonkeyPatch) -> None:
    app = onefold.App("plain")

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> None: ...

    with inline(app) as world:
        store = world.app.runtime().engine.store
        for verb in ("read", "claim", "write"):  # each is a transaction of the file, also with an empty list
            monkeypatch.setattr(store, verb, None)
        assert ship.send({"id": "1"}).message_id is not None


def test_no_message_is_older_than_its_reservation(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    with inline(mill.app) as world:
        queues: Any = mill.app.runtime().engine.queues
        opened = queues.open

        def slow(name: str) -> Any:
            found = opened(name)
            send = found.send

            def sent(entries: Any, *, whole: bool) -> Any:
                answers = send(entries, whole=whole)
                world.clock.advance(1)
                return answers

            monkeypatch.setattr(type(found), "send", lambda _, entries, *, whole: sent(entries, whole=whole))
            return found

        monkeypatch.setattr(queues, "open", slow)
        mill.grind.send({"id": "a"})
        engine = mill.app.runtime().engine
        (message,) = queues.find_key("a", limit=2)
        assert engine.records.find("a")[0].created_at_ms <= message.sent_at_ms
