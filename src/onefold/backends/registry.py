"""URL scheme to backend: imports that one backend now, and names the extra that is missing.

Schemes: `sqlite:///relative/path.db`, `sqlite:////absolute/path.db`, `sqlite://:memory:`.
Never here: settings of an app, declared queues. Invariant: importing this module imports no backend.
"""

from __future__ import annotations

from onefold import errors
from onefold.clock import Clock
from onefold.contracts.engine import Engine
from onefold.entropy import Entropy


def open_engine(url: str, *, clock: Clock, entropy: Entropy, owner: str) -> Engine:
    """Open the backend a URL names, creating its file when it is not there.

    Raises:
        UsageError: unknown scheme or malformed URL.
        StorageError: the file cannot be used.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise errors.UsageError(
            f"{url!r} is not an engine URL.",
            todo="Write for example sqlite:///.onefold/shop.db or sqlite://:memory:.",
        )
    if scheme == "sqlite":
        from onefold.backends.sqlite.engine import SqliteEngine

        return SqliteEngine(_sqlite_path(url, rest), clock=clock, entropy=entropy, owner=owner, url=url)
    raise errors.UsageError(
        f"{url!r}: there is no engine {scheme!r}.",
        meaning="Known schemes: sqlite.",
        todo="Use a sqlite:/// URL.",
    )


def _sqlite_path(url: str, rest: str) -> str:
    if rest == ":memory:":
        return rest
    if not rest.startswith("/") or rest == "/":
        raise errors.UsageError(
            f"{url!r} names no file.",
            todo="A relative file has three slashes (sqlite:///shop.db), an absolute one four (sqlite:////var/shop.db).",
        )
    if not rest.isprintable() or "?" in rest:
        raise errors.UsageError(
            f"{url!r} is more than a path.",
            meaning="A sqlite URL has no options, and a path no control characters.",
            todo="Write the plain path of the file, for example sqlite:///.onefold/shop.db.",
        )
    return rest[1:]
