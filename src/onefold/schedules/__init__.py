"""Declared schedules, and the embedded scheduler that sends their ticks.

Imports `runner` and below. When a tick is due is decided in `schedules/ticks.py`; what a dispatcher yields goes through
`runner/dispatcher.py`. The names here are loaded when they are first used, so that a Lambda function without a schedule
loads no zones or expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.runner.completion import CompleteRun
    from onefold.schedules.schedule import Schedule, ScheduleRetry, Tick
    from onefold.schedules.schedule import declare as declare

__all__ = ["CompleteRun", "Schedule", "ScheduleRetry", "Tick"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "CompleteRun": "onefold.runner.completion",
        "Schedule": "onefold.schedules.schedule",
        "ScheduleRetry": "onefold.schedules.schedule",
        "Tick": "onefold.schedules.schedule",
        "declare": "onefold.schedules.schedule",
    },
)
