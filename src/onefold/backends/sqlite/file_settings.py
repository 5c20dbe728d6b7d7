"""What may be chosen about a database file: how long to wait for it, its pages, and how long its log may become.

Never here: opening one. Invariant: a page size is that of a new file; one that exists keeps its own, and works with it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class FileSettings(Struct, frozen=True, kw_only=True):
    """The defaults are those of workers.

    Args:
        busy_ms: how long a write waits for other processes before `StorageBusy`, in milliseconds, 0 or more.
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
