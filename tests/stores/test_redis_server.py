"""Redis servers that die, refuse, are full, or are replicas or not Redis; and what `check` says about settings."""

from __future__ import annotations

import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import onefold
from onefold import errors
from onefold.contracts.ledger import Row
from onefold.contracts.state import Change
from onefold.contracts.store import Claimed, Completed, Hold, Record, RecordKey
from onefold.engines.redis.backend import RedisBackend
from onefold.engines.redis.layout import Names
from onefold.engines.redis.server import RedisAddress
from onefold.entropy import SystemEntropy
from onefold.testing.records import KEY, NOW, ask, complete
from tests.emulators import servers
from tests.stores.redis_books import client, opened
from tests.stores.wires import answering

ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with servers.redis(repl_diskless_sync_delay="0") as url:
        yield url


def at(port: int) -> str:
    return f"redis://127.0.0.1:{port}"


def open_books(url: str) -> RedisBackend:
    return RedisBackend.open(url, entropy=SystemEntropy())


# -- death -------------------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Claims and completes operations of its own until the server is gone; keeps what was acknowledged."""

    def __init__(self, books: RedisBackend, name: str, enough: threading.Semaphore) -> None:
        super().__init__()
        self._books, self._name, self._enough = books, name, enough
        self.claimed: list[Hold] = []
        self.completed: list[Hold] = []
        self.told = 0

    def run(self) -> None:
        store, number = self._books.store, 0
        while True:
            keys = [f"{self._name}-{number + place}" for place in range(5)]
            number += 5
            try:
                answers = store.claim([ask(key) for key in keys], NOW)
                holds = [answer.hold for answer in answers if isinstance(answer, Claimed)]
                self.claimed += holds
                store.write([(hold, complete(hold.key.key.encode())) for hold in holds[:-1]], NOW)
                self.completed += holds[:-1]
                self._books.ledger.append([Row(at_ms=NOW, event="sent", message_id=self._name)])
                self.told += 1
                self._books.state.put([Change(self._name, b"%d" % self.told, self.told - 1)])
            except errors.TransientError:
                return
            self._enough.release()


