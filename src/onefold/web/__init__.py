"""The page: queues, dead letters, held operations, runs and single operations, for people; the same as JSON for programs.

`page` makes an ASGI application that FastAPI, Starlette and Django can mount; `onefold web` serves it alone. It only
calls `admin/` and draws the answers. Needs the extra `web`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.web.application import page

__all__ = ["page"]

__getattr__: Callable[[str], Any] = lazy.attributes(__name__, {"page": "onefold.web.application"})
