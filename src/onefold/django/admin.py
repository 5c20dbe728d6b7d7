"""The admin's link to the page of onefold, for users with the permission to view jobs, where OPTIONS names a page.

Never here: the page itself (`onefold.web`). Invariant: without the permission, or without a page, there is no link.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import Http404, HttpResponseRedirect

from onefold.django import contract
from onefold.django.backend import OnefoldBackend
from onefold.django.models import Jobs
from onefold.django.settings import options_of


def page() -> str | None:
    """The page's address: the first that the OPTIONS of a backend name; None if none of them does."""
    found = [options_of(one.options).page for one in contract.backends().values() if isinstance(one, OnefoldBackend)]
    return next((one for one in found if one), None)


@admin.register(Jobs)
class JobsAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django ships no types
    """The entry that redirects to the page; there is nothing to add, change or delete."""

    def has_module_permission(self, request: Any) -> bool:
        """Whether the entry is shown: there is a page, and the user has the permission to view jobs."""
        return page() is not None and bool(request.user.has_perm("onefold.view_jobs"))

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's
        """The same as `has_module_permission`."""
        return self.has_module_permission(request)

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002 - Django's
        """Never."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's
        """Never."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's
        """Never."""
        return False

    def changelist_view(self, request: Any, extra_context: Any = None) -> HttpResponseRedirect:  # noqa: ARG002 - Django's
        """Redirect to the page."""
        found = page()
        if found is None or not self.has_view_permission(request):
            raise Http404
        return HttpResponseRedirect(found)
