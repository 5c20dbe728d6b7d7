"""What `@once` reports: errors and refusals to its caller, deaths and failures to the history of its store.

Functions and results whose work is done later, waits without end, arguments without a form and held keys are refused here;
each function answers an error or raises one, and changes no record.

`CallHistory` keeps each death, with the claim that notices it, and each failure; the rows are those of a job's runs. Where a
store writes them in the claim's transaction they stand or fall with it; elsewhere they are appended after the claim and
before the function is called. In memory none are kept. A failure whose row the store refuses (a role without the
permission) is warned of once; a death whose row it refuses ends the call.
Never here: records, when a call is refused (`once.py`). Invariant: a text says what happened to the call, and what is true
of its key afterwards; no function is called again before the death of the call before it is in the history.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import typing
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from onefold import codec, duration, errors, payload_errors, redact
from onefold.codec import outline
from onefold.contracts.ledger import Row
from onefold.contracts.store import Answer, Ask, Claimed, Failure, Record, RecordKey, Running
from onefold.interrupts import let_through
from onefold.record.delivery import Backoff, Note, Policy
from onefold.runner.claims import Claims
from onefold.runtime.events import Event

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger, Store
    from onefold.record.delivery import Failed


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
    """The parameters whose values tell no operation from another: those that are ignored, and a method's own object.

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


def returned(function: Callable[..., Any]) -> Any:
    """The type a function says it returns.

    Raises:
        UsageError: its annotations name something that is not defined.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function).get("return", Any)
    except NameError as error:
        raise errors.UsageError(
            f"The annotations of {function.__qualname__} name something that is not defined: {error}.",
            todo="Define the types of a function under @once at module level.",
        ) from error


class Replays:
    """Whether a function that does not say what it returns answers repeated calls with another type than the first.

    The first result that does is warned about, after its record is written, at the function: its annotation is missing.

    Attributes:
        same: types of results that need no look. is_over: it was warned about.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        code = getattr(inspect.unwrap(function), "__code__", None)
        self._file: str = code.co_filename if code is not None else name
        self._line: int = code.co_firstlineno if code is not None else 0
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


def not_recorded(key: str, error: errors.PayloadError) -> errors.PayloadError:
    """`error` about a result, which is its caller's, with the way out for this call."""
    return errors.PayloadError(
        error.what,
        meaning=error.meaning,
        todo=f"{error.todo} This call is held for a person:"
        f" {redact.command('onefold held settle', key, _SETTLE)}, where URL is that of the store.",
    )


def lazy_result(name: str, value: object) -> errors.UsageError:
    """The error for a result that is only a promise of its work."""
    if inspect.iscoroutine(value):
        value.close()  # nobody will await it
    return errors.UsageError(
        f"{name} returned a {type(value).__name__}.",
        meaning="Its work is done when the caller goes through it or awaits it, unseen by onefold.once. The key is free.",
        todo="Return the values themselves, for example a list, or decorate an `async def`.",
    )


def unfit(name: str, key: str, error: errors.PayloadError) -> errors.PayloadError:
    """The error for a stored result that is not what the function says it returns."""
    return errors.PayloadError(
        f"The result stored for {name} {key!r} is not what the function returns: {error.what}",
        meaning="The call is done and was not repeated. Its record was settled by hand with another result, or the"
        " function's annotation has changed since.",
        todo=f"See `{redact.command('onefold why', key, '--url URL')}`. If it was settled by hand, settle it again:"
        f" {redact.command('onefold held settle', key, _SETTLE)}; else let the annotation fit it.",
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
        waited_ms: how long it has waited; None: it does not want to.
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


def died(found: Claimed, why: str) -> str:
    """What is recorded of a key that is held because its calls died."""
    return f"Earlier calls that ended with their process: {found.crashes}, and {why}."


def held(name: str, record: Record | None, key: RecordKey) -> errors.OutcomeUnknown:
    """The error for a key that is held, with what its record says about it."""
    failure = record.failure if record is not None else None
    return errors.OutcomeUnknown(
        f"It is unknown whether {name} {key.key!r} took effect.",
        meaning=failure.summary if failure is not None else "An earlier call died without reporting an outcome.",
        todo=f"Find out whether it did, then run: {redact.command('onefold held settle', key.key, _SETTLE)}"
        " (or --not-done, and the next call runs it), where URL is that of the store.",
    )


Detail = Mapping[str, str | int | bool | None]
_ENDLESS: Final = 1 << 62  # of attempts: calls have no budget


class CallHistory:
    """The history of one guarded function.

    Args:
        store: its records; its attribute `ledger` is where rows go, if it has one.
        name: of the operation. on_unknown, crashes: as `once` takes them.
    """

    def __init__(self, store: Store, name: str, on_unknown: Literal["rerun", "hold"], crashes: int) -> None:
        self._store = store
        self._ledger: Ledger | None = getattr(store, "ledger", None)
        self._claims = Claims(store, self._ledger, records_with_history=False)
        self._warned = False
        self._policy = Policy(
            job=name, queue="", effect="external", attempts_max=_ENDLESS, crashes_max=crashes, backoff=Backoff(),
            on_unknown=on_unknown, after_failure="skip", timeout_ms=1, keep_ms=1,
        )  # fmt: skip

    def claim(self, ask: Ask, now_ms: int) -> Answer:
        """Claim, and write what that shows of the call before.

        Raises:
            OnefoldError: the store cannot be used; or the death of the call before could not be written: the claim ends with
                its lease, and the next one writes it.
        """

        def event_of(_: int, note: Note) -> Event:
            return Event(at_ms=now_ms, name=note.event, key=ask.key, actor=ask.owner, detail=note.detail)

        (found,), _, failed = self._claims.claim((ask,), now_ms, (self._policy,), event_of)
        for error in failed.values():
            if isinstance(found, Claimed) and found.doubt:
                raise error
            self._warn(error)
        return found

    def note(
        self, claimed: Claimed, now_ms: int, event: str, failure: Failure | None = None, raised: Failed | None = None
    ) -> None:
        """Note how a call ended that did not complete; a history that cannot be written now goes without.

        Args:
            event: `failed`, `unknown`, `held` or `lease-lost`.
            raised: with the place and the whole text of the exception.
        """
        if self._ledger is None:
            return
        detail: Detail = {"attempt": claimed.attempts + (not claimed.started), "fence": claimed.hold.fence}
        if failure is not None:
            detail = {**detail, "error": failure.error, "summary": failure.summary, "kind": failure.kind}
        if raised is not None:
            detail = {
                **detail,
                **{name: text for name, text in (("where", raised.at), ("trace", raised.trace)) if text},
            }
        if event == "unknown":
            detail = {**detail, "policy": self._policy.on_unknown}
        try:
            self._ledger.append([self._row(claimed, now_ms, event, detail)])
        except errors.OnefoldError as error:
            let_through(error)
            self._warn(error)

    def _warn(self, error: errors.OnefoldError) -> None:
        """Once, of what does not pass by itself."""
        if not self._warned and not isinstance(error, errors.TransientError):
            self._warned = True
            import logging  # most stores take their rows

            logging.getLogger("onefold").warning(
                "The history of %s is not kept: %s %s Its calls go on, but one whose process has died cannot be made again "
                "until the store takes the row that says so.",
                self._policy.job,
                error.what,
                error.todo,
            )

    def _row(self, found: Claimed, now_ms: int, event: str, detail: Detail) -> Row:
        return Row(at_ms=now_ms, event=event, key=found.hold.key, actor=found.hold.owner, detail=detail)
