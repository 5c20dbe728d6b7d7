"""What is happening and who did what: runs completed per minute, workers and what they run, changes made by people.

Never here: how much waits (`status.py`), one operation's story (`why.py`), output.
Invariants: only `drain` changes anything; the cost of a call is bounded, and an incomplete answer is marked as such.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from onefold import errors, limits
from onefold.admin.session import AdminSession
from onefold.contracts.ledger import Row
from onefold.runner import roster
from onefold.runner.roster import WorkerEntry

_MINUTES: Final = 30
_RUNNING_MAX: Final = 1_000  # records in progress that are read
_AUDIT_PAGE: Final = 1_000
_AUDIT_LOOKED_AT: Final = 20_000  # rows of the history that one call reads
_STRETCHES_MS: Final = (limits.HOUR_MS, limits.DAY_MS, 14 * limits.DAY_MS, 90 * limits.DAY_MS)


class JobRate(Struct, frozen=True, kw_only=True):
    """How many runs of a job completed in each of the last minutes, the latest last.

    Args:
        job: its name. queue: where its messages come from; None if its app is not known.
    """

    job: str
    queue: str | None
    per_minute: tuple[int, ...]


class RunningOperation(Struct, frozen=True, kw_only=True):
    """An operation that a process has claimed and not finished.

    Args:
        job, tenant, key: those of the operation. attempt: which attempt of its budget.
        started_at_ms: when its handler began; None if it has not.
        lease_until_ms: when the claim ends unless it is renewed.
    """

    job: str
    tenant: str
    key: str
    attempt: int
    started_at_ms: int | None
    lease_until_ms: int


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker process, or another one that has claimed something.

    Args:
        owner: its id. state: `working`; `idle`: it waits for messages; `draining`: it was asked to end; `silent`: a
            lease of it has ended, or it has not reported lately; `stopped`: a lease of it has ended and its process is
            known to be suspended, so that it keeps its operations; `ended`: the process is known to have ended.
        operations: what it has claimed, longest first.
        app, host, pid, queues, started_at_ms: those of a worker; None or empty if only its claims are known, as for a Lambda
            function or a call under `@once`. drain_by: the person who asked it to drain; empty if nobody has.
    """

    owner: str
    state: str
    operations: tuple[RunningOperation, ...]
    app: str | None = None
    host: str | None = None
    pid: int | None = None
    queues: tuple[str, ...] = ()
    started_at_ms: int | None = None
    drain_by: str = ""


class Workers(Struct, frozen=True, kw_only=True):
    """The workers, and whatever else has claimed something; `more`: there are more operations than were read."""

    workers: tuple[WorkerView, ...]
    more: bool


class Deed(Struct, frozen=True, kw_only=True):
    """Something that a person did.

    Args:
        at_ms, actor, event: when, who, what. job, tenant, key, queue, message_id, run: to what, if known.
        reason: the reason they gave; empty if none. detail: the numbers.
    """

    at_ms: int
    actor: str
    event: str
    job: str | None
    tenant: str | None
    key: str | None
    queue: str | None
    message_id: str | None
    run: str | None
    reason: str
    detail: dict[str, str | int | bool | None]


class Audit(Struct, frozen=True, kw_only=True):
    """What people did, the latest first.

    Args:
        deeds: at most the number asked for. since_ms: nothing before this instant was read.
    """

    deeds: tuple[Deed, ...]
    since_ms: int


def rates(session: AdminSession, minutes: int = _MINUTES) -> list[JobRate]:
    """Runs completed per minute over the last `minutes`, by job; jobs without any are left out.

    Empty for a store on a server, where each minute would be a request.
    """
    if session.engine.commit is None:
        return []
    now_ms = session.now_ms()
    first_ms = now_ms - now_ms % limits.MINUTE_MS - (minutes - 1) * limits.MINUTE_MS
    count = session.engine.records.count_completed
    pieces = [count(at_ms, at_ms + limits.MINUTE_MS) for at_ms in range(first_ms, now_ms + 1, limits.MINUTE_MS)]
    return [
        JobRate(job=name, queue=_queue_of(session, name), per_minute=tuple(piece.get(name, 0) for piece in pieces))
        for name in sorted({name for piece in pieces for name in piece})
    ]


def _queue_of(session: AdminSession, name: str) -> str | None:
    job = session.job(name)
    return job.policy.queue if job is not None else None


