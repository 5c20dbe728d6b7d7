"""The entry `Jobs` of the admin, which has no table: it carries the permission to see onefold's page.

Never here: records, messages. Invariant: Django makes no table for it and writes nothing through it.
"""

from __future__ import annotations

from django.db import models


class Jobs(models.Model):  # type: ignore[misc]  # Django ships no types
    """Shown in the admin if OPTIONS["page"] has the address of the page."""

    class Meta:
        """It has no table; users with the permission `onefold.view_jobs` see it."""

        managed = False
        app_label = "onefold"
        default_permissions = ("view",)
        verbose_name = verbose_name_plural = "jobs"
