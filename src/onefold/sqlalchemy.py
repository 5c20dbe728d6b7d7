"""SQLAlchemy in a transactional job: a Session whose rows commit together with the record of the run.

    @app.job(orders, key="{id}", effect="transactional")
    def pay(order: dict, ctx: onefold.Context) -> None:
        with onefold.sqlalchemy.session(ctx) as session:
            session.get_one(Order, order["id"]).state = "paid"

To send in the transaction of your own Session you do not need this module: `job.send(..., connection=session)`.
Never here: connections of its own. Invariant: nothing that a Session does ends the run's transaction; its commit and
rollback act on a savepoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from onefold import extras
from onefold.engines.urls import driver_of
from onefold.runner.context import Context

with extras.needed("onefold.sqlalchemy", "sqlalchemy"):
    from sqlalchemy import Engine, create_engine
    from sqlalchemy.dialects import registry
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
    from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import NullPool

__all__ = ["session"]

_lent: Final[ContextVar[Any]] = ContextVar("onefold_lent")
_URLS: Final = {"sqlite3": "sqlite+onefold://", "psycopg": "postgresql+onefold://"}


@contextmanager
def session(ctx: Context, **options: Any) -> Iterator[Session]:
    """A Session of SQLAlchemy 2 in the run's transaction: its rows take effect if, and only if, the run completes.

    Args:
        ctx: the context of a job with `effect="transactional"`, on an engine in a file, or with records in PostgreSQL
            (psycopg).
        options: the options of the Session, for example `expire_on_commit=False`.

    What is not committed at the end of the block is committed then; if the block raises, it is rolled back. `commit`,
    `rollback` and `begin_nested` within the block act on savepoints.

    Raises:
        as `Context.connection`.
    """
    connection = ctx.connection
    token = _lent.set(connection)
    try:
        lent = _engine(str(driver_of(connection))).connect()
    finally:
        _lent.reset(token)
    with lent, lent.begin(), Session(lent, join_transaction_mode="create_savepoint", **options) as one:
        yield one
        one.commit()


@cache
def _engine(driver: str) -> Engine:
    return create_engine(_URLS[driver], creator=_lent.get, poolclass=NullPool)


class _Lent:
    """A dialect for a connection that the run owns: it is neither set up, nor committed, nor closed."""

    supports_statement_cache = True

    def on_connect(self) -> Any:
        """None, since the connection is not set up."""
        return None

    def do_begin(self, dbapi_connection: Any) -> None:
        """Do nothing, since the transaction has begun."""

    do_commit = do_rollback = do_close = do_terminate = do_begin


class SqliteLent(_Lent, SQLiteDialect_pysqlite):
    """The dialect for the engine's SQLite file."""

    supports_statement_cache = True


class PsycopgLent(_Lent, PGDialect_psycopg):
    """The dialect for the PostgreSQL database with the records."""

    supports_statement_cache = True


registry.register("sqlite.onefold", __name__, "SqliteLent")
registry.register("postgresql.onefold", __name__, "PsycopgLent")
