"""The errors and warnings of calls under `@once`: each function returns one or raises it, and changes no record.

Never here: records, when a call is refused (`guarded.py`), arguments (`call_arguments.py`), what may be decorated
(`once.py`). Invariant: an error says what happened to the call, and what state its key is in afterwards.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from typing import Any, Final

from onefold import codec, duration, errors, owner_process, payload_errors, redact
from onefold.contracts.store import Claimed, Record, RecordKey, Running
from onefold.interrupts import let_through
from onefold.runner.call_arguments import where_defined
from onefold.runtime.events import kept_text

LAZY = (Iterator, AsyncIterator, Awaitable)
"""Types of results whose work has not been done yet."""


def check_crashes(crashes: object) -> None:
    """Refuse an invalid value of `crashes`.

    Raises:
        UsageError: not a whole number of 1 or more.
    """
    if type(crashes) is not int or crashes < 1:
        raise errors.UsageError(f"crashes is {crashes!r}.", todo="Give the number of calls that may die: 1 or more.")


class Replays:
    """Warns if repeated calls of a function without a return annotation get a different type of result from the first call.

    It warns once, after the record of the first such result was written; the warning points to the function.

    Attributes:
        same: types of results that need no further check. is_over: whether the warning was given.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._file, self._line = where_defined(function, name)
        self._name = name
        self.same: Collection[type] = {type(None), bool, int, float, str}
        self.is_over = False

    def look(self, value: object, back: object) -> None:
        """Warn if `back`, which a repeated call gets, has other types than `value`; a type that fits is checked once."""
        found = payload_errors.retyped(value, back)
        if found is None:
            self.same = {*self.same, type(value)}
            return
        self.is_over = True
        was, became = (one.__qualname__ for one in found)
        part = f"returned a {was}" if type(value) is found[0] else f"returned a {was} in a {type(value).__qualname__}"
        proposed = codec.fitting(value)
        text = f"{self._name} {part}, but does not declare it: a repeated call gets a {became} from its record instead."
        text += f" Annotate the function: -> {proposed}." if proposed else " Annotate what the function returns."
        warnings.warn_explicit(text, UserWarning, self._file, self._line)


_SETTLE: Final = "--done --result JSON --url URL"


def _settle(key: RecordKey) -> str:
    """The command that settles this operation and no other one with the same key."""
    tenant = f" --tenant {redact.shell_word(key.scope)}" if key.scope else ""
    return redact.command("onefold held settle", key.key, f"{_SETTLE} --job {redact.shell_word(key.job)}{tenant}")


def not_recorded(key: RecordKey, error: errors.PayloadError) -> errors.PayloadError:
    """An error about a result, extended by what to do about this call."""
    return errors.PayloadError(
        error.what,
        meaning=error.meaning,
        todo=f"{error.todo} This call is held for a person: {_settle(key)}, where URL is that of the store.",
    )


def unencoded(error: BaseException) -> errors.PayloadError:
    """The error for what an encoder raised. A result's own methods may raise anything; the effect has happened anyway.

    Raises:
        BaseException: `error` itself, if a signal handler raised it.
    """
    let_through(error)
    if isinstance(error, errors.PayloadError):
        return error
    unstorable = errors.PayloadError(
        f"The function ran, and its result could not be encoded: {type(error).__qualname__}: {kept_text(error)}",
        meaning="Its effect has happened; only its result is missing.",
        todo="Return a value whose own methods give its JSON form without an error.",
    )
    unstorable.__cause__ = error
    return unstorable


def lazy_result(name: str, value: object) -> errors.PayloadError:
    """The error for a result such as a generator. The function has returned, so its effect may have happened."""
    if inspect.iscoroutine(value):
        value.close()  # nothing will await it
    return errors.PayloadError(
        f"{name} ran and returned a {type(value).__name__}, which cannot be recorded.",
        meaning="The work that is left in it is done when the caller iterates or awaits it, unseen by onefold.once.",
        todo="Return the values themselves, for example a list, or decorate an `async def`.",
    )


