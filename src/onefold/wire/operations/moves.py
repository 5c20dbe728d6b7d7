"""Message move tasks: StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask.

The engine carries a task forward in its upkeep; a task handle on the wire names the engine's task and its source.
Never here: moving. Invariant: a handle is shown while its task runs, and only then.

Sources: SQS API reference, the operation of the function's name; errors as recorded from AWS.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold import errors as ours
from onefold import limits
from onefold.contracts.admin import MoveTask
from onefold.wire import errors
from onefold.wire.desk import Caller, Desk

LIST_MAX: Final = 10  # SQS ListMessageMoveTasks, MaxResults: 1 to 10, default 1


class _Handle(Struct, frozen=True, rename="camel"):
    """What a task handle is the base64 of, as JSON. AWS's has this form, and clients read it."""

    task_id: str
    source_arn: str


async def start_message_move_task(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """StartMessageMoveTask."""
    source = _queue(desk, ask.SourceArn, "SourceArn")
    target = None if ask.DestinationArn is None else _queue(desk, ask.DestinationArn, "DestinationArn")
    rate = ask.MaxNumberOfMessagesPerSecond
    if rate is not None and not 1 <= rate <= limits.MOVE_PER_SECOND_MAX:
        reason = f"Must be between 1 and {limits.MOVE_PER_SECOND_MAX}, if provided."
        raise errors.invalid_value(rate, "MaxNumberOfMessagesPerSecond", reason)
    admin = desk.queues.engine.queues
    try:
        task = await desk.queues.call(lambda: admin.start_move(source, target, rate))
    except ours.NotFoundError:
        raise
    except ours.UsageError as error:
        raise errors.invalid_parameter_value(error.what) from error
    desk.queues.hurry()
    return {"TaskHandle": _handle(desk, task)}


def _queue(desk: Desk, arn: str, parameter: str) -> str:
    name = desk.addresses.name_of_arn(arn)
    try:
        if name is not None:
            return desk.queues.engine.queues.setting(name).name
    except ours.NotFoundError:
        pass
    if not arn.startswith("arn:"):
        raise errors.invalid_parameter_value("You must use this format to specify the SourceArn: arn:aws:sqs:...")
    raise errors.resource_not_found(f"The resource that you specified for the {parameter} parameter doesn't exist.")


def _handle(desk: Desk, task: MoveTask) -> str:
    handle = _Handle(_uuid(task.handle), desk.addresses.arn(task.source))
    return b64encode(msgspec.json.encode(handle)).decode()


def _uuid(handle: str) -> str:
    """The engine's handle, 16 hexadecimal digits, in the form of AWS's task ids."""
    return f"{handle[:8]}-{handle[8:12]}-4000-8{handle[12:15]}-{handle[15:]:0<12}"


def _handle_of(uuid: str) -> str:
    parts = uuid.split("-")
    handle = parts[0] + parts[1] + parts[3][1:] + parts[4][:1] if len(parts) == 5 else ""
    return handle if _uuid(handle) == uuid else ""


async def list_message_move_tasks(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """ListMessageMoveTasks."""
    source = _queue(desk, ask.SourceArn, "SourceArn")
    count_max = 1 if ask.MaxResults is None else ask.MaxResults
    if not 1 <= count_max <= LIST_MAX:
        raise errors.invalid_value(count_max, "MaxResults", f"Must be between 1 and {LIST_MAX}, if provided.")
    admin = desk.queues.engine.queues
    tasks = await desk.queues.call(lambda: admin.moves(source), synced=False)
    return {"Results": [_shown(desk, task) for task in tasks[:count_max]]} if tasks else {}


def _shown(desk: Desk, task: MoveTask) -> dict[str, Any]:
    found: dict[str, Any] = {
        "Status": task.status,
        "SourceArn": desk.addresses.arn(task.source),
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_at_ms,
    }
    if task.status == "RUNNING":
        found["TaskHandle"] = _handle(desk, task)
    if task.to is not None:
        found["DestinationArn"] = desk.addresses.arn(task.to)
    if task.per_second_max is not None:
        found["MaxNumberOfMessagesPerSecond"] = task.per_second_max
    if task.failure is not None:
        found["FailureReason"] = task.failure
    return found


async def cancel_message_move_task(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """CancelMessageMoveTask."""
    try:
        given = msgspec.json.decode(b64decode(ask.TaskHandle, validate=True), type=_Handle)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise errors.invalid_parameter_value("Value for parameter TaskHandle is invalid.") from None
    _queue(desk, given.source_arn, "SourceArn")
    handle = _handle_of(given.task_id)
    admin = desk.queues.engine.queues
    try:
        task = await desk.queues.call(lambda: admin.cancel_move(handle))
    except ours.NotFoundError as error:
        raise errors.resource_not_found("Task does not exist.") from error
    except ours.UsageError as error:
        raise errors.invalid_parameter_value("Only active tasks can be cancelled.") from error
    return {"ApproximateNumberOfMessagesMoved": task.moved}