def killed_in_the_middle(folder: Path, port: int, **settings: str) -> list[Writer]:
    """Four writers on a server that is killed while they write."""
    books, enough = open_books(at(port)), threading.Semaphore(0)
    with servers.redis_server(folder, port, **settings) as process:
        writers = [Writer(books, f"writer-{number}", enough) for number in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(200):
            assert enough.acquire(timeout=30)
        process.kill()
        for writer in writers:
            writer.join(30)
    books.close()
    return writers


def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    port = servers.free_port()
    writers = killed_in_the_middle(tmp_path, port, **ALWAYS)
    with servers.redis_server(tmp_path, port, **ALWAYS):
        books = open_books(at(port))
        for writer in writers:
            records = books.store.read([hold.key for hold in writer.claimed], NOW)
            assert all(isinstance(record, Record) for record in records)
            assert {(record.owner, record.fence) for record in records if record} == {("A", 1)}
            answers = books.store.claim([ask(hold.key, "B") for hold in writer.completed], NOW)
            assert [isinstance(one, Completed) and one.result.decode() for one in answers] == [
                hold.key.key for hold in writer.completed
            ]
            told = [row for row in books.ledger.between(NOW, NOW + 1, 10_000) if row.message_id == writer.name]
            assert len(told) >= writer.told
            (state,) = books.state.get([writer.name])
            assert state is not None
            assert int(state.value) >= writer.told - 1
        done = sum(len(writer.completed) for writer in writers)
        assert books.records.count_completed(NOW, NOW + 1000)["job"] >= done
        books.close()


def test_without_appendonly_a_restart_forgets(tmp_path: Path) -> None:
    port = servers.free_port()
    writers = killed_in_the_middle(tmp_path, port, appendonly="no")
    with servers.redis_server(tmp_path, port, appendonly="no"):
        books = open_books(at(port))
        assert books.store.read([hold.key for writer in writers for hold in writer.completed[:1]], NOW) == [None] * 4
        books.close()


def test_books_go_on_with_a_server_that_came_back(tmp_path: Path) -> None:
    port = servers.free_port()
    books = open_books(at(port))
    with servers.redis_server(tmp_path, port):
        (answer,) = books.store.claim([ask()], NOW)
        assert isinstance(answer, Claimed)
    with pytest.raises(errors.TransientError, match="cannot be reached"):
        books.store.write([(answer.hold, complete())], NOW)
    with servers.redis_server(tmp_path, port):
        assert books.store.write([(answer.hold, complete())], NOW) == [True]
    books.close()
    books.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    books = open_books(at(servers.free_port()))
    for call in (lambda: books.store.claim([ask()], NOW), books.check, lambda: books.state.get(["a"])):
        with pytest.raises(errors.TransientError, match=r"cannot be reached.*Check that it runs") as refused:
            call()
        assert "127.0.0.1" in refused.value.what


def test_a_wrong_password_is_told_and_never_shown() -> None:
    with servers.redis(requirepass="right@word") as url:
        address = url.removeprefix("redis://")
        for user in ("", "user:wrong%40word@", ":wrong%40word@"):
            books = open_books(f"redis://{user}{address}")
            for call in (books.check, lambda books=books: books.store.claim([ask()], NOW)):  # type: ignore[misc]
                with pytest.raises(errors.StorageError, match="password") as refused:
                    call()
                assert "word" not in str(refused.value).replace("password", "")
                assert "redis://USER:PASSWORD@host:port/db" in refused.value.todo
                assert isinstance(refused.value.__cause__, redis.RedisError)
                assert not isinstance(refused.value.__cause__.__context__, redis.RedisError)  # one traceback, not two
        books = open_books(f"redis://:right%40word@{address}")
        assert books.check() == []
        assert isinstance(books.store.claim([ask()], NOW)[0], Claimed)
        books.close()


def test_a_database_that_the_server_does_not_have(server: str) -> None:
    books = open_books(f"{server.partition('?')[0].removesuffix('/0')}/99")
    with pytest.raises(errors.StorageError, match=r"out of range.*The URL ends with the number"):
        books.store.claim([ask()], NOW)
    books.close()


def test_a_user_who_may_not_run_scripts_or_touch_other_names(server: str) -> None:
    with client(server) as direct:
        direct.execute_command("ACL SETUSER reader on >pw ~{of:}* +@read +@connection +info +config|get")
        direct.execute_command(
            "ACL SETUSER other on >pw ~{other:}* +@read +@write +@scripting +@connection +time +info"
        )
    for user in ("reader", "other"):
        books = open_books(server.replace("redis://", f"redis://{user}:pw@"))
        with pytest.raises(errors.StorageError, match=rf"user '{user}' may not do this.*ACL SETUSER"):
            books.store.claim([ask()], NOW)
        books.close()
    with opened(server.replace("redis://", "redis://other:pw@") + "?prefix=other:", empty=False) as books:
        assert isinstance(books.store.claim([ask()], NOW)[0], Claimed)
        (warning,) = books.check()
        assert "could not be checked" in warning


def test_a_user_who_may_not_ask_the_time_is_told_so_at_once(server: str) -> None:
    """History and leases need the time, a first claim does not: it used to show only when a call died."""
    with client(server) as direct:
        direct.execute_command(
            "ACL SETUSER timeless on >pw ~{of:}* +@read +@write +@scripting +@connection +info +config|get"
        )
    with opened(server.replace("redis://", "redis://timeless:pw@"), empty=False) as books:
        with pytest.raises(errors.StorageError, match=r"may not do this.*\+time"):
            books.check()
        with pytest.raises(errors.StorageError, match=r"may not do this.*\+time"):
            books.ledger.append([Row(at_ms=NOW, event="failed")])


def test_the_user_of_the_page_may_do_all_that_a_guard_needs(server: str) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/store-on-redis.md").read_text()
    (line,) = (one for one in page.splitlines() if "ACL SETUSER onefold" in one)
    with client(server) as direct:
        direct.execute_command(*shlex.split(line.replace("{shop:}", "{of:}"))[1:])
    with opened(server.replace("redis://", "redis://onefold:secret@"), empty=False) as books:
        books.check()
        store: Any = books.store

        def call(order: str) -> str:
            raise onefold.OutcomeUnknown(order)

        guarded = onefold.once(key="{order}", name="page", store=store, on_unknown="hold")(call)
        with pytest.raises(onefold.OutcomeUnknown):
            guarded("o-1")
        (held,) = books.store.read([RecordKey("", "page", "o-1")], NOW)
        assert held is not None
        assert held.status == "unknown"
        assert [row.event for row in books.ledger.of_key(held.key)] == ["unknown", "held"]


def test_a_replica_takes_no_claim(server: str, tmp_path: Path) -> None:
    port = servers.free_port()
    with (
        opened(server) as primary,
        servers.redis_server(tmp_path, port, replicaof=f"127.0.0.1 {server.rpartition(':')[2]}", appendonly="no"),
        client(server) as direct,
    ):
        assert isinstance(primary.store.claim([ask()], NOW)[0], Claimed)
        assert direct.wait(1, 30_000) == 1
        replica = open_books(at(port))
        with pytest.raises(errors.TransientError, match=r"replica.*Connect to the primary"):
            replica.store.claim([ask("other")], NOW)
        with pytest.raises(errors.StorageError, match="is a replica of 127"):
            replica.check()
        (warning,) = primary.check()
        assert "1 replica" in warning
        # A failover while the old primary still accepts writes: these are lost, as the warning says.
        with client(at(port)) as promoted:
            promoted.execute_command("REPLICAOF NO ONE")
        assert isinstance(primary.store.claim([ask("late")], NOW)[0], Claimed)
        assert isinstance(replica.store.claim([ask("late")], NOW)[0], Claimed)
        replica.close()


def test_a_full_server_refuses_and_changes_nothing(server: str) -> None:
    with opened(server) as books, client(server) as direct:
        (answer,) = books.store.claim([ask()], NOW)
        assert isinstance(answer, Claimed)
        (before,) = books.store.read([KEY], NOW)
        direct.config_set("maxmemory", "1")
        try:
            for call in (
                lambda: books.store.claim([ask("a"), ask("b")], NOW),
                lambda: books.store.write([(answer.hold, complete())], NOW),
                lambda: books.state.put([Change("a", b"1", 0)]),
                lambda: books.ledger.append([Row(at_ms=NOW, event="sent")]),
            ):
                with pytest.raises(errors.StorageBusy, match=r"memory is full.*Raise maxmemory"):
                    call()
            assert books.store.read([KEY, ask("a").key, ask("b").key], NOW) == [before, None, None]
        finally:
            direct.config_set("maxmemory", "0")
        assert books.store.write([(answer.hold, complete())], NOW) == [True]


def test_one_server_of_a_cluster_says_what_to_add_to_the_url() -> None:
    with servers.redis_cluster() as urls:
        told = []
        for url in urls:
            books = open_books(url)
            try:
                assert isinstance(books.store.claim([ask()], NOW)[0], Claimed)
            except errors.StorageError as error:
                told.append(error.todo)
            books.close()
        assert told == ["Add cluster=yes to the URL: redis://host:port?cluster=yes"]  # the other one has the records
        for url in urls:
            with opened(f"{url}?cluster=yes", empty=False) as books:
                assert books.check() == []
                assert len(books.records.find("key")) == 1


def test_cluster_is_asked_of_a_server_that_is_none(server: str) -> None:
    books = open_books(f"{server}?cluster=yes")
    with pytest.raises(errors.TransientError, match="leave cluster=yes out"):
        books.store.claim([ask()], NOW)


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("-LOADING Redis is loading the dataset in memory", errors.TransientError, "is still loading its data"),
        ("-MISCONF Errors writing to the AOF file: No space left on device", errors.StorageBusy, "a full disk"),
        ("-NOREPLICAS Not enough good replicas to write.", errors.StorageBusy, "missing replicas"),
        ("-BUSY Redis is busy running a script.", errors.StorageBusy, "script that runs for long"),
        ("-MASTERDOWN Link with MASTER is down", errors.TransientError, "incomplete at the moment"),
        ("-CLUSTERDOWN Hash slot not served", errors.TransientError, "CLUSTER INFO"),
        ("-ERR max number of clients reached", errors.TransientError, "max number of clients"),
        ("-ERR unknown command 'EVALSHA'", errors.StorageError, "refuses what records need"),
        ("HTTP/1.1 400 Bad Request", errors.StorageError, "Check the URL"),
    ],
)
def test_what_servers_say(line: str, kind: type[errors.OnefoldError], words: str) -> None:
    with answering(line) as port:
        books = open_books(at(port))
        with pytest.raises(kind, match=words) as refused:
            books.store.claim([ask()], NOW)
        assert type(refused.value) is kind
        assert str(port) in refused.value.what
        books.close()


