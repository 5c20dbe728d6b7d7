"""What a handler did when it did not simply return: it failed, never began, lost its result or its lease.

With `Success` (in `delivery.py`, because nearly every run ends so) these are all that can come of a run: its `Outcome`. What
becomes of them is decided in `fates.py`; which exception means what, in `failures.py`. They cross the pipe between a worker
and its child processes, so each has a tag. Never here: decisions, exceptions, storage.
Invariant: whatever a handler does comes to exactly one of them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from onefold.decide.delivery import Success


class Failed(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler raised.

    Args:
        kind: what the failure means (see `decide/failures.py`).
        error: class name of the exception.
        summary: one line without the payload.
        retry_in_ms: how long the dependency asked us to wait; None leaves it to the policy.
        crashed: the run was ended with its process (hard timeout, signal).
        at: the last frame of the handler's own code, as in `shop.py:12 in book`; empty where nothing was raised.
        trace: frames without locals (see `decide/tracebacks.py`); empty where nothing was raised.
    """

    kind: Literal["transient", "permanent", "dependency-down", "unknown"]
    error: str
    summary: str
    retry_in_ms: int | None = None
    crashed: bool = False
    at: str = ""
    trace: str = ""


class NotStarted(Struct, frozen=True, gc=False, tag=True):
    """The handler was not called after all (drain, deadline near, rate limit); `why` for people."""

    why: str
    delay_ms: int = 0


class Unstorable(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler returned something that cannot be stored: the effect happened, its result is lost."""

    summary: str


class LeaseGone(Struct, frozen=True, gc=False, tag=True):
    """The run lost its lease: someone else owns the operation now."""


Outcome = Success | Failed | NotStarted | Unstorable | LeaseGone
