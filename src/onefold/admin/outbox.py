"""An app's outbox table: made, and looked at.

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
        url: of the database. version: of the tables. sql: the statements.
    """

    url: str
    version: int
    sql: str


def create(url: str, *, run: bool) -> Created:
    """Make the outbox tables that do not exist in a database.

    Args:
        run: False: only say the statements.

    Raises:
        UsageError: a URL of another kind. TransientError, StorageError: the database does not do it.
    """
    sql = outbox_sql(url)
    if run:
        table = open_outbox(url)
        try:
            table.create()
            _ = table.token  # of this version
        finally:
            table.close()
    return Created(url=redact.shown_url(url), version=VERSION, sql=sql)


class OutboxStatus(Struct, frozen=True, kw_only=True):
    """What waits in an app's outbox table.

    Args:
        url: of its database.
        waiting: messages. oldest_age_ms: of the oldest of them, since it was written; None where there is none.
        refused: messages that their queues refused, and that wait for a person.
        trouble: why it could not be looked at; None where it could.
    """

    url: str
    waiting: int = 0
    oldest_age_ms: int | None = None
    refused: int = 0
    trouble: str | None = None


def status_of(session: AdminSession) -> OutboxStatus | None:
    """The app's outbox now; None where it names none."""
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
        return OutboxStatus(url=url, trouble=error.what)
    return OutboxStatus(url=url, waiting=found.waiting, oldest_age_ms=found.oldest_age_ms, refused=found.refused)
