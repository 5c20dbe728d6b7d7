"""A job that was renamed: its messages, records and keys go on under `aliases=`, and no operation has two records."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import reading
from onefold.admin.session import AdminSession, jobs_of
from onefold.contracts.queue import JOB_ATTRIBUTE, Attribute
from onefold.contracts.store import Ask, Complete, RecordKey, Release, Unreadable
from onefold.options import Queue
from onefold.record.aliases import chosen, other_names
from onefold.testing import inline
from tests.run.mapped import REGION, mapped

LEASE_MS = 60_000


class Releases:
    """One app, whose job is `book` in the first release and `ship` in the second."""

    def __init__(self, **options: Any) -> None:
        self.app = onefold.App("parcels")
        self.queue: Queue = self.app.queue("orders")
        self.options = options
        self.calls: list[tuple[str, str]] = []
        self.fails = False
        self.book = self.declare("book")

    def declare(self, name: str, **options: Any) -> onefold.Job[dict[str, str], str]:
        def run(order: dict[str, str], ctx: onefold.Context) -> str:
            self.calls.append((order["id"], ctx.idempotency_key))
            if self.fails:
                raise ValueError("the courier says no")
            return f"label {order['id']}"

        return self.app.job(self.queue, key="{id}", name=name, **self.options, **options)(run)

    def deploy(self, **options: Any) -> onefold.Job[dict[str, str], str]:
        del self.app.jobs["book"]
        return self.declare("ship", aliases=["book"], **options)

    def record(self, job: str, key: str) -> Any:
        runtime = self.app.runtime()
        return runtime.engine.store.read([RecordKey("", job, key)], runtime.steady.now_ms())[0]

    def claim(self, job: str, key: str, owner: str = "elsewhere") -> Any:
        runtime, now_ms = self.app.runtime(), self.app.runtime().steady.now_ms()
        ask = Ask(
            key=RecordKey("", job, key), fingerprint=self.book.rules.payload.fingerprint(f'{{"id":"{key}"}}'),
            owner=owner, lease_until_ms=now_ms + LEASE_MS, start=True, expires_at_ms=now_ms + 90 * 86_400_000,
        )  # fmt: skip
        return runtime.engine.store.claim([ask], now_ms)[0]


def test_messages_in_flight_run_and_records_count() -> None:
    releases = Releases()
    with inline(releases.app) as world:
        releases.book.send({"id": "1"})
        world.run()
        releases.book.send_many([{"id": "1"}, {"id": "2"}])
        ship = releases.deploy()
        ship.send_many([{"id": "1"}, {"id": "3"}])
        world.run()
        assert sorted(key for key, _ in releases.calls) == ["1", "2", "3"]
        assert world.names().count("duplicate") == 2
        assert releases.record("ship", "1") is None
        assert releases.record("book", "2").status == "completed"
        assert releases.record("ship", "3").status == "completed"
        assert {key: ship.look(key).result for key in "123"} == {key: f"label {key}" for key in "123"}


def test_what_failed_before_goes_on_with_the_same_key_for_partners() -> None:
    releases = Releases(retry=onefold.Retry(attempts=2, base="1s"))
    with inline(releases.app) as world:
        releases.fails = True
        releases.book.send({"id": "1"})
        world.run()
        ship = releases.deploy()
        releases.fails = False
        world.clock.advance(60_000)
        world.run()
        assert len(releases.calls) == 2
        assert len({key for _, key in releases.calls}) == 1
        assert ship.look("1").state == "done"
        assert ship.look("1").attempts == 2


def test_two_messages_of_one_operation_under_both_names_run_once_in_one_worker() -> None:
    releases = Releases()
    with inline(releases.app) as world:
        releases.book.send({"id": "1"})
        ship = releases.deploy()
        ship.send({"id": "1"})
        world.run()
        assert [key for key, _ in releases.calls] == ["1"]
        assert "duplicate" in world.names()


@pytest.mark.parametrize("mine", ["book", "ship"])
def test_a_record_that_another_worker_makes_meanwhile_is_seen_before_the_handler(mine: str) -> None:
    """Between this worker's look and its claim, another one claims the operation under the other name."""
    releases = Releases(on_unknown="hold")
    with inline(releases.app) as world:
        if mine == "book":
            releases.book.send({"id": "1"})
        ship = releases.deploy()
        if mine == "ship":
            ship.send({"id": "1"})
        other = "ship" if mine == "book" else "book"
        store: Any = releases.app.runtime().engine.store
        claim = store.claim
        found: list[Any] = []

        def interrupted(asks: Any, now_ms: int, *more: Any) -> Any:
            if not found:
                store.claim = claim
                found.append(releases.claim(other, "1"))
            return claim(asks, now_ms, *more)

        store.claim = interrupted
        world.run()
        assert releases.calls == []
        assert releases.record(mine, "1").status == "released"
        assert releases.record(mine, "1").attempts == 0
        now_ms = world.clock.now_ms()
        result = Complete(result=b'"label 1"', expires_at_ms=now_ms + 90 * 86_400_000)
        assert store.write([(found[0].hold, result)], now_ms) == [True]
        world.clock.advance(60_000)
        world.run()
        assert releases.calls == []
        assert "duplicate" in world.names()
        assert ship.look("1").result == "label 1"


