"""How `app.job(...)` looks to a type checker: what it needs of an app, and what its decorator makes of a handler.

Imported where types are checked, never at run time. What a declaration does is in `declaring.py`.
Never here: behaviour. Invariant: a job has the payload and result types of its handler, whatever the handler is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, overload

from onefold.run.context import Context
from onefold.run.handlers import Job
from onefold.run.outgoing import Sender

T = TypeVar("T")
R = TypeVar("R")


class Declares(Sender, Protocol):
    """What `declare_job` needs of an app."""

    @property
    def name(self) -> str:
        """Of the app."""
        ...

    @property
    def jobs(self) -> dict[str, Job[Any, Any]]:
        """Declared so far, by name."""
        ...


class Decorator(Protocol):
    """Turns a handler into a job; the payload and result types are the handler's own."""

    @overload
    def __call__(self, handler: Callable[[T, Context], Awaitable[R]]) -> Job[T, R]: ...
    @overload
    def __call__(self, handler: Callable[[T, Context], R]) -> Job[T, R]: ...
    @overload
    def __call__(self, handler: Callable[[T], Awaitable[R]]) -> Job[T, R]: ...
    @overload
    def __call__(self, handler: Callable[[T], R]) -> Job[T, R]: ...
