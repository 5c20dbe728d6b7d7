"""Refuses transactional handlers that cannot work with the store that keeps a stack's records.

A transactional handler writes its rows in the transaction of its record: in PostgreSQL through `ctx.connection`, in a
DynamoDB table through `ctx.transact`; Redis has neither. The handler's code shows which of the two it uses.
Never here: running a handler. Invariant: a handler that is refused would have failed at its first message.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType
from typing import Any

from onefold import errors
from onefold.runner.handlers import Job, positional_names


def check_effects(jobs: Sequence[Job[Any, Any]], records: str | None) -> None:
    """Refuse jobs whose transactional handlers cannot work on AWS.

    Args:
        records: URL of the store in which the functions keep their records; None for a table of the stack.

    Raises:
        UsageError: a handler uses `ctx.connection` with a table, or the records are in Redis.
    """
    for job in jobs:
        if job.policy.effect != "transactional":
            continue
        if records is not None and records.startswith("redis"):
            raise errors.UsageError(
                f"Job {job.name} has effect='transactional', and the records of the stack are in Redis.",
                meaning="Redis has no transaction with rows of yours: its first message would fail.",
                todo="Keep the records in PostgreSQL (--records postgresql://...) or in a table, or declare another effect.",
            )
        if records is None and "connection" in asked_of_context(job):
            raise errors.UsageError(
                f"The handler of {job.name} writes through ctx.connection, and the records of the stack are in DynamoDB.",
                meaning="A table has no connection: its first message would fail. It works in a file and on PostgreSQL.",
                todo="Write its items with ctx.transact(...), or keep the records in PostgreSQL: --records postgresql://...",
            )


def asked_of_context(job: Job[Any, Any]) -> set[str]:
    """The attributes that a handler reads from its context, as far as its own code shows."""
    code = getattr(job.handler, "__code__", None)
    names = positional_names(job.handler)
    return _attributes(code, names[1]) if isinstance(code, CodeType) and len(names) >= 2 else set()


def _attributes(code: CodeType, name: str) -> set[str]:
    found, before = set(), None
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and before == name:
            found.add(str(one.argval))
        before = one.argval if one.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else None
        if isinstance(before, tuple):  # a pair, since Python 3.13
            before = before[-1]
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in inner.co_freevars:
            found |= _attributes(inner, name)
    return found
