"""A program that sells with an outbox in its database, and relays to an engine in a file; killed at each point in turn.

    python -m tests.crash.outbox_victim WAY URL FILE         a child for each point, which kills itself there
    python -m tests.crash.outbox_victim --relay URL FILE     a relay until SIGTERM

A WAY is psycopg, sqlalchemy or dynamodb. A point is a statement to PostgreSQL, a call to AWS, or a BEGIN or COMMIT in
the engine's file, that is about to be made. It prints a line of JSON for each child. With SQLAlchemy there are only the
points of the program itself: the relay's are the same.
Does not contain: judging. Invariant: the work is done in one thread in a fixed order, so that points have numbers.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import boto3
import psycopg
from botocore.client import BaseClient
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

from onefold.engines.sqlite.connection import LentConnection
from tests.run.outbox_shop import OutboxShop

POINTS_MAX = 400


class Points:
    """Counts the points of this process, and ends it at one of them."""

    def __init__(self, die_at: int, told: int, *, relay_too: bool) -> None:
        self.relay_too = relay_too
        self.die_at, self.told = die_at, told
        self.count, self.part = 0, "sell"

    def point(self, what: str) -> None:
        if self.part == "relay" and not self.relay_too:
            return
        self.count += 1
        if self.count == self.die_at:
            os.write(self.told, f"{self.part} {what}".encode())
            os.kill(os.getpid(), signal.SIGKILL)


class InPostgres:
    """A transaction of a psycopg connection, or of SQLAlchemy's Session."""

    def __init__(self, link: Any, execute: Callable[[str], object]) -> None:
        self._link, self._execute = link, execute

    def order(self, name: str) -> None:
        self._execute(f"INSERT INTO shop_order VALUES ('{name}')")

    def send(self, job: Any, payload: Any) -> None:
        job.send(payload, connection=self._link)

    def end(self, is_sold: bool) -> None:
        if is_sold:
            self._link.commit()
        else:
            self._link.rollback()


class InDynamo:
    """Collects what will be one call of TransactWriteItems."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._client = boto3.client("dynamodb", endpoint_url=parse_qs(parts.query)["endpoint"][0])
        self._actions: list[Any] = []

    def order(self, name: str) -> None:
        self._actions.append({"Put": {"TableName": "shop_order", "Item": {"id": {"S": name}}}})

    def send(self, job: Any, payload: Any) -> None:
        self._actions.append(job.outbox_item(payload))

    def end(self, is_sold: bool) -> None:
        if is_sold:
            self._client.transact_write_items(TransactItems=self._actions)
        self._actions.clear()


@contextmanager
def with_psycopg(url: str) -> Iterator[InPostgres]:
    with psycopg.connect(url) as link:
        yield InPostgres(link, lambda statement: link.execute(statement.encode()))


@contextmanager
def with_sqlalchemy(url: str) -> Iterator[InPostgres]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with Session(engine) as session:
        yield InPostgres(session, lambda statement: session.execute(text(statement)))


@contextmanager
def with_dynamodb(url: str) -> Iterator[InDynamo]:
    yield InDynamo(url)


WAYS: Final[dict[str, Callable[[str], AbstractContextManager[InPostgres | InDynamo]]]] = {
    "psycopg": with_psycopg,
    "sqlalchemy": with_sqlalchemy,
    "dynamodb": with_dynamodb,
}


def watch(points: Points, *, file_too: bool) -> None:
    """Count statements to PostgreSQL, calls to AWS and, if asked, statements of the engine's file."""
    cursor_execute, file_execute = psycopg.Cursor.execute, LentConnection.execute
    call = BaseClient._make_api_call

    def on_server(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        points.point(f"{str(query)[:40]!r}")
        return cursor_execute(self, query, *args, **options)

    def on_file(self: Any, statement: str, *args: Any) -> Any:
        if statement.startswith(("BEGIN", "COMMIT")):  # between the two, test_kill.py and others kill
            points.point(f"{statement[:40]!r}")
        return file_execute(self, statement, *args)

    def on_aws(self: Any, operation: str, arguments: Any) -> Any:
        points.point(operation)
        return call(self, operation, arguments)

    psycopg.Cursor.execute = on_server  # type: ignore[method-assign]
    BaseClient._make_api_call = on_aws
    if file_too:
        LentConnection.execute = on_file  # type: ignore[method-assign]


def sell_and_relay(way: str, url: str, engine: str, name: str, points: Points) -> None:
    """An order that is rolled back, one with its messages in a transaction, then one pass of a relay."""
    shop = OutboxShop(f"sqlite:///{engine}", url)
    shop.app.runtime()
    watch(points, file_too=way != "dynamodb")
    with WAYS[way](url) as sale:
        for is_sold, order in ((False, f"not-{name}"), (True, name)):
            sale.order(order)
            sale.send(shop.ship, {"id": order})
            if is_sold:
                sale.send(shop.pack, {"id": order, "customer": "c"})
            points.point("end of the transaction")
            sale.end(is_sold)
            points.point("after it")
    points.part = "relay"
    relay = shop.relay()
    relay.check()
    relay.close()
    shop.app.close()


def walk(way: str, url: str, engine: str) -> None:
    """Fork one child after the other, each killed one point later."""
    shop = OutboxShop(f"sqlite:///{engine}", url)
    shop.app.runtime()
    shop.app.close()
    for die_at in range(1, POINTS_MAX):
        name = f"o-{die_at}"
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            os.close(told)
            sell_and_relay(way, url, engine, name, Points(die_at, tell, relay_too=way != "sqlalchemy"))
            os._exit(0)
        os.close(tell)
        at = os.read(told, 1_000).decode()
        os.close(told)
        _, status = os.waitpid(child, 0)
        died = os.WIFSIGNALED(status)
        if not died and status:
            raise SystemExit(f"child {name} failed: {status}")
        sys.stdout.write(json.dumps({"name": name, "died": died, "at": at}) + "\n")
        sys.stdout.flush()
        if not died:
            return
    raise SystemExit("it never came to its end")


def relay_only(url: str, engine: str) -> None:
    """A relay, until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    shop = OutboxShop(f"sqlite:///{engine}", url)
    relay = shop.relay()
    sys.stdout.write("relaying\n")
    sys.stdout.flush()
    relay.run(ended)
    shop.app.close()


if __name__ == "__main__":
    assert sqlite3.threadsafety
    if sys.argv[1] == "--relay":
        relay_only(*sys.argv[2:])
    else:
        walk(*sys.argv[1:])
