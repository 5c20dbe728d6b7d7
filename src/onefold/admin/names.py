"""The names of operations as an operator sees them: whose each is, and handing one over.

Never here: what a process does with a name that is not its own (`runtime/names.py`). Invariant: a name is given only by
changing the very value that was read.
"""

from __future__ import annotations

from collections.abc import Collection

from onefold import errors
from onefold.admin.session import AdminSession
from onefold.contracts.documents import change
from onefold.runtime.names import PREFIX, Taken, decoded, place_of


def taken(session: AdminSession) -> list[Taken]:
    """All names that are taken on this store, by name."""
    state = session.engine.state
    found = (decoded(one.value if one is not None else None) for one in state.get(state.names(PREFIX)))
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


def give(
    session: AdminSession,
    names: Collection[str],
    app: str,
    *,
    of: str | None = None,
    shared: bool = False,
    reason_text: str | None = None,
) -> list[Taken]:
    """Have names belong to the jobs of an app from now on; what it changed.

    Args:
        of: all names of that app, instead of `names`.
        shared: who has them keeps them too. Then the apps answer each other's duplicates: for an app that is being renamed,
            and for apps whose keys never meet.

    Raises:
        NotFoundError: nobody has such a name. TransientError: it is being changed by others.
    """
    known = {one.name: one for one in taken(session)}
    wanted = names if of is None else [name for name, one in known.items() if of in one.apps]
    missing = next((name for name in wanted if name not in known), None if wanted else of)
    if missing is not None:
        raise errors.NotFoundError(
            f"No {'name of the app' if of is not None else 'operation'} {missing!r:.200} is known here.",
            meaning=f"Known are {', '.join(known) or 'none'}. Nothing was changed.",
            todo="A name is taken when a worker of its app starts; see onefold names list.",
        )
    return [_give(session, name, app, shared=shared, reason_text=reason_text) for name in wanted]


def _give(session: AdminSession, name: str, app: str, *, shared: bool, reason_text: str | None) -> Taken:
    def decide(before: Taken | None) -> tuple[Taken | None, tuple[str, ...]]:
        had = before.apps if before is not None else ()
        apps = tuple(dict.fromkeys((*(had if shared else ()), app)))
        return Taken(name=name, kind="job", apps=apps, since_ms=session.now_ms()), had

    after, had = change(session.engine.state, place_of(name), decoded, None, decide)
    if after is None or had is None:
        raise errors.TransientError(f"The name {name!r:.200} is being changed by others.", todo="Run it again now.")
    session.record("name-given", job=name, to=", ".join(after.apps), of=", ".join(had) or None, reason_text=reason_text)
    return after
