"""The connection that a program passes to `send`, so that a message is part of its transaction.

It passes what it has: a connection of the database's driver, or an object of its framework that leads to one.
Never here: SQL. Invariant: nothing is sent through a connection whose transaction cannot be found, or is known to be lost.
"""

from __future__ import annotations

import inspect
from typing import Final

from onefold import errors
from onefold.engines.urls import driver_of

# In this order: SQLAlchemy's Session has `connection()`, its Connection `connection`, what that gives `driver_connection`;
# its AsyncSession has `connection()` and its AsyncConnection `get_raw_connection()`, both to be awaited;
# Django's connection has `connection` once it is open.
_LEADS: Final = ("driver_connection", "get_raw_connection", "connection")
_STEPS_MAX: Final = 5


def driver_connection(given: object) -> object:
    """The connection of the database's driver that an object leads to.

    Args:
        given: a connection of `sqlite3` or psycopg; Django's `connection`; SQLAlchemy's Session or Connection; or any object
            with an attribute or a method without arguments, `connection` or `driver_connection`, that leads to one.

    Raises:
        UsageError: it leads to none, or its transaction is lost already.
    """
    one = given
    for _ in range(_STEPS_MAX):
        if driver_of(one) is not None:
            return one
        if getattr(one, "needs_rollback", False):
            raise errors.UsageError(
                "The transaction on this connection has failed and can only be rolled back (needs_rollback).",
                meaning="Nothing was sent: it would have been rolled back too.",
                todo="Leave the atomic() block that failed, then send in a new one.",
            )
        one = _next(one)
    kind = type(given)
    raise errors.UsageError(
        f"connection= is a {kind.__module__}.{kind.__qualname__}, which leads to no connection that onefold knows.",
        meaning="Nothing was sent.",
        todo="Pass a sqlite3 or psycopg connection, Django's connection, or a SQLAlchemy Session or Connection.",
    )


async def async_driver_connection(given: object) -> object:
    """The asynchronous connection of the database's driver that an object leads to.

    Args:
        given: a `psycopg.AsyncConnection`; SQLAlchemy's AsyncSession or AsyncConnection; or any object with an attribute or
            a method without arguments, `driver_connection`, `get_raw_connection` or `connection`, that leads to one; what
            is to be awaited is.

    Raises:
        UsageError: it leads to none, or to one that blocks, or its transaction is lost already.
    """
    one = given
    for _ in range(_STEPS_MAX):
        if driver_of(one) is not None:
            break
        one = _next(one)
        if inspect.isawaitable(one):
            one = await one
    if type(one).__name__ == "AsyncConnection":
        return one
    kind = type(given)
    raise errors.UsageError(
        f"connection= is a {kind.__module__}.{kind.__qualname__}, which leads to no asynchronous connection.",
        meaning="Every use of a connection that is not asynchronous stops the loop. Nothing was sent.",
        todo="Pass a psycopg.AsyncConnection, or SQLAlchemy's AsyncSession; with a connection that blocks, use send.",
    )


def _next(one: object) -> object:
    if callable(ensure := getattr(one, "ensure_connection", None)):
        ensure()
    for name in _LEADS:
        try:
            found = getattr(one, name, None)
            if found is not None:
                return found() if callable(found) and driver_of(found) is None else found
        except Exception as error:
            raise errors.UsageError(
                f"{type(one).__name__} gives no connection: {type(error).__name__}: {error}",
                meaning="Its transaction is over, or was rolled back. Nothing was sent.",
                todo="Send inside a transaction that is still open.",
            ) from error
    return None
