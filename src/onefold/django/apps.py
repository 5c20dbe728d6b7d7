"""The Django application: finds the project's tasks, opens the engine before a transaction needs it, adds checks.

Never here: how a task becomes a job (`backend.py`). Invariant: nothing is opened before the project opens a connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import AppConfig, apps
from django.core import checks
from django.db.backends.signals import connection_created
from django.utils.module_loading import autodiscover_modules


class OnefoldConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """In INSTALLED_APPS: `onefold.django`."""

    name = "onefold.django"
    label = "onefold"
    verbose_name = "onefold"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import `tasks` of each installed app, and the modules that `modules` names."""
        from onefold.django import contract  # only when applications are loaded
        from onefold.django.backend import OnefoldBackend
        from onefold.django.settings import options_of

        autodiscover_modules("tasks")
        for one in contract.backends().values():
            if isinstance(one, OnefoldBackend):
                for module in options_of(one.options).modules:
                    __import__(module)
        if contract.PACKAGE == "django_tasks" and not apps.is_installed("django_tasks"):
            checks.register(check)
        connection_created.connect(open_engine, dispatch_uid="onefold")


def check(**options: Any) -> Iterable[checks.CheckMessage]:
    """The checks of all backends, if Django does not run them itself."""
    from onefold.django import contract

    for one in contract.backends().values():
        yield from one.check(**options)


def open_engine(connection: Any, **_options: Any) -> None:
    """Open a backend's engine when its database is opened, since queues cannot be created inside a transaction."""
    from onefold.django.backend import open_with

    open_with(connection)
