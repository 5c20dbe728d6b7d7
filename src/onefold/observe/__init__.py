"""What people can see: an operation's story and state, events as log lines, metrics, alarms, what messages cost.

Imports `runner` and below. `LogSink`, and with it the standard library's logging, is loaded when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.observe.alarm_targets import checked_targets as checked_targets
    from onefold.observe.alarm_targets import declare_alarms as declare_alarms
    from onefold.observe.emf import EmfSink
    from onefold.observe.otel import OpenTelemetry
    from onefold.observe.sinks import LogSink
    from onefold.runner.once import alook, look
    from onefold.runtime.events import Event, Sink

__all__ = ["EmfSink", "Event", "LogSink", "OpenTelemetry", "Sink", "alook", "look"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "EmfSink": "onefold.observe.emf",
        "LogSink": "onefold.observe.sinks",
        "alook": "onefold.runner.once",
        "checked_targets": "onefold.observe.alarm_targets",
        "declare_alarms": "onefold.observe.alarm_targets",
        "Event": "onefold.runtime.events",
        "OpenTelemetry": "onefold.observe.otel",
        "Sink": "onefold.runtime.events",
        "look": "onefold.runner.once",
    },
)
