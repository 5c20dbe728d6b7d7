"""The guard's records on Redis, PostgreSQL and DynamoDB, looked at and settled by the store's own URL."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import botocore.client
import pytest
from msgspec import Struct

import onefold
from onefold import errors, redact
from onefold.admin import held, status, stuck, why
from onefold.admin.session import AdminSession, open_session
from onefold.clock import SystemClock
from onefold.contracts.store import RecordKey
from onefold.engines.urls import open_engine
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from tests.emulators import servers
from tests.faces.processes import Commands
from tests.stores import postgres_books, redis_books
from tests.stores.postgres_books import shared_server, sql

pytestmark = pytest.mark.slow

ACTOR = "person:ada"
READS = {"GetItem", "BatchGetItem", "Query", "Scan", "DescribeTable"}


class Place(Struct, frozen=True):
    """A store: its URL, and one that allows no writing."""

    url: str
    reading: str


@contextmanager
def on_redis() -> Iterator[Place]:
    with servers.redis() as url, redis_books.client(url) as direct:
        direct.execute_command("ACL", "SETUSER", "looker", "on", ">secret", "~*", "+@read", "+@connection")
        yield Place(url, url.replace("redis://", "redis://looker:secret@"))


@contextmanager
def on_postgres() -> Iterator[Place]:
    with shared_server() as server, postgres_books.database(server) as url, postgres_books.books(url):
        sql(url, "CREATE ROLE looker LOGIN")
        sql(url, "GRANT USAGE ON SCHEMA onefold TO looker")
        sql(url, "GRANT SELECT ON ALL TABLES IN SCHEMA onefold TO looker")
        sql(url, "ALTER ROLE looker SET default_transaction_read_only = on")
        yield Place(url, url.replace("postgres@", "looker@"))


@contextmanager
def on_dynamodb() -> Iterator[Place]:
    with servers.moto() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in servers.CREDENTIALS.items():
            patch.setenv(name, value)
        url = f"dynamodb://eu-west-1/records?endpoint={endpoint}&batch=no"
        with session(f"{url}&create=yes"):
            pass
        yield Place(url, url)


@contextmanager
def session(url: str) -> Iterator[AdminSession]:
    opened = open_session(url, actor=ACTOR)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def on_sqlite() -> Iterator[Place]:
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/records.db"
        open_engine(url, clock=SystemClock(), entropy=SystemEntropy(), owner="test").close()
        yield Place(url, url)


PLACES = {"sqlite": on_sqlite, "redis": on_redis, "postgres": on_postgres, "dynamodb": on_dynamodb}


@pytest.fixture(params=["redis", "postgres", "dynamodb"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with PLACES[request.param]() as place:
        yield place


@pytest.fixture
def only_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DynamoDB user who may only read; emulators believe everybody."""
    real = botocore.client.BaseClient._make_api_call

    def refuse(self: Any, operation: str, arguments: Any) -> Any:
        assert operation in READS, operation
        return real(self, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", refuse)


@pytest.fixture
def charge(place: Place) -> Iterator[Any]:
    """A function with one call that is done and one that is held."""
    with session(place.url) as owner:

        @onefold.once(key="{order}", store=owner.engine.store, name="charge", on_unknown="hold")
        def charge(order: str) -> str:
            if order.startswith("bad"):
                raise onefold.OutcomeUnknown("the bank did not answer")
            return f"charged {order}"

        charge("o-1")
        with pytest.raises(onefold.OutcomeUnknown):
            charge("bad-1")
        yield charge


def test_looking_needs_no_more_than_reading(place: Place, charge: Any, only_reading: None) -> None:
    with session(place.reading) as looking:
        (done,) = why.explain(looking, "o-1").stories
        assert (done.job, done.state, done.result) == ("charge", "done", '"charged o-1"')
        (bad,) = why.explain(looking, "bad-1").stories
        assert (bad.state, bad.messages) == ("held", ())
        assert why.explain(looking, "o-2").near == ("o-1",)
        (one,) = held.listed(looking)
        assert (one.job, one.key, one.error, one.queue) == ("charge", "bad-1", "OutcomeUnknown", None)
        assert stuck.runs(looking) == []
        stands = status.status(looking)
        assert (stands.queues, stands.has_queues) == ((), False)
        (answer,) = [why.explain(looking, "zzz").meanings]
        assert not any(word in " ".join(answer) for word in ("message", "sent", "dlq"))
        assert [(warning.code, warning.text) for warning in stands.warnings] == [
            ("held-calls", "1 operation held: it is unknown whether its effect happened.")
        ]


def test_a_held_call_is_settled_where_it_lives(place: Place, charge: Any) -> None:
    with pytest.raises(onefold.OutcomeUnknown):
        charge("bad-2")
    with session(place.url) as deciding:
        held.settle(deciding, "bad-1", done=True, result='"by hand"', reason_text="the bank says so")
        held.settle(deciding, "bad-2", done=False)
        assert held.listed(deciding) == []
        (story,) = why.explain(deciding, "bad-1").stories
        assert [(line.event, line.actor) for line in story.lines if line.event == "settled"] == [("settled", ACTOR)]
    assert charge("bad-1") == "by hand"
    with pytest.raises(onefold.OutcomeUnknown):
        charge("bad-2")  # it was called again


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("where", PLACES)
def test_a_settlement_without_its_row_is_said_to_have_happened_or_has_not(
    where: str, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rows: object) -> None:
        raise errors.StorageError("This user may not write the history.")

    with PLACES[where]() as place, session(place.url) as deciding:

        @onefold.once(key="{order}", store=deciding.engine.store, name="charge", on_unknown="hold")
        def charge(order: str) -> str:
            raise onefold.OutcomeUnknown("the bank did not answer")

        with pytest.raises(onefold.OutcomeUnknown):
            charge("bad-1")
        with monkeypatch.context() as patch:
            patch.setattr(deciding.engine.ledger, "append", refuse)
            with pytest.raises(errors.StorageError, match="This user may not write the history") as caught:
                held.settle(deciding, "bad-1", done=done, result="1" if done else None)
        was_settled = held.listed(deciding) == []
        assert was_settled == (where != "sqlite")  # SQLite has one transaction for both
        assert ("was settled, but the row that says so could not be written" in str(caught.value)) == was_settled
        if was_settled:
            assert f"Its record is {'completed' if done else 'released'}" in str(caught.value)


@pytest.mark.parametrize("where", PLACES)
def test_each_death_and_failure_of_a_call_is_in_the_history(where: str) -> None:
    """Written with the claim that notices it, on each store; the evidence when a customer complains weeks later."""
    clock = ManualClock(SystemClock().now_ms() - 60_000)
    with PLACES[where]() as place, session(place.url) as owner:
        ways: list[BaseException | None] = [ValueError("bank says no\nDETAIL:  Key (id)=(1)"), Dead(), Dead(), None]

        def pay(order: str) -> str:
            way = ways.pop(0)
            if way is not None:
                raise way
            events = [row.event for row in owner.engine.ledger.of_key(RecordKey("", "pay", order))]
            assert events.count("takeover") == 2  # before it is called again
            return "paid"

        for _ in range(4):
            guarded = onefold.once(key="{order}", name="pay", store=owner.engine.store, clock=clock, lease="5s")(pay)
            with pytest.MonkeyPatch.context() as patch:
                if isinstance(ways[0], Dead):
                    patch.setattr("onefold.runner.guarded.GuardedFunction.failed", lambda *_: None)
                    patch.setattr("onefold.runner.call_leases.LeaseKeeper.add", lambda *_: True)
                with suppress(ValueError, Dead):
                    assert guarded("o-1") == "paid"
            clock.advance(6_000)
        (story,) = why.explain(owner, "o-1").stories
        said = [line.event for line in story.lines if line.event not in ("claimed", "started")]
        assert said == ["failed", "takeover", "unknown", "takeover", "unknown", "completed"]
        (failed,) = [line for line in story.lines if line.event == "failed"]
        assert failed.text.startswith(
            "run 1 failed: ValueError: bank says no [+1 line] (at test_looking_at_records.py:"
        )
        assert str(failed.trace).endswith("\nValueError: bank says no\n    DETAIL: Key (id)=(1)")
        assert "App(" not in story.left_out

        held_call = onefold.once(
            key="{order}", name="refund", store=owner.engine.store, clock=clock, on_unknown="hold"
        )(fails)
        for error in (ValueError, onefold.OutcomeUnknown):
            with pytest.raises(error):
                held_call("v-1" if error is ValueError else "u-1")
        (story,) = why.explain(owner, "v-1").stories
        assert story.text == "The last call failed (ValueError: v-1); the next call with this key runs it."
        held.settle(owner, "u-1", done=False)
        (story,) = why.explain(owner, "u-1").stories
        assert [line.event for line in story.lines][-3:] == ["unknown", "held", "settled"]


class Dead(BaseException):
    """A process that ends without reporting anything."""


def fails(order: str) -> str:
    raise onefold.OutcomeUnknown(order) if order.startswith("u") else ValueError(order)


def test_commands_take_the_url_of_a_store(place: Place, charge: Any, tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    story = commands.run("why", "o-1", place.reading, "--json")
    assert story.returncode == 0, story.stderr
    assert json.loads(story.stdout)["stories"][0]["place"] == "done"
    listed = commands.run("held", "list", "--url", place.reading)
    assert "bad-1" in listed.stdout
    assert "secret" not in listed.stdout
    for words in (("status",), ("held", "list"), ("held", "show", "bad-1"), ("why", "bad-1"), ("why", "o-2")):
        said = commands.run(*words, "--url", place.reading)
        assert said.returncode == 0, said.stderr
        assert "secret" not in said.stdout
        again = (
            place.reading if redact.masked(place.reading) == place.reading else "URL"
        )  # to be pasted into a ticket, or copied
        assert f"--url{shlex.quote(again)}" in "".join(said.stdout.split())
    refused = commands.run("dlq", "list", "--url", place.url)
    assert refused.returncode != 0
    assert "is a store for records; it has no queues" in refused.stderr
