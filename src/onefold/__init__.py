"""Background jobs whose effect happens once, however many times they are delivered - and that show you that it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold.app import App
from onefold.decide.keys import jmespath
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
from onefold.options import DeadLetter, Function, Queue, Retry, Throttle
from onefold.run.context import Context
from onefold.run.handlers import Done, Job, NotDone, Receipt, StillUnknown
from onefold.run.retrying import retrying

if TYPE_CHECKING:
    from onefold.run.once import once
    from onefold.service.stores import memory_store, store
    from onefold.watch.sinks import LogSink

__all__ = [  # noqa: RUF022 - grouped by what one is doing
    # declaring
    "App",
    "DeadLetter",
    "Function",
    "Job",
    "Queue",
    "Retry",
    "Throttle",
    "jmespath",
    # in a handler
    "Context",
    "Done",
    "NotDone",
    "Receipt",
    "StillUnknown",
    "retrying",
    # the guard alone
    "memory_store",
    "once",
    "store",
    # knowing
    "LogSink",
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

_LATER = {
    "LogSink": "onefold.watch.sinks",
    "memory_store": "onefold.service.stores",
    "once": "onefold.run.once",
    "store": "onefold.service.stores",
}


def __getattr__(name: str) -> Any:
    """Names whose modules cost something to import, and the version, are loaded when first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("onefold")
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'onefold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
