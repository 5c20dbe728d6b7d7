"""A soft time limit that fires while a call waits for a server reaches the caller: no client swallows it."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import boto3
import pytest

from onefold import errors
from onefold.engines.aws.session import Session, aws_errors
from onefold.engines.postgres.connection import PostgresAddress, PostgresServer
from onefold.engines.redis.server import RedisAddress, RedisServer
from tests.emulators.servers import free_port

PATIENCE_S = 60.0


class TooLate(TimeoutError):
    """A soft time limit, as most programs write it."""


class Refused(ConnectionError):
    """A soft time limit that is another OSError."""


class Plain(Exception):
    """A soft time limit that is not an OSError."""


class Silent:
    """A server that answers only what a new connection sends first; at the first call the limit fires.

    Attributes:
        calls: how many have arrived; each on a connection of its own, because the first was interrupted.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            self._open.append(connection)
            while (
                (said := connection.recv(65_536)) and b"CLIENT" in said and b"GET" not in said
            ):  # redis-py sends its name
                connection.sendall(b"+OK\r\n" * said.count(b"CLIENT"))
            if said == b"end":
                return
            self.calls += 1
            if self.calls == 1:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"end")
        self._thread.join(PATIENCE_S)
        for one in (*self._open, self._listening):
            one.close()
        assert not self._thread.is_alive()


@contextmanager
def limit(kind: type[Exception]) -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise kind("the soft limit")

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def of_redis(port: int) -> Callable[[], object]:
    server = RedisServer(RedisAddress(f"redis://127.0.0.1:{port}/0"))
    return lambda: server.ask(lambda client: client.get("x"), repeatable=True)


def of_aws(port: int) -> Callable[[], object]:
    own = boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="eu-west-1")
    client: Any = Session("eu-west-1", {"*": f"http://127.0.0.1:{port}"}, session=own).client("dynamodb")

    def call() -> object:
        with aws_errors("dynamodb:GetItem", "table t"):
            return client.get_item(TableName="t", Key={"id": {"S": "x"}})

    return call


def of_postgres(port: int) -> Callable[[], object]:
    server = PostgresServer(PostgresAddress(f"postgresql://u:p@127.0.0.1:{port}/x?sslmode=disable&gssencmode=disable"))
    return lambda: server.run(lambda link: link.execute("SELECT 1"))


@pytest.mark.parametrize("kind", [TooLate, Refused, Plain])
@pytest.mark.parametrize("client", [of_redis, of_aws, of_postgres])
def test_a_limit_while_an_answer_is_waited_for_is_the_callers(
    client: Callable[[int], Callable[[], object]], kind: type[Exception]
) -> None:
    server = Silent()
    try:
        call = client(server.port)
        with limit(kind), pytest.raises(kind, match="the soft limit"):
            call()
    finally:
        server.close()
    assert server.calls == 1, "it was not tried again after its limit"


@pytest.mark.parametrize("client", [of_redis, of_postgres])
def test_a_limit_that_the_program_is_dealing_with_is_not_raised_again(
    client: Callable[[int], Callable[[], object]],
) -> None:
    call = client(free_port())
    with limit(TooLate):
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TooLate:
            with pytest.raises(errors.TransientError):
                call()  # nobody listens there