def unfit(name: str, key: RecordKey, error: errors.PayloadError) -> errors.PayloadError:
    """The error for a stored result that does not fit the function's return annotation."""
    return errors.PayloadError(
        f"The result stored for {name} {key.key!r} is not what the function returns: {error.what}",
        meaning="The call is done and was not repeated. Its record was settled by hand with another result, or the"
        " function's annotation has changed since.",
        todo=f"See `{redact.command('onefold why', key.key, '--url URL')}`. If it was settled by hand, settle it again:"
        f" {_settle(key)}; otherwise correct the annotation.",
    )


def own_call(name: str, key: str) -> errors.UsageError:
    """The error for a call from within the call of the same key."""
    return errors.UsageError(
        f"{name} {key!r} was called from within its own call.",
        meaning="The inner call would wait for the outer one, which waits for it. Nothing was done.",
        todo="Call the function without onefold.once inside, or give the inner call a key of its own.",
    )


def running(
    name: str, key: str, found: Running, now_ms: int, *, waited_ms: int | None, own: bool
) -> errors.TransientError:
    """The error for a duplicate of a running call that does not wait, or has waited as long as allowed.

    Args:
        waited_ms: how long it has waited; None when it does not wait.
        own: whether the running call is in this process.
    """
    meaning, todo = "", 'Try again later, or let calls wait with on_running="wait".'
    if waited_ms is not None:
        meaning = f"This call has waited {duration.to_text(waited_ms)} for it."
        todo = "Try again later, or wait longer with `wait`."
        if own:
            meaning += " That call is in this process and may itself be waiting for this one."
            todo = (
                "Try again later. Two calls that wait for each other never end: make them in the same order everywhere, and"
                " start threads of a call with its context (contextvars.copy_context().run): then this is detected at once."
            )
    stopped = ""
    if found.stopped is not None:
        stopped = f" Its process {found.stopped} is stopped."
        todo = f"Continue that process (kill -CONT {found.stopped}), or end it: then on_unknown decides."
    return errors.TransientError(
        f"{name} {key!r} is already running in another call (owner {found.owner}, fence {found.fence}).{stopped}",
        meaning=meaning,
        todo=todo,
        retry_in_ms=max(found.until_ms - now_ms, 0),
    )


def taken_over(found: Claimed, crashes: int) -> str:
    """A sentence about the previous call, which started and left no outcome."""
    owner, which = found.previous_owner, "an earlier call"
    if owner_process.ended([owner] if owner else []):
        text = f"the process of {which}, owner {owner}, ended before an outcome was recorded"
    else:
        runs = ", whose process still runs," if owner and owner_process.is_here(owner) else ","
        text = f"the lease of {which}, owner {owner}{runs} has ended, and no outcome was recorded"
    return f"{text} ({found.crashes} of at most {crashes}). Whether it took effect is not known."


def late(key: RecordKey, lease_ms: int, times: int) -> errors.TransientError:
    """The error for a call whose lease ended `times` times before it could begin."""
    return errors.TransientError(
        f"{key.job} {key.key!r} was not called: {times} times in a row its lease of {duration.to_text(lease_ms)} was over"
        " before the call could begin.",
        meaning="The store takes about as long to answer, or this process is stopped again and again.",
        todo="Give it a longer lease, and call again.",
    )


def held(name: str, record: Record | None, key: RecordKey) -> errors.OutcomeUnknown:
    """The error for a key that is held, with what its record says about it."""
    failure = record.failure if record is not None else None
    if failure is not None and failure.took_effect:
        return errors.OutcomeUnknown(
            f"{name} {key.key!r} took effect, and its result could not be recorded.",
            meaning=failure.summary,
            todo=f"With the result from the other system, run: {_settle(key)}, where URL is that of the store.",
        )
    return errors.OutcomeUnknown(
        f"It is unknown whether {name} {key.key!r} took effect.",
        meaning="An earlier call died without reporting an outcome."
        if failure is None
        else f"{failure.error}: {failure.summary}",
        todo=f"Find out whether it did, then run: {_settle(key)}"
        " (or --not-done, and the next call runs it), where URL is that of the store.",
    )
