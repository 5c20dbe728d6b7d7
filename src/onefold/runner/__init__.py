"""Private: the runner of every job and guarded call, and the sources of its deliveries. May change with any release."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.runner.retrying import Retrying as Retrying

__getattr__: Callable[[str], Any] = lazy.attributes(__name__, {"Retrying": "onefold.runner.retrying"})
