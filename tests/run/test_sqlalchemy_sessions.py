"""A Session of SQLAlchemy in the transaction of a run: rows that stay, savepoints, and runs that fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

import onefold
import onefold.sqlalchemy
from onefold import errors
from onefold.options import WorkerSettings
from onefold.runner import worker_setup


def write(ctx: Any, name: str) -> None:
    """Rows that stay: `name`, its `part` and its `last`."""

    def put(session: Any, row: str) -> None:
        session.execute(text("INSERT INTO booking (text) VALUES (:text)"), {"text": row})

    with onefold.sqlalchemy.session(ctx) as session:
        put(session, name)
        with session.begin_nested():
            put(session, f"{name}-part")
        with pytest.raises(IntegrityError), session.begin_nested():
            put(session, name)
        session.commit()
        put(session, f"{name}-gone")
        session.rollback()
        put(session, f"{name}-last")
    with suppress(KeyError), onefold.sqlalchemy.session(ctx) as session:
        put(session, f"{name}-raised")
        raise KeyError


@pytest.fixture
def app(tmp_path: Path) -> Iterator[onefold.App]:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db")
    yield app
    app.close()


def test_its_rows_are_there_if_the_run_completes(app: onefold.App) -> None:
    @app.job(app.queue("work"), key="{id}", effect="transactional", retry=onefold.Retry(attempts=1))
    def book(order: dict[str, Any], ctx: onefold.Context) -> None:
        ctx.connection.execute("CREATE TABLE IF NOT EXISTS booking (text TEXT PRIMARY KEY)")
        write(ctx, order["id"])
        if order["id"] == "c":
            raise onefold.PermanentError("no", todo="none")

    book.send_many([{"id": one} for one in "abc"])
    worker = worker_setup.make_worker(
        app.runtime(),
        app.jobs,
        app.registry.job_of,
        settings=WorkerSettings(until_empty=True),
        history="full",
        sinks=[],
    )
    assert worker.run().code == 0
    assert [book.look(one).state for one in "abc"] == ["done", "done", "dead"]
    rows = cast("Any", app.runtime().engine).database.read(
        lambda link: link.execute("SELECT text FROM booking ORDER BY text").fetchall()
    )
    assert [one for (one,) in rows] == ["a", "a-last", "a-part", "b", "b-last", "b-part"]


def test_a_job_that_is_not_transactional_has_none(app: onefold.App) -> None:
    @app.job(app.queue("work"), key="{id}")
    def book(order: dict[str, Any], ctx: onefold.Context) -> None:
        with onefold.sqlalchemy.session(ctx):
            pass

    context = onefold.Context.__new__(onefold.Context)
    context._effects, context.job = None, "book"
    with pytest.raises(errors.UsageError, match="not transactional"):
        book({"id": "a"}, context)
