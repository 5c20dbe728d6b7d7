"""Apps of backends for the command line and for child processes: `onefold.django.child:default`.

Importing it sets Django up, as DJANGO_SETTINGS_MODULE says, so that `onefold status onefold.django.child:default` works too.
"""

from __future__ import annotations

import django
from django.apps import apps

from onefold.app import App

if not apps.ready:
    django.setup()


def __getattr__(name: str) -> App:
    from onefold.django.backend import app_of  # needs applications that are loaded

    if name.startswith("__"):
        raise AttributeError(name)
    return app_of(name)
