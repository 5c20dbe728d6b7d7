"""Ownership of operation names: a name belongs to the jobs of one app, or to guarded calls.

A record's key contains the name of its job but not that of its app, so two apps with jobs of the same name on one store
would answer each other's duplicates. Therefore each name is taken once per store, by the app that uses it first: it
becomes a value in State under `operation/<name>`, which each process reads once, before its first claim. Guarded calls
with the same name in several programs are one operation on purpose; a job and a guarded function with the same name are
not. A guarded function is named by its module and qualified name unless it is given a name (`operation_name`). Two
functions with the same name in one program are usually a copied decorator: the second would be answered with the
results of the first, so it is refused when it is decorated (`declare`).

With a name, the key rule of its job is remembered, so that a release that changes the rule can be warned.
Where the role has no access to State, names are not checked. Never here: records.
Invariant: two apps never claim operations under one name, unless a person has given it to both.
"""

from __future__ import annotations

import functools
import os
import shlex
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary, WeakSet

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.documents import TRIES, reader
from onefold.contracts.state import Change, bounded_name
from onefold.record.key_identity import RuleIdentity, changed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onefold.contracts.state import Versioned
    from onefold.contracts.verbs import State, Store

PREFIX: Final = "operation/"
OPERATION_NAME_CHARS_MAX: Final = 512
_STARTED: Final = ("__main__", "__mp_main__")
"""Module names of the script that was started; the second one in a spawned child process."""


class Taken(Struct, frozen=True, kw_only=True):
    """The owner of a name.

    Args:
        name: the operations' name. kind: `job`, or `guard` for calls under @once. apps: those that declare the job,
            usually one.
        since_ms: when it was taken or transferred.
        rule: the rule that made a job's keys when a worker last started; None if that is not known.
    """

    name: str
    kind: Literal["job", "guard"]
    apps: tuple[str, ...] = ()
    since_ms: int
    rule: RuleIdentity | None = None


def state_name_of(name: str) -> str:
    """The name under which State has the owner of an operation name."""
    return bounded_name(PREFIX, name)


_read = reader(Taken, None)


def decoded(value: bytes | None) -> Taken | None:
    """The owner of a name; None if it has none, or if another version of onefold wrote a value that is unreadable here."""
    return _read(value) if value is not None else None


def take(
    state: State,
    names: Collection[str],
    app: str | None,
    now_ms: int,
    rules: Mapping[str, RuleIdentity] | None = None,
) -> list[str]:
    """Take names for the jobs of an app or, with `app` None, for guarded calls; called once in each process.

    Args:
        rules: the jobs' key rules, by name, which are remembered with the names.

    Returns:
        A sentence for each rule that differs from the one that was remembered.

    Raises:
        ConflictError: another app has one of the names, or a job has it and this is a guard, or the other way round;
            none was taken, unless another process took one at the same moment.
        TransientError: the store cannot be used now, or other processes are taking names.
    """
    rules, reported = rules or {}, dict[str, str]()
    try:
        for _ in range(TRIES):
            found = dict(zip(names, state.get([state_name_of(name) for name in names]), strict=True))
            _check(found, app)
            kind: Literal["job", "guard"] = "guard" if app is None else "job"
            apps = () if app is None else (app,)
            changes = []
            for name, one in found.items():
                rule = rules.get(name)
                taken = Taken(name=name, kind=kind, apps=apps, since_ms=now_ms, rule=rule)
                if one is not None:
                    before = decoded(one.value)
                    if before is None or rule is None or before.rule == rule:
                        continue
                    if before.rule is not None and before.rule.differs(rule):
                        reported[name] = changed(name, before.rule, rule)
                    taken = msgspec.structs.replace(before, rule=rule)
                version = 0 if one is None else one.version
                changes.append(Change(state_name_of(name), msgspec.json.encode(taken), version))
            if not changes or all(state.put(changes)):
                return list(reported.values())
    except errors.ConflictError:
        raise
    except errors.UsageError:  # this role has no permission; a missing store is reported at the claim
        return list(reported.values())
    raise errors.TransientError("Names of operations are being taken by other processes.", todo="Start it again now.")


def _check(found: Mapping[str, Versioned | None], app: str | None) -> None:
    for name, one in found.items():
        taken = decoded(one.value if one is not None else None)
        if taken is None or (taken.kind == "guard" if app is None else app in taken.apps):
            continue
        who = f"a job of the app {' and of '.join(map(repr, taken.apps))}" if taken.apps else "a function under @once"
        mine = (
            f"The job {name!r:.200} of the app {app!r}"
            if app is not None
            else f"The function {name!r:.200} under @once"
        )
        raise errors.ConflictError(
            f"{mine} has the name of {who} on the same store.",
            meaning="A record has this name in its key, and not the app's: each would be answered with what the other has"
            " done, and its own work would be lost. Nothing was run.",
            todo="Give one of them another name=, or a store of its own."
            + (
                f" If the app was renamed or the job moved here: `onefold names give {shlex.quote(name)} --to {app}`"
                if app
                else ""
            ),
        )


# -- guarded functions of this process ---------------------------------------------------------------------------------


