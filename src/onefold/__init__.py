"""Background jobs that take effect once, however often they are delivered, and can prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold import lazy
from onefold.app import App
from onefold.errors import (
    ConflictError,
    DependencyDown,
    InvariantBroken,
    LeaseLost,
    NotFoundError,
    OnefoldError,
    OutcomeUnknown,
    OverLimitError,
    PayloadError,
    PermanentError,
    StorageBusy,
    StorageError,
    TransientError,
    UsageError,
)
from onefold.options import DeadLetter, Function, ItemCatch, ItemRetry, Queue, Retry, Throttle
from onefold.record.keys import jmespath
from onefold.runner.context import Context
from onefold.runner.handlers import Job

if TYPE_CHECKING:
    from onefold.engines.urls import memory_store, store
    from onefold.events.bus import Bus
    from onefold.events.transform import InputTransformer
    from onefold.maps.rules import ItemReader
    from onefold.observe.sinks import LogSink
    from onefold.reconcile.counts import Counted, Totals
    from onefold.reconcile.reconciler import Reconciliation
    from onefold.record.envelopes import EventEntry
    from onefold.runner.completion import CompleteRun
    from onefold.runner.handlers import Done, NotDone, StillUnknown
    from onefold.runner.once import once
    from onefold.runner.retrying import retrying
    from onefold.runtime.outgoing import Receipt
    from onefold.schedules.schedule import Schedule, ScheduleRetry, Tick

__all__ = [  # noqa: RUF022 - grouped by what one is doing
    # declaring
    "App",
    "DeadLetter",
    "Function",
    "ItemCatch",
    "ItemReader",
    "ItemRetry",
    "Job",
    "Queue",
    "Retry",
    "Schedule",
    "ScheduleRetry",
    "Throttle",
    "jmespath",
    # events
    "Bus",
    "EventEntry",
    "InputTransformer",
    # in a handler
    "CompleteRun",
    "Context",
    "Done",
    "NotDone",
    "Receipt",
    "StillUnknown",
    "Tick",
    "retrying",
    # the guard alone
    "memory_store",
    "once",
    "store",
    # knowing
    "Counted",
    "LogSink",
    "Reconciliation",
    "Totals",
    # errors
    "ConflictError",
    "DependencyDown",
    "InvariantBroken",
    "LeaseLost",
    "NotFoundError",
    "OnefoldError",
    "OutcomeUnknown",
    "OverLimitError",
    "PayloadError",
    "PermanentError",
    "StorageBusy",
    "StorageError",
    "TransientError",
    "UsageError",
]

_later = lazy.attributes(
    __name__,
    {
        "ItemReader": "onefold.maps.rules",
        "Bus": "onefold.events.bus",
        "EventEntry": "onefold.record.envelopes",
        "InputTransformer": "onefold.events.transform",
        "CompleteRun": "onefold.runner.completion",
        "Counted": "onefold.reconcile.counts",
        "Done": "onefold.runner.handlers",
        "LogSink": "onefold.observe.sinks",
        "NotDone": "onefold.runner.handlers",
        "Receipt": "onefold.runtime.outgoing",
        "Schedule": "onefold.schedules.schedule",
        "ScheduleRetry": "onefold.schedules.schedule",
        "StillUnknown": "onefold.runner.handlers",
        "Tick": "onefold.schedules.schedule",
        "Reconciliation": "onefold.reconcile.reconciler",
        "Totals": "onefold.reconcile.counts",
        "memory_store": "onefold.engines.urls",
        "once": "onefold.runner.once",
        "retrying": "onefold.runner.retrying",
        "store": "onefold.engines.urls",
    },
)


def __getattr__(name: str) -> Any:
    """Names whose modules cost something to import, and the version, are loaded when first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("onefold")
    return _later(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
