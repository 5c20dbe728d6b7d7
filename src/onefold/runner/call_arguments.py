"""The arguments of a guarded function's calls: which operation a call is, and whether two calls are the same.

Annotations, parameters and key rules are checked when the function is decorated; arguments without a JSON form are
refused when it is called.
Never here: records, results, when a call is refused. Invariant: the same arguments give the same key and the same
fingerprint, however they are passed.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onefold import errors, payload_defaults, redact
from onefold.codec import digest, outline
from onefold.contracts.store import RecordKey
from onefold.record.keys import KeyFunction, KeyRule, key_rule
from onefold.runner.context import Context


class CallArguments:
    """Identifies the calls of one function by their arguments.

    Args:
        name: the operation's name. hints: the function's, from `hints_of`. key, tenant, ignore: as for `once`.

    Attributes:
        context_parameter: the parameter that takes the call's context; None if there is none.
        key_rule, tenant_rule: the rules that `key` and `tenant` were compiled to.

    Raises:
        UsageError: the context is not the last parameter, `ignore` or a rule names something that is not a parameter.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        hints: Mapping[str, Any],
        *,
        name: str,
        key: str | KeyFunction,
        tenant: str | KeyFunction | None,
        ignore: object,
    ) -> None:
        self._name = name
        self.context_parameter = _context_parameter(hints)
        self._signature = _signature_of(function, self.context_parameter)
        parameters = self._signature.parameters
        self._names = tuple(parameters)
        self._plain = all(
            parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and parameter.default is inspect.Parameter.empty
            for parameter in parameters.values()
        )
        self._ignored = _fingerprinted(function, self._signature, ignore, name)
        if self.context_parameter is not None:
            self._ignored |= {self.context_parameter}
        self._defaults = _defaults_of(self._signature)
        self._open = next((one.name for one in parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD), None)
        fields = Any if self._open else fields_of(name, self._signature, hints)
        self.key_rule = key_rule(key, fields, what=f"key of {name}", parameters=True)
        self.tenant_rule = key_rule(tenant, fields, what=f"tenant of {name}", parameters=True) if tenant else None
        _warn_of_volatile_key(name, self.key_rule, function)

    def identify(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[RecordKey, str, Mapping[str, Any]]:
        """The key of a call, its fingerprint, and the arguments from which the fingerprint was made.

        Raises:
            PayloadError: there is no key, or an argument has no JSON form.
        """
        given, named = self._bound(args, kwargs)
        if self._ignored:
            given = {one: value for one, value in given.items() if one not in self._ignored}
        try:
            fingerprint = digest(outline(given))
        except errors.PayloadError as error:
            raise _without_form(self._name, given, error) from None
        scope = self.tenant_rule.of(named) if self.tenant_rule else ""
        return RecordKey(scope, self._name, self.key_rule.of(named)), fingerprint, given

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordKey:
        """The key of a call."""
        _, named = self._bound(args, kwargs)
        return RecordKey(self.tenant_rule.of(named) if self.tenant_rule else "", self._name, self.key_rule.of(named))

    def is_alike(self, arguments: Mapping[str, Any], own: str, first: str) -> bool:
        """Whether two fingerprints are of the same arguments, apart from defaults that were left out."""
        return payload_defaults.is_alike(arguments, own, first, self._defaults)

    def lacks_context(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the function takes its call's context, and the caller has not given one."""
        name = self.context_parameter
        return name is not None and name not in kwargs and self._names.index(name) >= len(args)

    def check_probe(self, probe: object) -> None:
        """Refuse a probe that could not be called with what the function is called with.

        Raises:
            UsageError: it has other parameters.
        """
        if not callable(probe):
            return
        try:
            taken = inspect.signature(probe)
        except (TypeError, ValueError):  # of a function in C
            return
        various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        passed = [
            one
            for one in self._signature.parameters.values()
            if one.name != self.context_parameter and one.kind not in various
        ]
        for some in (passed, [one for one in passed if one.default is inspect.Parameter.empty]):
            named = {one.name: None for one in some if one.kind is inspect.Parameter.KEYWORD_ONLY}
            try:
                taken.bind(*[None] * (len(some) - len(named)), **named)
            except TypeError as error:
                raise errors.UsageError(
                    f"on_unknown={getattr(probe, '__name__', probe)!r:.80} cannot be called with the arguments of"
                    f" {self._name}: {error}.",
                    meaning="It would fail when it is needed: after a call has died in the middle.",
                    todo="Give the probe the same parameters: "
                    f"{inspect.Signature([one.replace(annotation=one.empty) for one in passed])}.",
                ) from None

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The arguments by parameter; and in the form for key rules, with each of **kwargs under its own name too."""
        if self._plain and not kwargs and len(args) == len(self._names):
            arguments: Mapping[str, Any] = dict(zip(self._names, args, strict=True))
            return arguments, arguments
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        return arguments, {**arguments[self._open], **arguments} if self._open else arguments


def check_function(function: Any, name: object, store: object) -> None:
    """Refuse what cannot be guarded, and what is not a store.

    Raises:
        UsageError: a class, or not a function; a generator function, whose call does not run it yet; a URL instead of a
            store.
    """
    if not callable(function) or isinstance(function, type):
        kind = "a class" if isinstance(function, type) else "not a function"
        raise errors.UsageError(
            f"@onefold.once was put on {function!r:.80}, which is {kind}.",
            todo="Put it on the function, or the method, that has the effect.",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise errors.UsageError(
            f"{name or ''} is a generator function.",
            meaning="Its call does nothing: the work is done when the caller iterates, which onefold.once cannot see.",
            todo="Decorate a function that returns a list of what it yields.",
        )
    if isinstance(store, str):
        raise errors.UsageError(
            f"store={store!r} is a URL, not a store.", todo=f"Write store=onefold.store({redact.masked(store)!r})."
        )
    if not hasattr(store, "claim"):
        raise errors.UsageError(
            f"store={store!r:.80} is not a store.",
            todo="Write store=onefold.store(URL), for example onefold.store('sqlite:///records.db').",
        )


def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The types in a function's annotations.

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


def _fingerprinted(
    function: Callable[..., Any], signature: inspect.Signature, ignore: object, name: str
) -> frozenset[str]:
    """The parameters whose values do not identify an operation: the ignored ones, and `self` or `cls` of a method.

    Raises:
        UsageError: not a list of names, or a name that is not a parameter.
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
            f"ignore={one!r:.80}: {name} has no parameter of that name.",
            meaning=f"It has {', '.join(names) or 'none'}.",
            todo=f"Did you mean {near[0]!r}?" if near else "Name its parameters, as they are called in its definition.",
        )
    own = names[:1] if "." in getattr(function, "__qualname__", "") and names[:1] in (["self"], ["cls"]) else ()
    return ignored.union(own)


def _defaults_of(signature: inspect.Signature) -> Mapping[str, object]:
    """The defaults of the parameters."""
    left: dict[Any, object] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}
    given = {one.name: left.get(one.kind, one.default) for one in signature.parameters.values()}
    return {name: default for name, default in given.items() if default is not inspect.Parameter.empty}