def operation_name(name: Any, function: Callable[..., Any]) -> str:
    """The name of a guarded function's calls: `name` if it is given, otherwise the function's module and qualified name.

    It is part of every key, so it must be the same in each process that calls the function, and unique to the function.

    Raises:
        UsageError: a name that is not text, has unprintable characters or is too long; no name for a function of the
            script that was started, a lambda, a partial or a callable object.
    """
    if isinstance(name, str) and name.isprintable() and len(name) <= OPERATION_NAME_CHARS_MAX:
        return name
    if name is not None:
        raise errors.UsageError(
            f"name={name!r:.80} cannot name an operation.",
            todo=f"Use at most {OPERATION_NAME_CHARS_MAX} printable characters.",
        )
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None or "<lambda>" in qualname:
        raise errors.UsageError(
            f"@onefold.once cannot name {function!r:.120}.",
            meaning="The name is part of every key, and a lambda, a functools.partial or an object has none of its own.",
            todo='Give it one: @onefold.once(name="...", ...).',
        )
    if module in _STARTED:
        proposed = ".".join(filter(None, (_script_name(function), qualname)))
        raise errors.UsageError(
            f"@onefold.once needs name= for {qualname}: it is in the script that was started, whose module is {module}.",
            meaning=f"Every script has that name: another one's {qualname} would be answered from the records of this one,"
            " and imported under its own name this one would run again.",
            todo=f'Write @onefold.once(name="{proposed}", ...). To keep records that an earlier version of onefold made'
            f' here, write name="__main__.{qualname}".',
        )
    return f"{module}.{qualname}"


def _script_name(function: Callable[..., Any]) -> str:
    """The name under which the started script would be imported; empty for a notebook or a prompt."""
    space = getattr(function, "__globals__", {})
    spec, file = space.get("__spec__"), space.get("__file__")
    return spec.name if spec is not None else os.path.splitext(os.path.basename(file))[0] if file else ""


class _Declared:
    """The function that owns a name on a store.

    Attributes:
        module, qualname: as in Python. file: its source file; empty at a prompt or in a notebook.
        alive: the decorated functions, one for each time the function was defined, for as long as they exist.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        while isinstance(function, functools.partial):
            function = function.func
        named: Any = function if hasattr(function, "__qualname__") else type(function)
        self.module, self.qualname = str(getattr(named, "__module__", "")), str(named.__qualname__)
        file = getattr(function, "__globals__", {}).get("__file__")
        self.file = os.path.realpath(file) if isinstance(file, str) else ""
        self.alive: WeakSet[Callable[..., Any]] = WeakSet()

    def is_same(self, other: _Declared) -> bool:
        """Whether both are one function, defined twice: a module that is reloaded, or both run and imported."""
        is_one_file = bool(self.file) and self.file == other.file
        return self.qualname == other.qualname and (self.module == other.module or is_one_file)


_by_location: Final[dict[str, dict[str, _Declared]]] = {}
_by_store: Final[WeakKeyDictionary[Store, dict[str, _Declared]]] = WeakKeyDictionary()


def declare(
    store: Store, name: str, function: Callable[..., Any], guarded: Callable[..., Any], *, is_given: bool
) -> None:
    """Note which function has a name on a store, in this process, for as long as the function exists.

    Stores with the same `location` count as one store. The same function may be defined again. A nested function that
    is defined again causes a warning, unless its name `is_given`: what it uses from the outer function is not part of
    its name.

    Args:
        guarded: the decorated function.

    Raises:
        ConflictError: another function has the name.
    """
    location: str | None = getattr(store, "location", None)
    try:
        on_store = _by_store.setdefault(store, {}) if location is None else _by_location.setdefault(location, {})
    except TypeError:  # a third-party store that is not hashable, or has no weak references
        return
    mine, found = _Declared(function), on_store.get(name)
    if found is not None and not found.is_same(mine) and found.alive:
        raise errors.ConflictError(
            f"@onefold.once: {mine.module}.{mine.qualname} has the name {name!r:.200} of {found.module}.{found.qualname}"
            " on the same store.",
            meaning="The name and the key are the operation: a call of one would be answered with what the other has done"
            " under that key, and its own work would be lost.",
            todo="Give each a name= of its own. If both are the same work on purpose, have both call one function, and"
            " decorate that one.",
        )
    if found is None or not found.is_same(mine):
        on_store[name] = mine
    elif "<locals>" in mine.qualname and not is_given:
        text = f"@onefold.once: {name} is defined a second time on one store. Calls of both with the same key are one"
        text += " operation, whatever other values the functions use; give each a name= of its own, or both the same."
        warnings.warn(text, stacklevel=3)
    on_store[name].alive.add(guarded)


def guarded_names(folder: str) -> list[str]:
    """The names of this process's functions under `@once` that are defined in a folder, or below it, sorted."""
    spaces = [*_by_store.values(), *_by_location.values()]
    inside = os.path.join(os.path.realpath(folder), "")
    return sorted(
        {name for space in spaces for name, one in space.items() if one.alive and one.file.startswith(inside)}
    )
