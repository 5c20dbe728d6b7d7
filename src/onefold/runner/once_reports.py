"""What `@once` says to its caller: what it refuses at the decorator, and the errors of calls.

Functions and results whose work is done later, waits without end, arguments without a form and held keys are refused here;
each function answers an error or raises one, and changes no record.
Never here: records, when a call is refused (`guarded.py`). Invariant: a text says what happened to the call, and what is
true of its key afterwards.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import typing
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from onefold import codec, duration, errors, owner_process, payload_errors, redact
from onefold.codec import outline
from onefold.contracts.store import Claimed, Record, RecordKey, Running
from onefold.interrupts import let_through
from onefold.record.keys import KeyRule
from onefold.runner.context import Context
from onefold.runtime.events import kept_text

if TYPE_CHECKING:
    from onefold.contracts.verbs import Store


LAZY = (Iterator, AsyncIterator, Awaitable)
"""What a call may return before it has done its work."""
NAME_CHARS_MAX = 512
_NOT_NAMES = (
    "__main__",
    "__mp_main__",
)  # of the script that was started, whichever it is; the second in spawned processes


def named(name: str | None, function: Callable[..., Any], store: Store) -> str:
    """The name of an operation, where function, store and name are what they should be.

    Raises:
        UsageError: they are not.
    """
    check_function(function, name or "")
    check_store(store)
    if name is None:
        return name_of(function)
    check_name(name)
    return name


def name_of(function: Callable[..., Any]) -> str:
    """The name of an operation that was given none: the function's module and qualified name.

    It is part of every key, so it must be the same in each process that calls the function, and no other function's.

    Raises:
        UsageError: it would not be: a function of the script itself, a lambda, a partial, a callable object.
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None or "<lambda>" in qualname:
        raise errors.UsageError(
            f"@onefold.once cannot name {function!r:.120}.",
            meaning="The name is part of every key, and a lambda, a functools.partial or an object has none of its own.",
            todo='Give it one: @onefold.once(name="...", ...).',
        )
    if module in _NOT_NAMES:
        proposed = ".".join(filter(None, (_script(function), qualname)))
        raise errors.UsageError(
            f"@onefold.once needs name= for {qualname}: it is in the script that was started, whose module is {module}.",
            meaning=f"Every script has that name: another one's {qualname} would be answered from the records of this one,"
            " and imported under its own name this one would run again.",
            todo=f'Write @onefold.once(name="{proposed}", ...). To keep records that an earlier version of onefold made'
            f' here, write name="__main__.{qualname}".',
        )
    return f"{module}.{qualname}"


def _script(function: Callable[..., Any]) -> str:
    """The name under which the started script would be imported; empty for a notebook or a prompt."""
    space = getattr(function, "__globals__", {})
    spec, file = space.get("__spec__"), space.get("__file__")
    return spec.name if spec is not None else os.path.splitext(os.path.basename(file))[0] if file else ""


def check_function(function: Any, name: str) -> None:
    """Refuse a function whose call does nothing yet.

    Raises:
        UsageError: it is a generator function.
    """
    if not callable(function) or isinstance(function, type):
        kind = "a class" if isinstance(function, type) else "no function"
        raise errors.UsageError(
            f"@onefold.once was put on {function!r:.80}, which is {kind}.",
            todo="Put it on the function, or the method, that has the effect.",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise errors.UsageError(
            f"{name} is a generator function.",
            meaning="Its call does nothing: the work is done when the caller goes through it, unseen by onefold.once.",
            todo="Decorate a function that returns a list of what it yields.",
        )


def check_name(name: object) -> None:
    """Refuse a name that cannot be one.

    Raises:
        UsageError: no text, or characters that cannot be printed.
    """
    if not isinstance(name, str) or not name.isprintable() or len(name) > NAME_CHARS_MAX:
        raise errors.UsageError(
            f"name={name!r:.80} cannot name an operation.", todo=f"Use at most {NAME_CHARS_MAX} printable characters."
        )


def check_store(store: object) -> None:
    """Refuse what is not a record store, before a first call does.

    Raises:
        UsageError: a URL, None, or something else.
    """
    if isinstance(store, str):
        raise errors.UsageError(
            f"store={store!r} is a URL, not a store.", todo=f"Write store=onefold.store({redact.masked(store)!r})."
        )
    if not hasattr(store, "claim"):
        raise errors.UsageError(
            f"store={store!r:.80} is not a store.",
            todo="Write store=onefold.store(URL), for example onefold.store('sqlite:///records.db').",
        )


def fingerprinted(
    function: Callable[..., Any], signature: inspect.Signature, ignore: object, name: str
) -> frozenset[str]:
    """The parameters whose values do not identify an operation: those that are ignored, and a method's own object.

    Raises:
        UsageError: not a list of names, or not those of parameters.
    """
    names = list(signature.parameters)
    if isinstance(ignore, str) or not isinstance(ignore, Iterable):
        raise errors.UsageError(
            f"ignore={ignore!r:.80} is not a list of parameters.", todo=f"Write for example ignore=({ignore!r:.80},)."
        )
    ignored = frozenset(ignore)
    for one in ignored - set(names):
        near = difflib.get_close_matches(str(one), names, n=1)
        raise errors.UsageError(
            f"ignore={one!r:.80}: {name} has no such parameter.",
            meaning=f"It has {', '.join(names) or 'none'}.",
            todo=f"Did you mean {near[0]!r}?" if near else "Name its parameters, as they are called in its definition.",
        )
    own = names[:1] if "." in getattr(function, "__qualname__", "") and names[:1] in (["self"], ["cls"]) else ()
    return ignored.union(own)


def defaults_of(signature: inspect.Signature) -> Mapping[str, object]:
    """What the parameters are where a call does not give them."""
    left: dict[Any, object] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}
    given = {one.name: left.get(one.kind, one.default) for one in signature.parameters.values()}
    return {name: default for name, default in given.items() if default is not inspect.Parameter.empty}


