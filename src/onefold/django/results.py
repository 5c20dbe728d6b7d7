"""What is known of a task, as Django's TaskResult: how onefold's states map to Django's four.

    waiting -> READY      running -> RUNNING      done -> SUCCESSFUL      dead -> FAILED
    held, whose outcome a person decides -> RUNNING, with an error that says so

Never here: sending. Invariant: a result is SUCCESSFUL or FAILED only if no part of it runs again unless a person acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.conf import settings as django_settings
from django.utils import timezone

from onefold import errors
from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import Row
from onefold.contracts.queue import JOB_ATTRIBUTE
from onefold.contracts.store import Record, RecordKey
from onefold.django.contract import (
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from onefold.django.declaring import Call, OnefoldTask, Stored, TaskJobs, id_of
from onefold.engines.urls import open_outbox
from onefold.runner.context import Context
from onefold.runner.handlers import Job
from onefold.runner.lookup import Known
from onefold.runtime import outbox
from onefold.runtime.runtime import Runtime

_STATUS: Final = {"waiting": "READY", "running": "RUNNING", "held": "RUNNING", "done": "SUCCESSFUL", "dead": "FAILED"}
_FAILURES: Final = frozenset(
    {"retry", "dead-letter", "quarantine", "conflict", "malformed", "unknown", "held", "failed"}
)
_LOOKED_AT: Final = 1_000
_HELD: Final = "onefold.errors.OutcomeUnknown"


def plain(value: object) -> Any:
    """Convert a value to JSON's types, which Django requires of arguments and results.

    Raises:
        TypeError: the value cannot be written as JSON.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {plain(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON, as arguments and results of tasks must be.")


def fresh(task: Task[..., Any], alias: str, result_id: str, call: Call) -> TaskResult[Any]:
    """The result of a task that has just been enqueued."""
    return _made(task, alias, result_id, call, "READY", enqueued_at=timezone.now())


def running(task: OnefoldTask, alias: str, call: Call, ctx: Context) -> TaskResult[Any]:
    """The result of a task that is about to run."""
    now = timezone.now()
    message = ctx.message
    return _made(
        task, alias, id_of(ctx.job, call.id), call, "RUNNING",
        enqueued_at=None if message is None else at(message.accepted_at_ms or message.sent_at_ms),
        started_at=now, last_attempted_at=now, worker_ids=[ctx.hold.owner] * ctx.attempt,
    )  # fmt: skip


def finish(result: Any, value: object) -> None:
    """Turn the result of a running task into that of a successful one, in place."""
    for name, one in (
        ("status", TaskResultStatus.SUCCESSFUL),
        ("finished_at", timezone.now()),
        ("_return_value", value),
    ):
        object.__setattr__(result, name, one)


def _made(
    task: Task[..., Any], alias: str, result_id: str, call: Call | Stored, status: str, **more: Any
) -> TaskResult[Any]:
    values: dict[str, Any] = {
        "enqueued_at": None, "started_at": None, "finished_at": None, "last_attempted_at": None, "errors": [],
        "worker_ids": [], **more,
    }  # fmt: skip
    return TaskResult(
        task=task, id=result_id, status=TaskResultStatus(status), args=list(call.args), kwargs=dict(call.kwargs),
        backend=alias, **values,
    )  # fmt: skip


def at(ms: int | None) -> datetime | None:
    """An instant as a datetime, aware or naive as the setting USE_TZ requires."""
    if ms is None:
        return None
    found = datetime.fromtimestamp(ms / 1000, tz=UTC)
    return found if django_settings.USE_TZ else timezone.make_naive(found)


# -- looking up ------------------------------------------------------------------------------------------------------


def look(jobs: TaskJobs, alias: str, result_id: str) -> TaskResult[Any]:
    """The result with an id.

    Raises:
        TaskResultDoesNotExist: no known task has the id, or nothing is known of the call.
    """
    named = jobs.place_of(result_id)
    if named is None:
        raise TaskResultDoesNotExist(result_id)
    place, key = named
    task = place.task if place.queue == place.task.queue_name else place.task.using(queue_name=place.queue)
    job = jobs.job_of(task)
    runtime = jobs.app.runtime()
    record_key = RecordKey("", job.name, key)
    known = job.look(key)
    (record,) = runtime.engine.store.read([record_key], runtime.steady.now_ms())
    messages = _messages(runtime, job, key)
    if known.state == "absent":
        coming = _in_outbox(jobs, job, key)
        if coming is None:
            raise TaskResultDoesNotExist(result_id)
        return _made(task, alias, result_id, coming, "READY")
    stored = _stored(record)
    call = next((found for each in messages if (found := _call(each)) is not None), Call(id=key))
    sent_at_ms = min((one.sent_at_ms for one in messages), default=None)
    ended = known.state in ("done", "dead")
    result = _made(
        task, alias, result_id, stored or call, _STATUS[known.state],
        enqueued_at=at(record.sent_at_ms if record is not None and record.sent_at_ms is not None else sent_at_ms),
        errors=_errors(runtime.engine.ledger.of_key(record_key, _LOOKED_AT), known),
        **({} if record is None else _times(record, ended=ended)),
    )  # fmt: skip
    if stored is not None:
        object.__setattr__(result, "_return_value", stored.value)
    return result


def _times(record: Record, *, ended: bool) -> dict[str, Any]:
    return {
        "started_at": at(record.started_at_ms),
        "last_attempted_at": at(record.started_at_ms),
        "finished_at": at(record.updated_at_ms) if ended else None,
        "worker_ids": [record.owner] * record.attempts,
    }


def _stored(record: Record | None) -> Stored | None:
    if record is None or record.result is None or record.status != "completed":
        return None
    try:
        return msgspec.json.decode(record.result, type=Stored)
    except msgspec.MsgspecError:  # a person settled it with a value of another form
        return Stored(value=msgspec.json.decode(record.result))


def _messages(runtime: Runtime, job: Job[Any, Any], key: str) -> list[Peeked]:
    """The operation's messages; none if the queues cannot be searched (SQS)."""
    if runtime.engine.commit is None:
        return []
    found = runtime.engine.queues.find_key(key, _LOOKED_AT)
    return [one for one in found if str(getattr(one.attributes.get(JOB_ATTRIBUTE), "value", "")) == job.name]


def _call(message: Peeked) -> Call | None:
    try:
        return msgspec.json.decode(message.body, type=Call)
    except msgspec.MsgspecError:
        return None


def _in_outbox(jobs: TaskJobs, job: Job[Call, Any], key: str) -> Call | None:
    """The call whose message waits in the app's outbox; None if there is none."""
    if jobs.app.outbox is None:
        return None
    table = open_outbox(jobs.app.outbox)
    try:
        for row in table.waiting(jobs.app.name, [job.policy.queue], _LOOKED_AT):
            waiting = outbox.read(row, 0)  # its times do not matter here
            if (waiting.record.job, waiting.record.key) == (job.name, key):
                return msgspec.json.decode(waiting.entry.body, type=Call)
    finally:
        table.close()
    return None


def _errors(rows: Sequence[Row], known: Known[Any]) -> list[TaskError]:
    """The failures of the task, oldest first; last, if its outcome is held, that a person must decide."""
    found = [
        TaskError(exception_class_path=_path(str(row.detail["error"])), traceback=_text(row))
        for row in rows
        if row.event in _FAILURES and row.detail.get("error")
    ]
    if not found and known.why is not None and known.state != "done":
        name, _, _ = known.why.partition(":")
        found.append(TaskError(exception_class_path=_path(name), traceback=known.why))
    if known.state == "held":
        text = f"The outcome of {known.job} {known.key!r} is not known, and a person decides: onefold held settle"
        found.append(TaskError(exception_class_path=_HELD, traceback=text))
    return found


def _path(name: str) -> str:
    if "." in name:
        return name
    return f"{'onefold.errors' if hasattr(errors, name) else 'builtins'}.{name}"


def _text(row: Row) -> str:
    trace, summary = row.detail.get("trace"), row.detail.get("summary")
    return str(trace or f"{row.detail['error']}: {summary or ''}")
