"""The entry `Jobs` of the admin, which has no table: it carries the permission to see onefold's page.

Never here: records, messages. Invariant: Django makes no table for it and writes nothing through it.
"""

from __future__ import annotations

from django.db import models


class Jobs(models.Model):  # type: ignore[misc]  # Django ships no types
    """Shown in the admin where OPTIONS["page"] says where the page is."""

    class Meta:
        """Without a table; who may see it has the permission `onefold.view_jobs`."""

        managed = False
        app_label = "onefold"
        default_permissions = ("view",)
        verbose_name = verbose_name_plural = "jobs"
