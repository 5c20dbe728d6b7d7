"""The input and the result of a page's function, before anything is drawn.

Never here: what a page shows (`pages.py`, `changes.py`), templates, HTTP.
Invariant: a `Shown` holds plain values, so that the same answer can be drawn and written as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from onefold import errors
from onefold.admin.session import AdminSession
from onefold.observe.wording import with_target
from onefold.web.exchange import WebRequest, address
from onefold.web.hiding import Hiding
from onefold.web.redrives import RunningRedrives
from onefold.web.safety import ROLES, Role

if TYPE_CHECKING:
    from onefold.app import App


class RightsError(errors.UsageError):
    """Somebody may not do what they asked for.

    Means: their role, as the trusted proxy or the application names it, does not allow it. Nothing was changed.
    Next: ask somebody with that role.
    """

    code = "rights"


class View(Struct, frozen=True, kw_only=True):
    """The input of a page: the engine as this person uses it, the request, and how the page was started."""

    session: AdminSession
    request: WebRequest
    app: App | None
    is_read_only: bool
    role: Role
    hiding: Hiding
    redrives: RunningRedrives
    target: str = ""

    def step(self, command: str, *, of_app: bool = False) -> str:
        """A next step with what the page was started with: an app, or `--url URL`.

        Args:
            of_app: the command is one that needs an app; it is named as MODULE:APP where the page knows no module.
        """
        named = self.target if self.target and not (of_app and self.target.startswith("-")) else ""
        return with_target(command, named or ("MODULE:APP" if of_app else ""))

    @property
    def read_only(self) -> bool:
        """Whether this person cannot change anything here."""
        return self.is_read_only or not self.may("operator")

    @property
    def hide_payloads(self) -> bool:
        """Whether payloads are hidden, wholly or in part; if so, they are not edited."""
        return self.hiding.any

    def may(self, role: Role) -> bool:
        """Whether this person has this role or a higher one."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def needs(self, role: Role) -> None:
        """Refuse a change that this person's role does not allow.

        Raises:
            RightsError: their role is lower.
        """
        if not self.may(role):
            raise RightsError(
                f"This needs the role {role}, and yours is {self.role}.",
                meaning="Nothing was changed.",
                todo=f"Ask somebody whose role is {role}, or the person who assigns roles.",
            )

    def link(self, *segments: str) -> str:
        """The address of a page."""
        return address(self.request.base, *segments)


class Shown(Struct, frozen=True, kw_only=True):
    """What a page shows.

    Args:
        template: draws it. title: the page's. value: plain values, also the JSON. more: what only the drawing needs.
        refreshes: the page reloads itself while it is open.
    """

    template: str
    title: str
    value: Any
    more: Mapping[str, Any] = {}
    status: int = 200
    refreshes: bool = False


class Redirect(Struct, frozen=True):
    """The address of the page to go to instead."""

    address: str
