"""The names of everything onefold keeps on a Redis server, and the way back from a name to an operation.

Every name begins with the prefix in braces: a hash tag, so that on a cluster all names of one prefix lie in one slot and
a script may touch a record and the lists beside it in one atomic step. One primary then carries one prefix; whoever has
outgrown a primary gives each app, or each group of tenants, a prefix of its own.

    {of:}record:tenant|job|key      the scope's and the job's own "|" and "%" are escaped; the key ends the name as it is

Never here: what the values look like (`rows.py`). Invariant: two operations never share a name, and the names of one
prefix never meet those of another.
"""

from __future__ import annotations

from typing import Final

from onefold import errors
from onefold.contracts.store import Record, RecordKey

PREFIX_DEFAULT: Final = "of:"
PREFIX_CHARS_MAX: Final = 64
SHELVES: Final = ("in_progress", "completed", "failed", "unknown", "released", "parked")
"""The lists that operators look through: one per status, and one for what is parked."""

_ESCAPES: Final = str.maketrans({"%": "%25", "|": "%7C"})


class Names:
    """All names under one prefix.

    Args:
        prefix: 1 to 64 printable characters without braces and blanks.

    Raises:
        UsageError: another prefix.
    """

    def __init__(self, prefix: str = PREFIX_DEFAULT) -> None:
        if not (1 <= len(prefix) <= PREFIX_CHARS_MAX and prefix.isprintable()) or set(prefix) & set("{} "):
            raise errors.UsageError(
                f"The prefix {prefix!r} cannot begin the names of records.",
                meaning=f"It has 1 to {PREFIX_CHARS_MAX} printable characters, no braces and no blanks.",
                todo="Write for example redis://localhost:6379/0?prefix=shop:",
            )
        self.tag = f"{{{prefix}}}"
        self.records = f"{self.tag}record:"
        self.jobs = f"{self.tag}jobs"
        self.shelves = [f"{self.tag}shelf:{shelf}" for shelf in SHELVES]
        self.state = f"{self.tag}state"
        self.state_floor = f"{self.tag}state-floor"
        self.ledger = f"{self.tag}ledger"
        self.ledger_sequence = f"{self.tag}ledger-sequence"
        self.ledger_jobs = f"{self.tag}ledger-jobs"

    def record(self, key: RecordKey) -> str:
        """Where a record is kept."""
        return f"{self.records}{place(key)}"

    def completed(self, minute: int) -> str:
        """Where the runs that completed in one minute (since the epoch) are counted."""
        return f"{self.tag}completed:{minute}"

    def history(self, key: RecordKey) -> str:
        """Where the rows of one operation are kept."""
        return f"{self.tag}ledger-of:{place(key)}"

    def run(self, run: str) -> str:
        """Where the rows of one run are kept."""
        return f"{self.tag}ledger-run:{run}"


def place(key: RecordKey) -> str:
    """An operation as one text."""
    return f"{job_place(key)}|{key.key}"


def job_place(key: RecordKey) -> str:
    """An operation's scope and job as one text."""
    return f"{key.scope.translate(_ESCAPES)}|{key.job.translate(_ESCAPES)}"


def key_at(place: str) -> RecordKey:
    """The operation that a text names; the inverse of `place`."""
    scope, job, key = place.split("|", 2)
    return RecordKey(_plain(scope), _plain(job), key)


def _plain(text: str) -> str:
    return text.replace("%7C", "|").replace("%25", "%")


def shelf(record: Record) -> int:
    """Which of `SHELVES` a record stands on."""
    return SHELVES.index("parked" if record.parked else record.status)