def test_a_certificate_of_nobody() -> None:
    """What redis-py says about an untrusted certificate; the tests have no server with one."""
    error = redis.ConnectionError("Error 1 connecting to host:6379. [SSL: CERTIFICATE_VERIFY_FAILED] self-signed.")

    def call(_: object) -> None:
        raise error

    books = open_books("rediss://127.0.0.1:1")
    with pytest.raises(errors.StorageError, match=r"self-signed\. The server's certificate.*SSL_CERT_FILE"):
        books._server.ask(call, repeatable=False)


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.engines.redis.server.ANSWER_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        books = open_books(at(silent.getsockname()[1]))
        with pytest.raises(errors.TransientError, match="whether the call took effect is not known"):
            books.store.claim([ask()], NOW)
        books.close()


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_says_what_settings_may_lose(server: str) -> None:
    with opened(server) as books, client(server) as direct:
        assert not books.store.capabilities.durable
        assert books.check() == []
        assert books.store.capabilities.durable
        cases = [
            ({"appendfsync": "everysec"}, "loses the writes of about one second"),
            ({"appendfsync": "no"}, "as long as the kernel likes"),
            ({"appendonly": "no"}, "a restart forgets every record since the last snapshot"),
            ({"maxmemory-policy": "allkeys-lru"}, "throws records away"),
        ]
        for settings, words in cases:
            before = {name: direct.config_get(name)[name] for name in settings}
            for name, value in settings.items():
                direct.config_set(name, value)
            (warning,) = books.check()
            assert words in warning
            assert "Set " in warning
            assert books.store.capabilities.durable == ("maxmemory-policy" in settings)
            for name, value in before.items():
                direct.config_set(name, value)
        assert books.check() == []


