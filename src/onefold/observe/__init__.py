"""What people see of what happened: an operation's story and state, events as log lines, what messages cost.

Imports `runner` and below. `LogSink` is loaded when it is first used, and the standard library's logging with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.observe.sinks import LogSink
    from onefold.runtime.events import Event, Sink

__all__ = ["Event", "LogSink", "Sink"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "LogSink": "onefold.observe.sinks",
        "Event": "onefold.runtime.events",
        "Sink": "onefold.runtime.events",
    },
)
