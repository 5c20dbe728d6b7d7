"""Django: a backend for `django.tasks`, `manage.py onefold_worker`, and the ORM in the transaction of a run.

    INSTALLED_APPS = [..., "onefold.django"]
    TASKS = {"default": {"BACKEND": "onefold.django.OnefoldBackend", "OPTIONS": {"adopt": True}}}

For Django 6, or Django 5.2 with the package `django-tasks`. Nothing else in onefold imports it. Needs the extra
`django`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.django.backend import OnefoldBackend
    from onefold.django.declaring import OnefoldTask
    from onefold.django.running import DjangoHooks, OnefoldTaskContext, orm

__all__ = ["DjangoHooks", "OnefoldBackend", "OnefoldTask", "OnefoldTaskContext", "orm"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "DjangoHooks": "onefold.django.running",
        "OnefoldBackend": "onefold.django.backend",
        "OnefoldTask": "onefold.django.declaring",
        "OnefoldTaskContext": "onefold.django.running",
        "orm": "onefold.django.running",
    },
)
