"""Background jobs that take effect once, however often they are delivered, and can prove it.

These are the names that people start with. The other public names are in `onefold.schedules`, `onefold.maps`,
`onefold.events`, `onefold.reconcile`, `onefold.errors`, `onefold.observe`, `onefold.testing`, `onefold.aws` and the
modules for frameworks (`onefold.celery`, `onefold.django`, `onefold.powertools`, `onefold.sqlalchemy`); `import
onefold` makes all of them available. Everything else is private: it may change with any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold import lazy
from onefold.app import App
from onefold.errors import DependencyDown, OnefoldError, OutcomeUnknown, PermanentError, TransientError
from onefold.options import DeadLetter, Queue, Retry, Throttle
from onefold.record.keys import jmespath
from onefold.runner.context import Context
from onefold.runner.handlers import Job
from onefold.runner.hooks import Hooks

if TYPE_CHECKING:
    from onefold import aws as aws
    from onefold import errors as errors
    from onefold import events as events
    from onefold import maps as maps
    from onefold import observe as observe
    from onefold import reconcile as reconcile
    from onefold import schedules as schedules
    from onefold import testing as testing
    from onefold.engines.urls import memory_store, store
    from onefold.observe.sinks import LogSink
    from onefold.runner.handlers import Done, NotDone, StillUnknown
    from onefold.runner.once import once
    from onefold.runner.retrying import retrying
    from onefold.runtime.outgoing import Receipt
    from onefold.schedules.schedule import Tick

__all__ = [  # noqa: RUF022 - grouped by purpose
    # declaring
    "App",
    "DeadLetter",
    "Hooks",
    "Job",
    "Queue",
    "Retry",
    "Throttle",
    "jmespath",
    # in a handler
    "Context",
    "Receipt",
    "Tick",
    "retrying",
    # a probe's answers
    "Done",
    "NotDone",
    "StillUnknown",
    # the guard alone
    "memory_store",
    "once",
    "store",
    # looking up
    "LogSink",
    # errors that a handler raises, and the root of all errors
    "DependencyDown",
    "OnefoldError",
    "OutcomeUnknown",
    "PermanentError",
    "TransientError",
]

# Names that were here until November 2026; version 1.0 removes them.
MOVED = {
    "Bus": "onefold.events",
    "CompleteRun": "onefold.schedules",
    "ConflictError": "onefold.errors",
    "Counted": "onefold.reconcile",
    "EventEntry": "onefold.events",
    "Function": "onefold.aws",
    "InputTransformer": "onefold.events",
    "InvariantBroken": "onefold.errors",
    "ItemCatch": "onefold.maps",
    "ItemReader": "onefold.maps",
    "ItemRetry": "onefold.maps",
    "LeaseLost": "onefold.errors",
    "NotFoundError": "onefold.errors",
    "OverLimitError": "onefold.errors",
    "PayloadError": "onefold.errors",
    "Reconciliation": "onefold.reconcile",
    "Schedule": "onefold.schedules",
    "ScheduleRetry": "onefold.schedules",
    "StorageBusy": "onefold.errors",
    "StorageError": "onefold.errors",
    "Totals": "onefold.reconcile",
    "UsageError": "onefold.errors",
}

_ROOMS = ("admin", "aws", "errors", "events", "maps", "observe", "reconcile", "schedules", "testing", "web")
_FOR_FRAMEWORKS = {
    "celery": "onefold.celery",
    "django": "onefold.django",
    "powertools": "onefold.powertools",
    "sqlalchemy": "onefold.sqlalchemy",
}  # each imports its framework, apart from celery, which imports nothing

_later = lazy.attributes(
    __name__,
    {
        "Done": "onefold.runner.handlers",
        "LogSink": "onefold.observe.sinks",
        "NotDone": "onefold.runner.handlers",
        "Receipt": "onefold.runtime.outgoing",
        "StillUnknown": "onefold.runner.handlers",
        "Tick": "onefold.schedules.schedule",
        "memory_store": "onefold.engines.urls",
        "once": "onefold.runner.once",
        "retrying": "onefold.runner.retrying",
        "store": "onefold.engines.urls",
    },
    rooms=(*_ROOMS, *_FOR_FRAMEWORKS),
    moved=MOVED,
    frames=2,
)


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: the version, and names whose modules are slow to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("onefold")
    return _later(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