def _without_form(name: str, arguments: Mapping[str, Any], error: errors.PayloadError) -> errors.PayloadError:
    """The error for arguments without a JSON form; names the argument."""
    for parameter, value in arguments.items():
        try:
            outline(value)
        except errors.PayloadError:
            return errors.PayloadError(
                f"The argument {parameter} of {name} cannot be fingerprinted: {error.what}",
                meaning=f"Calls with one key are compared by their arguments, to detect differences. {error.meaning}",
                todo="If it is not part of what is done (a connection, a request), write"
                f' @onefold.once(ignore=("{parameter}",), ...);'
                " otherwise pass a value with a JSON form: builtins, dates, Decimal, UUID, Enum, dataclasses, models.",
            )
    return error


def _context_parameter(hints: Mapping[str, Any]) -> str | None:
    """The parameter that takes the call's `Context`: the one annotated with `Context` or `Context | None`."""
    for name, kind in hints.items():
        if name != "return" and (kind is Context or Context in typing.get_args(kind)):
            return name
    return None


def _signature_of(function: Callable[..., Any], context: str | None) -> inspect.Signature:
    """A function's signature for its callers, who may leave out the context.

    Raises:
        UsageError: the context comes before other parameters.
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
    """The parameters of a guarded function as the fields of a type, for its key rules; `Any` if not annotated."""
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    kinds = {
        one.name: Any if one.kind in various else hints.get(one.name, Any) for one in signature.parameters.values()
    }
    return typing.TypedDict(f"The call of {name}", kinds)  # type: ignore[operator]


def _warn_of_volatile_key(name: str, key: KeyRule, function: Callable[..., Any]) -> None:
    """Warn of a key that seems to differ at every call; the warning points to the function."""
    if key.volatile:
        text = f"The key of {name} uses {', '.join(key.volatile)}, which seems to differ at every call:"
        text += " then no two calls are the same operation."
        warnings.warn_explicit(text, UserWarning, *where_defined(function, name))


def where_defined(function: Callable[..., Any], name: str) -> tuple[str, int]:
    """A function's file and line."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else (name, 0)
