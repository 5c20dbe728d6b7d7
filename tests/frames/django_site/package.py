"""Django's names for tasks: those of Django 6, or of the package for Django 5.2."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import django

PACKAGE = "django.tasks" if django.VERSION >= (6,) else "django_tasks"

if TYPE_CHECKING:
    from django_tasks import task as task  # noqa: PLC0414 - for the others
    from django_tasks import task_backends as task_backends  # noqa: PLC0414 - the same
else:
    task, task_backends = import_module(PACKAGE).task, import_module(PACKAGE).task_backends

exceptions: Any = import_module(f"{PACKAGE}.exceptions")
TaskException: type[Exception] = exceptions.TaskException


def task_enqueued() -> Any:
    """The signal; its module may be imported once applications are loaded."""
    return import_module(f"{PACKAGE}.signals").task_enqueued