def test_check_of_a_server_whose_config_command_is_taken_away() -> None:
    with servers.redis(rename_command="CONFIG ") as url, opened(url) as books:
        (warning,) = books.check()
        assert "could not be checked" in warning


def test_check_refuses_a_server_that_is_too_old(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda self: {"redis_version": "6.0.16", "role": "master"})
    with opened(server) as books, pytest.raises(errors.StorageError, match=r"version 6\.0\.16.*6\.2 or later"):
        books.check()


def test_a_handlers_own_writes_cannot_join(server: str) -> None:
    with opened(server) as books:
        assert books.effects(1000) is None


# -- the URL -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://", "names no server"),
        ("redis:///0", "names no server"),
        ("rediss://:secret@:6379", "names no server"),
        ("postgres://host", "names no server"),
        ("redis://host#x", "names no server"),
        ("redis://:secret@host:port", "cannot be read"),
        ("redis://host:99999", "cannot be read"),
        ("redis://host/shop", "not the number of a database"),
        ("redis://host/0/1", "not the number of a database"),
        ("redis://host?prefix", "cannot be read"),
        ("redis://host?prefix=", "prefix"),
        ("redis://host?prefix=a{b}", "no braces"),
        ("redis://host?prefix=a%20b", "no blanks"),
        ("redis://host?prefix=" + "x" * 65, "1 to 64"),
        ("redis://host?Prefix=a", "known are prefix"),
        ("redis://host?cluster=no", "known are prefix"),
        ("redis://host/1?cluster=yes", "database 0 only"),
    ],
)
def test_a_bad_url_is_refused_before_anything_is_connected(url: str, words: str) -> None:
    with pytest.raises(errors.UsageError, match=words) as refused:
        open_books(url)
    assert "redis://localhost:6379/0?prefix=shop:" in refused.value.todo
    assert "secret" not in str(refused.value)


def test_what_a_url_says() -> None:
    address = RedisAddress("rediss://ann:p%40ss@cache.example:6380/2?prefix=shop:")
    assert (address.server, address.prefix) == ("rediss://ann:p%40ss@cache.example:6380/2", "shop:")
    assert address.shown == "rediss://cache.example:6380/2"
    assert not address.cluster
    assert RedisAddress("redis://host").shown == "redis://host:6379"
    assert Names("shop:").record(KEY) == "{shop:}record:tenant|job|key"
