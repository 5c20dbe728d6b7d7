"""Running a task: the handler around its function, its database connections, and Django's ORM in a run's transaction.

Never here: sending, results of other tasks. Invariants: no handler gets a database connection that an earlier one left
broken; what the ORM writes within `orm` is committed with the record of the run, or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections

from onefold.django import contract, results
from onefold.django.contract import TaskContext
from onefold.django.declaring import Call, OnefoldTask, Stored
from onefold.django.settings import DjangoOptions
from onefold.engines.sqlite import callers
from onefold.engines.sqlite.file import inode
from onefold.engines.urls import driver_of
from onefold.runner.context import Context
from onefold.runner.hooks import Hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class OnefoldTaskContext(TaskContext):
    """What a task with `takes_context=True` gets: Django's context, and onefold's run.

    Attributes:
        run: idempotency key, fence, time left, `connection`, `retry`; see `onefold.Context`.
    """

    run: Context


class DjangoHooks(Hooks):
    """Closes database connections that are broken or too old, around each handler, as Django does around a request."""

    @contextmanager
    def around(self, ctx: Context) -> Iterator[None]:  # noqa: ARG002 - the same for every run
        """See `onefold.Hooks.around`."""
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()


def handler_of(alias: str, sender: type, task: OnefoldTask, options: DjangoOptions) -> Callable[..., Any]:
    """The handler of a task's jobs: it calls the task, and sends Django's signals before and after.

    Args:
        alias, sender: the backend's alias and class, for results and signals. task: the task to call.
        options: the backend's options.
    """
    transactional = task.effect == "transactional"

    def begun(call: Call, ctx: Context) -> tuple[Any, tuple[Any, ...]]:
        result = results.running(task, alias, call, ctx)
        contract.signals.task_started.send(sender=sender, task_result=result)
        first = (OnefoldTaskContext(task_result=result, run=ctx),) if task.takes_context else ()
        return result, (*first, *call.args)

    def ended(result: Any, call: Call, value: object) -> Stored:
        value = results.plain(value)
        results.finish(result, value)
        contract.signals.task_finished.send(sender=sender, task_result=result)
        return (
            Stored(value=value, args=call.args, kwargs=call.kwargs) if options.keep_arguments else Stored(value=value)
        )

    def plain(call: Call, ctx: Context) -> Any:
        result, args = begun(call, ctx)
        with orm(ctx, using=options.database) if transactional else nullcontext():
            value = task.func(*args, **call.kwargs)
        return ended(result, call, value)

    async def asynchronous(call: Call, ctx: Context) -> Any:
        result, args = begun(call, ctx)
        value = await task.func(*args, **call.kwargs)
        return ended(result, call, value)

    return asynchronous if inspect.iscoroutinefunction(task.func) else plain


@contextmanager
def orm(ctx: Context, *, using: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """Use Django's ORM in a run's transaction: what it writes takes effect if, and only if, the run completes.

    Tasks with `effect="transactional"` run within it. `transaction.atomic()` inside is a savepoint; `on_commit` is
    refused, since onefold commits. The transaction begins with the first query and can stay open for 1 second. SQLite
    does not check foreign keys in it.

    Args:
        ctx: the context of a job with `effect="transactional"` on the SQLite file of the database.
        using: alias of that database.

    Raises:
        ImproperlyConfigured: the database is not SQLite; or, at the first query, its file is not the engine's. That query
            also raises what `Context.connection` raises.
    """
    before: Any = connections[using]
    if before.vendor != "sqlite":
        raise ImproperlyConfigured(
            f"Database {using!r} is {before.vendor}: the ORM joins the transaction of a run on SQLite only."
            " Write through ctx.connection, or onefold.sqlalchemy.session(ctx)."
        )
    lent: Any = before.copy()

    def connect() -> None:
        opened = ctx.connection
        _check_file_of(opened, before)
        lent.connection = opened
        _add_functions(opened)

    def refuse(*_args: object, **_options: object) -> None:
        raise ImproperlyConfigured(
            "transaction.on_commit was used in a transactional task, which onefold commits. Enqueue another task, or send"
            " a job: it is sent when this one completes."
        )

    lent.connect, lent.on_commit, lent.onefold_run = connect, refuse, ctx
    lent.in_atomic_block, lent.autocommit = True, False
    connections[using] = lent
    try:
        yield
        if lent.needs_rollback:
            raise ImproperlyConfigured(
                "The task has marked its transaction for rollback and returned. Raise an exception instead."
            )
    finally:
        lent.connection = None
        connections[using] = before


def _check_file_of(opened: Any, database: Any) -> None:
    """Refuse a run's connection that does not lead to the SQLite file of Django's database."""
    file = callers.file_of(opened) if driver_of(opened) == "sqlite3" else "another database"
    name = str(database.settings_dict["NAME"])
    if file is None or inode(file) is None or inode(file) != inode(name):
        raise ImproperlyConfigured(
            f"Database {database.alias!r} is {name}, and the run's transaction is in {file or 'memory'}: the ORM cannot"
            " join it. Give the app the URL of that file, sqlite:///FILE?adopt=yes, or write through ctx.connection."
        )


def _add_functions(connection: Any) -> None:
    """Add the SQL functions that the ORM uses to onefold's connection, unless it has them."""
    if getattr(connection, "has_functions_of_django", False):
        return
    from django.db.backends.sqlite3 import _functions  # needed only if the ORM is used

    _functions.register(connection)
    connection.has_functions_of_django = True


def run_of(connection: object) -> Context | None:
    """The run whose transaction a database connection of Django takes part in; None for other connections."""
    found: Context | None = getattr(connection, "onefold_run", None)
    return found
