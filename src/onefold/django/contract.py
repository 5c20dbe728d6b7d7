"""Django's own names for tasks, from Django 6 or the package `django-tasks`; no other module knows which of the two.

Never here: anything of onefold's. Invariant: all names come from the same one of the two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured


def _package() -> str:
    for name in ("django.tasks", "django_tasks"):
        try:
            import_module(f"{name}.base")
        except ModuleNotFoundError:
            continue
        return name
    raise ImproperlyConfigured(
        "onefold.django needs tasks, which this Django does not have. Use Django 6, or: pip install django-tasks"
    )


PACKAGE: str = _package()
"""`django.tasks` or `django_tasks`."""

if TYPE_CHECKING:
    from django_tasks.backends.base import BaseTaskBackend as BaseTaskBackend
    from django_tasks.base import Task as Task
    from django_tasks.base import TaskContext as TaskContext
    from django_tasks.base import TaskError as TaskError
    from django_tasks.base import TaskResult as TaskResult
    from django_tasks.base import TaskResultStatus as TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError
    from django_tasks.exceptions import TaskResultDoesNotExist as TaskResultDoesNotExist

    InvalidTask = InvalidTaskError
else:
    BaseTaskBackend = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
    _base, _exceptions = import_module(f"{PACKAGE}.base"), import_module(f"{PACKAGE}.exceptions")
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
    TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist

signals: Any = import_module(f"{PACKAGE}.signals")


def backends() -> dict[str, BaseTaskBackend]:
    """The backends of the setting TASKS, by alias."""
    handler: Any = import_module(PACKAGE).task_backends
    return {alias: handler[alias] for alias in handler}