def test_who_released_at_the_same_moment_agree_on_one_record() -> None:
    releases = Releases()
    with inline(releases.app) as world:
        store, now_ms = releases.app.runtime().engine.store, world.clock.now_ms()
        holds = [releases.claim(name, "1").hold for name in ("ship", "book")]
        store.write([(hold, Release(expires_at_ms=now_ms + 86_400_000)) for hold in holds], now_ms)
        keys = [RecordKey("", name, "1") for name in ("ship", "book")]
        assert {chosen(key, store.read([key, *other_names(key, ["book", "ship"])], now_ms)) for key in keys} == {
            keys[1]
        }
        releases.book.send({"id": "1"})
        releases.deploy().send({"id": "1"})
        world.run()
        assert [key for key, _ in releases.calls] == ["1"]
        assert releases.record("book", "1").status == "completed"


@pytest.mark.parametrize("engine", ["file", "aws"])
def test_a_unique_key_is_known_under_both_names(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    releases = Releases(unique=True)
    with inline(releases.app) if engine == "file" else mapped(releases.app) as world:
        releases.book.send_many([{"id": "1"}, {"id": "2"}])
        ship = releases.deploy()
        assert [ship.send({"id": key}).found for key in "12"] == ["waiting", "waiting"]
        if engine == "file":
            assert ship.cancel("2")
            assert ship.send({"id": "2"}).found == "new"
        world.run() if engine == "file" else world.poll()  # type: ignore[union-attr]  # whichever it is
        assert sorted(key for key, _ in releases.calls) == ["1", "2"]
        assert ship.send({"id": "1"}).found == "done"


def test_in_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    releases = Releases()
    with mapped(releases.app) as world:
        releases.book.send({"id": "1"})
        assert world.poll() == []
        releases.book.send_many([{"id": "1"}, {"id": "2"}])
        ship = releases.deploy()
        ship.send_many([{"id": "1"}, {"id": "2"}, {"id": "3"}])
        for _ in range(3):
            world.poll()
            world.clock.advance(60_000)
        assert sorted(key for key, _ in releases.calls) == ["1", "2", "3"]
        assert world.left() == 0


def test_a_forecast_reads_the_record_that_counts() -> None:
    releases = Releases()
    with inline(releases.app) as world:
        releases.book.send({"id": "1"})
        world.run()
        ship = releases.deploy()
        ship.send({"id": "1"})
        session = AdminSession(releases.app.runtime(), actor="test", jobs=jobs_of(releases.app))
        (message,) = session.every("orders")
        assert [one.outcome for one in reading.forecast(session, [message])] == ["answered"]
        assert session.job("book") is ship


def test_a_stranger_cannot_use_a_name_that_is_none() -> None:
    releases = Releases()
    with inline(releases.app) as world:
        releases.deploy()
        queue = releases.app.runtime().engine.queues.open("orders")
        from onefold.contracts.entries import Entry

        queue.send([Entry(body='{"id": "1"}', attributes={JOB_ATTRIBUTE: Attribute("nobody")})])
        world.run()
        assert releases.calls == []


@pytest.mark.parametrize("name", ["ship", "book"])
def test_a_record_that_cannot_be_read_stops_its_operation_and_no_other(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    releases = Releases()
    ship = releases.deploy()
    with inline(releases.app) as world:
        store, bad = releases.app.runtime().engine.store, RecordKey("", name, "o-1")
        read, claim = store.read, store.claim

        def refusing(keys: Any, now_ms: int) -> Any:
            if bad in keys:
                raise errors.StorageError("This is not a record.", todo="Give it a prefix.")
            return read(keys, now_ms)

        def claiming(asks: Any, *args: Any) -> Any:
            answers = iter(claim([ask for ask in asks if ask.key != bad], *args))
            return [
                Unreadable(what="This is not a record.", meaning="", todo="") if ask.key == bad else next(answers)
                for ask in asks
            ]

        monkeypatch.setattr(store, "read", refusing)
        monkeypatch.setattr(store, "claim", claiming)
        ship.send_many([{"id": "o-1"}, {"id": "o-2"}])
        world.run()
        assert [key for key, _ in releases.calls] == ["o-2"]
        assert world.names().count("record-unreadable") == 1


@pytest.mark.parametrize(
    ("aliases", "error", "text"),
    [
        ("book", errors.UsageError, "is not a list of names"),
        (["ship"], errors.UsageError, "has the alias 'ship' twice"),
        (["a", "a"], errors.UsageError, "has the alias 'a' twice"),
        ([""], errors.UsageError, "is not a name"),
        ([7], errors.UsageError, "is not a name"),
        ([f"a{number}" for number in range(11)], errors.UsageError, "has 11 aliases"),
        (["pack"], errors.ConflictError, "is the name of another job"),
        (["wrap"], errors.ConflictError, "is an earlier name of the job pack"),
    ],
)
def test_what_is_no_earlier_name(aliases: Any, error: type[Exception], text: str) -> None:
    releases = Releases()
    releases.declare("pack", aliases=["wrap"])
    with pytest.raises(error, match=text):
        releases.declare("ship", aliases=aliases)
    with pytest.raises(errors.ConflictError, match="The job 'wrap' is an earlier name of the job pack"):
        releases.declare("wrap")
    assert sorted(releases.app.jobs) == ["book", "pack"]


def test_an_earlier_name_of_another_app_is_refused() -> None:
    releases = Releases()
    with inline(releases.app) as world:
        releases.deploy()
        releases.app.runtime().take_names(["pack"], "another")
        releases.declare("wrap", aliases=["pack"])
        with pytest.raises(errors.ConflictError, match="'pack' of the app 'parcels' has the name of a job"):
            releases.app.runtime().take_names_of(releases.app.jobs)
        assert world.names() == []
