"""A program that sells in PostgreSQL with an outbox there, and relays to an engine in a file; killed at each point in turn.

    python -m tests.crash.outbox_victim psycopg|sqlalchemy URL FILE     a child for each point, which kills itself there
    python -m tests.crash.outbox_victim --relay URL FILE                a relay until it is told to end

A point is a statement to PostgreSQL, or one of the engine's file, that is about to be made. A line of JSON for each child.
With SQLAlchemy only the points of the program itself: the relay's are the same.
Never here: judging. Invariant: the work is done in one thread in one order, so that points have numbers.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
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


@contextmanager
def with_psycopg(url: str) -> Iterator[tuple[Callable[[str], object], Any]]:
    """What executes a statement, and what is sent with, committed and rolled back."""
    with psycopg.connect(url) as link:
        yield lambda statement: link.execute(statement.encode()), link


@contextmanager
def with_sqlalchemy(url: str) -> Iterator[tuple[Callable[[str], object], Any]]:
    """As `with_psycopg`, a Session."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with Session(engine) as session:
        yield lambda statement: session.execute(text(statement)), session


WAYS: Final = {"psycopg": with_psycopg, "sqlalchemy": with_sqlalchemy}


def sell_and_relay(way: str, url: str, engine: str, name: str, points: Points) -> None:
    """An order that is rolled back, one with its messages in a transaction, then one look of a relay."""
    shop = OutboxShop(f"sqlite:///{engine}", url)
    shop.app.runtime()
    execute, cursor_execute, file_execute = psycopg.Connection.execute, psycopg.Cursor.execute, LentConnection.execute

    def on_server(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        points.point(f"{str(query)[:40]!r}")
        return cursor_execute(self, query, *args, **options)

    def on_file(self: Any, statement: str, *args: Any) -> Any:
        points.point(f"{statement[:40]!r}")
        return file_execute(self, statement, *args)

    psycopg.Cursor.execute = on_server  # type: ignore[method-assign]
    LentConnection.execute = on_file  # type: ignore[method-assign]
    assert execute is psycopg.Connection.execute
    with WAYS[way](url) as (execute, link):
        for is_sold, order in ((False, f"not-{name}"), (True, name)):
            execute(f"INSERT INTO shop_order VALUES ('{order}')")
            shop.ship.send({"id": order}, connection=link)
            if is_sold:
                shop.pack.send({"id": order, "customer": "c"}, connection=link)
            points.point("end of the transaction")
            link.commit() if is_sold else link.rollback()
            points.point("after it")
    points.part = "relay"
    relay = shop.relay()
    relay.check()
    relay.close()
    shop.app.close()


def walk(way: str, url: str, engine: str) -> None:
    """Kill one child after the other, each one point later."""
    shop = OutboxShop(f"sqlite:///{engine}", url)
    shop.app.runtime()
    shop.app.close()
    for die_at in range(1, POINTS_MAX):
        name = f"o-{die_at}"
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            os.close(told)
            sell_and_relay(way, url, engine, name, Points(die_at, tell, relay_too=way == "psycopg"))
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
