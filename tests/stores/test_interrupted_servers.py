"""Record servers when a process is interrupted: by a fork with open connections, by a signal's exception."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onefold.contracts.store import Claimed
from onefold.engines.postgres.backend import PostgresBackend
from onefold.engines.postgres.connection import Link, PostgresAddress, PostgresServer
from onefold.engines.redis.server import RedisAddress, RedisServer
from onefold.testing.records import NOW, ask
from tests.emulators import servers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with servers.redis() as url:
        yield url


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child that did this work."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_an_answer_that_was_torn_away_is_not_taken_for_the_next_calls(redis_url: str) -> None:
    server = RedisServer(RedisAddress(redis_url))

    def torn(client: Any) -> None:
        connection = client.connection_pool.get_connection()
        connection.send_command("BLPOP", "nothing", "0.2")  # its answer arrives after the next call has checked for one
        client.connection_pool.release(connection)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.ask(torn, repeatable=False)
    assert server.ask(lambda client: client.echo("mine"), repeatable=False) == b"mine"
    server.close()


def test_parent_and_child_each_have_connections_of_their_own_to_redis(redis_url: str) -> None:
    server = RedisServer(RedisAddress(redis_url))
    before = server.ask(lambda client: client.client_id(), repeatable=True)

    def other() -> None:
        assert server.ask(lambda client: client.client_id(), repeatable=True) != before

    assert in_child(other) == 0
    assert server.ask(lambda client: client.client_id(), repeatable=True) == before
    server.close()


def test_a_connection_to_postgresql_that_was_in_use_at_the_fork_stays_the_parents() -> None:
    with servers.postgres(fsync="off") as url:
        server = PostgresServer(PostgresAddress(url))

        def backend(link: Link) -> int:
            found = link.execute("SELECT pg_backend_pid()").fetchone()
            assert found is not None
            return int(found[0])

        before = server.run(backend)

        def other() -> None:
            assert server.run(backend) != before

        def forking(link: Link) -> int:
            child = os.fork()
            if child == 0:
                return -1  # comes back with the parent's connection in use
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            return backend(link)

        assert in_child(other) == 0
        answer = server.run(forking)
        if answer == -1:
            code = 1
            try:
                other()
                code = 0
            finally:
                os._exit(code)
        assert answer == before
        assert server.run(backend) == before
        server.close()
        opened = PostgresBackend(url, create=True)
        assert isinstance(opened.store.claim([ask()], NOW)[0], Claimed)
        assert in_child(lambda: opened.store.claim([ask("theirs")], NOW)) == 0
        opened.close()
