"""The values one writes in a declaration: retries, dead letters, throttles, a declared queue.

Plain, frozen, and checked where they are used (`app.py`), because only there is it known what they must fit. Their names
are checked here, and `checked_options` does the same for the functions that declare.
Never here: behaviour. Invariant: equal options mean equal jobs.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from msgspec import Struct

from onefold import errors
from onefold.contracts.admin import QueueSettings
from onefold.decide.backoff import Jitter
from onefold.decide.keys import KeyFunction
from onefold.duration import Duration

A = ParamSpec("A")
C = TypeVar("C", bound=type)
R = TypeVar("R")


def _refuse_unknown(given: Iterable[str], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise errors.UsageError(
                f"{what} has no option {name!r}.",
                todo=f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(known)}.",
            )


def checked_options(function: Callable[A, R]) -> Callable[A, R]:
    """Answer an unknown option of a function with the name that was probably meant.

    Raises (when the function is called):
        UsageError: it has no such option.
    """
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    what = f"{function.__qualname__.removesuffix('.__init__')}()"

    @functools.wraps(function)
    def checked(*args: A.args, **kwargs: A.kwargs) -> R:
        _refuse_unknown(kwargs, known, what)
        return function(*args, **kwargs)

    return checked


def _checked(kind: C) -> C:
    """The same for a class of options."""
    kind.__init__ = checked_options(kind.__init__)  # type: ignore[misc]  # a class's own __init__, wrapped once
    return kind


@_checked
@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and how soon a run that failed for now is tried again.

    Args:
        attempts: runs in all, the first one included; 1 means no retry.
        base, factor, cap: the pause before attempt n+1 is base x factor^(n-1), at most cap.
        jitter: `full` (anything from 0 to the pause), `half` (+-50 %), `none`.
        crashes: runs that may end with their worker process before the operation is quarantined.
    """

    attempts: int = 5
    base: Duration = "1s"
    factor: float = 2.0
    cap: Duration = "15m"
    jitter: Jitter = "full"
    crashes: int = 3


@_checked
@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """The queue for messages that could not be done.

    Args:
        after: the queue's own maximum receive count, 1 to 1,000; the last net, onefold itself decides earlier.
        retention: how long dead letters stay, at most 14 days; longer than the source's.
        name: `<queue>-dead` unless given.
    """

    after: int = 10
    retention: Duration = "14d"
    name: str | None = None


@_checked
@dataclass(frozen=True, kw_only=True)
class Throttle:
    """How much of a job may happen, counted over all processes on the engine.

    Args:
        rate: starts per time, for example "100/s" or "30/m".
        concurrency: runs at one time.
        per: key rule that divides the limit, for example "{customer}"; None limits the job as a whole.
    """

    rate: str | None = None
    concurrency: int | None = None
    per: str | KeyFunction | None = None


class Queue(Struct, frozen=True):
    """A declared queue. Made by `App.queue`.

    Attributes:
        settings: of the queue itself; `dead_letter` and `held` of its two companions.
    """

    settings: QueueSettings
    dead_letter: QueueSettings
    held: QueueSettings

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.settings.name
