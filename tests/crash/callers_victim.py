"""A program that writes a row and sends a job in one transaction of its own, killed at each of its statements in turn.

    python -m tests.crash.callers_victim FILE sqlite3|sqlalchemy|django

For each statement of the transaction, from its BEGIN to its COMMIT, a child is forked that kills itself just before
that statement; one more child does not. After each child another connection reads the file, and a line of JSON says
what it has.
Does not contain: judging.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import django
from django.conf import settings
from django.db import connection, transaction
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session

import onefold

STATEMENTS_MAX = 200


def nothing(order: dict[str, str]) -> None: ...


def shop(path: str) -> tuple[onefold.App, list[Any]]:
    """The app, and three jobs: a plain one, one whose keys are unique, one that keeps order."""
    app = onefold.App("shop", url=f"sqlite:///{path}", history="full")
    orders, groups = app.queue("orders"), app.queue("groups", fifo=True)
    ship = app.job(orders, key="{id}", name="ship")(nothing)
    invoice = app.job(orders, key="{id}", name="invoice", unique=True)(nothing)
    pack = app.job(groups, key="{id}", name="pack", group="{id}")(nothing)
    return app, [ship, invoice, pack]


Watch = Callable[[sqlite3.Connection], None]
Execute = Callable[[str], object]


@contextmanager
def with_sqlite3(path: str, watch: Watch) -> Iterator[tuple[Execute, object]]:
    """A transaction on a plain connection: its `execute`, and what to send with."""
    mine = sqlite3.connect(path)
    watch(mine)
    with mine:
        yield mine.execute, mine


@contextmanager
def with_sqlalchemy(path: str, watch: Watch) -> Iterator[tuple[Execute, object]]:
    """As `with_sqlite3`, in a Session."""
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda mine, _record: watch(mine))
    with Session(engine) as session, session.begin():
        yield lambda statement: session.execute(text(statement)), session


@contextmanager
def with_django(path: str, watch: Watch) -> Iterator[tuple[Execute, object]]:
    """As `with_sqlite3`, in one of Django's `atomic()` blocks."""
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}}, USE_TZ=True)
    django.setup()
    connection.ensure_connection()
    watch(connection.connection)
    with transaction.atomic(), connection.cursor() as cursor:
        yield cursor.execute, connection


WAYS: Final = {"sqlite3": with_sqlite3, "sqlalchemy": with_sqlalchemy, "django": with_django}


def order(path: str, way: str, name: str, die_at: int) -> None:
    """One order and its three messages, in one transaction; killed before statement number `die_at`."""
    app, jobs = shop(path)
    app.runtime()
    statements = 0

    def count(_statement: str) -> None:
        nonlocal statements
        statements += 1
        if statements == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with WAYS[way](path, lambda mine: mine.set_trace_callback(count)) as (execute, connection):
        execute(f"INSERT INTO shop_order VALUES ('{name}')")
        for job in jobs:
            job.send({"id": name}, connection=connection)
        execute("UPDATE shop_order SET id = id")
    app.close()


def main() -> None:
    """Kill one child after the other."""
    path, way = sys.argv[1:]
    app, _ = shop(path)
    app.runtime()
    app.close()
    with closing(sqlite3.connect(path)) as mine:  # open in a parent, the file cannot be used in its children
        mine.execute("CREATE TABLE shop_order (id TEXT PRIMARY KEY)")
    for die_at in range(1, STATEMENTS_MAX):
        name = f"o-{die_at}"
        child = os.fork()
        if not child:
            order(path, way, name, die_at)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        died = os.WIFSIGNALED(status)
        sys.stdout.write(json.dumps({"name": name, "died": died, "status": status, **found(path, name)}) + "\n")
        sys.stdout.flush()
        if not died:
            return
    raise SystemExit("it never came to the end of its transaction")


def found(path: str, name: str) -> dict[str, Any]:
    """What the file has about an order."""
    look = sqlite3.connect(path)

    def count(query: str) -> int:
        return int(look.execute(query, (name,)).fetchone()[0])

    answer = {
        "orders": count("SELECT count(*) FROM shop_order WHERE id = ?"),
        "messages": count("SELECT count(*) FROM onefold_message WHERE key = ?"),
        "waiting": count(
            "SELECT count(*) FROM onefold_waiting WHERE id IN (SELECT id FROM onefold_message WHERE key = ?)"
        ),
        "records": count("SELECT count(*) FROM onefold_record WHERE key = ?"),
        "groups": count("SELECT count(*) FROM onefold_group WHERE name = ?"),
        "history": count("SELECT count(*) FROM onefold_ledger WHERE key = ? AND event = 'sent'"),
    }
    look.close()
    return answer


if __name__ == "__main__":
    main()
