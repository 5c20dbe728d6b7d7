"""A database file: which one a `sqlite://` URL names, and what may be chosen about it.

    sqlite:///relative/path.db    sqlite:////absolute/path.db    sqlite://:memory:

How long to wait for it, its pages, and how long its log may become are chosen by who opens it: such a URL has no options.
Never here: opening one. Invariant: a path is `:memory:` or of printable characters; a page size is of new files, others keep
their own.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from onefold import errors


class FileSettings(Struct, frozen=True, kw_only=True):
    """The defaults are those of workers.

    Args:
        busy_ms: how long a write waits for other processes, and for an open transaction of its own, before `StorageBusy`, in
            milliseconds, 0 or more.
        log_bytes: of the write-ahead log, after which it is written into the file and overwritten from its beginning. Until
            it has grown to that, a sync has to note its new length too (80 us more on ext4). 40 MB: 10-30 % more jobs than
            with SQLite's 4 MB, measured.
        page_bytes: of a new file: a power of 2, 512 to 65,536 (https://www.sqlite.org/pragma.html#pragma_page_size). A
            commit writes whole pages: small ones make small changes cheaper, large ones large messages and long scans.
    """

    busy_ms: int = 10_000
    log_bytes: int = 40_960_000
    page_bytes: int = 4_096


FOR_WORKERS: Final = FileSettings()


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