def is_alike(arguments: Mapping[str, Any], own: str, first: str, defaults: Mapping[str, object]) -> bool:
    """Whether two fingerprints are of the same arguments, with others left to their defaults."""
    from onefold import payload_defaults  # and dataclasses: asked only when two fingerprints of one key differ

    return payload_defaults.is_alike(arguments, own, first, defaults)


def without_form(name: str, arguments: Mapping[str, Any], error: errors.PayloadError) -> errors.PayloadError:
    """The error for arguments that have no JSON form, with the one that has none."""
    for parameter, value in arguments.items():
        try:
            outline(value)
        except errors.PayloadError:
            return errors.PayloadError(
                f"The argument {parameter} of {name} cannot be fingerprinted: {error.what}",
                meaning=f"Calls with one key are compared by their arguments: another amount is noticed. {error.meaning}",
                todo="If it does not say what is done (a connection, a request), write"
                f' @onefold.once(ignore=("{parameter}",), ...);'
                " else pass a value with a JSON form: builtins, dates, Decimal, UUID, Enum, dataclasses, models.",
            )
    return error


def check_crashes(crashes: object) -> None:
    """Refuse a bound of deaths that is none.

    Raises:
        UsageError: not a whole number of 1 or more.
    """
    if type(crashes) is not int or crashes < 1:
        raise errors.UsageError(f"crashes is {crashes!r}.", todo="Give the number of calls that may die: 1 or more.")


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The types that a function's annotations say.

    Raises:
        UsageError: its annotations name something that is not defined.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise errors.UsageError(
            f"The annotations of {function.__qualname__} name something that is not defined: {error}.",
            todo="Define the types of a function under @once at module level.",
        ) from error


def context_parameter(hints: Mapping[str, Any]) -> str | None:
    """The parameter that takes the call's `Context`: the one that is annotated so, `Context | None` too."""
    for name, kind in hints.items():
        if name != "return" and (kind is Context or Context in typing.get_args(kind)):
            return name
    return None


def signature_of(function: Callable[..., Any], context: str | None) -> inspect.Signature:
    """How a function is called: its context may be left out.

    Raises:
        UsageError: the context is before a parameter that may not.
    """
    signature = inspect.signature(function)
    found = signature.parameters.get(context) if context is not None else None
    if found is None or found.default is not inspect.Parameter.empty:
        return signature
    given = [one.replace(default=None) if one is found else one for one in signature.parameters.values()]
    try:
        return signature.replace(parameters=given)
    except ValueError:
        raise errors.UsageError(
            f"The context {context} of {getattr(function, '__qualname__', function)} comes before other parameters.",
            meaning="onefold.once passes it, so its callers leave it out.",
            todo=f"Make it the last one: {context}: onefold.Context | None = None.",
        ) from None


def fields_of(name: str, signature: inspect.Signature, hints: Mapping[str, Any]) -> Any:
    """The parameters of a guarded function as the fields of a type, for its key rules; `Any` where no annotation says."""
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    kinds = {
        one.name: Any if one.kind in various else hints.get(one.name, Any) for one in signature.parameters.values()
    }
    return typing.TypedDict(f"The call of {name}", kinds)  # type: ignore[operator]


def warn_of_volatile_key(name: str, key: KeyRule, function: Callable[..., Any]) -> None:
    """Warn, at the function, of a key made of what differs at every call."""
    if key.volatile:
        text = (
            f"The key of {name} uses {', '.join(key.volatile)}, which sounds new at every call: then no two calls are"
        )
        text += " the same operation."
        warnings.warn_explicit(text, UserWarning, *_place_of(function, name))


def _place_of(function: Callable[..., Any], name: str) -> tuple[str, int]:
    """A function's file and line."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else (name, 0)


class Replays:
    """Whether a function that does not say what it returns answers repeated calls with another type than the first.

    The first result that does is warned about, after its record is written, at the function: its annotation is missing.

    Attributes:
        same: types of results that need no look. is_over: it was warned about.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._file, self._line = _place_of(function, name)
        self._name = name
        self.same: Collection[type] = {type(None), bool, int, float, str}
        self.is_over = False

    def look(self, value: object, back: object) -> None:
        """Warn if `back`, which a repeated call gets, has other types than `value`. Lists and dicts are looked at once."""
        found = payload_errors.retyped(value, back)
        if found is None:
            self.same = {*self.same, type(value)}
            return
        self.is_over = True
        was, became = (one.__qualname__ for one in found)
        part = f"returned a {was}" if type(value) is found[0] else f"returned a {was} in a {type(value).__qualname__}"
        proposed = codec.fitting(value)
        text = (
            f"{self._name} {part}, and does not say so: a repeated call gets a {became} instead, read from the record."
        )
        text += f" Annotate the function: -> {proposed}." if proposed else " Annotate what the function returns."
        warnings.warn_explicit(text, UserWarning, self._file, self._line)


