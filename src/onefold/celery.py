"""Tasks that a Celery program sends, as payloads of onefold's jobs: `source="celery"`.

Declare the job on the SQS queue to which Celery's `task_routes` sends the task, and nothing else:

    @app.job(app.queue("charges"), source="celery", key=lambda call: call.args[0])
    def charge(call: onefold.celery.TaskCall) -> None: ...

`runner/sources.py` opens the message. Never here: Celery itself, which this module does not import.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

__all__ = ["TaskCall"]


class TaskCall(Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a Celery task.

    The id that Celery gives to each message is not part of it, because a task that is sent twice has two ids: the job's key
    comes from the arguments.

    Args:
        task: the task's name, `shop.charge`. args, kwargs: its arguments, as JSON gives them.
    """

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
