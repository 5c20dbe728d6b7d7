"""Whose the names of operations are: one app's jobs, or guarded calls'.

A record's key has the name of its job and not the app's, so that two apps with jobs of one name on one store would answer
each other's duplicates. The name is therefore taken once for each store, by whoever uses it first: a value in State under
`operation/<name>`, which each process reads once, before its first claim. Guarded calls of one name in several programs are
one operation on purpose; a job and a guard are not.

Where a role may not read or write State nothing is compared. Never here: records.
Invariant: nothing of two apps is claimed under one name, but where a person has given it to both.
"""

from __future__ import annotations

import shlex
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.state import NAME_CHARS_MAX, Change

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onefold.contracts.state import Versioned
    from onefold.contracts.verbs import State

PREFIX: Final = "operation/"
TRIES: Final = 10  # each means that another process took one of the names just now
_DIGEST_CHARS: Final = 32


class Taken(Struct, frozen=True, kw_only=True):
    """Who uses a name.

    Args:
        name: of the operations. kind: `job`, or `guard` for calls under @once. apps: which declare the job; mostly one.
        since_ms: when it was taken or given.
    """

    name: str
    kind: Literal["job", "guard"]
    apps: tuple[str, ...] = ()
    since_ms: int


def place_of(name: str) -> str:
    """Where State has the taker of a name."""
    if len(PREFIX + name) <= NAME_CHARS_MAX:
        return PREFIX + name
    digest = blake2b(name.encode(), digest_size=_DIGEST_CHARS // 2).hexdigest()
    return f"{PREFIX}{name[: NAME_CHARS_MAX - len(PREFIX) - _DIGEST_CHARS - 1]}~{digest}"


def decoded(found: Versioned | None) -> Taken | None:
    """Who has a name; None: nobody, or what another version of onefold wrote there cannot be read."""
    try:
        return msgspec.json.decode(found.value, type=Taken) if found is not None else None
    except msgspec.MsgspecError:
        return None


def take(state: State, names: Collection[str], app: str | None, now_ms: int) -> None:
    """Have names belong to the jobs of an app; or, with `app` None, to guarded calls. Once for each process.

    Raises:
        ConflictError: one is another app's, or a job's where this is a guard, or the other way round; none was taken,
            unless another process took one in the same moment.
        TransientError: the store cannot be used now, or others take names just now.
    """
    try:
        for _ in range(TRIES):
            found = dict(zip(names, state.get([place_of(name) for name in names]), strict=True))
            _check(found, app)
            kind: Literal["job", "guard"] = "guard" if app is None else "job"
            apps = () if app is None else (app,)
            free = [name for name, one in found.items() if one is None]
            values = [Taken(name=name, kind=kind, apps=apps, since_ms=now_ms) for name in free]
            changes = [Change(place_of(one.name), msgspec.json.encode(one), 0) for one in values]
            if not changes or all(state.put(changes)):
                return
    except errors.ConflictError:
        raise
    except errors.UsageError:  # this role may not; a store that is not there says so at the claim
        return
    raise errors.TransientError("Names of operations are being taken by other processes.", todo="Start it again now.")


def _check(found: Mapping[str, Versioned | None], app: str | None) -> None:
    for name, one in found.items():
        taken = decoded(one)
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
                f" If the app was renamed or the job moved here: onefold names give {shlex.quote(name)} --to {app}"
                if app
                else ""
            ),
        )
