"""An app's outbox table: creating it, and reading its state.

Never here: passing its messages on (`runtime/relay.py`). Invariant: reading changes nothing.
"""

from __future__ import annotations

from msgspec import Struct

from onefold import errors, redact
from onefold.admin.session import AdminSession
from onefold.contracts.outbox import VERSION, Backlog
from onefold.engines.urls import open_outbox, outbox_sql


class Created(Struct, frozen=True, kw_only=True):
    """What `create` did.

    Args:
        url: the database's URL. version: the version of its tables. sql: the statements.
    """

    url: str
    version: int
    sql: str


def create(url: str, *, run: bool) -> Created:
    """Make the outbox tables that do not exist in a database.

    Args:
        run: False: only return the statements.

    Raises:
        UsageError: this kind of URL has no outbox. TransientError, StorageError: the database refuses or cannot be reached.
    """
    sql = outbox_sql(url)
    if run:
        table = open_outbox(url)
        try:
            table.create()
            _ = table.token  # reading it raises if the tables are of another version
        finally:
            table.close()
    return Created(url=redact.database_of(url), version=VERSION, sql=sql)


class OutboxStatus(Struct, frozen=True, kw_only=True):
    """What waits in an app's outbox table.

    Args:
        url: the URL of its database.
        waiting: how many messages wait. oldest_age_ms: the age of the oldest of them; None if there is none.
        refused: how many messages their queues refused; these wait for a person.
        trouble: why it could not be read; None if it could. todo: what to do about that.
    """

    url: str
    waiting: int = 0
    oldest_age_ms: int | None = None
    refused: int = 0
    trouble: str | None = None
    todo: str | None = None


def status_of(session: AdminSession) -> OutboxStatus | None:
    """The state of the app's outbox; None if the app has none."""
    jobs = session.jobs
    if jobs is None or jobs.outbox is None:
        return None
    url = redact.shown_url(jobs.outbox)
    try:
        table = open_outbox(jobs.outbox)
        try:
            found: Backlog = table.backlog(jobs.app)
        finally:
            table.close()
    except errors.OnefoldError as error:
        return OutboxStatus(url=url, trouble=error.what, todo=error.todo)
    return OutboxStatus(
        url=redact.database_of(jobs.outbox),
        waiting=found.waiting,
        oldest_age_ms=found.oldest_age_ms,
        refused=found.refused,
    )
