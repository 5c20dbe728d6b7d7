"""Apps of backends for the command line and for child processes: `onefold.django.child:default`.

Importing this module sets up Django with the settings in DJANGO_SETTINGS_MODULE, so that
`onefold status onefold.django.child:default` works too.
"""

from __future__ import annotations

import django
from django.apps import apps

from onefold.app import App

if not apps.ready:
    django.setup()


def __getattr__(name: str) -> App:
    from onefold.django.backend import app_of  # the import needs loaded applications

    if name.startswith("__"):
        raise AttributeError(name)
    return app_of(name)
