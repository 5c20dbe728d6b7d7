"""Finds the driver's connection in what a program passes to `send`, so that a message is part of its transaction.

A program passes what it has: a connection of the database's driver, or an object of its framework that leads to one.
Never here: SQL. Invariant: nothing is sent through a connection whose transaction cannot be found, or is known to be lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

from onefold import errors
from onefold.engines.urls import driver_of
from onefold.interrupts import let_through

# Tried in this order. SQLAlchemy's Session has `connection()`, its Connection `connection`, and that one's value
# `driver_connection`; its AsyncSession has `connection()` and its AsyncConnection `get_raw_connection()`, both to be
# awaited. Django's connection has `connection` once it is open.
_LEADS: Final = ("driver_connection", "get_raw_connection", "connection")
_STEPS_MAX: Final = 5
_ASYNCHRONOUS: Final = ("psycopg-async", "asyncpg")


def driver_connection(given: object) -> object:
    """The connection of the database's driver that an object leads to.

    Args:
        given: a connection of `sqlite3` or psycopg; Django's `connection`; SQLAlchemy's Session or Connection; or any object
            with an attribute or a method without arguments, `connection` or `driver_connection`, that leads to one.

    Raises:
        UsageError: it leads to no connection or to an asynchronous one, or its transaction is lost already.
    """
    one = given
    for _ in range(_STEPS_MAX):
        if driver_of(one) is not None:
            break
        if getattr(one, "needs_rollback", False):
            raise errors.UsageError(
                "The transaction on this connection has failed and can only be rolled back (needs_rollback).",
                meaning="Nothing was sent: it would have been rolled back too.",
                todo="Leave the atomic() block that failed, then send in a new one.",
            )
        if _is_of_sqlalchemy(one) and not one.in_transaction():
            with _translated(one):
                one.begin()  # as its execute() would; otherwise its commit() commits nothing
        one = _next(one)
        if inspect.iscoroutine(one):
            one.close()
            raise _to_be_awaited(given)
    driver = driver_of(one)
    if driver in _ASYNCHRONOUS:
        raise _to_be_awaited(given)
    if driver is not None:
        return one
    raise errors.UsageError(
        f"connection= is a {_kind_of(given)}, which leads to no connection that onefold knows.",
        meaning="Nothing was sent.",
        todo="Pass a sqlite3 or psycopg connection, Django's connection, or a SQLAlchemy Session or Connection.",
    )


async def async_driver_connection(given: object) -> object:
    """The asynchronous connection of the database's driver that an object leads to.

    Args:
        given: a `psycopg.AsyncConnection` or a connection of asyncpg; SQLAlchemy's AsyncSession or AsyncConnection on one;
            or any object with an attribute or a method without arguments, `driver_connection`, `get_raw_connection` or
            `connection`, that leads to one. Results that must be awaited are awaited.

    Raises:
        UsageError: it leads to no connection or to one that blocks, or its transaction is lost already.
    """
    one = given
    for _ in range(_STEPS_MAX):
        if driver_of(one) is not None:
            break
        before, one = one, _next(one)
        if inspect.isawaitable(one):
            with _translated(before):
                one = await one
                if _is_of_sqlalchemy(before) and not _has_begun(before, one):
                    await before.exec_driver_sql("SELECT 1")  # a transaction begins only when something is executed
    if driver_of(one) in _ASYNCHRONOUS:
        return one
    raise errors.UsageError(
        f"connection= is a {_kind_of(given)}, which leads to no asynchronous connection.",
        meaning="Every use of a connection that is not asynchronous stops the loop. Nothing was sent.",
        todo="Pass a connection of asyncpg, a psycopg.AsyncConnection, or SQLAlchemy's AsyncSession on one of them; with a"
        " connection that blocks, use send.",
    )


def _next(one: object) -> object:
    with _translated(one):
        if callable(ensure := getattr(one, "ensure_connection", None)):
            ensure()
        for name in _LEADS:
            found = getattr(one, name, None)
            if found is not None:
                return found() if callable(found) and driver_of(found) is None else found
    return None


def _is_of_sqlalchemy(one: object) -> TypeGuard[Any]:
    """Whether an object is SQLAlchemy's Connection or AsyncConnection."""
    return hasattr(one, "exec_driver_sql")


def _has_begun(connection: Any, raw: Any) -> bool:
    """Whether an AsyncConnection's transaction is open, for SQLAlchemy and on the server."""
    driver = raw.driver_connection
    return bool(connection.in_transaction() and (driver_of(driver) != "asyncpg" or driver.is_in_transaction()))


@contextmanager
def _translated(one: object) -> Iterator[None]:
    try:
        yield
    except errors.OnefoldError:
        raise
    except Exception as error:
        let_through(error)
        raise errors.UsageError(
            f"{type(one).__name__} gives no connection: {type(error).__name__}: {error}",
            meaning="Its transaction has ended or was rolled back. Nothing was sent.",
            todo="Send inside a transaction that is still open.",
        ) from error


def _to_be_awaited(given: object) -> errors.UsageError:
    return errors.UsageError(
        f"connection= is a {_kind_of(given)}, whose calls must be awaited; send cannot do that.",
        meaning="Nothing was sent.",
        todo="Write: await job.asend(..., connection=connection)",
    )


def _kind_of(given: object) -> str:
    kind = type(given)
    return f"{kind.__module__}.{kind.__qualname__}"