def workers(session: AdminSession) -> Workers:
    """The known workers, and what each process has claimed; at most 1,000 operations are read."""
    now_ms = session.now_ms()
    records = session.engine.records.scan(status="in_progress", limit=_RUNNING_MAX)
    known = {one.owner: one for one in roster.entries(session.engine.state)}
    dead = session.engine.dead({*known, *(record.owner for record in records)})
    found: dict[str, list[RunningOperation]] = {owner: [] for owner in known if owner not in dead}
    signs = {one.owner: "silent" for one in known.values() if now_ms - one.seen_at_ms > roster.SILENT_MS}
    for record in records:
        if record.owner in dead:
            signs[record.owner] = "ended"
        elif record.lease_until_ms <= now_ms and signs.get(record.owner) != "stopped":
            signs[record.owner] = "silent" if session.engine.stopped_process(record) is None else "stopped"
        found.setdefault(record.owner, []).append(
            RunningOperation(
                job=record.key.job,
                tenant=record.key.scope,
                key=record.key.key,
                attempt=record.attempts,
                started_at_ms=record.started_at_ms if record.started_fence == record.fence else None,
                lease_until_ms=record.lease_until_ms,
            )
        )
    views = [_view(owner, held, known.get(owner), signs.get(owner, ""), now_ms) for owner, held in found.items()]
    views.sort(key=lambda one: (one.started_at_ms or 0, one.owner))
    return Workers(workers=tuple(views), more=len(records) == _RUNNING_MAX)


def _view(owner: str, held: list[RunningOperation], entry: WorkerEntry | None, sign: str, now_ms: int) -> WorkerView:
    drain_by = entry.drain_by if entry is not None else ""
    state = sign or ("draining" if drain_by else "working" if held else "idle")
    operations = tuple(sorted(held, key=lambda one: one.started_at_ms or now_ms))
    if entry is None:
        return WorkerView(owner=owner, state=state, operations=operations)
    return WorkerView(
        owner=owner, state=state, operations=operations, app=entry.app, host=entry.host, pid=entry.pid,
        queues=entry.queues, started_at_ms=entry.started_at_ms, drain_by=drain_by,
    )  # fmt: skip


def drain(session: AdminSession, owner: str, *, reason_text: str | None = None) -> bool:
    """Ask a worker to finish what it runs and end; False if it was asked already. Its supervisor may start another.

    Raises:
        NotFoundError: the worker does not exist. ConflictError: its process has ended. TransientError: try again.
    """
    if session.engine.dead([owner]):
        raise errors.ConflictError(
            f"The process of worker {owner:.100} has ended.",
            meaning="There is nothing to drain. Nothing was changed.",
            todo="A worker on its machine frees what it had claimed.",
        )
    _, asked = roster.ask_to_drain(session.engine.state, owner, session.actor, session.now_ms())
    if asked:
        session.record("drain-asked", owner=owner, reason_text=reason_text)
    return asked


def audit(session: AdminSession, limit: int = 200) -> Audit:
    """What people did, the latest first; at most `limit`, from about the latest 20,000 rows of the history."""
    now_ms, looked_at = session.now_ms(), 0
    until_ms, deeds = now_ms + 1, list[Deed]()
    for stretch_ms in _STRETCHES_MS:
        since_ms = now_ms - stretch_ms
        rows = _between(session, since_ms, until_ms, _AUDIT_LOOKED_AT - looked_at)
        looked_at += len(rows)
        deeds += [_deed(row) for row in reversed(rows) if row.actor is not None and row.actor.startswith("person:")]
        until_ms = since_ms
        if len(deeds) >= limit or looked_at >= _AUDIT_LOOKED_AT:
            break
    return Audit(deeds=tuple(deeds[:limit]), since_ms=until_ms)


def _between(session: AdminSession, from_ms: int, to_ms: int, rows_max: int) -> list[Row]:
    """The latest rows of a stretch of time, at most about `rows_max`, oldest first."""
    while True:
        rows = session.engine.ledger.between(from_ms, to_ms, rows_max + 1)
        if len(rows) <= rows_max or to_ms - from_ms <= _AUDIT_PAGE:
            return rows
        from_ms = (from_ms + to_ms) // 2


def _deed(row: Row) -> Deed:
    detail = dict(row.detail)
    reason = detail.pop("reason_text", None)
    return Deed(
        at_ms=row.at_ms,
        actor=row.actor or "",
        event=row.event,
        job=row.key.job if row.key is not None else None,
        tenant=row.key.scope if row.key is not None else None,
        key=row.key.key if row.key is not None else None,
        queue=row.queue,
        message_id=row.message_id,
        run=row.run,
        reason=str(reason or ""),
        detail=detail,
    )