_SETTLE: Final = "--done --result JSON --url URL"


def _settle(key: RecordKey) -> str:
    """The command that settles this operation, whatever others have its key."""
    tenant = f" --tenant {redact.shell_word(key.scope)}" if key.scope else ""
    return redact.command("onefold held settle", key.key, f"{_SETTLE} --job {redact.shell_word(key.job)}{tenant}")


def not_recorded(key: RecordKey, error: errors.PayloadError) -> errors.PayloadError:
    """`error` about a result, which is its caller's, with the way out for this call."""
    return errors.PayloadError(
        error.what,
        meaning=error.meaning,
        todo=f"{error.todo} This call is held for a person: {_settle(key)}, where URL is that of the store.",
    )


def unencoded(error: Exception) -> errors.PayloadError:
    """What an encoder raised for a result. A result's own methods may raise anything; the effect has happened all the same.

    Raises:
        Exception: `error`, where it is that of a signal's handler.
    """
    if isinstance(error, errors.PayloadError):
        return error
    let_through(error)
    unstorable = errors.PayloadError(
        f"The function ran, and its result could not be encoded: {type(error).__qualname__}: {kept_text(error)}",
        meaning="Its effect has happened; only its result is missing.",
        todo="Return a value whose own methods give its JSON form without an error.",
    )
    unstorable.__cause__ = error
    return unstorable


def lazy_result(name: str, value: object) -> errors.UsageError:
    """The error for a result that is only a promise of its work."""
    if inspect.iscoroutine(value):
        value.close()  # nobody will await it
    return errors.UsageError(
        f"{name} returned a {type(value).__name__}.",
        meaning="Its work is done when the caller goes through it or awaits it, unseen by onefold.once. The key is free.",
        todo="Return the values themselves, for example a list, or decorate an `async def`.",
    )


def unfit(name: str, key: RecordKey, error: errors.PayloadError) -> errors.PayloadError:
    """The error for a stored result that is not what the function says it returns."""
    return errors.PayloadError(
        f"The result stored for {name} {key.key!r} is not what the function returns: {error.what}",
        meaning="The call is done and was not repeated. Its record was settled by hand with another result, or the"
        " function's annotation has changed since.",
        todo=f"See `{redact.command('onefold why', key.key, '--url URL')}`. If it was settled by hand, settle it again:"
        f" {_settle(key)}; else let the annotation fit it.",
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
    """The error for a duplicate of a running call that does not want to wait, or has waited for as long as it may.

    Args:
        waited_ms: how long it has waited; None when it does not want to.
        own: the running call is one of this process.
    """
    meaning, todo = "", 'Try again later, or let calls wait with on_running="wait".'
    if waited_ms is not None:
        meaning = f"This call has waited {duration.to_text(waited_ms)} for it."
        todo = "Try again later, or wait longer with `wait`."
        if own:
            meaning += " That call is in this process and may itself be waiting for this one."
            todo = (
                "Try again later. Two calls that wait for each other never end: make them in the same order everywhere."
            )
    return errors.TransientError(
        f"{name} {key!r} is already running in another call (owner {found.owner}, fence {found.fence}).",
        meaning=meaning,
        todo=todo,
        retry_in_ms=max(found.until_ms - now_ms, 0),
    )


def taken_over(found: Claimed, crashes: int) -> str:
    """What is known of the call before this one, which started and whose outcome nobody recorded."""
    owner, which = found.previous_owner, "an earlier call"
    if owner_process.ended([owner] if owner else []):
        text = f"the process of {which}, owner {owner}, ended before an outcome was recorded"
    else:
        runs = ", whose process still runs," if owner and owner_process.is_here(owner) else ","
        text = f"the lease of {which}, owner {owner}{runs} is over, and no outcome was recorded"
    return f"{text} ({found.crashes} of at most {crashes}). Whether it took effect is not known."


def late(key: RecordKey, lease_ms: int, times: int) -> errors.TransientError:
    """What is raised to a call whose lease was over `times` times before it could begin."""
    return errors.TransientError(
        f"{key.job} {key.key!r} was not called: {times} times in a row its lease of {duration.to_text(lease_ms)} was over"
        " before the call could begin.",
        meaning="The store takes about as long to answer, or this process stands still again and again.",
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
        meaning=failure.summary if failure is not None else "An earlier call died without reporting an outcome.",
        todo=f"Find out whether it did, then run: {_settle(key)}"
        " (or --not-done, and the next call runs it), where URL is that of the store.",
    )
