"""What a `sqlite://` URL says: the path of one file, or `:memory:`.

    sqlite:///relative/path.db    sqlite:////absolute/path.db    sqlite://:memory:

Never here: opening the file, and what may be chosen about it (`file_settings.py`): such a URL has no options.
Invariant: what is answered is `:memory:` or a path of printable characters.
"""

from __future__ import annotations

from onefold import errors


def path_of(url: str, rest: str) -> str:
    """The file that `url` names, `rest` being what follows `sqlite://`.

    Raises:
        UsageError: it names none, or says more than a path.
    """
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
